package ssa

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// MaxRepairs is how often an object is put right within a window, as a rule of as many poll intervals, where others change it: at once,
// but no more than once for each poll in the long run. Two who are both sure of a field would else write as fast as the API server answers.
const MaxRepairs = 5

// cacheLag is how late the cache may be, as a rule.
const cacheLag = 2 * time.Second

// Repairs remembers what was last wanted of the workers' objects, and when changes of others were undone. It is safe for
// concurrent use.
type Repairs struct {
	window time.Duration

	mu  sync.Mutex
	all map[types.NamespacedName]map[string]*history
}

type history struct {
	// stamp of what was last wanted, and whether it was wanted before that.
	stamp string
	again bool
	// same is the version of the object that was found to be as it is wanted, or as the API server has it when that is applied.
	same string
	// version and time of the last write.
	version string
	written time.Time
	// repairs are the latest, the oldest first.
	repairs []time.Time
}

// NewRepairs restores an object MaxRepairs times within a window at most.
func NewRepairs(window time.Duration) *Repairs {
	return &Repairs{window: window, all: map[types.NamespacedName]map[string]*history{}}
}

// Forget drops all objects of a Transport.
func (c *Repairs) Forget(transport types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, transport)
}

// Want notes what is wanted of an object of a Transport.
func (c *Repairs) Want(transport types.NamespacedName, object, stamp string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all[transport] == nil {
		c.all[transport] = map[string]*history{}
	}
	known := c.all[transport][object]
	if known != nil && known.stamp == stamp {
		known.again = true
		return
	}
	c.all[transport][object] = &history{stamp: stamp}
}

// IsSame is true for a version of an object that was found to be as it is wanted, by the stamp of today, or of which applying that
// changed nothing. Finding that out takes more time than all else of a look at which nothing is to be done.
func (c *Repairs) IsSame(transport types.NamespacedName, object string, current client.Object) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	version := c.all[transport][object].same
	return current != nil && version != "" && version == current.GetResourceVersion()
}

// Found notes that a version of an object is as it is wanted.
func (c *Repairs) Found(transport types.NamespacedName, object string, current client.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[transport][object].same = current.GetResourceVersion()
}

// MayWrite is false where an object that is wanted was put right so often of late that it has to wait.
func (c *Repairs) MayWrite(transport types.NamespacedName, object string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	repairs := c.all[transport][object].repairs
	return len(repairs) < MaxRepairs || now.Sub(repairs[0]) >= c.window
}

// Outcome is what a write came to.
type Outcome int

const (
	// Nothing was changed on the API server.
	Nothing Outcome = iota
	// Change is what is wanted now and was not before.
	Change
	// Repair undid what somebody else did.
	Repair
)

// Wrote notes that an object that is wanted was written. before is what the cache had, nil for nothing; after is what the API
// server has now.
func (c *Repairs) Wrote(transport types.NamespacedName, object string, before, after client.Object, now time.Time) Outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.all[transport][object]
	version, written := known.version, known.written
	known.version, known.written = after.GetResourceVersion(), now
	switch {
	case before != nil && before.GetResourceVersion() == after.GetResourceVersion(), version == after.GetResourceVersion():
		known.same = after.GetResourceVersion() // Also where it is not: what admission makes of it is all that there is to be had.
		return Nothing
	case !known.again:
		return Change
	}
	known.repairs = append(known.repairs, now)
	if excess := len(known.repairs) - MaxRepairs; excess > 0 {
		known.repairs = known.repairs[excess:]
	}
	// It counts, but it may be the cache that does not show our own write yet, and that is nothing to tell of.
	if now.Sub(written) < cacheLag && (before == nil || before.GetAnnotations()[StampAnnotation] != known.stamp) {
		return Nothing
	}
	return Repair
}

// Drop forgets an object that is not wanted any more: when it is wanted again, making it is no repair.
func (c *Repairs) Drop(transport types.NamespacedName, object string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all[transport], object)
}

// ErrFieldManagerConflict is in the error of an object that others change as often as the operator restores it.
var ErrFieldManagerConflict = errors.New("another field manager changes the object again and again")

// Conflict says who changes an object as often as the operator restores it.
func (c *Repairs) Conflict(object string, current client.Object) error {
	return &conflictError{fmt.Sprintf(
		"%s is changed%s each time that the operator restores it, at least %d times within %s: let only one of the two manage it",
		object, LastManager(current), MaxRepairs, c.window)}
}

// conflictError has a text of its own, and is ErrFieldManagerConflict.
type conflictError struct{ text string }

func (e *conflictError) Error() string        { return e.text }
func (e *conflictError) Is(target error) bool { return target == ErrFieldManagerConflict }

// LastManager names who wrote last to the fields of an object, besides us.
func LastManager(object client.Object) string {
	if object == nil {
		return ""
	}
	var name string
	var at time.Time
	for _, entry := range object.GetManagedFields() {
		if entry.Manager == FieldOwner || entry.Subresource == "status" || entry.Time == nil || entry.Time.Time.Before(at) {
			continue
		}
		name, at = entry.Manager, entry.Time.Time
	}
	if name == "" {
		return ""
	}
	return fmt.Sprintf(" by %q", name)
}
