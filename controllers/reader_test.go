package controllers

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/opmetrics"
	"redrive.dev/redrive/internal/tenancy"
)

// slow is an API server that lets nobody go before it is told to, and notes how many read of each namespace.
type slow struct {
	client.Reader

	answer chan struct{}
	mu     sync.Mutex
	reads  map[string]int
}

// Get implements client.Reader.
func (s *slow) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	s.mu.Lock()
	s.reads[key.Namespace]++
	s.mu.Unlock()
	<-s.answer
	return nil
}

// A policy that is touched each second has all Transports that follow it look again, and each reads the Secret of its broker, of up to a megabyte.
func TestFindBroker_ReadsAFewSecretsOfANamespaceAtATime(t *testing.T) {
	t.Parallel()
	const most, least = 6, 3
	synctest.Test(t, func(t *testing.T) {
		server := &slow{answer: make(chan struct{}), reads: map[string]int{}}
		r := &TransportReconciler{Live: server}
		var all sync.WaitGroup
		for _, namespace := range []string{"hostile", "shop"} {
			for i := range 50 {
				transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: strconv.Itoa(i)}}
				transport.Spec.Broker.SecretRef = &v1alpha1.LocalReference{Name: "login"}
				all.Go(func() { r.findBroker(t.Context(), transport) })
			}
		}
		synctest.Wait()
		for namespace, n := range server.reads {
			if n < least || n > most {
				t.Errorf("%d Secrets of namespace %s are read at once, want %d to %d", n, namespace, least, most)
			}
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.reads.Get(ended, server, client.ObjectKey{Namespace: "shop"}, &corev1.Secret{}); err == nil {
			t.Error("who has no more time waits")
		}
		close(server.answer)
		all.Wait()
		if len(server.reads) != 2 || server.reads["shop"] != 50 {
			t.Errorf("not all had their turn: %v", server.reads)
		}
	})
}

// oneTransport is a cache with one Transport by any name.
type oneTransport struct {
	client.Client

	transport *v1alpha1.Transport
}

// Get implements client.Reader.
func (o oneTransport) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	o.transport.DeepCopyInto(object.(*v1alpha1.Transport))
	return nil
}

// Whoever finds no room in its namespace does not read its Secret before it is turned away.
func TestReconcile_ReadsNoSecretWithoutRoomInItsNamespace(t *testing.T) {
	t.Parallel()
	server := &slow{answer: make(chan struct{}), reads: map[string]int{}}
	close(server.answer)
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async"}}
	transport.Spec.Broker.SecretRef = &v1alpha1.LocalReference{Name: "login"}
	r := &TransportReconciler{
		Live: server, Client: oneTransport{transport: transport}, admission: tenancy.NewAdmission(maxReconciles),
		processors: tenancy.NewProcessors(), conditions: opmetrics.NewConditions(),
	}
	for range maxReconciles / 4 {
		if _, err := r.admission.Enter("shop", false); err != nil {
			t.Fatal(err)
		}
	}
	if later, err := r.reconcile(t.Context(), client.ObjectKeyFromObject(transport)); err != nil || later.RequeueAfter == 0 {
		t.Errorf("comes later: %v, %v", later, err)
	}
	if len(server.reads) > 0 {
		t.Errorf("it has read: %v", server.reads)
	}
}

// A Transport that is deleted without its broker waits for the processor of its namespace, as hundreds of others may: reconciles are left for other
// namespaces.
func TestReconcile_TurnsDeletionsAwayThatAreTooMany(t *testing.T) {
	t.Parallel()
	server := &slow{answer: make(chan struct{}), reads: map[string]int{}}
	close(server.answer)
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "async", Generation: 2, DeletionTimestamp: &metav1.Time{Time: time.Now()}, Finalizers: []string{v1alpha1.Finalizer},
	}}
	transport.Spec.DeletionPolicy = v1alpha1.DeletionRetain
	r := &TransportReconciler{
		Live: server, Client: oneTransport{transport: transport}, processors: tenancy.NewProcessors(),
		deletions: tenancy.NewAdmission(maxDeletions),
	}
	for range maxDeletions / 4 {
		if _, err := r.deletions.Enter("shop", false); err != nil {
			t.Fatal(err)
		}
	}
	later, err := r.reconcile(t.Context(), client.ObjectKeyFromObject(transport))
	if err != nil || later.RequeueAfter == 0 || later.RequeueAfter > 2*fullPause {
		t.Errorf("comes later: %v, %v", later, err)
	}
}

// noPolicies is a cache that has none, and counts how often it is asked.
type noPolicies struct {
	client.Client

	asked int
}

// Get implements client.Reader.
func (n *noPolicies) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	n.asked++
	return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("retrypolicies").GroupResource(), key.Name)
}

// Policies that take long to compile were compiled beside the reconciles of their namespaces.
func TestRetryPolicyReconciler_WaitsForTheProcessorsOfItsNamespace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cache := &noPolicies{}
		r := &RetryPolicyReconciler{Client: cache, processors: tenancy.NewProcessors()}
		policy := ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "default"}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var others []*tenancy.Processor
		for other := r.processors.TryAcquire("shop"); other != nil; other = r.processors.TryAcquire("shop") {
			others = append(others, other)
		}
		if later, err := r.Reconcile(ctx, policy); err != nil || later.RequeueAfter == 0 || cache.asked > 0 {
			t.Errorf("it computes beside %d others: %v, %v", len(others), later, err)
		}
		others[0].Release()
		if later, err := r.Reconcile(t.Context(), policy); err != nil || later.RequeueAfter != 0 || cache.asked != 1 {
			t.Errorf("it was asked for %d times: %v, %v", cache.asked, later, err)
		}
		if r.processors.TryAcquire("shop") == nil {
			t.Error("it keeps its processor")
		}
	})
}
