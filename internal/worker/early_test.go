package worker

import (
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

// comesBack is a message that comes out of a lane, or from elsewhere where that is empty, with the headers that it was parked with.
func comesBack(t *testing.T, lane string, state message.State, now time.Time) *job {
	t.Helper()
	j := delivered(t, v1alpha1.RetryPolicySpec{}, "", 0, 0)
	j.program.config.Lanes = retry.Ladder()
	m, err := message.Parked(message.Message{}, state, "test", lane, now)
	if err != nil {
		t.Fatal(err)
	}
	if lane == "" {
		delete(m.Headers, message.HeaderLane)
	}
	j.state = message.Decode(m, "", now)
	return j
}

// A message whose time was written before the clock stepped back took the longest lane, in which nobody looks at the clock.
func TestEarly_IsNoLongerThanWhatALaneLeaves(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_790_000_000_000)
	w := &Worker{options: Options{Now: func() time.Time { return now }}}
	released := func(left time.Duration) message.State { return message.State{NotBefore: now.Add(left)} }
	retried := func(delay, left time.Duration) message.State {
		due := now.Add(left)
		s := message.State{NotBefore: due, History: retry.History{Attempts: 2, Retries: 2, LastDelay: delay, FirstFailure: now.Add(-time.Minute)}}
		for n := range int64(2) {
			s = message.Record(s, message.Attempt{Number: n + 1, At: due.Add(-delay), Delay: delay})
		}
		return s
	}
	shed := func(delay, left time.Duration) message.State {
		s := released(left)
		s.History = retry.History{Attempts: 2, Retries: 2, LastDelay: delay, FirstFailure: now.Add(-time.Minute)}
		return s
	}
	for name, c := range map[string]struct {
		lane  string
		state message.State
		want  time.Duration
	}{
		"a wait that is not over":                              {"30s", released(20 * time.Second), 20 * time.Second},
		"a wait of an hour more than its lane leaves":          {"2s", released(time.Hour), 3 * time.Second},
		"the same in a lane for a high priority":               {"2s" + retry.HighSuffix, released(time.Hour), 3 * time.Second},
		"a wait in several of the longest lane":                {"1h", released(5 * time.Hour), 5 * time.Hour},
		"one that came from no lane":                           {"", released(time.Hour), time.Hour},
		"one whose lane makes no sense":                        {"soon", released(time.Hour), time.Hour},
		"a retry that is an hour away":                         {"10s", retried(10*time.Second, time.Hour), 10 * time.Second},
		"a retry out of the longest lane":                      {"1h", retried(time.Hour, 2*time.Hour), time.Hour},
		"a retry of which most is left after a lane":           {"1h", retried(24*time.Hour, 23*time.Hour), 23 * time.Hour},
		"the same where a longer lane was added meanwhile":     {"10m", retried(24*time.Hour, 23*time.Hour), 23 * time.Hour},
		"the same where its failures were left out of headers": {"10m", shed(24*time.Hour, 23*time.Hour), 23 * time.Hour},
		"an hour away, and its failures were left out":         {"10s", shed(time.Minute, time.Hour), time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := comesBack(t, c.lane, c.state, now)
			o, decided := early(w, t.Context(), j)
			if !decided || o.kind != redelayed {
				t.Fatalf("%v, decided %t", o.kind, decided)
			}
			if left := j.state.NotBefore.Sub(now); left != c.want {
				t.Errorf("it waits for another %s, want %s", left, c.want)
			}
		})
	}
}
