package apply_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

// asked counts what is asked and written about queues and exchanges that begin with a name.
type asked struct {
	*simulatedVhost

	of    string
	times map[string]int
	// order has all writes.
	order []string
}

func (a *asked) note(what, name string) {
	if strings.Contains(name, a.of) {
		a.times[what]++
	}
}

func (a *asked) Apply(ctx context.Context, step topology.Step) (bool, error) {
	a.order = append(a.order, step.String())
	a.note(string(step.Action)+" "+string(step.Ref().Kind), step.Ref().Name)
	return a.simulatedVhost.Apply(ctx, step)
}

func (a *asked) Bindings(ctx context.Context, queue string) ([]topology.Binding, error) {
	a.note("look", queue)
	return a.simulatedVhost.Bindings(ctx, queue)
}

func (a *asked) DeleteExchange(ctx context.Context, name string) error {
	a.note("delete exchange", name)
	return a.simulatedVhost.DeleteExchange(ctx, name)
}

// forgeries are queues, with bindings and failed messages, and exchanges of somebody else, with the mark of a Transport.
func forgeries(b *simulatedBroker, number int) {
	mark := topology.Arguments{topology.OwnerArgument: owner}
	for i := range number {
		holding, name, exchange := fmt.Sprintf("evil.holding%03d", i), fmt.Sprintf("evil.queue%03d", i), fmt.Sprintf("evil.exchange%03d", i)
		_, _ = b.declareQueue(topology.Queue{Name: holding, Type: topology.TypeQuorum, Durable: true, Arguments: mark})
		b.enqueue(b.queues[holding], simulatedMessage{})
		_, _ = b.declareQueue(topology.Queue{Name: name, Type: topology.TypeClassic, Durable: true, Arguments: mark})
		for key := range 20 {
			_ = b.bind(topology.Binding{Source: "amq.direct", Destination: name, RoutingKey: strconv.Itoa(key), PropertiesKey: strconv.Itoa(key)})
		}
		_, _ = b.declareExchange(topology.Exchange{Name: exchange, Type: topology.TypeDirect, Durable: true, Arguments: mark})
	}
}

// 400 queues of another team with this Transport's mark kept its workers from each change of the spec for minutes.
func TestCarryOut_TakesAFewOfThoseThatOnlyAMarkSaysAreOursAfterAllElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const number, most = 30, 8
		broker := newSimulatedBroker()
		port := &asked{simulatedVhost: &simulatedVhost{b: broker}, of: "evil", times: map[string]int{}}
		transport := testtransport.New("http://127.0.0.1:8080/messages")
		var state apply.State
		look := func() apply.Report {
			desired, err := topology.Desired(transport, compile.Needs{}, owner)
			if err != nil {
				t.Fatal(err)
			}
			clear(port.times)
			port.order = nil
			report, err := apply.Once(t.Context(), port, apply.Input{Desired: desired, State: state, Waits: topology.DefaultWaits(), Now: time.Now()},
				func(context.Context, []string) error { return nil })
			if _, young := err.(*apply.TooYoungError); err != nil && !young { //nolint:errorlint // as it is returned
				t.Fatal(err)
			}
			state.Keep(&report)
			port.pass(10 * time.Second)
			return report
		}
		look()
		look()
		forgeries(broker, number)
		port.pass(10 * time.Second)
		transport.Spec.Queues = append(transport.Spec.Queues, v1alpha1.Queue{Name: "more"})
		look()
		few := func(looks int) {
			for range looks {
				report := look()
				for what, times := range port.times {
					if bound := map[string]int{"delete binding": most * most, "look": 2 * most}[what]; times > max(bound, most) {
						t.Fatalf("%d times in a look: %s", times, what)
					}
				}
				for i, write := range port.order {
					isOfSpec := func(w string) bool { return !strings.Contains(w, "evil") }
					if strings.Contains(write, "evil") && slices.ContainsFunc(port.order[i:], isOfSpec) {
						t.Fatalf("%s comes before the spec's in %v", write, port.order)
					}
				}
				if len(state.Retiring) > 0 && (report.RequeueAfter <= 0 || report.RequeueAfter > time.Minute) {
					t.Fatalf("the next look is in %s", report.RequeueAfter)
				}
			}
		}
		few(number * 4)
		if broker.queues["more"] == nil {
			t.Error("the queue of the spec is not made")
		}
		left, pinned := 0, 0
		for name := range broker.queues {
			left += min(1, strings.Count(name, "evil.queue"))
			pinned += min(1, len(broker.policies["redrive.async:failure:"+name].Name)*strings.Count(name, "evil.holding"))
		}
		if left > 0 || pinned != number {
			t.Errorf("%d empty ones are left, and %d of %d that hold messages are pinned", left, pinned, number)
		}
		for _, queue := range broker.queues {
			queue.ready = nil
		}
		few(number * 4)
		for name := range broker.exchanges {
			left += strings.Count(name, "evil")
		}
		if len(state.Retiring) > 0 || left > 0 || len(broker.policies) > 10 {
			t.Errorf("at the end %d queues are on their way out, %d exchanges are left, and there are %d policies", len(state.Retiring), left, len(broker.policies))
		}
	})
}
