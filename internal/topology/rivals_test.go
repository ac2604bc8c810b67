package topology

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

// manyQueues is what a Transport with 64 queues wants.
func manyQueues(tb testing.TB) Objects {
	tb.Helper()
	transport := &v1alpha1.Transport{Spec: v1alpha1.TransportSpec{Exchange: &v1alpha1.Exchange{Name: "async", Type: v1alpha1.ExchangeDirect}}}
	for i := range 64 {
		transport.Spec.Queues = append(transport.Spec.Queues, v1alpha1.Queue{Name: fmt.Sprint("q", i)})
	}
	desired, err := Desired(transport, compile.Needs{}, "c1/shop/async")
	if err != nil {
		tb.Fatal(err)
	}
	return desired
}

// manyPolicies are so many of others, of which nobody can tell by their names alone that they are for other queues.
func manyPolicies(n int) map[string]Policy {
	policies := map[string]Policy{}
	for i := range n {
		policy := Policy{Name: fmt.Sprint("p", i), ApplyTo: "all", Priority: i, Pattern: fmt.Sprintf("^a%d.*(b|c)+d$", i)}
		if i%2 == 0 {
			policy.Pattern = exactly(fmt.Sprint("others.", i))
		}
		policies[policy.Name] = policy
	}
	return policies
}

func TestRivals_ReadsPoliciesOfOthersOnceForAllQueues(t *testing.T) {
	const policies = 5000
	desired := manyQueues(t)
	cost := func(policies map[string]Policy) float64 {
		return testing.AllocsPerRun(1, func() { Diff(desired, Observed{Policies: policies}, nil) })
	}
	// Time says little on a busy machine, and each look at a pattern allocates.
	if each := (cost(manyPolicies(policies)) - cost(nil)) / policies; each > 40 {
		t.Errorf("each policy of others costs %.0f allocations", each)
	}
}

func BenchmarkManyPoliciesOfOthers(b *testing.B) {
	desired, observed := manyQueues(b), Observed{Policies: manyPolicies(40_000)}
	for b.Loop() {
		Diff(desired, observed, nil)
	}
}

// weighed is the strongest of all policies that apply to an object, each held against it.
func weighed(policies map[string]Policy, kind Kind, name, objectType, applied, but string) (strongest Policy, found bool) {
	for _, id := range slices.Sorted(maps.Keys(policies)) {
		policy := policies[id]
		matched, err := regexp.MatchString(policy.Pattern, name)
		asked := object{kind, name, objectType}
		if id == but || !asked.has(policy.ApplyTo) || (err != nil || !matched || !asked.isFor(likenessOf(policy))) && applied != id {
			continue
		}
		if !found || policy.Priority > strongest.Priority {
			strongest, found = policy, true
		}
	}
	return strongest, found
}

func TestRivals_FindsTheStrongestPolicyOfOthers(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	types := map[string]string{"a": TypeQuorum, "b": TypeClassic, "a.b": TypeQuorum, "none": ""}
	var desired Objects
	for _, name := range slices.Sorted(maps.Keys(types)) {
		if types[name] != "" {
			desired.Queues = append(desired.Queues, Queue{Name: name, Type: types[name]})
		}
	}
	for range 2000 {
		policies := map[string]Policy{}
		for i := range random.IntN(12) {
			name := fmt.Sprint("p", i)
			policies[name] = Policy{
				Name: name, Priority: random.IntN(3),
				Pattern:    pick("^a$", `^a\.b$`, "^b$", "a", "^a", "b$", ".*", "^(a|b)$", `^(?>a)`),
				Definition: Arguments{pick(keyExpires, keyExpires, keyDeliveryLimit, "queue-mode", "max-age"): 1},
				ApplyTo:    pick("all", applyToQueues, applyToExchanges, "quorum_queues", "classic_queues", "streams"),
			}
		}
		d := &differ{desired: desired, observed: Observed{Policies: policies}, patterns: map[string]*regexp.Regexp{}}
		for range 20 {
			kind, name := Kind(pick(string(KindQueue), string(KindExchange))), pick("a", "b", "a.b", "none")
			applied, but := pick("", "p0", "p1", "gone"), pick("", "p0", "p2")
			want, exists := weighed(policies, kind, name, types[name], applied, but)
			if got, found := d.rival(kind, name, applied, Policy{Name: but}); found != exists || got.Name != want.Name {
				t.Fatalf("%q, and not %q, applies to %s %s beside %q, where the broker says %q: %v", got.Name, want.Name, kind, name, but, applied, policies)
			}
		}
	}
}

func TestRivals_LeavesRoomForOurPatterns(t *testing.T) {
	d := &differ{patterns: map[string]*regexp.Regexp{}, observed: Observed{Policies: manyPolicies(20_000)}}
	d.desired.Policies = []Policy{{Name: "ours", Pattern: lanesPattern(compile.Names{Prefix: "async"}), ApplyTo: applyToQueues}}
	lane := compile.Names{Prefix: "async"}.LanePrefix() + "5s"
	d.rival(KindExchange, "async", "", Policy{})
	if _, found := d.ownPolicy(KindQueue, lane); !found {
		t.Errorf("no policy of ours is found for %s", lane)
	}
}

func TestRivals_TakesTheBrokersWordWithoutTimeForPatterns(t *testing.T) {
	d := &differ{patterns: map[string]*regexp.Regexp{}, observed: Observed{Policies: map[string]Policy{
		"wide":  {Name: "wide", ApplyTo: "all", Pattern: "^a", Priority: 1},
		"named": {Name: "named", ApplyTo: "all", Pattern: exactly("a1")},
	}}}
	rival := func(name, applied string) string {
		policy, _ := d.rival(KindQueue, name, applied, Policy{})
		return policy.Name
	}
	if got := rival("a1", ""); got != "wide" {
		t.Fatalf("%q applies", got)
	}
	d.ranked.matched = maxMatching
	for applied, want := range map[string]string{"": "", "wide": "wide"} {
		if got := rival("a2", applied); got != want {
			t.Errorf("the broker says %q, and %q applies", applied, got)
		}
	}
	d.ranked.found = map[object]strongest{}
	if got := rival("a1", ""); got != "named" {
		t.Errorf("%q applies to the queue that a policy names", got)
	}
}
