package failurequeue

import (
	"errors"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/topology"
)

func TestPinned_RefusesAQueueThatDropsWhatIsReadOften(t *testing.T) {
	limit := func(n float64) topology.Arguments { return topology.Arguments{"delivery-limit": n} }
	const enough = 2147483647
	ours := topology.Policy{Name: "ours", Pattern: `^async\.failed$`, ApplyTo: "queues", Priority: 1000, Definition: limit(enough)}
	type look struct {
		queue    topology.QueueState
		policies map[string]topology.Policy
	}
	for name, tt := range map[string]struct {
		change func(*look)
		want   string
	}{
		"ours": {func(*look) {}, ""},
		"a weaker one": {func(l *look) {
			l.policies["theirs"] = topology.Policy{Name: "theirs", Pattern: ".*", ApplyTo: "all", Priority: 999, Definition: limit(20)}
		}, ""},
		"a stronger one that the queue does not show yet": {func(l *look) {
			l.policies["theirs"] = topology.Policy{Name: "theirs", Pattern: "failed", ApplyTo: "quorum_queues", Priority: 1001, Definition: limit(20)}
		}, `the RabbitMQ policy "theirs" applies`},
		"a stronger one without a limit": {func(l *look) {
			l.policies["theirs"] = topology.Policy{Name: "theirs", Pattern: "failed", ApplyTo: "all", Priority: 1001}
		}, `the RabbitMQ policy "theirs" applies`},
		"an equal one": {func(l *look) {
			l.policies["theirs"] = topology.Policy{Name: "theirs", Pattern: "^async", ApplyTo: "all", Priority: 1000, Definition: limit(20)}
		}, `the RabbitMQ policy "theirs" applies`},
		"one with a pattern of another engine": {func(l *look) {
			l.policies["theirs"] = topology.Policy{Name: "theirs", Pattern: "(?<=c).failed", ApplyTo: "all", Priority: 2000}
		}, `the RabbitMQ policy "theirs" applies`},
		"stronger ones for something else": {func(l *look) {
			l.policies["a"] = topology.Policy{Name: "a", Pattern: ".*", ApplyTo: "exchanges", Priority: 2000}
			l.policies["b"] = topology.Policy{Name: "b", Pattern: ".*", ApplyTo: "classic_queues", Priority: 2000}
			l.policies["c"] = topology.Policy{Name: "c", Pattern: "^other$", ApplyTo: "all", Priority: 2000}
		}, ""},
		"none":             {func(l *look) { clear(l.policies) }, "no RabbitMQ policy gives it one"},
		"one that is late": {func(l *look) { l.queue.EffectiveDefinition = nil }, "RabbitMQ does not show yet"},
		"an argument":      {func(l *look) { l.queue.Arguments = topology.Arguments{"x-delivery-limit": int64(20)} }, "x-delivery-limit is lower"},
		"no limit at all": {func(l *look) {
			l.policies["ours"] = topology.Policy{Name: "ours", Pattern: ".*", ApplyTo: "all", Definition: limit(-1)}
		}, `"ours" applies`},
		"an operator policy": {func(l *look) { l.queue.OperatorPolicy, l.queue.EffectiveDefinition = "platform", limit(50) }, `the operator policy "platform" applies`},
		"a classic queue":    {func(l *look) { l.queue.Type = topology.TypeClassic }, "is a classic queue"},
	} {
		l := look{topology.QueueState{
			Queue: topology.Queue{Name: "async.failed", Type: topology.TypeQuorum}, EffectiveDefinition: limit(enough),
		}, map[string]topology.Policy{"ours": ours}}
		tt.change(&l)
		err := Pinned(l.queue, l.policies)
		if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || !errors.Is(err, ErrUnpinned)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPinned_RefusesAQueueThatHoldsBackWhatComesBack(t *testing.T) {
	with := func(value string) topology.Arguments {
		return topology.Arguments{"delivery-limit": 2147483647.0, "delayed-retry-type": value}
	}
	for name, tt := range map[string]struct {
		policy, effective, arguments topology.Arguments
		operator, want               string
	}{
		"a policy":           {policy: with("all"), effective: with("disabled"), want: `the RabbitMQ policy "ours" sets`},
		"an operator policy": {policy: with("disabled"), effective: with("failed"), operator: "theirs", want: `the operator policy "theirs" sets`},
		"an argument": {
			policy: with("disabled"), effective: with("disabled"), arguments: topology.Arguments{"x-delayed-retry-type": "all"}, want: "its declaration sets",
		},
		"none": {policy: with("disabled"), effective: with("disabled")},
	} {
		err := Pinned(topology.QueueState{
			Queue:               topology.Queue{Name: "async.failed", Type: topology.TypeQuorum, Arguments: tt.arguments},
			EffectiveDefinition: tt.effective, OperatorPolicy: tt.operator,
		}, map[string]topology.Policy{"ours": {Name: "ours", Pattern: ".*", ApplyTo: "all", Definition: tt.policy}})
		if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || !errors.Is(err, ErrUnpinned)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
