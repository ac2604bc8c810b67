package apply

import (
	"slices"
	"strings"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

// State is what a Transport's status remembers from one run to the next.
type State struct {
	// Created are the objects without an owner mark that the Transport made.
	Created []string
	// Adopted are the objects that were there before, as Ref strings. They are never deleted, whatever mark they carry.
	Adopted []string
	// Retiring are the queues on their way out.
	Retiring []v1alpha1.Retirement
	// Migrations are the queues that are being migrated.
	Migrations []v1alpha1.Migration
	// Deletions are requests that may still be carried out.
	Deletions []v1alpha1.Deletion
	// Broker on which the objects stand; nil before the first run, and where it may change.
	Broker *v1alpha1.BrokerIdentity
	// Begun is true once a run has looked at the broker: what the lists above do not have, there was not. A Transport that is made again, or
	// whose status is lost, begins anew.
	Begun bool
	// Memory is that of the run before; empty after a restart.
	Memory
	// Doubts are Deletions, and those of others, as this process has seen them. They are kept in memory only.
	Doubts Doubts
	// Stamps are the times of Retiring and Migrations, as this process has seen them. They are kept in memory only.
	Stamps topology.Stamps
	// Restarted is when the broker was found to answer again after it had not; zero where nobody knows of that. It is kept in memory only.
	Restarted time.Time
}

// Memory is what one run hands the next one in the same process, and what stands in no status.
type Memory struct {
	// Known are the quorum queues that are wanted, each with the time at which it was made or first seen: to whoever knows nothing, a queue
	// is as old as its first look at it.
	Known map[string]time.Time
	// Stuck are the queues that expired messages did not leave lately.
	Stuck Stuck
	// Counted tells how old the counts are by which queues on their way out are judged.
	Counted Counted
	// Turns tell whose turn it is of what only a mark says is this Transport's.
	Turns Turns
	// Asking is true from the first run of a Transport without a history until the bindings of each queue that is to leave were asked for: others may have
	// bound one, and a list of all bindings may lack that.
	Asking bool
	// Former are the ways back from the lanes that are no longer wanted and wait for the last retry.
	Former Former
}

// Keep takes over what a run wants kept for the next one.
func (s *State) Keep(report *Report) {
	s.Created, s.Adopted, s.Retiring, s.Migrations, s.Deletions = report.Created, report.Adopted, report.Retiring, report.Migrations, report.Deletions
	s.Begun, s.Memory = report.Begun, report.Memory
}

// StateOf is what the status of a Transport tells of what was made before. What is kept in memory only is not in it.
func StateOf(t *v1alpha1.Transport) State {
	return State{
		Created: t.Status.Created, Adopted: adopted(t), Retiring: t.Status.Retiring, Migrations: t.Status.Migrations,
		Deletions: t.Status.Deletions,
		Broker:    t.Status.Broker, Begun: t.Status.Broker != nil,
	}
}

// adopted are the queues that are never deleted: those that were adopted, and those that the spec wants to be.
func adopted(t *v1alpha1.Transport) []string {
	var refs []string
	for _, ref := range t.Status.Adopted {
		if strings.HasPrefix(ref, topology.Ref{Kind: topology.KindQueue}.String()) {
			refs = append(refs, ref)
		}
	}
	for i := range t.Spec.Queues {
		if queue := &t.Spec.Queues[i]; queue.Adopt != nil && *queue.Adopt {
			refs = append(refs, topology.Ref{Kind: topology.KindQueue, Name: queue.Name}.String())
		}
	}
	return refs
}

// MergeRefs are the objects of two lists.
func MergeRefs(refs, more []string) []string {
	for _, ref := range more {
		if !slices.Contains(refs, ref) {
			refs = append(slices.Clip(refs), ref)
		}
	}
	return refs
}

// IdentityOf is the broker on which the objects stand. An ID and nodes that cannot be read any more are kept.
func IdentityOf(before *v1alpha1.BrokerIdentity, now *topology.Observed) *v1alpha1.BrokerIdentity {
	identity := &v1alpha1.BrokerIdentity{Cluster: now.Cluster, ClusterID: now.ClusterID, VHost: now.VHost, Nodes: now.Nodes}
	if before != nil && now.ClusterID == "" {
		identity.ClusterID = before.ClusterID
	}
	if before != nil && len(now.Nodes) == 0 {
		identity.Nodes = before.Nodes
	}
	return identity
}

// BeginsToRetire is true where a queue that is to go is not on its way out yet. When that begins, all its ways are taken away, and what they led to has to be
// led elsewhere already: that takes lists of now.
func (s *State) BeginsToRetire(difference topology.Difference) bool {
	return slices.ContainsFunc(difference.ExtraQueues, func(queue topology.QueueState) bool {
		begun := slices.ContainsFunc(s.Retiring, func(known v1alpha1.Retirement) bool {
			return known.Queue == queue.Name && known.Since != nil // one that was held has its ways yet
		})
		return !begun && !slices.Contains(difference.Deferred, queue.Name)
	})
}
