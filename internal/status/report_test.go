package status_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/topology"
)

func condition(name string, is bool, reason, message string) metav1.Condition {
	value := metav1.ConditionFalse
	if is {
		value = metav1.ConditionTrue
	}
	return metav1.Condition{Type: name, Status: value, Reason: reason, Message: message}
}

// transport is Ready, with two work queues, two lanes, and a lane on its way out.
func transport(change func(*v1alpha1.Transport)) *v1alpha1.Transport {
	now := metav1.Now()
	t := &v1alpha1.Transport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async", Generation: 3},
		Spec:       v1alpha1.TransportSpec{Queues: []v1alpha1.Queue{{Name: "test"}, {Name: "lost"}}},
		Status: v1alpha1.TransportStatus{
			ObservedGeneration: 3,
			Conditions:         []metav1.Condition{condition("Ready", true, v1alpha1.ReasonSucceeded, "as the spec asks")},
			Broker:             &v1alpha1.BrokerIdentity{Cluster: "rabbit@shop", VHost: "shop"},
			Workers:            "5/5", Failed: new(int64(2)), Lanes: []string{"10s", "2s"},
			Adopted:  []string{"queue/lost"},
			Retiring: []v1alpha1.Retirement{{Queue: "async.fallback.1m", Unbound: &now}, {Queue: "old"}},
		},
	}
	if change != nil {
		change(t)
	}
	return t
}

func queue(ready, unacked, leaving, consumers int64, arguments topology.Arguments) topology.QueueState {
	all := ready + unacked + leaving
	return topology.QueueState{
		Queue: topology.Queue{Arguments: arguments}, Evidence: topology.Evidence{Messages: &all}, Ready: ready, Unacked: unacked, MessagesDLX: leaving, Consumers: consumers,
	}
}

func lane(ttl time.Duration) topology.Arguments {
	return topology.Arguments{"x-message-ttl": json.Number(milliseconds(ttl)), "x-dead-letter-exchange": "async.return"}
}

func milliseconds(d time.Duration) string {
	text, _ := json.Marshal(d.Milliseconds())
	return string(text)
}

// staging is the queue of a replay: a queue knows its own name.
func staging(ready, unacked, consumers int64, replay string) topology.QueueState {
	state := queue(ready, unacked, 0, consumers, topology.Arguments{"redrive-replay": replay})
	state.Name = "async.replay." + replay
	return state
}

func observed() topology.Observed {
	work := topology.Arguments{"x-dead-letter-exchange": "async.failed"}
	return topology.Observed{
		Identity: topology.Identity{Cluster: "rabbit@shop", VHost: "shop"},
		Queues: map[string]topology.QueueState{
			"test":              queue(1200, 10, 0, 5, work),
			"lost":              queue(0, 0, 0, 5, work),
			"test.quarantine":   queue(2, 0, 0, 0, work),
			"lost.quarantine":   queue(1, 1, 0, 1, work),
			"async.fallback.2s": queue(12, 0, 0, 0, lane(2*time.Second)),
			"async.fallback.1m": queue(3, 0, 40, 0, lane(time.Minute)),
			"async.failed":      queue(7, 0, 0, 0, nil),
			"old":               {Queue: topology.Queue{Name: "old", Arguments: work}},
			"elsewhere":         queue(9, 9, 9, 9, nil),

			"async.replay.r-0123abcd":     staging(43, 7, 1, "r-0123abcd"),
			"async.replay.r-89abcdef":     staging(5, 0, 0, "r-89abcdef"),
			"async.replay.r-89abcdef.log": queue(1, 0, 0, 0, topology.Arguments{"redrive-replay": "r-89abcdef"}),
		},
	}
}

func TestFromBroker_ListsQueuesInTheOrderOfAMessagesLife(t *testing.T) {
	report := status.FromBroker(transport(nil), observed())
	got := make([]string, 0, len(report.Queues))
	for _, q := range report.Queues {
		text := []string{q.Name, string(q.Role), show(q.Waiting), show(q.InHand), q.Oldest, show(q.Consumers)}
		got = append(got, strings.Join(append(text, q.Notes...), "|"))
	}
	want := []string{
		"test|work|1200|10||5",
		"lost|work|0|0||5|adopted, and never deleted",
		"test.quarantine|quarantine|2|0||0|the quarantine worker does not consume it",
		"lost.quarantine|quarantine|1|1||1",
		"async.fallback.2s|lane|12|0|<2s|0",
		"async.fallback.10s|lane|?|?||?|does not exist",
		"async.fallback.1m|lane|3|0|>1m|0|40 expired and not in the next queue yet|unbound, and deleted once it is empty",
		"old|work|?|?||?|not counted yet|no longer wanted; still bound",
		"async.failed|failure|7|0||0",
		"async.replay.r-0123abcd|replay|43|7||1",
		"async.replay.r-89abcdef|replay|5|0||0|no process carries it on: redrive replay ls",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if report.Failed == nil || *report.Failed != 7 {
		t.Errorf("failed is %s, and the broker counts 7", show(report.Failed))
	}
}

func TestFromBroker_HasNoQuarantineRowForAStrictQueue(t *testing.T) {
	ordered := transport(func(t *v1alpha1.Transport) {
		t.Spec.Queues[0].Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}
	})
	for _, q := range status.FromBroker(ordered, topology.Observed{}).Queues {
		if q.Name == "test.quarantine" {
			t.Errorf("%+v", q)
		}
	}
}

