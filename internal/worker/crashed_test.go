package worker

import (
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

// delivered is the message at the head of a strictly ordered queue, which comes again after so many attempts of this process.
func delivered(t *testing.T, spec v1alpha1.RetryPolicySpec, onFailure v1alpha1.OnFailure, used, tried int64) *job {
	t.Helper()
	p := &program{policies: map[string]*retry.Policy{}, config: compile.Config{
		Queues:   []compile.Queue{{Name: "test", Policy: "default", Strict: onFailure}},
		Policies: map[string]v1alpha1.RetryPolicySpec{"default": spec},
	}}
	if err := p.compile(); err != nil {
		t.Fatal(err)
	}
	j := &job{program: p, queue: &p.config.Queues[0], tried: tried, delivery: &amqp.Delivery{}}
	j.view.Queue = "test"
	j.state.History.Attempts, j.state.History.Retries = used, used
	return j
}

// A policy that was given fewer retries had a message that failed in the ordinary way called poison, and its last error was gone.
func TestCrashed_CountsNoAttemptWhoseEndWasSeen(t *testing.T) {
	three := v1alpha1.RetryPolicySpec{MaxRetries: new(int32(3))}
	w := &Worker{options: Options{Now: time.Now}}
	for name, c := range map[string]struct {
		spec        v1alpha1.RetryPolicySpec
		onFailure   v1alpha1.OnFailure
		used, tried int64
		want        bool
	}{
		"more failures than the policy allows for by now":    {three, v1alpha1.OnFailureContinue, 40, 40, false},
		"the same where the queue blocks":                    {three, v1alpha1.OnFailureBlock, 40, 40, false},
		"some sessions that ended besides":                   {three, v1alpha1.OnFailureContinue, 52, 40, false},
		"many that ended besides":                            {three, v1alpha1.OnFailureContinue, 53, 40, true},
		"one of another process, which nobody can tell from": {three, v1alpha1.OnFailureContinue, 16, 0, true},
		"one within what the policy allows for":              {three, v1alpha1.OnFailureContinue, 15, 3, false},
		"a policy without a limit":                           {v1alpha1.RetryPolicySpec{Unlimited: new(true)}, v1alpha1.OnFailureContinue, 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			o, decided := crashed(w, t.Context(), delivered(t, c.spec, c.onFailure, c.used, c.tried))
			if decided != c.want || decided && (o.kind != failed || o.final.Reason != reasonPoison || !strings.HasPrefix(o.final.Explanation, "delivered ")) {
				t.Errorf("decided %v, %v: %s", decided, o.kind, o.final.Explanation)
			}
		})
	}
}

func TestOrderedQueue_TellsHowOftenItTriedAMessage(t *testing.T) {
	h := newOrderedQueues().of("test")
	for n := range int64(4) {
		j := &job{
			delivery: &amqp.Delivery{Message: message.Message{MessageID: "a", Redelivered: n > 0}},
			state:    message.State{ID: "a"}, attempted: true,
		}
		h.restore(j).remember(j, outcome{kind: returned})
		if j.tried != n {
			t.Errorf("delivery %d was tried %d times", n+1, j.tried)
		}
	}
}
