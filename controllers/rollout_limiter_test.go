package controllers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
)

const newImage = "registry.example/redrive-worker:next"

// fleet is some ready Transports of one vhost.
func (w *world) fleet(transports int) []*v1alpha1.Transport {
	w.Helper()
	w.create(w.policy("policy", time.Second))
	fleet := make([]*v1alpha1.Transport, transports)
	for i := range fleet {
		transport, name := w.transport(), fmt.Sprintf("fleet-%02d", i)
		transport.Name, transport.Spec.Exchange.Name = name, name
		for q := range transport.Spec.Queues {
			transport.Spec.Queues[q].Name = name + "." + transport.Spec.Queues[q].Name
		}
		*transport.Spec.Exchange.UnroutedTo = name + ".lost"
		fleet[i] = transport
		w.create(transport)
	}
	for _, transport := range fleet {
		w.awaitReady(transport)
	}
	return fleet
}

// upgrade runs the operator with another image of the workers, which rolls so many at a time. It looks at nothing by itself unless poll
// says so.
func (w *world) upgrade(image string, maxRollouts int, poll time.Duration) {
	w.Helper()
	w.operator.image, w.operator.maxRollouts, w.operator.poll = image, maxRollouts, poll
	w.operator.restart(w.T)
}

// withImage are the Deployments of an image, and those of them whose pods are all there.
func (w *world) withImage(image string) (all, done []appsv1.Deployment) {
	w.Helper()
	for _, deployment := range w.deployments() {
		if deployment.Spec.Template.Spec.Containers[0].Image != image {
			continue
		}
		all = append(all, deployment)
		if deployment.Status.ObservedGeneration >= deployment.Generation && deployment.Status.UpdatedReplicas >= ptr.Deref(deployment.Spec.Replicas, 1) {
			done = append(done, deployment)
		}
	}
	return all, done
}

// setStatus plays the part of the Deployment controller for one Deployment.
func (w *world) setStatus(deployment *appsv1.Deployment, change func(*appsv1.DeploymentStatus)) {
	w.Helper()
	before := deployment.DeepCopy()
	wanted := ptr.Deref(deployment.Spec.Replicas, 1)
	deployment.Status = appsv1.DeploymentStatus{
		ObservedGeneration: deployment.Generation, Replicas: wanted, UpdatedReplicas: wanted, ReadyReplicas: wanted, AvailableReplicas: wanted,
	}
	change(&deployment.Status)
	must(w.T, w.client.Status().Patch(w.Context(), deployment, client.MergeFrom(before)))
}

func asIs(*appsv1.DeploymentStatus) {}

// neverReady has one new pod that does not come up beside the old ones, which go on.
func neverReady(status *appsv1.DeploymentStatus) {
	status.Replicas++
	status.UpdatedReplicas = 1
	status.Conditions = []appsv1.DeploymentCondition{
		{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue},
		{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded"},
	}
}

// awaitFull waits until so many Deployments have an image, and sees that it becomes no more while the operator goes on looking.
func (w *world) awaitFull(image string, n int) []appsv1.Deployment {
	w.Helper()
	testtransport.Eventually(w, fmt.Sprintf("%d Deployments with %s", n, image), func() bool {
		all, _ := w.withImage(image)
		return len(all) >= n
	})
	w.awaitCalm()
	all, _ := w.withImage(image)
	if len(all) != n {
		w.Fatalf("%d Deployments have %s, and %d may", len(all), image, n)
	}
	return all
}

// awaitCalm waits until the operator has looked at all and rests.
func (w *world) awaitCalm() {
	w.Helper()
	seen, since := -1, time.Now()
	testtransport.Eventually(w, "nobody to reconcile", func() bool {
		if total := w.operator.reconciles(w.T, "transport"); total != seen {
			seen, since = total, time.Now()
		}
		return time.Since(since) > time.Second
	})
}

func TestRollout_UpgradesAFewDeploymentsAtATimeUpToAll(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	const fleet, limit = 7, 2
	transports := w.fleet(fleet)
	w.upgrade(newImage, limit, time.Hour)
	w.awaitFull(newImage, limit)

	t.Log("those that wait say so, and cost nothing")
	testtransport.Eventually(t, "those that wait to say so", func() bool { return w.waitingOf(transports) == fleet-limit })

	t.Log("the operator is killed and another goes on")
	w.awaitCalm() // events are sent after the status
	written := len(w.operator.writes.of(w.namespace))
	w.operator.kill()
	w.operator.start(t, testcluster.Start(t))
	w.awaitFull(newImage, limit)
	w.awaitCalm()
	if now := w.operator.writes.of(w.namespace); len(now) != written {
		t.Errorf("while they wait it wrote %q", now[written:])
	}

	t.Log("each that is done lets one go")
	for done := range fleet {
		all, before := w.withImage(newImage)
		if under := len(all) - len(before); under > limit {
			t.Fatalf("%d roll at a time", under)
		}
		i := slices.IndexFunc(all, func(d appsv1.Deployment) bool { return d.Status.ObservedGeneration < d.Generation })
		w.setStatus(&all[i], asIs)
		w.awaitFull(newImage, min(fleet, limit+done+1))
	}
	for _, transport := range transports {
		w.awaitReady(transport)
	}
	for _, event := range w.eventsOf("Repaired", "") {
		t.Errorf("it takes the upgrade for somebody else's change: %s", event.Note)
	}
}

// waitingOf is how many of some Transports say that they wait for their turn among 2.
func (w *world) waitingOf(transports []*v1alpha1.Transport) (waiting int) {
	for _, transport := range transports {
		w.get(transport)
		reconciling := meta.FindStatusCondition(transport.Status.Conditions, v1alpha1.ReconcilingCondition)
		if reconciling != nil && reconciling.Reason == v1alpha1.ReasonProgressing &&
			strings.Contains(reconciling.Message, "rollout queued") && strings.Contains(reconciling.Message, "at most 2 worker groups") {
			waiting++
		}
	}
	return waiting
}

func TestRollout_CarriesOutAUsersChangeDuringAnUpgrade(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	transports := w.fleet(3)
	w.upgrade(newImage, 1, time.Hour)
	first := w.awaitFull(newImage, 1)[0]
	i := slices.IndexFunc(transports, func(tr *v1alpha1.Transport) bool { return !strings.HasPrefix(first.Name, tr.Name) })
	edit(w, transports[i], func(tr *v1alpha1.Transport) { tr.Spec.Workers[0].Timeout = v1alpha1.NewDuration(47 * time.Second) })
	all := w.awaitFull(newImage, 2)
	changed := all[slices.IndexFunc(all, func(d appsv1.Deployment) bool { return strings.HasPrefix(d.Name, transports[i].Name) })]
	if got := *changed.Spec.Template.Spec.TerminationGracePeriodSeconds; got != 47+15 {
		t.Errorf("the pods have %d s to end", got)
	}
	if changed.Annotations["redrive.dev/operator-rollout"] != "" {
		t.Error("a change by the user counts as one by the upgrade")
	}
	t.Log("what somebody else changes is put right at once, too")
	edit(w, &changed, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "theirs" })
	w.eventually("the image to be back", func() bool {
		w.get(&changed)
		return changed.Spec.Template.Spec.Containers[0].Image == newImage
	})
}

