package objectcache

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
)

const (
	// longOutdated is how long the cache may go on to show a copy that the API server has replaced. It is behind by milliseconds, and by minutes
	// only where its watch has missed something: it shows that copy for ever then, as after a restore of etcd.
	longOutdated = 5 * time.Minute
	// shortestLife is how long a process has run at least before it ends for that: where the next one meets the same, it must not end all the time.
	shortestLife = 30 * time.Minute
)

// Outdated notes which copies of objects the cache shows that the API server has replaced, and ends the process where one stays: a process that starts
// has a cache that is new. Each reconcile of such an object ends in a conflict, which is no more than usual where it occurs once. It is safe for
// concurrent use.
type Outdated struct {
	began time.Time
	found chan error

	mu    sync.Mutex
	known map[types.NamespacedName]outdatedCopy
}

// outdatedCopy is the version of an object as the cache has it, since when that is known to be outdated, and whether that was logged.
type outdatedCopy struct {
	version string
	since   time.Time
	logged  bool
}

// NewOutdated returns one for a process that begins now.
func NewOutdated() *Outdated {
	return &Outdated{began: time.Now(), found: make(chan error, 1), known: map[types.NamespacedName]outdatedCopy{}}
}

// Note tells that an object was read from the cache in a version, and that the API server has another one by now.
func (o *Outdated) Note(name types.NamespacedName, version string, read, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	known := o.known[name]
	if known.version != version {
		o.known[name] = outdatedCopy{version: version, since: now}
		return
	}
	late := read.Sub(known.since)
	if late < longOutdated {
		return
	}
	err := fmt.Errorf("the cache shows %s in version %s, which the API server replaced at least %s ago: "+
		"its watch has missed changes, as after a restore of etcd", name, version, late.Round(time.Second))
	if !known.logged {
		known.logged = true
		o.known[name] = known
		ctrl.Log.Error(err, "the operator works on an outdated copy")
	}
	if now.Sub(o.began) < shortestLife {
		return
	}
	select {
	case o.found <- err:
	default: // it ends already
	}
}

// Forget drops what is known of an object that is gone.
func (o *Outdated) Forget(name types.NamespacedName) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.known, name)
}

// Start returns an error, which ends the manager, once a copy stays outdated. It implements manager.Runnable.
func (o *Outdated) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-o.found:
		return err
	}
}
