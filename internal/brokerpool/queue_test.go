package brokerpool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/types"
)

// queue is a line with its places by name.
type queue struct {
	*slotQueue

	t         *testing.T
	namespace string
	ports     map[string]*Port
	places    map[string]*Ticket
}

func newTestQueue(t *testing.T, seats int) *queue {
	return &queue{newQueue(seats), t, "shop", map[string]*Port{}, map[string]*Ticket{}}
}

// come joins the line with a Transport of a vhost.
func (q *queue) come(name, vhost string) { q.t.Helper(); q.comeAs(name, vhost, true) }

// change joins it with one that its user has changed.
func (q *queue) change(name, vhost string) { q.t.Helper(); q.comeAs(name, vhost, false) }

func (q *queue) comeAs(name, vhost string, settled bool) {
	q.t.Helper()
	if q.ports[vhost] == nil {
		q.ports[vhost] = &Port{age: time.Hour}
	}
	place, err := q.join(q.ports[vhost], q.namespace, settled)
	if err != nil {
		q.t.Fatal(err)
	}
	q.places[name] = place
}

func (q *queue) leave(name string) {
	q.places[name].Leave()
	delete(q.places, name)
}

// seated are the names of those whose turn it is.
func (q *queue) seated() []string {
	var names []string
	for name, place := range q.places {
		select {
		case <-place.turn:
			names = append(names, name)
		default:
		}
	}
	slices.Sort(names)
	return names
}

func (q *queue) want(names ...string) {
	q.t.Helper()
	if got := q.seated(); !slices.Equal(got, names) {
		q.t.Fatalf("%v have their turn, want %v", got, names)
	}
}

func TestSlotQueue_GivesTurnsInTheOrderOfArrival(t *testing.T) {
	q := newTestQueue(t, 3) // one is left to other namespaces
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		q.come(name, "shop")
	}
	q.want("a", "b")
	q.leave("d") // before its turn
	q.want("a", "b")
	q.leave("b")
	q.want("a", "c")
	q.leave("a")
	q.want("c", "e")
	q.leave("c")
	q.leave("e")
	q.come("f", "shop")
	q.come("g", "shop")
	q.come("h", "shop")
	q.want("f", "g")
}

func TestSlotQueue_PrefersWhatASnapshotServesUpToALimit(t *testing.T) {
	q := newTestQueue(t, 1)
	q.come("now", "fresh")
	q.come("first", "other")
	q.come("next", "fresh")
	q.ports["fresh"].taken = time.Now()
	q.leave("now")
	q.want("next")

	served := 0
	for last := "next"; ; served++ {
		name := strconv.Itoa(served)
		q.come(name, "fresh")
		q.leave(last)
		if last = name; slices.Equal(q.seated(), []string{"first"}) {
			break
		}
	}
	if served != starvationLimit-1 { // and the one before
		t.Errorf("%d went before who came first", served)
	}
	q.ports["fresh"].taken = time.Time{}
	q.come("last", "fresh")
	q.come("later", "other")
	q.ports["other"].taken = time.Now().Add(-2 * time.Hour)
	for _, name := range q.seated() {
		q.leave(name)
	}
	if seated := q.seated(); len(seated) != 1 || seated[0] == "later" {
		t.Errorf("%v goes before by a snapshot that is too old", seated)
	}
}

func TestSlotQueue_PutsChangesOfUsersBeforeRegularLooks(t *testing.T) {
	q := newTestQueue(t, 1)
	q.come("now", "fresh")
	q.come("first", "other")
	q.come("served", "fresh")
	q.change("changed", "other")
	q.change("changed and served", "fresh")
	q.ports["fresh"].taken = time.Now()
	for _, next := range []string{"now", "changed and served", "changed", "served", "first"} {
		q.want(next)
		q.leave(next)
	}
}

