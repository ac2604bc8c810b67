package tenancy_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/tenancy"
)

// sentEvents counts the events of each namespace.
type sentEvents map[string]int

// Eventf implements events.EventRecorder.
func (c sentEvents) Eventf(regarding, _ runtime.Object, _, _, _, _ string, _ ...any) {
	c[regarding.(*v1alpha1.Transport).Namespace]++
}

func (c sentEvents) record(by events.EventRecorder, namespace string, n int) {
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "async"}}
	for range n {
		by.Eventf(transport, nil, "Normal", "Progressing", "Reconcile", "%s", "x")
	}
}

// The events of one namespace took 3 kB each of the operator's memory, without a bound.
func TestEvents_BoundsThoseOfANamespace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sent, all := sentEvents{}, tenancy.NewEvents()
		sent.record(all.Recorder(sent), "hostile", 20_000)
		sent.record(all.Recorder(sent), "shop", 100)
		if sent["hostile"] != 5000 || sent["shop"] != 100 {
			t.Errorf("at once %v", sent)
		}
		time.Sleep(time.Minute)
		if sent.record(all.Recorder(sent), "hostile", 20_000); sent["hostile"] < 5090 || sent["hostile"] > 5200 {
			t.Errorf("after a minute %v", sent)
		}
	})
}

// Each namespace had as many as one alone, and a team may have dozens.
func TestEvents_BoundsThoseOfAllNamespaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sent, recorders := sentEvents{}, tenancy.NewEvents()
		policies, transports := recorders.Recorder(sent), recorders.Recorder(sent)
		const minutes = 10
		for range minutes * 60 {
			for i := range 20 {
				sent.record(policies, fmt.Sprint("hostile-", i), 25)
				sent.record(transports, fmt.Sprint("hostile-", i), 25)
			}
			time.Sleep(time.Second)
		}
		sum := 0
		for _, n := range sent {
			sum += n
		}
		if most := 10_000 + 5*60*minutes; sum > most {
			t.Errorf("%d events in %d minutes", sum, minutes)
		}
		if sent.record(transports, "shop", 200); sent["shop"] != 200 {
			t.Errorf("%d of another namespace", sent["shop"])
		}
	})
}
