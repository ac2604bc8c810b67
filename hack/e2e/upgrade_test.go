//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
)

// changeManager lets the operator run with other flags or another environment. It returns before it does.
func changeManager(ctx context.Context, change func(*corev1.Container)) error {
	deployments := suite.clientset.AppsV1().Deployments(operatorNamespace)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		deployment, err := deployments.Get(ctx, operatorDeployment, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(&deployment.Spec.Template.Spec.Containers[0])
		_, err = deployments.Update(ctx, deployment, metav1.UpdateOptions{})
		return err
	})
}

// withWorkers is the change to another image of the workers.
func withWorkers(image string) func(*corev1.Container) {
	return func(manager *corev1.Container) {
		i := slices.IndexFunc(manager.Env, func(v corev1.EnvVar) bool { return v.Name == "REDRIVE_WORKER_IMAGE" })
		manager.Env[i].Value = image
	}
}

// rollouts counts how many Deployments of some shops roll at a time, until it is stopped.
type rollouts struct {
	t       *testing.T
	shops   []*shop
	cancel  context.CancelFunc
	running sync.WaitGroup
	// most at a time, and all that did.
	most int
	all  map[string]bool
}

func watchRollouts(t *testing.T, shops []*shop) *rollouts {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &rollouts{t: t, shops: shops, cancel: cancel, all: map[string]bool{}}
	r.running.Go(func() {
		for ctx.Err() == nil {
			if err := r.look(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	t.Cleanup(r.stop)
	return r
}

func (r *rollouts) stop() {
	r.cancel()
	r.running.Wait()
}

// look takes one list, which shows all Deployments as they were at the same moment.
func (r *rollouts) look(ctx context.Context) error {
	var list appsv1.DeploymentList
	if err := suite.client.List(ctx, &list, client.HasLabels{"redrive.dev/worker"}); err != nil {
		return fmt.Errorf("list the Deployments of the workers: %w", err)
	}
	rolling := 0
	for i := range list.Items {
		deployment := &list.Items[i]
		status, wanted := deployment.Status, ptr.Deref(deployment.Spec.Replicas, 1)
		ours := slices.ContainsFunc(r.shops, func(s *shop) bool { return s.namespace == deployment.Namespace })
		if ours && (status.ObservedGeneration < deployment.Generation || status.UpdatedReplicas < wanted || status.Replicas > status.UpdatedReplicas) {
			rolling++
			r.all[deployment.Namespace] = true
		}
	}
	r.most = max(r.most, rolling)
	return nil
}

// TestUpgrade_RollsAFewWorkersAtATimeUnderLoad lets the operator bring another image of the workers, to one Deployment at a
// time. It runs beside no other scenario, whose workers it would roll as well.
func TestUpgrade_RollsAFewWorkersAtATimeUnderLoad(t *testing.T) {
	long(t)
	earlier, present := builds(t)
	const limit, flag = 1, "--max-concurrent-rollouts=1"
	shops, flows := make([]*shop, 3), make([]*load, 3)
	for i := range shops {
		shops[i] = newShop(t, fmt.Sprint("upgrade-", i), plan{change: func(tr *v1alpha1.Transport) { tr.Spec.Workers[0].Replicas = ptr.To[int32](1) }})
		shops[i].open()
	}
	for i, s := range shops {
		s.awaitReady(readyWithin)
		flows[i] = s.startLoad(20, slow(s.name, 100*time.Millisecond))
	}
	back := func(manager *corev1.Container) {
		withWorkers(present.worker)(manager)
		manager.Args = slices.DeleteFunc(manager.Args, func(argument string) bool { return argument == flag })
	}
	t.Cleanup(func() { // also where it failed half way
		if t.Failed() {
			must(t, changeManager(context.Background(), back))
		}
	})

	watched := watchRollouts(t, shops)
	must(t, changeManager(t.Context(), func(manager *corev1.Container) {
		withWorkers(earlier.worker)(manager)
		manager.Args = append(manager.Args, flag)
	}))
	for _, s := range shops {
		s.awaitWorkers(earlier.worker)
	}
	watched.stop()
	if watched.most != limit || len(watched.all) != len(shops) {
		t.Errorf("%d Deployments rolled, at most %d at a time; want %d, %d at a time", len(watched.all), watched.most, len(shops), limit)
	}

	t.Log("back again, all at once")
	must(t, changeManager(t.Context(), back))
	for i, s := range shops {
		s.awaitWorkers(present.worker)
		checkOnce(t, s.tally.settle(flows[i].stop(), 2*time.Minute))
		s.checkNothingMoved()
	}
}

// awaitWorkers waits until the only worker pod is of an image, and ready, and messages go through it.
func (s *shop) awaitWorkers(image string) {
	s.t.Helper()
	await(s.t, moveWithin, "workers of "+image, func() (bool, any) {
		pods, err := s.pods(s.t.Context())
		if err != nil || len(pods) != 1 {
			return false, fmt.Sprint(len(pods), " pods ", err)
		}
		return podReady(&pods[0]) && pods[0].Spec.Containers[0].Image == image, pods[0].Spec.Containers[0].Image
	})
	s.awaitReady(moveWithin)
	s.awaitHandled(10)
}