func TestFromBroker_MissesNoQueueThatIsDeletedAlready(t *testing.T) {
	going := transport(func(t *v1alpha1.Transport) { t.DeletionTimestamp = new(metav1.Now()) })
	for _, q := range status.FromBroker(going, observed()).Queues {
		if slices.Contains(q.Notes, "does not exist") {
			t.Errorf("%s is shown and does not exist", q.Name)
		}
	}
}

func show(n *int64) string {
	if n == nil {
		return "?"
	}
	text, _ := json.Marshal(*n)
	return string(text)
}

func TestFromBroker_BoundsTheOldestByTheTTL(t *testing.T) {
	cases := []struct {
		name  string
		state topology.QueueState
		want  string
	}{
		{"what waits in a lane is younger than its TTL", queue(1, 0, 0, 0, lane(5*time.Second)), "<5s"},
		{"a lane with nothing in it tells nothing", queue(0, 0, 0, 0, lane(5*time.Second)), ""},
		{"what has expired and is still there is older", queue(1, 0, 1, 0, lane(5*time.Second)), ">5s"},
		{"a queue without a TTL tells nothing", queue(1, 0, 0, 0, nil), ""},
		{"what is in hand does not expire", queue(0, 1, 0, 0, lane(5*time.Second)), ""},
		{"a TTL by policy counts", withPolicy(queue(1, 0, 0, 0, nil), json.Number("86400000")), "<24h"},
		{"of two the shorter one counts", withPolicy(queue(1, 0, 0, 0, lane(5*time.Second)), json.Number("1000")), "<1s"},
		{"of two the shorter one counts, the other way round", withPolicy(queue(1, 0, 0, 0, lane(5*time.Second)), int64(90_000)), "<5s"},
		{"a TTL that is no number does not count", withPolicy(queue(1, 0, 0, 0, nil), "soon"), ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			report := status.FromBroker(transport(nil), topology.Observed{Queues: map[string]topology.QueueState{"test": c.state}})
			if got := report.Queues[0].Oldest; got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func withPolicy(state topology.QueueState, ttl any) topology.QueueState {
	state.EffectiveDefinition = topology.Arguments{"message-ttl": ttl}
	return state
}

func TestFromStatus_IsReadyOnlyForTheCurrentSpec(t *testing.T) {
	stalled := []metav1.Condition{
		condition("Ready", false, v1alpha1.ReasonConflict, "queue/test differs"),
		condition("Stalled", true, v1alpha1.ReasonConflict, "queue/test differs"),
		condition("Degraded", true, v1alpha1.ReasonOther, "lost is classic"),
	}
	cases := []struct {
		name   string
		change func(*v1alpha1.Transport)
		ready  bool
		reason string
		causes []string
	}{
		{name: "Ready", ready: true, reason: "Succeeded"},
		{
			name:   "stalled",
			change: func(t *v1alpha1.Transport) { t.Status.Conditions = stalled },
			reason: "Conflict", causes: []string{"Stalled Conflict", "Degraded Other"},
		},
		{name: "changed since the operator looked", change: func(t *v1alpha1.Transport) { t.Generation = 4 }, reason: "NotObserved"},
		{
			name:   "never looked at",
			change: func(t *v1alpha1.Transport) { t.Status = v1alpha1.TransportStatus{ObservedGeneration: -1} },
			reason: "NotObserved",
		},
		{
			name:   "being deleted, and nobody has noticed",
			change: func(t *v1alpha1.Transport) { t.DeletionTimestamp = new(metav1.Now()) },
			reason: "Succeeded",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			report := status.FromStatus(transport(c.change), "no way")
			if report.Ready != c.ready || report.Reason != c.reason || report.Message == "" {
				t.Errorf("got %t, %s, %q", report.Ready, report.Reason, report.Message)
			}
			var causes []string
			for _, cause := range report.Conditions {
				causes = append(causes, cause.Type+" "+cause.Reason)
				if cause.WhatToDo == "" || cause.Message == "" {
					t.Errorf("%s says neither why nor what to do: %+v", cause.Type, cause)
				}
			}
			if !slices.Equal(causes, c.causes) {
				t.Errorf("got %q, want %q", causes, c.causes)
			}
		})
	}
}

func TestFromStatus_TellsWhatItCanWithoutTheBroker(t *testing.T) {
	report := status.FromStatus(transport(nil), "you may not read the Secret")
	if report.NotRead != "you may not read the Secret" || len(report.Queues) > 0 || show(report.Failed) != "2" || report.Workers != "5/5" ||
		report.Broker.Cluster != "rabbit@shop" || !slices.Equal(report.Adopted, []string{"queue/lost"}) ||
		!slices.Equal(report.Retiring, []string{"async.fallback.1m", "old"}) {
		t.Errorf("%+v", report)
	}
}

func TestElsewhere_KnowsABrokerOnWhichNothingStands(t *testing.T) {
	here := topology.Observed{Identity: topology.Identity{Cluster: "rabbit@shop", VHost: "shop"}}
	for _, other := range []topology.Identity{{Cluster: "rabbit@other", VHost: "shop"}, {Cluster: "rabbit@shop", VHost: "/"}} {
		if !status.Elsewhere(transport(nil), topology.Observed{Identity: other}) {
			t.Errorf("%+v was taken for %+v", other, here.Identity)
		}
	}
	if status.Elsewhere(transport(nil), here) {
		t.Error("the broker itself was taken for another")
	}
	if status.Elsewhere(transport(func(t *v1alpha1.Transport) { t.Status.Broker = nil }), here) {
		t.Error("nothing stands anywhere yet, so the broker is the one that the Secret names")
	}
}
