package controllers_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
)

// Dozens of Transports, each of a vhost of its own, wait for minutes for a broker that takes requests and never answers.
func TestTransport_HeedsItsUserWhileItWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	o := &operator{} // the others would wait with it
	w, other := newUnattendedWorld(t, o), newUnattendedWorld(t, o)
	o.start(t, testcluster.Start(t))
	t.Cleanup(o.stop)
	going := w.ready()
	l := newLiar(t, testbroker.Shared(t).ManagementURL)
	l.be(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	hang := func(w *world) {
		secret := w.secret()
		secret.Name, secret.StringData["management_uri"] = "hanging", l.URL
		w.create(secret)
	}
	hang(w)
	hang(other)
	other.create(other.policy("policy", time.Second)) // without it the crowd there would wait for no broker
	// Namespaces share the seats, so there is a crowd in each.
	crowd := make([]*v1alpha1.Transport, 64)
	for i := range crowd {
		w := []*world{w, other}[i%2]
		crowd[i] = w.transport()
		crowd[i].Name = fmt.Sprint("crowd-", i)
		crowd[i].Spec.Broker.SecretRef.Name, crowd[i].Spec.Broker.VHost = "hanging", new(fmt.Sprint("team-", i))
		w.create(crowd[i])
	}
	moving := other.transport()
	moving.Spec.Broker.SecretRef.Name = "hanging"
	other.create(moving)
	edit(w, w.secret(), func(s *corev1.Secret) { s.StringData = map[string]string{"management_uri": l.URL} })

	says := func(w *world, transport *v1alpha1.Transport, reason, part string) bool {
		w.get(transport)
		ready := meta.FindStatusCondition(transport.Status.Conditions, v1alpha1.ReadyCondition)
		return ready != nil && ready.Reason == reason && strings.Contains(ready.Message, part)
	}
	w.deleteAll(going)
	testtransport.Eventually(t, "the Transport that moves to say that it waits, and the one that goes how it can", func() bool {
		return says(other, moving, v1alpha1.ReasonProgressing, "queued: waiting for a free slot") &&
			says(w, going, v1alpha1.ReasonDeleting, "set spec.deletionPolicy to Retain")
	})
	// At once, before the crowd has had its turns: where the machine is busy one after the other takes minutes.
	edit(w, going, func(tr *v1alpha1.Transport) { tr.Spec.DeletionPolicy = v1alpha1.DeletionRetain })
	edit(other, moving, func(tr *v1alpha1.Transport) { tr.Spec.Broker.SecretRef.Name = secretName })
	w.awaitGone(going)
	other.awaitReady(moving)
	if !w.hasQueue("test") {
		t.Error("what was to be retained is gone")
	}
	waiting := 0
	for _, transport := range crowd {
		if says(w, transport, v1alpha1.ReasonProgressing, "queued: waiting for a free slot") {
			waiting++
		}
	}
	if waiting == 0 {
		t.Error("nobody waits any more: this has shown nothing")
	}
}
