package topology

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// rivals are the observed policies, of which there may be tens of thousands, found without a look at all of them for each object.
type rivals struct {
	// exact are those of one name each, by that name; broad are the others, the strongest first.
	exact map[string][]*alike
	broad []*alike
	// found are those of an object that was asked for before.
	found map[object]strongest
	// matched is what the patterns of broad have cost so far, in steps times bytes.
	matched int
}

// object is what a policy may apply to.
type object struct {
	kind            Kind
	name, queueType string
}

// alike are policies of one pattern for objects of the same kind: where one of them applies, all do.
type alike struct {
	likeness

	pattern *regexp.Regexp
	// repeated is true where others have the same pattern.
	repeated bool
	strongest
}

// likeness is what tells where a policy may apply.
type likeness struct {
	text, applyTo string
	// noClassic and noQuorum are true where it has a key that queues of this type do not know.
	noClassic, noQuorum bool
}

func likenessOf(policy Policy) likeness {
	like := likeness{text: policy.Pattern, applyTo: policy.ApplyTo}
	for key := range policy.Definition {
		switch key {
		case keyDeliveryLimit, keyDeadLetterStrategy, "target-group-size":
			like.noClassic = true
		case "ha-mode", "queue-mode", "queue-master-locator":
			like.noQuorum = true
		case "initial-cluster-size", "max-age", "stream-max-segment-size-bytes":
			like.noClassic, like.noQuorum = true, true
		}
	}
	return like
}

// strongest are two policies at most, the stronger one first. The second is asked for where the first is ours.
type strongest []Policy

func (s *strongest) add(policies ...Policy) {
	*s = append(*s, policies...)
	slices.SortFunc(*s, byStrength)
	*s = (*s)[:min(len(*s), 2)]
}

// byStrength puts the policy first that wins; of equals, where the broker's choice is undefined, the one whose name comes first.
func byStrength(a, b Policy) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Name, b.Name))
}

// rivals are worked out when they are first needed.
func (d *differ) rivals() *rivals {
	if d.ranked != nil {
		return d.ranked
	}
	d.ranked = &rivals{exact: map[string][]*alike{}, found: map[object]strongest{}}
	var wide, narrow []*alike
	for _, some := range likenesses(d.observed.Policies) {
		if only, exact := exactName(some.text); exact {
			d.ranked.exact[only] = append(d.ranked.exact[only], some)
		} else if (object{kind: KindExchange}).has(some.applyTo) {
			wide = append(wide, some)
		} else {
			narrow = append(narrow, some)
		}
	}
	// Ours have room before all others, and the lanes' policies of hundreds of Transports after them.
	for _, ours := range d.desired.Policies {
		d.matches(ours, "")
	}
	for _, some := range append(wide, narrow...) {
		if some.pattern = d.patternOf(some.text); some.pattern != nil {
			d.ranked.broad = append(d.ranked.broad, some)
		}
	}
	of := map[string]int{}
	for _, some := range d.ranked.broad {
		of[some.text]++
	}
	for _, some := range d.ranked.broad {
		some.repeated = of[some.text] > 1
	}
	slices.SortFunc(d.ranked.broad, func(a, b *alike) int { return byStrength(a.strongest[0], b.strongest[0]) })
	return d.ranked
}

// likenesses are all policies, by the names of the first ones.
func likenesses(policies map[string]Policy) []*alike {
	known := map[likeness]*alike{}
	var all []*alike
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		policy := policies[name]
		like := likenessOf(policy)
		if known[like] == nil {
			known[like] = &alike{likeness: like}
			all = append(all, known[like])
		}
		known[like].add(policy)
	}
	return all
}

// maxMatching bounds what the patterns of a vhost may cost in one look, in steps times bytes of names: some two seconds at worst. As
// many steps as are compiled may so be held against 600 names of 30 bytes.
const maxMatching = 20_000 * 30 * 600

// rival returns the strongest policy of others that would apply to an object if ours did not. Patterns that only the
// broker's own engine understands count where the broker says that they apply.
func (d *differ) rival(kind Kind, name, applied string, ours Policy) (Policy, bool) {
	asked := object{kind, name, d.typeOf(name)}
	candidates := slices.Clone(d.rivals().of(asked, d.patternWeight))
	if policy, exists := d.observed.Policies[applied]; exists && asked.has(policy.ApplyTo) {
		candidates = append(candidates, policy)
		slices.SortFunc(candidates, byStrength)
	}
	for _, policy := range candidates {
		if policy.Name != ours.Name {
			return policy, true
		}
	}
	return Policy{}, false
}

// of are those whose patterns match an object. steps are those of all patterns.
func (r *rivals) of(asked object, steps int) strongest {
	best, known := r.found[asked]
	if known {
		return best
	}
	for _, some := range r.exact[asked.name] {
		if asked.isFor(some.likeness) {
			best.add(some.strongest...)
		}
	}
	r.matched += steps * len(asked.name)
	tried := map[string]bool{} // each pattern once, as the steps are counted
	for _, some := range r.broad {
		weaker := len(best) == 2 && byStrength(best[1], some.strongest[0]) < 0 // and so are all that follow
		if r.matched > maxMatching || weaker {
			break
		}
		if asked.isFor(some.likeness) && some.matches(asked.name, tried) {
			best.add(some.strongest...)
		}
	}
	r.found[asked] = best
	return best
}

func (a *alike) matches(name string, tried map[string]bool) bool {
	if !a.repeated {
		return a.pattern.MatchString(name)
	}
	matches, known := tried[a.text]
	if !known {
		matches = a.pattern.MatchString(name)
		tried[a.text] = matches
	}
	return matches
}

// isFor is true where such policies may apply to it. RabbitMQ, 3.10 to 4.3, applies none to a queue whose type does not know one of its keys.
func (o object) isFor(like likeness) bool {
	unknown := o.kind == KindQueue && (like.noClassic && o.queueType == TypeClassic || like.noQuorum && o.queueType == TypeQuorum)
	return o.has(like.applyTo) && !unknown
}

// has is true where policies for such objects may apply to it.
func (o object) has(applyTo string) bool {
	switch applyTo {
	case "all":
		return true
	case applyToExchanges:
		return o.kind == KindExchange
	case applyToQueues:
		return o.kind == KindQueue
	case "quorum_queues", "classic_queues":
		return o.kind == KindQueue && strings.HasPrefix(applyTo, o.queueType)
	default:
		return false
	}
}