func TestRollout_GoesOnOneAtATimeWhereAnUpgradeFails(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	transports := w.fleet(5)
	w.upgrade(newImage, 2, time.Hour)
	broken := w.awaitBroken(2)
	rolling := w.awaitFull(newImage, 3)
	names := func(deployments []appsv1.Deployment, transport *v1alpha1.Transport) bool {
		return slices.ContainsFunc(deployments, func(d appsv1.Deployment) bool { return strings.HasPrefix(d.Name, transport.Name) })
	}
	for _, transport := range transports {
		switch {
		case names(broken, transport):
			w.awaitMessage(transport, v1alpha1.DegradedCondition, "do not become ready since the operator was upgraded")
		case !names(rolling, transport):
			w.touch(transport)
			w.awaitMessage(transport, v1alpha1.ReconcilingCondition, "2 worker groups do not become ready, and the upgrade continues one group at a time")
		}
	}
	third := rolling[slices.IndexFunc(rolling, func(d appsv1.Deployment) bool { return d.Status.ObservedGeneration < d.Generation })]
	w.setStatus(&third, asIs)
	w.awaitFull(newImage, 4)

	t.Log("the next operator mends it, those that are broken too")
	const mended = newImage + "-mended"
	w.upgrade(mended, 2, pollInterval)
	for _, transport := range transports {
		w.awaitReady(transport)
	}
	if all, _ := w.withImage(mended); len(all) != len(transports) {
		t.Errorf("%d of %d Deployments have the mended image", len(all), len(transports))
	}
}

// touch lets the operator look at a Transport.
func (w *world) touch(transport *v1alpha1.Transport) {
	w.Helper()
	deployments := w.deployments()
	i := slices.IndexFunc(deployments, func(d appsv1.Deployment) bool { return strings.HasPrefix(d.Name, transport.Name) })
	edit(w, &deployments[i], func(d *appsv1.Deployment) { d.Labels["somebody/looks"] = "true" })
}

func TestRollout_GivesNoPlaceToAWorkerThatWasBrokenBefore(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	transports := w.fleet(3)
	before := w.deployments()[0]
	w.setStatus(&before, neverReady)
	w.upgrade(newImage, 1, pollInterval)
	for range transports {
		testtransport.Eventually(t, "one more to roll", func() bool {
			all, _ := w.withImage(newImage)
			i := slices.IndexFunc(all, func(d appsv1.Deployment) bool { return d.Status.ObservedGeneration < d.Generation })
			if i < 0 {
				return false
			}
			if all[i].Name == before.Name {
				w.setStatus(&all[i], neverReady)
			} else {
				w.setStatus(&all[i], asIs)
			}
			return true
		})
	}
}

// awaitBroken waits until so many have the new image, none of which comes up.
func (w *world) awaitBroken(n int) []appsv1.Deployment {
	w.Helper()
	testtransport.Eventually(w, "the first to roll", func() bool {
		all, _ := w.withImage(newImage)
		return len(all) >= n
	})
	all, _ := w.withImage(newImage)
	for i := range all {
		w.setStatus(&all[i], neverReady)
	}
	return all
}

func (w *world) awaitMessage(transport *v1alpha1.Transport, kind, part string) {
	w.Helper()
	w.eventually(fmt.Sprintf("%s of %s with %q", kind, transport.Name, part), func() bool {
		w.get(transport)
		condition := meta.FindStatusCondition(transport.Status.Conditions, kind)
		return condition != nil && strings.Contains(condition.Message, part)
	})
}
