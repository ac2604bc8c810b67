package controllers

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/topology"
)

const (
	// eventAdopted tells of an object that was there before and is used from now on.
	eventAdopted = "Adopted"
	// eventKept tells of a queue that is not in the spec and stays, since nobody knows whether it was adopted.
	eventKept = "Preserved"
)

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

// withRefs are the objects of two lists.
func withRefs(refs, more []string) []string {
	for _, ref := range more {
		if !slices.Contains(refs, ref) {
			refs = append(slices.Clip(refs), ref)
		}
	}
	return refs
}

// reportAdoption tells once of each object that is adopted, with what is in it and who else consumes it, and of those that are kept as if
// they had been.
func reportAdoption(run *transportRun) {
	if len(run.report.Spared) > 0 {
		run.status.EventOnceWritten(corev1.EventTypeWarning, eventKept, status.Listed(run.report.Spared, findingText))
	}
	var texts []string
	for _, ref := range run.report.Adopted {
		if !slices.Contains(run.transport.Status.Adopted, ref) {
			texts = append(texts, adoptionText(ref, run.report.Queues))
		}
	}
	if len(texts) > 0 {
		run.status.EventOnceWritten(corev1.EventTypeNormal, eventAdopted, status.Joined(texts)+": adopted unchanged, and never deleted")
	}
}

func adoptionText(ref string, queues []apply.QueueCount) string {
	kind, name, _ := strings.Cut(ref, "/")
	for _, queue := range queues {
		if kind == string(topology.KindQueue) && queue.Name == name {
			messages := "messages that are not counted yet"
			if queue.Messages != nil {
				messages = status.Counted(*queue.Messages, "message")
			}
			return fmt.Sprintf("adopted queue %s with %s and %s", name, messages, status.Counted(queue.Consumers, "consumer"))
		}
	}
	return fmt.Sprintf("adopted %s %s", kind, name)
}
