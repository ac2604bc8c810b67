package objectcache

import (
	"fmt"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/outcome"
)

const (
	// leastSpecs is how many bytes the large specs of all namespaces take together. Where GOMEMLIMIT allows for more it is a quarter of that.
	leastSpecs = 48 << 20
	// freeSpec is the size up to which a spec does not count: ordinary ones have a few kilobytes, and are kept however many large ones there are.
	freeSpec = 32 << 10
	// lookForRoom is when it is looked again whether there is room for a spec.
	lookForRoom = 30 * time.Second
)

// SpecsOfProcess is how many bytes the large specs may take; it follows GOMEMLIMIT.
func SpecsOfProcess() int {
	const unset = 1 << 50
	if limit := debug.SetMemoryLimit(-1); limit < unset {
		return max(leastSpecs, int(limit/4))
	}
	return leastSpecs
}

// Tally bounds what the large specs of all Transports and RetryPolicies take together in the cache: a quota of Kubernetes bounds their number only. A
// namespace gets no more than it leaves free: one alone half of all, and the next one half of the rest. Of an object without room the cache has a stub, with
// a note that the spec is not read: nothing may follow from what a stub lacks. It is safe for concurrent use.
type Tally struct {
	all int

	mu         sync.Mutex
	used       int
	namespaces map[string]int
	objects    map[tallied]counted
}

// tallied names an object.
type tallied struct {
	policy bool
	types.NamespacedName
}

// counted is what one object takes.
type counted struct {
	uid  types.UID
	size int
}

// NewTally bounds to so many bytes.
func NewTally(all int) *Tally {
	return &Tally{all: all, namespaces: map[string]int{}, objects: map[tallied]counted{}}
}

func nameOf(object client.Object) tallied {
	_, policy := object.(*v1alpha1.RetryPolicy)
	return tallied{policy, client.ObjectKeyFromObject(object)}
}

// strip is stripForCache, and leaves a stub of an object without room.
func (t *Tally) strip(object client.Object) {
	note := object.GetAnnotations()[compile.NoRoom] // of an earlier time: what is left now is not all
	stripForCache(object)
	if note == "" {
		size := sizeOf(object)
		if size > freeSpec/2 {
			trim(object)
		}
		if t.take(object, size) {
			return
		}
		note = strconv.Itoa(size)
	}
	annotations := map[string]string{compile.NoRoom: note}
	if size, is := object.GetAnnotations()[tooLarge]; is {
		annotations[tooLarge] = size
	}
	object.SetAnnotations(annotations)
	switch o := object.(type) {
	case *v1alpha1.Transport:
		cut(&o.Spec, freeSpec)
	case *v1alpha1.RetryPolicy:
		o.Spec = v1alpha1.RetryPolicySpec{IncludeStrategies: o.Spec.IncludeStrategies}
	}
}

// trim copies a spec, which takes no more then than it counts: behind the elements of a list the decoder of JSON leaves room for up to as many again.
func trim(object client.Object) {
	switch o := object.(type) {
	case *v1alpha1.Transport:
		o.Spec = *o.Spec.DeepCopy()
	case *v1alpha1.RetryPolicy:
		o.Spec = *o.Spec.DeepCopy()
	}
}

func sizeOf(object client.Object) int {
	switch o := object.(type) {
	case *v1alpha1.Transport:
		return compile.SizeOf(&o.Spec)
	case *v1alpha1.RetryPolicy:
		return compile.SizeOf(&o.Spec)
	default:
		return 0
	}
}

// take counts an object in place of what it took before. It is false where there is no room. One that does not grow keeps the room that it has, whoever came
// later.
func (t *Tally) take(object client.Object, size int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	name := nameOf(object)
	before := t.objects[name].size
	t.drop(name)
	if size <= freeSpec {
		return true
	}
	if size > before && !t.fits(name.Namespace, size) {
		return false
	}
	t.objects[name] = counted{object.GetUID(), size}
	t.used += size
	t.namespaces[name.Namespace] += size
	return true
}

// fits is true where a namespace takes no more than it leaves free. The last eighth is for namespaces that have little.
func (t *Tally) fits(namespace string, size int) bool {
	const spare, little = 8, 512 << 10
	its, free := t.namespaces[namespace]+size, t.all-t.used
	return its <= free && (its <= little || free-size >= t.all/spare)
}

func (t *Tally) drop(name tallied) {
	size := t.objects[name].size
	delete(t.objects, name)
	t.used -= size
	if t.namespaces[name.Namespace] -= size; t.namespaces[name.Namespace] == 0 {
		delete(t.namespaces, name.Namespace)
	}
}

// giveBack has the objects that leave the cache give their room back. One of the same name may have come meanwhile.
func (t *Tally) giveBack() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{DeleteFunc: func(object any) {
		if gone, is := object.(toolscache.DeletedFinalStateUnknown); is {
			object = gone.Obj
		}
		if o, is := object.(client.Object); is {
			t.mu.Lock()
			defer t.mu.Unlock()
			if name := nameOf(o); t.objects[name].uid == o.GetUID() {
				t.drop(name)
			}
		}
	}}
}

// Check refuses an object of which the cache has a stub. Where there is room by now it has the status say so, with the time: any write brings the whole object
// to the cache once more.
func (t *Tally) Check(object client.Object, now time.Time) error {
	size, err := strconv.Atoi(object.GetAnnotations()[compile.NoRoom])
	if err != nil {
		return nil // it is not there
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	why := fmt.Errorf("spec: takes %d kB of the operator's memory, which has no room for it, and nothing is changed until it has: specs of more than %d kB share "+
		"%d MB of it, of which a namespace gets no more than it leaves free. Make this spec smaller, delete other large Transports or RetryPolicies of the "+
		"namespace, or raise GOMEMLIMIT and the memory limit of the operator", size>>10, freeSpec>>10, t.all>>20)
	if t.fits(object.GetNamespace(), size) {
		why = fmt.Errorf("spec: there was no room in the operator's memory for its %d kB, and now there is: it is read again at %s",
			size>>10, now.UTC().Format(time.RFC3339))
	}
	return &outcome.StepError{Kind: outcome.KindStalled, Reason: v1alpha1.ReasonInvalid, After: lookForRoom, Err: why}
}

// Changed lets pass what changes a spec, or whether it is in the cache.
func Changed() predicate.Predicate {
	isStub := func(object client.Object) bool { return object.GetAnnotations()[compile.NoRoom] != "" }
	return predicate.Or(predicate.GenerationChangedPredicate{}, predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool { return isStub(e.ObjectOld) != isStub(e.ObjectNew) },
	})
}
