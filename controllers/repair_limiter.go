package controllers

import (
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// maxRepairs is how often an object is put right within a window, as a rule of as many poll intervals, where others change it: at once,
// but no more than once for each poll in the long run. Two who are both sure of a field would else write as fast as the API server answers.
const maxRepairs = 5

// cacheLag is how late the cache may be, as a rule.
const cacheLag = 2 * time.Second

// repairLimiter remembers what was last wanted of the workers' objects, and when changes of others were undone. It is safe for
// concurrent use.
type repairLimiter struct {
	window time.Duration

	mu  sync.Mutex
	all map[types.NamespacedName]map[string]*objectHistory
}

type objectHistory struct {
	// stamp of what was last wanted, and whether it was wanted before that.
	stamp string
	again bool
	// same is the version of the object that was found to be as it is wanted.
	same string
	// version and time of the last write.
	version string
	written time.Time
	// repairs are the latest, the oldest first.
	repairs []time.Time
}

func newRepairLimiter(window time.Duration) *repairLimiter {
	return &repairLimiter{window: window, all: map[types.NamespacedName]map[string]*objectHistory{}}
}

func (c *repairLimiter) forget(transport types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, transport)
}

// want notes what is wanted of an object of a Transport.
func (c *repairLimiter) want(transport types.NamespacedName, object, stamp string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all[transport] == nil {
		c.all[transport] = map[string]*objectHistory{}
	}
	known := c.all[transport][object]
	if known != nil && known.stamp == stamp {
		known.again = true
		return
	}
	c.all[transport][object] = &objectHistory{stamp: stamp}
}

// isSame is true for a version of an object that was found to be as it is wanted, by the stamp of today. Finding that out takes
// more time than all else of a look at which nothing is to be done.
func (c *repairLimiter) isSame(transport types.NamespacedName, object string, current client.Object) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	version := c.all[transport][object].same
	return current != nil && version != "" && version == current.GetResourceVersion()
}

// found notes that a version of an object is as it is wanted.
func (c *repairLimiter) found(transport types.NamespacedName, object string, current client.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[transport][object].same = current.GetResourceVersion()
}

// mayWrite is false where an object that is wanted was put right so often of late that it has to wait.
func (c *repairLimiter) mayWrite(transport types.NamespacedName, object string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	repairs := c.all[transport][object].repairs
	return len(repairs) < maxRepairs || now.Sub(repairs[0]) >= c.window
}

// writeOutcome is what a write came to.
type writeOutcome int

const (
	wroteNothing writeOutcome = iota
	// wroteChange is what is wanted now and was not before.
	wroteChange
	// wroteRepair undid what somebody else did.
	wroteRepair
)

// wrote notes that an object that is wanted was written. before is what the cache had, nil for nothing; after is what the API
// server has now.
func (c *repairLimiter) wrote(transport types.NamespacedName, object string, before, after client.Object, now time.Time) writeOutcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.all[transport][object]
	version, written := known.version, known.written
	known.version, known.written = after.GetResourceVersion(), now
	switch {
	case before != nil && before.GetResourceVersion() == after.GetResourceVersion(), version == after.GetResourceVersion():
		return wroteNothing
	case !known.again:
		return wroteChange
	}
	known.repairs = append(known.repairs, now)
	if excess := len(known.repairs) - maxRepairs; excess > 0 {
		known.repairs = known.repairs[excess:]
	}
	// It counts, but it may be the cache that does not show our own write yet, and that is nothing to tell of.
	if now.Sub(written) < cacheLag && (before == nil || before.GetAnnotations()[stampAnnotation] != known.stamp) {
		return wroteNothing
	}
	return wroteRepair
}

// eventRestored warns of an object of ours in the cluster that somebody had changed or deleted, as eventOnBroker does of one
// on the broker.
func (s *statusPatcher) eventRestored(other client.Object, note string) {
	s.recorder.Eventf(s.object, other, corev1.EventTypeWarning, eventRepaired, actionReconcile, "%s", shorten(note, maxNote))
}

// drop forgets an object that is not wanted any more: when it is again, making it puts nothing right.
func (c *repairLimiter) drop(transport types.NamespacedName, object string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all[transport], object)
}

// errFieldManagerConflict is in the error of an object that others change as often as it is put right.
var errFieldManagerConflict = errors.New("contested")

// contested says who changes an object as often as it is put right.
func (c *repairLimiter) contested(object string, current client.Object) error {
	return newDisplayError(errFieldManagerConflict,
		"%s is changed%s each time that the operator restores it, at least %d times within %s: let only one of the two manage it",
		object, lastManager(current), maxRepairs, c.window)
}

// lastManager names who wrote last to the fields of an object, besides us.
func lastManager(object client.Object) string {
	if object == nil {
		return ""
	}
	var name string
	var at time.Time
	for _, entry := range object.GetManagedFields() {
		if entry.Manager == fieldOwner || entry.Subresource == "status" || entry.Time == nil || entry.Time.Time.Before(at) {
			continue
		}
		name, at = entry.Manager, entry.Time.Time
	}
	if name == "" {
		return ""
	}
	return fmt.Sprintf(" by %q", name)
}
