package controllers_test

import (
	"context"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
)

// changes tell a test that waits when a Transport, RetryPolicy or Deployment in its namespace has changed. Dozens of tests that ask all the time
// keep the API server from what they wait for.
type changes struct {
	start  sync.Once
	cancel context.CancelFunc

	mu sync.Mutex
	// next are closed at the next change in a namespace.
	next map[string]chan struct{}
}

// theChanges are those of the cluster that all tests share. TestMain ends them.
var theChanges changes

// in returns a channel that is closed at the next change in a namespace.
func (c *changes) in(namespace string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		c.next = map[string]chan struct{}{}
	}
	if c.next[namespace] == nil {
		c.next[namespace] = make(chan struct{})
	}
	return c.next[namespace]
}

// note takes what an informer tells.
func (c *changes) note(object any) {
	if last, missed := object.(toolscache.DeletedFinalStateUnknown); missed {
		object = last.Obj
	}
	changed, err := meta.Accessor(object)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if next := c.next[changed.GetNamespace()]; next != nil {
		close(next)
		delete(c.next, changed.GetNamespace())
	}
}

// watch begins to tell of changes, once.
func (c *changes) watch(t *testing.T, cluster *testcluster.Cluster) {
	t.Helper()
	c.start.Do(func() {
		ctx, cancel := context.WithCancel(context.Background()) // it outlives the test
		c.cancel = cancel
		watching, err := cache.New(cluster.Config, cache.Options{Scheme: cluster.Scheme})
		must(t, err)
		for _, kind := range []schema.GroupVersionKind{
			v1alpha1.GroupVersion.WithKind("Transport"), v1alpha1.GroupVersion.WithKind("RetryPolicy"),
			{Group: "apps", Version: "v1", Kind: "Deployment"},
		} {
			object := &metav1.PartialObjectMetadata{}
			object.SetGroupVersionKind(kind)
			informer, err := watching.GetInformer(ctx, object, cache.BlockUntilSynced(false))
			must(t, err)
			_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
				AddFunc: c.note, UpdateFunc: func(_, now any) { c.note(now) }, DeleteFunc: c.note,
			})
			must(t, err)
		}
		go func() { _ = watching.Start(ctx) }() // without it tests take longer, no more
	})
}

// stop ends the watches, if there are any.
func (c *changes) stop() {
	if c.cancel != nil {
		c.cancel()
	}
}

// eventually is testtransport.Eventually for what Transports, RetryPolicies and Deployments of this test show: it looks when one of them has changed,
// and seldom without.
func (w *world) eventually(what string, condition func() bool) {
	w.Helper()
	const together, seldom = 20 * time.Millisecond, time.Second
	for start := time.Now(); ; {
		changed := theChanges.in(w.namespace)
		if condition() {
			return
		}
		if time.Since(start) > testtransport.Patience {
			w.Fatalf("waited %s for %s", testtransport.Patience, what)
		}
		select {
		case <-changed:
			time.Sleep(together) // for the objects that change with it
		case <-time.After(seldom):
		}
	}
}

// A test that is not told of a change would only take longer.
func TestChanges_AreToldOfEachKindInItsNamespaceOnly(t *testing.T) {
	t.Parallel()
	w, other := newUnattendedWorld(t, &operator{}), newUnattendedWorld(t, &operator{}) // nobody else changes anything there
	quiet := theChanges.in(other.namespace)
	labels := map[string]string{"app": "web"}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "web"},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: workerImage}}},
		}},
	}
	for _, object := range []client.Object{w.policy("policy", time.Second), w.transport(), deployment} {
		for _, change := range []func(){
			func() { w.create(object) },
			func() { edit(w, object, func(o client.Object) { o.SetLabels(labels) }) },
			func() { must(t, w.client.Delete(t.Context(), object)) },
		} {
			changed := theChanges.in(w.namespace)
			change()
			select {
			case <-changed:
			case <-time.After(testtransport.Patience):
				t.Fatalf("not told that a %T was made, changed or deleted", object)
			}
		}
	}
	select {
	case <-quiet:
		t.Error("told of another namespace")
	default:
	}
}
