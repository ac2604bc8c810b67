package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
)

// transportMemory is what is known of a Transport from one look to the next, and stands in no status: since when its queues are known to exist, which
// ones expired messages do not leave, and since when deletions without an answer are known.
type transportMemory struct {
	known  map[string]time.Time
	stuck  apply.Stuck
	doubts apply.Doubts
}

// transportMemories are those of all Transports: after a restart all queues are as old as the first look. It is safe for concurrent use.
type transportMemories struct {
	mu  sync.Mutex
	all map[types.NamespacedName]transportMemory
}

func newTransportMemories() *transportMemories {
	return &transportMemories{all: map[types.NamespacedName]transportMemory{}}
}

// of a Transport; what it holds is not to be changed.
func (m *transportMemories) of(name types.NamespacedName) transportMemory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all[name]
}

func (m *transportMemories) keep(name types.NamespacedName, report *apply.Report) {
	m.mu.Lock()
	defer m.mu.Unlock()
	its := m.all[name]
	its.known, its.stuck = report.Known, report.Stuck
	m.all[name] = its
}

// doubt keeps since when some deletions are known: now for those that are new.
func (m *transportMemories) doubt(name types.NamespacedName, deletions []v1alpha1.Deletion) apply.Doubts {
	m.mu.Lock()
	defer m.mu.Unlock()
	its := m.all[name]
	its.doubts = its.doubts.See(deletions, time.Now())
	m.all[name] = its
	return its.doubts
}

func (m *transportMemories) forget(name types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, name)
}
