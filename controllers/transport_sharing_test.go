package controllers_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
)

func TestTransports_OfOneVhostShareSnapshots(t *testing.T) {
	t.Parallel()
	const users, polls, readsOfASnapshot, poll = 6, 3, 5, 6 * time.Second
	w := newPrivateWorld(t, &operator{poll: poll})
	w.create(w.policy("policy", time.Second))
	for i := range users {
		transport, name := w.transport(), fmt.Sprintf("shared-%d", i)
		transport.Name, transport.Spec.Exchange.Name = name, name
		for q := range transport.Spec.Queues {
			transport.Spec.Queues[q].Name = name + "." + transport.Spec.Queues[q].Name
		}
		*transport.Spec.Exchange.UnroutedTo = name + ".lost"
		w.create(transport)
		w.awaitReady(transport)
	}
	quiet := -1
	testtransport.Eventually(t, "nothing to be written any more", func() bool {
		before := quiet
		quiet = len(w.operator.writes.of(w.namespace)) + int(w.proxy.writes.Load())
		w.awaitLooks(2)
		return before == quiet
	})

	reads, looks, begin := w.proxy.reads.Load(), w.operator.reconciles(w.T, "transport"), time.Now()
	testtransport.Eventually(t, "some polls", func() bool {
		return w.operator.reconciles(w.T, "transport") >= looks+polls*users
	})
	looks = w.operator.reconciles(w.T, "transport") - looks
	snapshots := float64(w.proxy.reads.Load()-reads) / readsOfASnapshot
	// One serves all for half a poll. One more may have been half over at either end.
	if most := float64(time.Since(begin))/float64(poll/2) + 2; snapshots > most {
		t.Errorf("%.1f snapshots for %d looks of %d Transports, at most %.1f in this time", snapshots, looks, users, most)
	}
	t.Logf("%.1f snapshots for %d looks of %d Transports", snapshots, looks, users)
}

// Two Transports of different namespaces with the same exchange disturb each other. But a broker of somebody else, which claims to be the
// same one, is not believed: it would put a warning, with a name of its choice, at Transports of others.
func TestWarnOfSharing_WarnsAtTheSameManagementAPIOnly(t *testing.T) {
	t.Parallel()
	o := &operator{poll: 2 * time.Second}
	w, other := newUnattendedWorld(t, o), newUnattendedWorld(t, o)
	o.start(t, testcluster.Start(t))
	t.Cleanup(o.stop)
	w.ready()

	other.vhost = w.vhost
	edit(other, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: other.namespace, Name: secretName}}, func(s *corev1.Secret) {
		s.Data["username"], s.Data["password"] = []byte(w.user), []byte(w.password)
	})
	other.create(other.policy("policy", time.Second))
	transport := other.transport()
	transport.Name = "other"
	for i, name := range []string{"theirs", "their-lost"} {
		transport.Spec.Queues[i].Name = name
	}
	transport.Spec.Exchange.UnroutedTo, transport.Spec.Prefix = new("their-lost"), new("other")
	other.create(transport)
	other.awaitReady(transport)
	transports := func(visit func(w *world, name string)) { visit(w, "async"); visit(other, "other") }
	warning := func(w *world, name string) string {
		own := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
		w.get(own)
		if found := meta.FindStatusCondition(own.Status.Conditions, v1alpha1.DegradedCondition); found != nil {
			return found.Message
		}
		return ""
	}
	looks := o.reconciles(t, "transport")
	testtransport.Eventually(t, "some looks", func() bool { return o.reconciles(t, "transport") >= looks+6 })
	transports(func(w *world, name string) {
		if message := warning(w, name); strings.Contains(message, "other Transports") {
			t.Errorf("%s/%s is warned of one that is at another management API: %s", w.namespace, name, message)
		}
	})

	edit(other, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: other.namespace, Name: secretName}}, func(s *corev1.Secret) {
		s.Data["management_uri"] = []byte(w.proxy.URL)
	})
	transports(func(w *world, name string) {
		testtransport.Eventually(t, w.namespace+"/"+name+" to be warned", func() bool {
			return strings.Contains(warning(w, name), "other Transports use exchange async too")
		})
	})
}
