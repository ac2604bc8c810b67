//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
)

// manyQueues is the most that a Transport may have.
const manyQueues = 64

// large is a Transport that takes a while to be made, without workers.
func large(transport *v1alpha1.Transport) {
	transport.Spec.Lanes = v1alpha1.LanesFine
	transport.Spec.Workers = nil
	for n := len(transport.Spec.Queues); n < manyQueues; n++ {
		name := numbered("q", n)
		transport.Spec.Queues = append(transport.Spec.Queues, v1alpha1.Queue{Name: name, BindingKeys: []string{name}})
	}
}

func manyDelays() *v1alpha1.RetryPolicySpec {
	backoff := &v1alpha1.Backoff{Type: v1alpha1.BackoffExplicit}
	for n := range 32 {
		backoff.Delays = append(backoff.Delays, *v1alpha1.NewDuration(time.Duration(n+1) * 7 * time.Second))
	}
	return &v1alpha1.RetryPolicySpec{MaxRetries: ptr.To[int32](32), Backoff: backoff}
}

// TestApply_MakesTheSameAfterTheOperatorIsKilledInItsMiddle is not run beside others: it takes the operator away.
func TestApply_MakesTheSameAfterTheOperatorIsKilledInItsMiddle(t *testing.T) {
	undisturbed := openShop(t, "whole", plan{change: large, policy: manyDelays()})
	want := undisturbed.definitions()

	s := newShop(t, "torn", plan{change: large, policy: manyDelays(), tapped: true})
	s.open()
	made := s.awaitQueues(10)
	leader := failover(t)
	if total := len(undisturbed.awaitQueues(manyQueues)); len(made) >= total {
		t.Fatalf("all %d queues were there before the operator was killed", total)
	}
	t.Logf("operator %s was killed with %d queues made", leader, len(made))
	s.awaitReady(readyWithin)
	if got := s.definitions(); got != want {
		t.Errorf("the broker has\n%s\nwant what an operator makes that is not killed\n%s", got, want)
	}
	s.checkQuiet()
}

// awaitQueues looks as often as it can until a number of queues is there.
func (s *shop) awaitQueues(number int) []queue {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	for {
		queues, err := s.broker.queues(ctx, s.vhost)
		must(s.t, err)
		if len(queues) >= number {
			return queues
		}
	}
}

// failover kills the operator that leads, waits for another one to lead, and returns the name of the dead.
func failover(t *testing.T) string {
	t.Helper()
	ctx := t.Context()
	before, err := suite.leader(ctx)
	must(t, err)
	must(t, suite.kill(ctx, operatorNamespace, before))
	await(t, time.Minute, "another leader than "+before, func() (bool, any) {
		now, err := suite.leader(ctx)
		return err == nil && now != "" && now != before, fmt.Sprint(now, err)
	})
	must(t, suite.checkOperator(ctx)) // so that the next one finds two
	return before
}