func TestSlotQueue_SharesSeatsBetweenNamespaces(t *testing.T) {
	q := newTestQueue(t, 4)
	for i := range 20 {
		q.change(fmt.Sprintf("a%02d", i), "fresh")
	}
	q.ports["fresh"].taken = time.Now()
	q.want("a00", "a01")
	q.namespace = "other"
	for i := range 3 {
		q.come(fmt.Sprintf("b%02d", i), "own")
	}
	q.want("a00", "a01", "b00")
	q.leave("a00")
	q.want("a01", "a02", "b00")
	q.leave("b00")
	q.want("a01", "a02", "b01")
	q.leave("b01")
	q.leave("b02")
	q.want("a01", "a02")
}

// One whose looks take long had all of them, and kept those of others waiting for half a minute.
func TestSlotQueue_LeavesASeatToLaterNamespaces(t *testing.T) {
	q := newTestQueue(t, 8)
	for _, c := range []struct {
		namespace string
		want      int
	}{{"first", 4}, {"second", 2}, {"third", 1}, {"fourth", 1}, {"fifth", 0}} {
		before := len(q.seated())
		q.namespace = c.namespace
		for i := range 20 {
			q.change(c.namespace+strconv.Itoa(i), "shop")
		}
		if got := len(q.seated()) - before; got != c.want {
			t.Errorf("the %s namespace has %d of 8 seats, want %d", c.namespace, got, c.want)
		}
	}
	q.leave("first0")
	if seated := q.seated(); len(seated) != 8 || !slices.ContainsFunc(seated, func(name string) bool { return strings.HasPrefix(name, "fifth") }) {
		t.Errorf("%v have a seat", seated)
	}
}

func TestSlotQueue_BoundsItsLength(t *testing.T) {
	q := newTestQueue(t, 1)
	for i := range 1 + maxQueuedSteady {
		q.come(strconv.Itoa(i), "shop")
	}
	if _, err := q.join(q.ports["shop"], "shop", true); !errors.Is(err, ErrFull) {
		t.Errorf("no more are to be only looked at again, and: %v", err)
	}
	for i := range maxQueued - maxQueuedSteady {
		q.change("changed "+strconv.Itoa(i), "shop")
	}
	if _, err := q.join(q.ports["shop"], "shop", false); !errors.Is(err, ErrFull) {
		t.Errorf("the line is full, and: %v", err)
	}
	q.leave("0")
	q.change("more", "shop")
	q.want("changed 0")
}

// As many namespaces as there are slots had each slot that they gave back again, by tickets older than that of another one: it waited for 96 seconds.
func TestSlotQueue_ServesTheNamespaceFirstWhoseLastTurnIsLongestAgo(t *testing.T) {
	t.Parallel()
	for _, each := range []int{32, 1} { // Transports; one leaves the queue before it comes again
		synctest.Test(t, func(t *testing.T) {
			const hold, namespaces = 3 * time.Second, 16
			q, port := newQueue(8), &Port{age: time.Hour}
			ctx, cancel := context.WithCancel(t.Context())
			reconcile := func(namespace string) (waited time.Duration) {
				begun := time.Now()
				ticket, err := q.join(port, namespace, false)
				if err != nil {
					time.Sleep(10 * time.Second)
					return 0
				}
				defer ticket.Leave()
				if came, _ := ticket.Wait(ctx, time.Hour); came {
					waited = time.Since(begun)
					time.Sleep(hold)
				}
				return waited
			}
			var all sync.WaitGroup
			for i := range namespaces * each {
				all.Go(func() {
					for ctx.Err() == nil {
						reconcile("hostile-" + strconv.Itoa(i%namespaces))
					}
				})
			}
			time.Sleep(2 * time.Minute)
			for range 3 { // one after the other, and another one beside it that has its turn before or after all others had theirs
				all.Go(func() { reconcile("shop") })
				if waited := reconcile("shop"); waited > 2*namespaces/8*hold {
					t.Errorf("another namespace waits for %s behind those of %d Transports", waited, each)
				}
			}
			cancel()
			all.Wait()
			if n := len(q.last); n > namespaces+1 {
				t.Errorf("%d namespaces are remembered", n)
			}
		})
	}
}

