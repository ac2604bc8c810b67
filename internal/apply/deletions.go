package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/topology"
)

const (
	// maxDeletions is how many deletions status.deletions has room for.
	maxDeletions = 256
	// sentWithin is the part of a request's lifetime within which a deletion must be sent once it is written down: who stands still for
	// longer, as on a node that is frozen, must not send it when others take it for over.
	sentWithin = 10
	// promptly is within what RabbitMQ answers a deletion. One that is answered later may have been sent again by a proxy on the way, to which
	// the first one had no answer, and which may still be carried out.
	promptly = 5 * time.Second
	// betweenDoubts is the longest time between two looks while something waits for a request that may still be carried out.
	betweenDoubts = 5 * time.Second
)

// unwrittenError says that a deletion could not be written down, and so was not sent.
type unwrittenError struct{ cause error }

func (e *unwrittenError) Error() string {
	return "write down what is to be deleted: " + e.cause.Error()
}
func (e *unwrittenError) Unwrap() error { return e.cause }

// Doubts are deletions that nobody knows the answer of, each with the time at which this process saw it first. By what is written down alone
// one would be over at once where the clock of the machine is set, or where another operator, with another clock, takes over.
type Doubts map[doubt]time.Time

type doubt struct {
	object  string
	written int64
}

func doubtOf(deletion v1alpha1.Deletion) doubt {
	return doubt{deletion.Object, deletion.Written.Unix()}
}

// See returns those of some deletions: each as it is known, or else seen now.
func (d Doubts) See(deletions []v1alpha1.Deletion, now time.Time) Doubts {
	seen := make(Doubts, len(deletions))
	for _, deletion := range deletions {
		first, known := d[doubtOf(deletion)]
		if !known {
			first = now
		}
		seen[doubtOf(deletion)] = first
	}
	return seen
}

// left is for how long a deletion may still be carried out, by the clock that says longer: what is written down may come from another machine. What
// was written down after it was seen comes from one whose clock was ahead, and that may be by years.
func (d Doubts) left(deletion v1alpha1.Deletion, life time.Duration, now time.Time) time.Duration {
	const rounded = time.Second // times of the status are whole seconds
	left := deletion.Written.Add(life).Sub(now)
	first, known := d[doubtOf(deletion)]
	switch {
	case !known:
		return min(left, life)
	case deletion.Written.Sub(first) > rounded:
		return first.Add(life).Sub(now)
	default:
		return max(left, first.Add(life).Sub(now))
	}
}

// deletions is a Port that writes down each deletion before it sends it, and strikes it out when the broker
// has answered. RabbitMQ deletes by name. A request that had no answer may be carried out minutes later, by a proxy or a node that was
// frozen, and takes what has been made again under that name: so nobody makes it before the request cannot live any more.
type deletions struct {
	Port

	clock clock
	// life is how long a request may be carried out after it was sent.
	life time.Duration
	// write stores the list; nil where it is kept in memory only.
	write func(context.Context, []v1alpha1.Deletion) error
	// known are the deletions by the Key of their objects.
	known map[string]deletionState
	// doubts are those of earlier runs.
	doubts Doubts
	// asOf is as of when the objects of the broker are known: the next run may know no more.
	asOf time.Time
}

// deletionState is what is known of the deletions of one object.
type deletionState struct {
	// doubtful is when the last one was written down whose answer nobody knows; nil where all were answered.
	doubtful *metav1.Time
	// written is when the one of this run was, by the clock on the wall and by that of the process; zero where there is none.
	written time.Time
}

func newDeletions(
	port Port, state State, waits topology.Waits, at clock, age time.Duration, write func(context.Context, []v1alpha1.Deletion) error,
) *deletions {
	d := &deletions{
		Port: port, clock: at, life: waits.Request, write: write, known: map[string]deletionState{}, doubts: state.Doubts, asOf: at().Add(-age),
	}
	for _, old := range state.Deletions {
		d.known[old.Object] = deletionState{doubtful: &old.Written}
	}
	return d
}

// doubtful are the objects that an earlier request, of this Transport or of another one, may still delete, each with the time until when.
//
// What was observed is of an age: a request may have been carried out since the broker was asked.
func (input *Input) doubtful(age time.Duration) map[string]time.Time {
	until := map[string]time.Time{}
	for _, old := range slices.Concat(input.State.Deletions, input.Others) {
		left := input.State.Doubts.left(old, input.Waits.Request, input.Now.Add(-age))
		if end := input.Now.Add(left); left > 0 && end.After(until[old.Object]) {
			until[old.Object] = end
		}
	}
	return until
}