// definitions of everything in the vhost, without what differs from shop to shop.
func (s *shop) definitions() string {
	s.t.Helper()
	var all map[string]any
	must(s.t, s.broker.manage(s.t.Context(), http.MethodGet, apiPath("definitions", s.vhost), nil, &all))
	var lines []string
	for _, kind := range []string{"exchanges", "queues", "bindings", "policies"} {
		objects, _ := all[kind].([]any)
		for _, object := range objects {
			text, err := json.Marshal(object)
			must(s.t, err)
			lines = append(lines, kind+" "+strings.NewReplacer(s.namespace, "NAMESPACE", s.vhost, "VHOST").Replace(string(text)))
		}
	}
	if len(lines) < manyQueues {
		s.t.Fatalf("the broker has only\n%s", strings.Join(lines, "\n"))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// checkQuiet lets another operator take over, which looks at everything anew, and checks that it writes nothing: neither to
// the broker nor to the API server.
func (s *shop) checkQuiet() {
	s.t.Helper()
	ctx := s.t.Context()
	before := s.awaitReady(readyWithin)
	seen, err := suite.readTap(ctx, s.vhost, 0)
	must(s.t, err)
	failover(s.t)
	var since []string
	await(s.t, time.Minute, "the new operator to look at the broker", func() (bool, any) {
		since, err = suite.readTap(ctx, s.vhost, len(seen))
		return err == nil && len(since) >= 3, fmt.Sprint(since, err)
	})
	// What it would write, it writes right after it looked.
	poll(ctx, 2*time.Second, func() (bool, any) { return false, nil })
	since, err = suite.readTap(ctx, s.vhost, len(seen))
	must(s.t, err)
	for _, request := range since {
		if !strings.HasPrefix(request, http.MethodGet+" ") {
			s.t.Errorf("the second operator wrote: %s", request)
		}
	}
	after := s.awaitReady(time.Minute)
	if was, is := asJSON(s.t, before.Status), asJSON(s.t, after.Status); was != is {
		s.t.Errorf("the second operator wrote the status:\n%s\nbecame\n%s", was, is)
	}
}

func asJSON(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	must(t, err)
	return string(text)
}

// TestOperator_CarriesOutAChangeAfterItsLeaderIsKilled is not run beside others: it takes the operator away.
func TestOperator_CarriesOutAChangeAfterItsLeaderIsKilled(t *testing.T) {
	long(t)
	s := openShop(t, "leader", plan{})
	flow := s.startLoad(60, mixed(s.name))
	s.awaitHandled(20)
	s.transport.Spec.Queues = append(s.transport.Spec.Queues, v1alpha1.Queue{Name: "late", BindingKeys: []string{"late"}})
	s.permit(s.operator.user, s.objectNames(), s.objectNames(), s.objectNames())
	s.permit(s.worker.user, "^$", workerWrites, s.queueNames())

	leader, err := suite.leader(t.Context())
	must(t, err)
	must(t, suite.kill(t.Context(), operatorNamespace, leader))
	killed := time.Now()
	s.update(func(transport *v1alpha1.Transport) { transport.Spec.Queues = s.transport.Spec.Queues })
	transport := s.awaitReady(readyWithin)
	t.Logf("a change was carried out %s after the leader was killed", time.Since(killed).Round(time.Second))
	if transport.Status.Queues == nil || *transport.Status.Queues != 3 {
		t.Errorf("status has %v queues, want 3", transport.Status.Queues)
	}
	if now, err := suite.leader(t.Context()); err != nil || now == leader {
		t.Errorf("the leader is %q, %v, want another than %q", now, err, leader)
	}
	s.awaitConfig(time.Minute)
	all := s.publish(parcel{id: "late", key: "late"})
	maps.Copy(all, flow.stop())
	s.tally.settle(all, time.Minute)
	if queue := s.tally.attempts["late"][0].Queue; queue != "late" {
		t.Errorf("the message to the new queue came from %q", queue)
	}
	must(t, suite.checkOperator(t.Context()))
}

func TestWorker_LosesNothingWhenTheBrokerIsKilledUnderLoad(t *testing.T) {
	long(t)
	t.Parallel()
	b, err := suite.ownBroker(t.Context(), "rabbitmq-mortal")
	must(t, err)
	t.Cleanup(func() {
		if err := b.stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	must(t, suite.rememberAdministrator(b))
	s := openShop(t, "mortal", plan{broker: b})
	before := s.awaitPods(2, time.Minute)
	flow := s.startLoad(60, slow(s.name, 100*time.Millisecond))
	s.awaitHandled(60)
	must(t, b.node.Kill(t.Context()))
	must(t, b.node.Resume(t.Context()))
	s.awaitHandled(60)
	must(t, b.node.Restart(t.Context()))
	s.awaitHandled(60)
	s.tally.settle(flow.stop(), 4*time.Minute)
	// The answer comes 0.1 s after the message. The outages and what they held up are part of it.
	t.Logf("late=%s", s.tally.latest(600*time.Millisecond, 1100*time.Millisecond))
	s.awaitReady(2 * time.Minute)
	if after := s.awaitPods(2, time.Minute); !sameRestarts(before, after) {
		t.Errorf("pods and restarts are %v, before the broker was killed %v", restarts(after), restarts(before))
	}
}
