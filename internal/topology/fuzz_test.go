package topology_test

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/topology"
)

// acceptable is true for a name that RabbitMQ takes from a client: a short string of AMQP that is not one of its own.
func acceptable(name string) bool {
	return name != "" && len(name) <= 255 && utf8.ValidString(name) && !strings.HasPrefix(name, "amq.") && !strings.ContainsFunc(name, unicode.IsControl)
}

func FuzzNames(f *testing.F) {
	f.Add("async", "async", "test", "lost", "async.failed", "order.#", uint8(0))
	f.Add("", "", "", "", "", "", uint8(1))
	f.Add("amq.direct", "a", "a", "a.quarantine", "a", "", uint8(2))
	f.Add("async", "p", "p.fallback.1s", "p.fallback", "p.failed", "\x00", uint8(3))
	f.Add(strings.Repeat("é", 110), strings.Repeat("x", 220), strings.Repeat("q", 247), "..", "\xff", "k", uint8(4))
	f.Add("e.fallback", "e", "e.return", "e.return.alternate", "e.failed", "k", uint8(9))
	f.Add("async", "", "async.failed", "async.quarantine", "async.quarantine.quarantine", "k", uint8(16))
	f.Fuzz(func(t *testing.T, exchange, prefix, first, second, failure, key string, choices uint8) {
		transport := async()
		transport.Spec.Exchange = &v1alpha1.Exchange{Name: exchange, Type: v1alpha1.ExchangeTopic}
		transport.Spec.Queues = []v1alpha1.Queue{{Name: first, BindingKeys: []string{key}}, {Name: second, Bindings: []v1alpha1.Binding{{Exchange: key, Keys: []string{exchange}}}}}
		transport.Spec.Failure = &v1alpha1.Failure{}
		transport.Spec.Workers = nil
		transport.Spec.Exchange.UnroutedTo = nil
		if choices&1 != 0 {
			transport.Spec.Prefix = &prefix
		}
		if choices&2 != 0 {
			transport.Spec.Failure.Queue = &failure
		}
		if choices&4 != 0 {
			transport.Spec.Exchange = nil
		}
		if choices&8 != 0 {
			transport.Spec.Queues[0].Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}
		}
		if choices&16 != 0 {
			transport.Spec.Queues[1].Adopt = new(true)
		}
		needs := compile.Needs{Lanes: retry.Lanes{100 * time.Millisecond, time.Second, retry.MaxLane}, Deliveries: map[string]int64{first: 30}}
		objects, err := topology.Desired(transport, needs, owner)
		var invalid *topology.InvalidError
		switch {
		case errors.As(err, &invalid):
			if len(invalid.Problems) == 0 || !utf8.ValidString(err.Error()) {
				t.Errorf("an error that tells nothing: %q", err)
			}
		case err != nil:
			t.Errorf("error %v", err)
		default:
			checkNames(t, objects)
		}
	})
}

// checkNames expects objects that can stand beside each other on a broker.
func checkNames(t *testing.T, objects topology.Objects) {
	t.Helper()
	exchanges, queues, policies := map[string]bool{}, map[string]bool{}, map[string]bool{}
	take := func(kind string, taken map[string]bool, name string) {
		if !acceptable(name) {
			t.Errorf("%s %q is not acceptable", kind, name)
		}
		if taken[name] {
			t.Errorf("%s %q is there twice", kind, name)
		}
		taken[name] = true
	}
	for _, e := range objects.Exchanges {
		take("exchange", exchanges, e.Name)
	}
	for _, q := range objects.Queues {
		take("queue", queues, q.Name)
	}
	for _, p := range objects.Policies {
		if p.Name == "" || policies[p.Name] {
			t.Errorf("policy %q is empty or there twice", p.Name)
		}
		policies[p.Name] = true
	}
	for _, b := range objects.Bindings {
		if !queues[b.Destination] || len(b.RoutingKey) > 255 || !utf8.ValidString(b.RoutingKey) {
			t.Errorf("binding %+v", b)
		}
	}
}
