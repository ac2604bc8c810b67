// Package quarantinepod decides which worker groups have a pod for quarantined messages, and says what keeps one from its work.
package quarantinepod

import (
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

const (
	// Stay is how old a quarantine pod becomes at least: what ended one worker may well end the next one soon.
	Stay = 5 * time.Minute
	// startLimit is how long a quarantine pod may take to get ready before that is told.
	startLimit = time.Minute
	// maxTold is how many quarantine queues of a Transport the condition tells of. A spec has 64, and a configuration that another user has
	// written any number.
	maxTold = 128
)

// Group is a worker group with the quarantine queues that it consumes.
type Group struct {
	*v1alpha1.Worker

	Queues []string
	// Former is true for a group that has left the spec: of its Worker only the name is known, and that it has no replicas where that is so.
	Former bool
}

// Groups are the worker groups that run, with the quarantine queues of their published configuration: those of the spec, and then those that have left
// it. One without workers, or whose workers are being deleted, or without a configuration that can be read, is left as it is.
func Groups(t *v1alpha1.Transport, live *workload.Live) []Group {
	var groups []Group
	inSpec := map[string]bool{}
	add := func(group Group) {
		name := workload.Name(t, group.Name)
		config, published := live.Config(name)
		workers := live.Deployments[name]
		inSpec[name] = true
		if !published || workers == nil || !workers.DeletionTimestamp.IsZero() {
			return
		}
		for _, queue := range config.Queues {
			if queue.Quarantine != "" {
				group.Queues = append(group.Queues, queue.Quarantine)
			}
		}
		groups = append(groups, group)
	}
	for i := range t.Spec.Workers {
		add(Group{Worker: &t.Spec.Workers[i]})
	}
	for _, name := range slices.Sorted(maps.Keys(live.ConfigMaps)) {
		if config, published := live.Config(name); published && !inSpec[name] {
			worker := &v1alpha1.Worker{Name: config.Worker}
			if !live.MayHavePods(t, name) {
				worker.Replicas = new(int32(0))
			}
			add(Group{Worker: worker, Former: true})
		}
	}
	return groups
}

// Wanted says whether a worker group is to have a quarantine pod. live is nil where it has none. A count that is not
// known changes nothing, and a group that the spec stops has none.
func (g Group) Wanted(live *appsv1.Deployment, counts Counts, now time.Time, stay time.Duration) bool {
	if g.stopped() {
		return false
	}
	if counts == nil {
		return g.HasQueues()
	}
	known := true
	for _, queue := range g.Queues {
		messages, counted := counts[queue]
		if messages > 0 {
			return true
		}
		known = known && counted
	}
	return live != nil && (!known || now.Sub(live.CreationTimestamp.Time) < stay)
}

// HasQueues is true where the group consumes any.
func (g Group) HasQueues() bool { return len(g.Queues) > 0 }

// stopped is true for a group whose replicas the spec sets to 0, or its Deployment where it has left the spec. An autoscaler that has none because its
// queues are empty stops nothing.
func (g Group) stopped() bool { return ptr.Deref(g.Replicas, 1) == 0 }

// Counts is the number of messages in queues. A queue that is not in it is not counted; nil stands for a broker that counts none at all.
type Counts map[string]int64

// CountsOf are the messages of the queues that are counted.
func CountsOf(queues []apply.QueueCount) Counts {
	counts := Counts{}
	for _, queue := range queues {
		if queue.Messages != nil {
			counts[queue.Name] = *queue.Messages
		}
	}
	return counts
}

// CountsOwned counts the quarantine queues of worker groups without those that another user has made again.
func CountsOwned(groups []Group, observed *topology.Observed, owner string) Counts {
	counts := Counts{}
	for _, group := range groups {
		for _, name := range group.Queues {
			if queue := observed.Queues[name]; queue.Messages != nil && queue.Arguments.Owner() == owner {
				counts[name] = *queue.Messages
			}
		}
	}
	return counts
}

// Held are the messages in the quarantine queues of some groups, of maxTold queues at most.
func Held(groups []Group, counts Counts) map[string]int64 {
	held := map[string]int64{}
	for _, group := range groups {
		for _, queue := range group.Queues {
			if counts[queue] > 0 && len(held) < maxTold {
				held[queue] = counts[queue]
			}
		}
	}
	return held
}

// Trouble says what keeps the pod of a quarantine Deployment from its work that is not available. cause is what is known
// of it. Where nothing is, a pod that takes long runs and does not get ready: its readiness waits for its consumers.
func Trouble(live *appsv1.Deployment, cause string, now time.Time) string {
	if cause != "" {
		return fmt.Sprintf("its Deployment %s does not start%s", live.Name, cause)
	}
	since := live.CreationTimestamp.Time
	for _, condition := range live.Status.Conditions {
		if condition.Type == appsv1.DeploymentAvailable && condition.LastTransitionTime.After(since) {
			since = condition.LastTransitionTime.Time
		}
	}
	if now.Sub(since) < startLimit {
		return ""
	}
	return "its pod is not ready: look at its log for a right or a connection that is missing"
}

// Warning tells of the messages in the quarantine queues of a group, by figures that do not change with each look; it is empty where there are none.
func (g Group) Warning(figures map[string]status.Damped, trouble string) []topology.Finding {
	var holding []apply.Blocked
	for _, queue := range g.Queues {
		if figure, holds := figures[queue]; holds {
			holding = append(holding, apply.Blocked{Queue: queue, Messages: figure.N})
		}
	}
	if len(holding) == 0 {
		return nil
	}
	text := "messages that were at pods which ended are handled one by one: "
	if g.stopped() {
		text = "messages that were at pods which ended wait until the group has replicas again: "
	}
	text += status.Listed(holding, apply.Blocked.String)
	if trouble != "" {
		text += "; " + trouble
	}
	return []topology.Finding{{
		Object: topology.Ref{Kind: topology.KindWorker, Name: g.Name}, Reason: v1alpha1.ReasonMessagesQuarantined, Message: text,
	}}
}