// A namespace that had its turn lately waits behind others with what is as urgent, and not behind what is only compared again.
func TestSlotQueue_ServesAChangedTransportBeforeOthersThatArePolled(t *testing.T) {
	q := newTestQueue(t, 1)
	q.change("first", "shop")
	q.namespace = "other"
	q.come("polled", "shop")
	q.namespace = "shop"
	q.change("changed", "shop")
	q.want("first")
	q.leave("first")
	q.want("changed")
	q.leave("changed")
	q.want("polled")
}

// One that filled the queue kept others out of it; and where each might have some places beyond its end, one silent management API took all reconciles.
func TestSlotQueue_SharesItsPlacesBetweenNamespaces(t *testing.T) {
	q := newTestQueue(t, 1)
	q.change("now", "shop")
	for i := range maxQueued {
		q.comeAs("many "+strconv.Itoa(i), "shop", i == 7)
	}
	q.namespace = "other"
	q.change("first of another", "shop")
	if _, err := q.places["many 7"].Wait(t.Context(), time.Hour); !errors.Is(err, ErrFull) {
		t.Errorf("the steady one stays in a full queue: %v", err)
	}
	q.leave("many 7") // its slot is none
	for i := range maxQueued/2 - 1 {
		q.change("other "+strconv.Itoa(i), "shop")
	}
	if _, err := q.join(q.ports["shop"], "other", false); !errors.Is(err, ErrFull) {
		t.Errorf("another namespace has more than its share: %v", err)
	}
	if _, err := q.places["many 255"].Wait(t.Context(), time.Hour); !errors.Is(err, ErrFull) {
		t.Errorf("the last one stays: %v", err)
	}
	for i := range 2 * maxQueued {
		q.namespace = "namespace " + strconv.Itoa(i)
		if ticket, err := q.join(q.ports["shop"], q.namespace, false); err == nil {
			q.places[q.namespace] = ticket
		}
	}
	if n := q.length(); n != maxQueued {
		t.Errorf("%d wait, of %d", n, maxQueued)
	}
	q.leave("now")
	q.want("first of another")
}

// A registry that is slow to take the metrics must not have reconciles wait for it.
func TestPool_CollectsWithoutItsLock(t *testing.T) {
	b := NewPool(time.Second, 1, nil)
	b.queues["here"], b.queues["there"] = newQueue(1), newQueue(1)
	metrics, forgotten := make(chan prometheus.Metric), make(chan struct{})
	go func() {
		defer close(metrics)
		b.Collect(metrics)
	}()
	<-metrics // it is about to send the next one
	go func() {
		defer close(forgotten)
		b.Forget(types.NamespacedName{})
	}()
	select {
	case <-forgotten:
	case <-time.After(10 * time.Second):
		t.Error("a reconcile waits until the metrics are collected")
	}
	for range metrics { // the rest
	}
}

func TestPool_CollectsHowManyWaitAtABroker(t *testing.T) {
	m, b := newManagement(t), NewPool(time.Hour, 1, nil)
	port := m.port(t, b, "password")
	for range 3 {
		if _, err := port.Join("shop", true); err != nil {
			t.Fatal(err)
		}
	}
	metrics := make(chan prometheus.Metric, 2)
	b.Collect(metrics)
	close(metrics)
	var told dto.Metric
	for metric := range metrics {
		if err := metric.Write(&told); err != nil {
			t.Fatal(err)
		}
	}
	want := strings.TrimPrefix(m.URL, "http://")
	if got := told.GetLabel()[0].GetValue(); got != want || told.GetGauge().GetValue() != 2 {
		t.Errorf("%v wait at %s, want 2 at %s", told.GetGauge().GetValue(), got, want)
	}
}

func TestPool_KeepsALineForEachManagementAPI(t *testing.T) {
	one, other, b := newManagement(t), newManagement(t), NewPool(time.Hour, 1, nil)
	if one.port(t, b, "password").queue == other.port(t, b, "password").queue {
		t.Error("two brokers share a line")
	}
	if one.port(t, b, "old").queue != one.port(t, b, "new").queue {
		t.Error("two logins of a broker have a line each")
	}
	b.prune(time.Now().Add(2 * keepBroker))
	if len(b.queues) > 0 {
		t.Error("lines of brokers that nobody asks for are kept")
	}
}
