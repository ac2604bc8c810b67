package controllers

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/autoscaling"
	"redrive.dev/redrive/internal/brokerpool"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/tenancy"
)

// A thousand Transports of a few namespaces, each with a broker of its own that stopped in the middle of an answer, took what the manager has.
func TestAsking_IsBoundedForReconcilesAndSamplesTogether(t *testing.T) {
	t.Parallel()
	const mayAsk = 2
	r := &TransportReconciler{
		brokers: brokerpool.NewPool(time.Hour, 8, nil), processors: tenancy.NewProcessors(), asking: tenancy.NewAdmission(4 * mayAsk),
		Live: logins{secrets: map[string]map[string]string{
			"shop/login": {"host": "127.0.0.1", "username": "user", "password": "secret", "management_uri": "http://127.0.0.1:1"},
		}},
	}
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async", DeletionTimestamp: &metav1.Time{Time: time.Now()}}}
	transport.Spec.Broker.SecretRef = &v1alpha1.LocalReference{Name: "login"}
	transport.Status.Broker = &v1alpha1.BrokerIdentity{Cluster: "rabbit@test", VHost: "/"}
	acquire := func() (seated bool, leave func()) {
		run := &transportRun{transport: transport, status: outcome.OfTransport(transport, nil, nil), endpoint: r.findBroker(t.Context(), transport)}
		defer run.endpoint.held.Release()
		got, leave, later, err := r.acquireSlot(t.Context(), run)
		if err != nil || (got == nil) != (later.RequeueAfter > 0) {
			t.Fatalf("seated %t, later %v: %v", got != nil, later, err)
		}
		return got != nil, leave
	}
	var leaves []func()
	for range mayAsk {
		seated, leave := acquire()
		if !seated {
			t.Fatalf("only %d may ask", len(leaves))
		}
		leaves = append(leaves, leave)
	}
	seated, leave := acquire()
	if leave(); seated {
		t.Errorf("more than %d may ask", mayAsk)
	}
	if _, err := (backlogSource{r}).Observe(t.Context(), transport, time.Second, time.Second); !errors.Is(err, autoscaling.ErrNoSample) {
		t.Errorf("a sample beside them: %v", err)
	}
	leaves[0]()
	if seated, _ := acquire(); !seated {
		t.Error("the place that was given back is lost")
	}
}
