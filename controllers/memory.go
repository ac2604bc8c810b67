package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/internal/apply"
)

// memory is what is known of a Transport's queues from one look to the next, and stands in no status: since when they are known to exist,
// and which ones expired messages do not leave.
type memory struct {
	known map[string]time.Time
	stuck apply.Stuck
}

// memories are those of all Transports: after a restart all queues are as old as the first look. It is safe for concurrent use.
type memories struct {
	mu  sync.Mutex
	all map[types.NamespacedName]memory
}

func newMemories() *memories { return &memories{all: map[types.NamespacedName]memory{}} }

// of a Transport; what it holds is not to be changed.
func (m *memories) of(name types.NamespacedName) memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all[name]
}

func (m *memories) keep(name types.NamespacedName, report *apply.Report) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all[name] = memory{known: report.Known, stuck: report.Stuck}
}

func (m *memories) forget(name types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, name)
}
