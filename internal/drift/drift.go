// Package drift remembers of each Transport what one look at the broker does not show, and says what the operator repaired there.
package drift

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/topology"
)

const (
	// stallPatience is how long a lane must have shown expired messages until it counts as stalled: where many expire at
	// once it takes the broker some seconds to move them.
	stallPatience = 30 * time.Second
	// mostPassing is how many findings that may pass are remembered of a Transport; the others begin when there is room.
	mostPassing = 512
)

// Tracker counts repairs, and remembers of each Transport what a single look does not show. It is safe for concurrent use.
type Tracker struct {
	// Repairs is the metric.
	Repairs *prometheus.CounterVec

	mu sync.Mutex
	// messages are the counts of the queues that are wanted, when they were last there.
	messages map[types.NamespacedName]map[string]int64
	// passing is since when a finding holds that may pass.
	passing map[types.NamespacedName]map[topology.Ref]time.Time
}

// NewTracker returns a Tracker that remembers nothing yet.
func NewTracker() *Tracker {
	return &Tracker{
		Repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "redrive_drift_repairs_total",
			Help: "Objects on the broker that were deleted or changed by others and that the operator restored.",
		}, []string{"namespace", "transport", "kind", "action"}),
		messages: map[types.NamespacedName]map[string]int64{},
		passing:  map[types.NamespacedName]map[topology.Ref]time.Time{},
	}
}

// Forget drops what is remembered and counted of a Transport.
func (d *Tracker) Forget(name types.NamespacedName) {
	d.Repairs.DeletePartialMatch(prometheus.Labels{"namespace": name.Namespace, "transport": name.Name})
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.messages, name)
	delete(d.passing, name)
}

// See remembers how many messages were in each queue that is wanted. Of one that is gone the last count stays until it is back; those of all
// others are forgotten, or a broker that lists other queues at each look would fill the memory.
func (d *Tracker) See(name types.NamespacedName, counts map[string]int64, wanted []topology.Queue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before, seen := d.messages[name], map[string]int64{}
	for _, queue := range wanted {
		if count, known := before[queue.Name]; known {
			seen[queue.Name] = count
		}
		if count, known := counts[queue.Name]; known {
			seen[queue.Name] = count
		}
	}
	d.messages[name] = seen
}

// lost tells of the messages that were in a queue when somebody deleted it, and forgets them.
func (d *Tracker) lost(name types.NamespacedName, queue string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	count, known := d.messages[name][queue]
	delete(d.messages[name], queue)
	switch {
	case !known:
		return queue + " (number not known)"
	case count == 0:
		return queue + " (none when last seen)"
	default:
		return fmt.Sprintf("%s (%d when last seen)", queue, count)
	}
}

// Staying is findings without those that may pass and do not hold for long enough yet.
func (d *Tracker) Staying(name types.NamespacedName, findings []topology.Finding, now time.Time) []topology.Finding {
	d.mu.Lock()
	defer d.mu.Unlock()
	before, since := d.passing[name], map[topology.Ref]time.Time{}
	var stays []topology.Finding
	for _, finding := range findings {
		if finding.Passing {
			if len(since) == mostPassing {
				continue
			}
			first, known := before[finding.Object]
			if !known {
				first = now
			}
			since[finding.Object] = first
			if now.Sub(first) < stallPatience {
				continue
			}
		}
		stays = append(stays, finding)
	}
	d.passing[name] = since
	return stays
}

// Count counts the repairs of a Transport, and says what they were, first of all what is lost.
func (d *Tracker) Count(name types.NamespacedName, repairs []topology.Step) string {
	var lost []string
	for _, step := range repairs {
		d.Repairs.WithLabelValues(name.Namespace, name.Name, string(step.Ref().Kind), string(step.Action)).Inc()
		if step.Queue != nil {
			lost = append(lost, d.lost(name, step.Queue.Name))
		}
	}
	return text(repairs, lost)
}

// text names what is lost first.
func text(repairs []topology.Step, lost []string) string {
	var parts, created, changed []string
	for _, step := range repairs {
		switch step.Action {
		case topology.ActionUpdate:
			fields := make([]string, len(step.Fields))
			for i, field := range step.Fields {
				fields[i] = field.String()
			}
			changed = append(changed, fmt.Sprintf("%s %s %s", step.Ref().Kind, step.Ref().Name, strings.Join(fields, ", ")))
		default:
			created = append(created, fmt.Sprintf("%s %s", step.Ref().Kind, step.Ref().Name))
		}
	}
	if len(lost) > 0 {
		parts = append(parts, "deleted with the messages in them: "+status.JoinedBy(", ", lost))
	}
	if len(created) > 0 {
		parts = append(parts, "created again: "+status.JoinedBy(", ", created))
	}
	if len(changed) > 0 {
		parts = append(parts, "changed back: "+status.JoinedBy(", ", changed))
	}
	return strings.Join(parts, "; ")
}
