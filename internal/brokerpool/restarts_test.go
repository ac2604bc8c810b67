package brokerpool

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/testtransport"
)

// awaitAnswer lets all management APIs be asked, and waits until they are found to be silent or not.
func awaitAnswer(t *testing.T, r *RestartWatch, at string, silent bool) {
	t.Helper()
	testtransport.Eventually(t, "the management API to be asked", func() bool {
		r.tick(t.Context(), time.Now().Add(askEvery))
		r.mu.Lock()
		defer r.mu.Unlock()
		return !r.all[at].asking && r.all[at].silent == silent
	})
}

func TestRestartWatch_LooksAtTransportsOfABrokerThatIsBack(t *testing.T) {
	t.Parallel()
	m, b, r := newManagement(t), NewPool(0, 8, nil), NewRestartWatch(time.Minute, tenancy.NewProcessors())
	other := newManagement(t).port(t, b, "password")
	port, one, two := m.port(t, b, "password"), types.NamespacedName{Name: "one"}, types.NamespacedName{Name: "two"}
	for _, name := range []types.NamespacedName{one, two} {
		if restarted := r.Of(name, port); !restarted.IsZero() {
			t.Errorf("started again at %s", restarted)
		}
	}
	r.Of(types.NamespacedName{Name: "elsewhere"}, other)
	awaitAnswer(t, r, port.api, false)
	m.down.Store(true)
	awaitAnswer(t, r, port.api, true)
	if looks := r.tick(t.Context(), time.Now()); len(looks) > 0 || !r.Of(one, port).IsZero() {
		t.Errorf("while it is silent %v are looked at", looks)
	}
	m.down.Store(false)
	awaitAnswer(t, r, port.api, false)
	restarted := r.Of(one, port)
	if restarted.IsZero() {
		t.Fatal("that it answers again is not known")
	}
	for _, after := range []time.Duration{5 * time.Second, 14 * time.Second, 30 * time.Second} {
		at := restarted.Add(after)
		if early := r.tick(t.Context(), at.Add(-time.Second)); len(early) > 0 {
			t.Errorf("a second before %s %v are looked at", after, early)
		}
		looks := r.tick(t.Context(), at)
		slices.SortFunc(looks, func(a, b types.NamespacedName) int { return strings.Compare(a.Name, b.Name) })
		if !slices.Equal(looks, []types.NamespacedName{one, two}) {
			t.Errorf("after %s %v are looked at", after, looks)
		}
	}
	if looks := r.tick(t.Context(), restarted.Add(time.Hour)); len(looks) > 0 {
		t.Errorf("an hour later %v are looked at", looks)
	}
}

func TestRestartWatch_MovesATransportToItsNewBroker(t *testing.T) {
	b, r, name := NewPool(0, 8, nil), NewRestartWatch(time.Minute, tenancy.NewProcessors()), types.NamespacedName{Name: "one"}
	first, second := newManagement(t).port(t, b, "password"), newManagement(t).port(t, b, "password")
	r.Of(name, first)
	r.Of(name, second)
	if len(r.all) != 1 || r.all[second.api] == nil || !r.all[second.api].transports[name] {
		t.Errorf("it is of %v", r.all)
	}
	r.Forget(name)
	if len(r.all) > 0 {
		t.Errorf("when it is gone, it is of %v", r.all)
	}
}

// What was silent for long is left alone for as long, but not when it answers again.
func TestRestartWatch_LetsABrokerBeObservedOnceItIsBack(t *testing.T) {
	t.Parallel()
	m, b, r := newManagement(t), NewPool(0, 8, nil), NewRestartWatch(time.Minute, tenancy.NewProcessors())
	port := m.port(t, b, "password")
	r.Of(types.NamespacedName{Name: "one"}, port)
	m.down.Store(true)
	awaitAnswer(t, r, port.api, true)
	if _, err := port.View("shop/async", time.Hour).Observe(t.Context()); err == nil {
		t.Fatal("a broker that is down was observed")
	}
	port.rest = time.Hour
	m.down.Store(false)
	awaitAnswer(t, r, port.api, false)
	observe(t, port.View("shop/async", time.Hour))
}
