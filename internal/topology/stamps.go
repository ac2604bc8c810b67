package topology

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
)

// Stamps are the times that the status has of queues on their way out and of migrations, each with the time at which this process saw it
// first. Waits count from then. By what is written down alone one would be over at once, or last for hours, where the clock of whoever wrote
// it was wrong, or that of this process has been set since. Whoever takes over begins a wait anew, once, and for an hour at most.
type Stamps map[stamp]time.Time

// stamp is a time that was written down, and what of which queue was at that time.
type stamp struct {
	queue, what string
	written     int64
}

// What the times of a Retirement are of; those of a Migration are of its step.
const (
	whatSince   = "since"
	whatUnbound = "unbound"
	whatEmpty   = "empty"
)

// See returns the stamps of some queues and migrations: each as it is known, or else seen now.
func (s Stamps) See(retiring []v1alpha1.Retirement, migrations []v1alpha1.Migration, now time.Time) Stamps {
	seen := Stamps{}
	see := func(queue, what string, at *metav1.Time) {
		if at == nil {
			return
		}
		key := stamp{queue, what, at.Unix()}
		if first, known := s[key]; known {
			seen[key] = first
		} else {
			seen[key] = now
		}
	}
	for _, state := range retiring {
		see(state.Queue, whatSince, state.Since)
		see(state.Queue, whatUnbound, state.Unbound)
		see(state.Queue, whatEmpty, state.Empty)
	}
	for _, m := range migrations {
		see(m.Queue, string(m.Step), m.Since)
	}
	return seen
}

// believed is how long this process has to have seen a time until that is believed where it is earlier. Where operators end more often than a wait lasts, as
// one of a day on nodes that are replaced every night, it would never end if each began it anew.
const believed = time.Hour

// of is the time from which to count. One that is not known was written down just now.
func (s Stamps) of(queue, what string, at *metav1.Time, now time.Time) time.Time {
	const rounded = time.Second // what is written is whole seconds, and no wait gets shorter by that
	first, known := s[stamp{queue, what, at.Unix()}]
	switch ahead := at.Sub(first); {
	case !known, ahead < 0 && now.Sub(first) >= believed:
		return at.Time
	default:
		return first.Add(min(max(0, ahead), rounded))
	}
}

// SinceLeft is how long ago it was noted that a queue is on its way out.
func (s Stamps) SinceLeft(state v1alpha1.Retirement, now time.Time) time.Duration {
	return now.Sub(s.of(state.Queue, whatSince, state.Since, now))
}

// SinceUnbound is how long ago it was noted that nothing leads into a queue on its way out, or that it was found quiet; 0 where that was not.
func (s Stamps) SinceUnbound(state v1alpha1.Retirement, now time.Time) time.Duration {
	if state.Unbound == nil {
		return 0
	}
	return now.Sub(s.of(state.Queue, whatUnbound, state.Unbound, now))
}

// SinceStep is how long a migration has been in its step.
func (s Stamps) SinceStep(m v1alpha1.Migration, now time.Time) time.Duration {
	return now.Sub(s.of(m.Queue, string(m.Step), m.Since, now))
}

// Retiring are the states of some queues with the times from which to count.
func (s Stamps) Retiring(states []v1alpha1.Retirement, now time.Time) []v1alpha1.Retirement {
	counted := slices.Clone(states)
	for i := range counted {
		state := &counted[i]
		for what, at := range map[string]**metav1.Time{whatSince: &state.Since, whatUnbound: &state.Unbound, whatEmpty: &state.Empty} {
			if *at != nil {
				*at = &metav1.Time{Time: s.of(state.Queue, what, *at, now)}
			}
		}
	}
	return counted
}

// Migrations are some migrations with the times from which to count.
func (s Stamps) Migrations(migrations []v1alpha1.Migration, now time.Time) []v1alpha1.Migration {
	counted := slices.Clone(migrations)
	for i := range counted {
		if m := &counted[i]; m.Since != nil {
			m.Since = &metav1.Time{Time: s.of(m.Queue, string(m.Step), m.Since, now)}
		}
	}
	return counted
}
