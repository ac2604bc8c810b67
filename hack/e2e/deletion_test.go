//go:build e2e

package e2e

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
)

const deposited = 50

// openIdle makes a shop without running workers and with messages in its queue.
func openIdle(t *testing.T, name string) *shop {
	t.Helper()
	s := openShop(t, name, plan{change: func(transport *v1alpha1.Transport) {
		transport.Spec.Workers[0].Replicas = ptr.To[int32](0)
	}})
	parcels := make([]parcel, deposited)
	for n := range parcels {
		parcels[n] = parcel{id: numbered("idle", n)}
	}
	s.publish(parcels...)
	return s
}

func (s *shop) checkDeposit() {
	s.t.Helper()
	if waiting, err := s.count(ordersQueue); err != nil || waiting != deposited {
		s.t.Errorf("%d messages are in the queue, %v, want all %d", waiting, err, deposited)
	}
}

func TestDeletion_KeepsNoNamespaceWaiting(t *testing.T) {
	long(t)
	t.Parallel()
	s := openIdle(t, "namespace")
	must(t, suite.deleteNamespace(t.Context(), s.namespace))
	await(t, 90*time.Second, "the namespace to go", func() (bool, any) {
		var namespace corev1.Namespace
		err := suite.client.Get(t.Context(), client.ObjectKey{Name: s.namespace}, &namespace)
		return apierrors.IsNotFound(err), fmt.Sprint(namespace.Status, err)
	})
	s.checkDeposit()
	// A namespace that goes takes no events: the operator's log must say what is left, and why.
	await(t, 10*time.Second, "the operator to say what is left", func() (bool, any) {
		found, err := suite.evidence.logged(operatorNamespace, s.namespace, "its namespace is being deleted", ordersQueue, failureQueue)
		return found, err
	})
}

// logged looks for a line with all these words in the logs of a namespace.
func (e *evidence) logged(namespace string, words ...string) (bool, error) {
	found := false
	err := filepath.WalkDir(filepath.Join(e.folder, namespace), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".log") {
			return err
		}
		data, err := os.ReadFile(path)
		for line := range strings.Lines(string(data)) {
			all := true
			for _, word := range words {
				all = all && strings.Contains(line, word)
			}
			found = found || all
		}
		return err
	})
	return found, err
}

func TestDeletion_EndsAndSaysWhatIsLeftWithoutItsSecret(t *testing.T) {
	long(t)
	t.Parallel()
	s := openIdle(t, "secret")
	s.kubectl("delete", "secret", secretName)
	s.kubectl("delete", "transport", transportName, "--timeout=60s")
	s.checkDeposit()
	await(t, 10*time.Second, "an event that says what is left", func() (bool, any) {
		var events eventsv1.EventList
		if err := suite.client.List(t.Context(), &events, client.InNamespace(s.namespace)); err != nil {
			return false, err
		}
		var notes []string
		for i := range events.Items {
			if events.Items[i].Reason == "Retained" {
				notes = append(notes, events.Items[i].Note)
			}
		}
		text := strings.Join(notes, "\n")
		return strings.Contains(text, ordersQueue) && strings.Contains(text, failureQueue) && strings.Contains(text, "Secret"), text
	})
}

// TestDeletion_WaitsForTheMessagesInItsQueues is what happens when its file is taken out of Git.
func TestDeletion_WaitsForTheMessagesInItsQueues(t *testing.T) {
	long(t)
	t.Parallel()
	s := openShop(t, "prune", plan{})
	parcels := make([]parcel, 400)
	next := slow(s.name, 100*time.Millisecond)
	for n := range parcels {
		parcels[n] = next(n)
	}
	all := s.publish(parcels...)
	s.kubectl("delete", "transport", transportName, "--wait=false")

	await(t, 4*time.Minute, "the deletion to be held up by the failure queue", func() (bool, any) {
		transport, err := s.read(t.Context())
		if err != nil {
			return false, err
		}
		c := meta.FindStatusCondition(transport.Status.Conditions, v1alpha1.ReconcilingCondition)
		// One in ten fails.
		return c != nil && c.Reason == v1alpha1.ReasonDeletionBlocked && strings.Contains(c.Message, failureQueue+" (40)"), transport.Status.Conditions
	})
	pods, err := s.pods(t.Context())
	must(t, err)
	t.Logf("%d worker pods while the failure queue holds up the deletion", len(pods))

	total := s.tally.settle(all, time.Minute) // it empties the failure queue
	if total.failed != 40 {
		t.Errorf("sums are %s, want 40 failed", total)
	}
	s.kubectl("wait", "transport/"+transportName, "--for=delete", "--timeout=180s")
	s.checkNothingLeft()
}

// checkNothingLeft looks for objects in the vhost that RabbitMQ did not make itself.
func (s *shop) checkNothingLeft() {
	s.t.Helper()
	for _, kind := range []string{"queues", "exchanges", "policies", "bindings"} {
		var objects []struct {
			Name   string `json:"name"`
			Source string `json:"source"`
		}
		must(s.t, s.broker.manage(s.t.Context(), http.MethodGet, apiPath(kind, s.vhost), nil, &objects))
		for _, object := range objects {
			if name := object.Name + object.Source; name != "" && !strings.HasPrefix(name, "amq.") {
				s.t.Errorf("%s are left on the broker: %+v", kind, object)
			}
		}
	}
}