// announce writes down those of some steps that delete something, as many as there is room for.
func (d *deletions) announce(ctx context.Context, steps ...topology.Step) error {
	before, list := maps.Clone(d.known), d.list()
	for _, step := range steps {
		key := step.Ref().Key()
		state := d.known[key]
		if !deletes(step) || !state.written.IsZero() || len(list) >= maxDeletions && state.doubtful == nil {
			continue
		}
		state.written = time.Now()
		d.known[key] = state
		list = d.list()
	}
	if d.write == nil || maps.Equal(before, d.known) {
		return nil
	}
	if err := d.write(ctx, list); err != nil {
		d.known = before
		return &unwrittenError{err}
	}
	return nil
}

func deletes(step topology.Step) bool { return step.Action == topology.ActionDelete }

// Awaited is how long some deletions may still be carried out; zero where none can.
func (d Doubts) Awaited(list []v1alpha1.Deletion, waits topology.Waits, now time.Time) (longest time.Duration) {
	for _, deletion := range list {
		longest = max(longest, d.left(deletion, waits.Request, now))
	}
	return longest
}

func (d *deletions) awaited() time.Duration {
	return d.doubts.Awaited(d.left(), topology.Waits{Request: d.life}, d.clock())
}

// list are the deletions that may still be carried out, or are about to be sent.
func (d *deletions) list() []v1alpha1.Deletion {
	now, list := d.clock(), []v1alpha1.Deletion(nil)
	for _, key := range slices.Sorted(maps.Keys(d.known)) {
		state := d.known[key]
		switch {
		case !state.written.IsZero():
			list = append(list, v1alpha1.Deletion{Object: key, Written: *topology.Stamp(now.Add(-time.Since(state.written)))})
		case state.doubtful != nil:
			if old := (v1alpha1.Deletion{Object: key, Written: *state.doubtful}); d.doubts.left(old, d.life, d.asOf) > 0 {
				list = append(list, old)
			}
		}
	}
	return list
}

// left are the deletions that may still be carried out at the end of a run: what was written down and not sent is none.
func (d *deletions) left() []v1alpha1.Deletion {
	for key, state := range d.known {
		state.written = time.Time{}
		d.known[key] = state
	}
	return d.list()
}

// send carries out a deletion that is written down, or is now.
func (d *deletions) send(ctx context.Context, step topology.Step, request func() error) error {
	if err := d.announce(ctx, step); err != nil {
		return err
	}
	key := step.Ref().Key()
	state := d.known[key]
	if state.written.IsZero() {
		return fmt.Errorf("delete %s: %w: %d deletions had no answer, and more are not begun", step.Ref(), broker.ErrUnreachable, maxDeletions)
	}
	if late := elapsed(state.written); d.life > 0 && late > d.life/sentWithin {
		return fmt.Errorf("delete %s: %w: it was noted %s ago; retrying", step.Ref(), broker.ErrUnreachable, late.Round(time.Second))
	}
	written, sent := topology.Stamp(d.clock()), time.Now()
	err := request()
	if answered(err) && elapsed(sent) < promptly {
		d.known[key] = deletionState{doubtful: state.doubtful}
	} else {
		d.known[key] = deletionState{doubtful: written}
	}
	return err
}

// answered is true where the broker has said what became of a request.
func answered(err error) bool {
	return err == nil || errors.Is(err, broker.ErrForbidden) || errors.Is(err, broker.ErrUnauthorized) ||
		errors.Is(err, broker.ErrConflict) || errors.Is(err, broker.ErrNotFound)
}

// elapsed is the time since a moment, by the clock that is further: that of the process stands while its machine does.
func elapsed(since time.Time) time.Duration {
	return max(time.Since(since), time.Now().Round(0).Sub(since.Round(0)))
}

// Apply implements Port.
func (d *deletions) Apply(ctx context.Context, step topology.Step) (existed bool, err error) {
	if !deletes(step) {
		return d.Port.Apply(ctx, step)
	}
	err = d.send(ctx, step, func() error {
		existed, err = d.Port.Apply(ctx, step)
		return err
	})
	return existed, err
}

// DeleteQueue implements Port.
func (d *deletions) DeleteQueue(ctx context.Context, name string, ifEmpty, ifUnused bool) error {
	return d.send(ctx, deletion(name), func() error { return d.Port.DeleteQueue(ctx, name, ifEmpty, ifUnused) })
}

// DeleteExchange implements Port.
func (d *deletions) DeleteExchange(ctx context.Context, name string) error {
	return d.send(ctx, exchangeDeletion(name), func() error { return d.Port.DeleteExchange(ctx, name) })
}
