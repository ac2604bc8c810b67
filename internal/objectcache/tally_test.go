package objectcache

import (
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

// sized is a policy whose spec takes a little more than so many kilobytes.
func sized(namespace, name string, kilobytes int) *v1alpha1.RetryPolicy {
	policy := &v1alpha1.RetryPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name), Generation: 3}}
	policy.Spec.IncludeStrategies = []v1alpha1.StrategyInclude{{Name: "other"}}
	if kilobytes > 0 {
		policy.Spec.Strategies = []v1alpha1.Strategy{{Name: "s", When: strings.Repeat("x", kilobytes<<10)}}
	}
	return policy
}

// keeps strips an object as the cache does, and says whether it keeps all of it.
func keeps(tally *Tally, object client.Object) bool {
	tally.strip(object)
	return object.GetAnnotations()[compile.NoRoom] == ""
}

// Four namespaces of objects just below the bounds of one took all the memory that the operator has.
func TestTally_BoundsTheLargeSpecsOfAllNamespaces(t *testing.T) {
	tally := NewTally(10 << 20)
	kept := map[string]int{}
	for _, namespace := range []string{"a", "b", "c", "d"} {
		for i := range 50 {
			if keeps(tally, sized(namespace, strconv.Itoa(i), 250)) {
				kept[namespace] += 250
			}
		}
	}
	if want := map[string]int{"a": 5000, "b": 2500, "c": 1250, "d": 500}; !reflect.DeepEqual(kept, want) {
		t.Errorf("%v kB are kept, want %v", kept, want)
	}
	for i := range 1000 {
		if !keeps(tally, sized("e", strconv.Itoa(i), 31)) {
			t.Fatal("an ordinary spec has no room")
		}
	}
	if tally.used > 10<<20 {
		t.Errorf("%d bytes are used", tally.used)
	}
}

func TestTally_KeepsRoomForAnObjectUntilItGrows(t *testing.T) {
	tally := NewTally(1 << 20)
	if !keeps(tally, sized("a", "1", 500)) || !keeps(tally, sized("b", "1", 200)) || keeps(tally, sized("b", "2", 200)) {
		t.Fatal("one namespace has half, and the next half of the rest")
	}
	for _, kilobytes := range []int{500, 500, 400} {
		if !keeps(tally, sized("a", "1", kilobytes)) {
			t.Errorf("of %d kB there is no more room for one that has it", kilobytes)
		}
	}
	if keeps(tally, sized("a", "1", 900)) {
		t.Error("it has grown beyond what the namespace may have")
	}
	if !keeps(tally, sized("b", "2", 200)) {
		t.Error("what does not fit any more has given back what it had")
	}
}

// The cache may run what it is given twice on one object, and a list that is read in pages before that.
func TestTally_AStubStaysOne(t *testing.T) {
	tally := NewTally(100 << 10)
	policy, transport := sized("a", "1", 200), largeTransport(32)
	want := transport.DeepCopy()
	for range 3 {
		if keeps(tally, policy) || keeps(tally, transport) {
			t.Fatal("they are too large")
		}
		tally.all = 1 << 20 // which is no reason to take a stub for all of it
	}
	if size := compile.SizeOf(&policy.Spec); size > 1000 || len(policy.Spec.IncludeStrategies) != 1 || policy.Generation != 3 {
		t.Errorf("%d bytes are kept of the policy", size)
	}
	s := transport.Spec
	if compile.SizeOf(&s) > freeSpec || s.DeletionPolicy != want.Spec.DeletionPolicy || !reflect.DeepEqual(s.Broker, want.Spec.Broker) ||
		*s.Prefix != "async" || len(s.Queues) != 64 || len(s.Workers) != 1 {
		t.Errorf("%d bytes are kept of the Transport: %+v", compile.SizeOf(&s), s)
	}
	if tally.used != 0 {
		t.Errorf("stubs take %d bytes", tally.used)
	}
	transport = largeTransport(1)
	transport.Spec.Workers[0].Template = &runtime.RawExtension{Raw: []byte(`"` + strings.Repeat("x", 60_000) + `"`)}
	tally.all = 1
	if keeps(tally, transport) || len(transport.Spec.Workers) != 0 {
		t.Error("a part of a worker's template is kept")
	}
}

func TestTally_ObjectsThatGoGiveTheirRoomBack(t *testing.T) {
	tally := NewTally(500 << 10)
	old, policy := sized("a", "1", 200), sized("a", "1", 200)
	policy.UID = "new"
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "1"}}
	for _, object := range []client.Object{old, policy} {
		if !keeps(tally, object) {
			t.Error("there is room for one of the name")
		}
	}
	tally.giveBack().OnDelete(old)
	tally.giveBack().OnDelete(transport)
	if tally.used == 0 {
		t.Error("the next one of the name has lost its room")
	}
	tally.giveBack().OnDelete(toolscache.DeletedFinalStateUnknown{Obj: policy})
	if tally.used != 0 || len(tally.namespaces)+len(tally.objects) != 0 {
		t.Errorf("left are %d bytes, %v", tally.used, tally.objects)
	}
}

func TestTally_SaysWhatIsWrongAndWhenThereIsRoom(t *testing.T) {
	tally, now := NewTally(100<<10), time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	whole, stub := sized("a", "1", 0), sized("a", "2", 200)
	if !keeps(tally, whole) || tally.Check(whole, now) != nil || keeps(tally, stub) {
		t.Fatal("only the large one lacks room")
	}
	if err := tally.Check(stub, now); err == nil || !strings.HasPrefix(err.Error(), "spec: takes 200 kB of the operator's memory, which has no room for it") {
		t.Error(err)
	}
	tally.all = 1 << 20
	if err := tally.Check(stub, now); err == nil || !strings.Contains(err.Error(), "now there is: it is read again at 2026-05-04T03:02:01Z") {
		t.Error(err)
	}
	if Changed().Update(event.UpdateEvent{ObjectOld: whole, ObjectNew: whole}) {
		t.Error("nothing has changed")
	}
	if !Changed().Update(event.UpdateEvent{ObjectOld: stub, ObjectNew: sized("a", "2", 200)}) {
		t.Error("nobody is told that it was read")
	}
}

// The decoder of JSON leaves room behind the elements of lists: specs took up to 1.8 times of what they counted as.
func TestTally_KeepsListsWithoutRoomBehindThem(t *testing.T) {
	transport, policy := &v1alpha1.Transport{}, sized("a", "policy", 20)
	transport.Spec.Queues = make([]v1alpha1.Queue, 300, 512)
	policy.Spec.Strategies = append(make([]v1alpha1.Strategy, 0, 512), policy.Spec.Strategies...)
	tally := NewTally(1 << 20)
	if !keeps(tally, transport) || !keeps(tally, policy) {
		t.Fatal("there is no room")
	}
	if queues, strategies := cap(transport.Spec.Queues), cap(policy.Spec.Strategies); queues != 300 || strategies != 1 {
		t.Errorf("there is room for %d queues and %d strategies", queues, strategies)
	}
}

// Seven namespaces took all room for large specs, and the first large policy of another team was Invalid for as long as they stayed.
func TestTally_LeavesRoomForANamespaceThatHasNothing(t *testing.T) {
	tally := NewTally(48 << 20)
	for n := range 10 {
		for i := range 50 {
			keeps(tally, sized("hostile-"+strconv.Itoa(n), strconv.Itoa(i), 250))
		}
	}
	if !keeps(tally, sized("shop", "first", 100)) {
		t.Error("there is no room for the first large spec of another namespace")
	}
}
