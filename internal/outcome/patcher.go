package outcome

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/status"
)

const (
	// maxMessage bounds the message of a condition well below what the API server refuses.
	maxMessage = 4096
	// maxNote is the API server's bound on the text of an event.
	maxNote = 1024

	// actionReconcile is what the operator did when an event came about.
	actionReconcile = "Reconcile"
	// EventRepaired tells of what the operator restored.
	EventRepaired = "Repaired"
)

// Patcher is the resource of one reconcile: as it was read, and with the status that it gets.
type Patcher struct {
	object     client.Object
	conditions *[]metav1.Condition
	observed   *int64
	// success is the message of a Ready that is true.
	success string
	// Warning is the reason of Degraded; Other where it is empty.
	Warning  string
	recorder events.EventRecorder
	client   client.Client

	// EventsOf is what events are about instead of the object, where the object's namespace takes none any more.
	EventsOf client.Object

	// news are what is to be done once the status is written: events mostly, which are true only then.
	news []func()

	// written is the object as the API server has it, without its spec.
	written client.Object
	// Before is Ready as it was read; nil where there was none.
	Before *metav1.Condition

	// version is that in which the object was read, and read when.
	version string
	read    time.Time
	// outdated is true where the API server had another version when the status was to be written.
	outdated bool
}

// Outdated tells of an object that was read from the cache in a version which the API server had replaced by the end of the reconcile, and when it was read.
func (s *Patcher) Outdated() (version string, read time.Time, is bool) {
	return s.version, s.read, s.outdated
}

// OfPolicy returns the Patcher of a RetryPolicy as it was read.
func OfPolicy(p *v1alpha1.RetryPolicy, c client.Client, recorder events.EventRecorder) *Patcher {
	return newPatcher(&Patcher{
		object: p, conditions: &p.Status.Conditions, observed: &p.Status.ObservedGeneration,
		success: "the policy is valid", recorder: recorder, client: c,
	})
}

// OfTransport returns the Patcher of a Transport as it was read.
func OfTransport(t *v1alpha1.Transport, c client.Client, recorder events.EventRecorder) *Patcher {
	return newPatcher(&Patcher{
		object: t, conditions: &t.Status.Conditions, observed: &t.Status.ObservedGeneration,
		success: "the broker and the workers are as the spec asks", recorder: recorder, client: c,
	})
}

func newPatcher(s *Patcher) *Patcher {
	s.version, s.read = s.object.GetResourceVersion(), time.Now()
	s.written = copyOf(withoutSpec(s.object))
	if ready := meta.FindStatusCondition(*s.conditions, v1alpha1.ReadyCondition); ready != nil {
		s.Before = ready.DeepCopy()
	}
	return s
}

// Summarise turns the error of the steps into conditions. Ready follows from the others.
func (s *Patcher) Summarise(outcome error, warnings []string) {
	*s.observed = s.object.GetGeneration()
	ready := metav1.Condition{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded, Message: s.success}
	abnormal := map[string]metav1.Condition{}
	if outcome != nil {
		why := Interpret(outcome)
		ready = metav1.Condition{Status: metav1.ConditionFalse, Reason: why.Reason, Message: status.Shorten(status.OneLine(why.Error()), maxMessage)}
		cause := ready
		cause.Status = metav1.ConditionTrue
		abnormal[why.Kind.condition()] = cause
	}
	if len(warnings) > 0 {
		abnormal[v1alpha1.DegradedCondition] = metav1.Condition{
			Status: metav1.ConditionTrue, Reason: cmp.Or(s.Warning, v1alpha1.ReasonOther),
			Message: status.Shorten(strings.Join(warnings, "; "), maxMessage),
		}
	}
	s.set(v1alpha1.ReadyCondition, ready)
	for _, name := range []string{v1alpha1.ReconcilingCondition, v1alpha1.StalledCondition, v1alpha1.DegradedCondition} {
		if condition, is := abnormal[name]; is {
			s.set(name, condition)
		} else {
			meta.RemoveStatusCondition(s.conditions, name)
		}
	}
}

func (s *Patcher) set(name string, condition metav1.Condition) {
	condition.Type = name
	condition.ObservedGeneration = s.object.GetGeneration()
	meta.SetStatusCondition(s.conditions, condition)
}

// WriteStatus patches the status if it differs from what the API server has. It fails with a conflict where the copy that
// was read is outdated: status holds what must not be forgotten, such as which objects are ours.
func (s *Patcher) WriteStatus(ctx context.Context) error {
	if equality.Semantic.DeepEqual(s.written, withoutSpec(s.object)) {
		return nil
	}
	err := s.write(func(answer client.Object, patch client.Patch) error {
		return s.client.Status().Patch(ctx, answer, patch)
	})
	if err != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	return nil
}

// WriteMeta patches the metadata, which the API server keeps apart from the status.
func (s *Patcher) WriteMeta(ctx context.Context) error {
	err := s.write(func(answer client.Object, patch client.Patch) error { return s.client.Patch(ctx, answer, patch) })
	if err != nil {
		return fmt.Errorf("write the finalizer: %w", err)
	}
	return nil
}

// write sends what differs in the metadata and the status, and nothing else: what the cache leaves out of an object is not to be taken out of it.
// Of the answer it asks for the metadata only, since the spec may be large.
func (s *Patcher) write(send func(answer client.Object, patch client.Patch) error) error {
	patch := client.MergeFromWithOptions(s.written, client.MergeFromWithOptimisticLock{})
	changes, err := patch.Data(withoutSpec(s.object))
	if err != nil {
		return fmt.Errorf("encode the changes: %w", err)
	}
	kind, err := s.client.GroupVersionKindFor(s.object)
	if err != nil {
		return fmt.Errorf("find the kind: %w", err)
	}
	answer := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: s.object.GetNamespace(), Name: s.object.GetName()}}
	answer.SetGroupVersionKind(kind)
	if err := send(answer, client.RawPatch(patch.Type(), changes)); err != nil {
		return err
	}
	s.rebase(answer)
	return nil
}

// rebase takes over what a write changed in the metadata.
func (s *Patcher) rebase(answer client.Object) {
	s.object.SetResourceVersion(answer.GetResourceVersion())
	s.object.SetGeneration(answer.GetGeneration())
	s.object.SetFinalizers(answer.GetFinalizers())
	s.written = copyOf(withoutSpec(s.object))
}

// ordinary are the reasons of a Transport that is not ready and goes its way.
func ordinary() []string {
	return []string{v1alpha1.ReasonProgressing, v1alpha1.ReasonMigrating, v1alpha1.ReasonDeleting}
}

// emitReadyEvent tells of a change of Ready by an event.
func (s *Patcher) emitReadyEvent() {
	ready := meta.FindStatusCondition(*s.conditions, v1alpha1.ReadyCondition)
	if ready == nil || s.Before != nil && s.Before.Status == ready.Status && s.Before.Reason == ready.Reason {
		return
	}
	kind := corev1.EventTypeWarning
	if ready.Status == metav1.ConditionTrue || slices.Contains(ordinary(), ready.Reason) {
		kind = corev1.EventTypeNormal
	}
	s.Event(kind, ready.Reason, ready.Message)
}

// EventOnceWritten records that something happened which the status remembers, so that it is told once: a reconcile that
// worked on an outdated copy cannot write its status, and tells nothing.
func (s *Patcher) EventOnceWritten(kind, reason, note string) {
	s.AfterPatch(func() { s.Event(kind, reason, note) })
}

// AfterPatch has something done once the status is written.
func (s *Patcher) AfterPatch(do func()) { s.news = append(s.news, do) }

// flushEvents does what waited for the status.
func (s *Patcher) flushEvents() {
	for _, send := range s.news {
		send()
	}
	s.news = nil
}

// Event records that something happened.
func (s *Patcher) Event(kind, reason, note string) {
	if s.EventsOf != nil {
		s.recorder.Eventf(s.EventsOf, s.object, kind, reason, actionReconcile, "%s", status.Shorten(note, maxNote))
		return
	}
	s.recorder.Eventf(s.object, nil, kind, reason, actionReconcile, "%s", status.Shorten(note, maxNote))
}

// EventAbout records what was done to another object.
func (s *Patcher) EventAbout(other client.Object, reason, note string) {
	s.recorder.Eventf(s.object, other, corev1.EventTypeNormal, reason, actionReconcile, "%s", status.Shorten(note, maxNote))
}

// EventOnBroker warns of what happened to an object on the broker. Its name tells the event from those about others, which
// would be put together with it.
func (s *Patcher) EventOnBroker(kind, name, reason, note string) {
	related := &corev1.ObjectReference{Kind: kind, Name: name}
	s.recorder.Eventf(s.object, related, corev1.EventTypeWarning, reason, actionReconcile, "%s", status.Shorten(note, maxNote))
}

// withoutSpec is the part of an object that is written; it shares what is in it.
func withoutSpec(object client.Object) client.Object {
	switch object := object.(type) {
	case *v1alpha1.Transport:
		return &v1alpha1.Transport{TypeMeta: object.TypeMeta, ObjectMeta: object.ObjectMeta, Status: object.Status}
	case *v1alpha1.RetryPolicy:
		return &v1alpha1.RetryPolicy{TypeMeta: object.TypeMeta, ObjectMeta: object.ObjectMeta, Status: object.Status}
	default:
		return object
	}
}

func copyOf(object client.Object) client.Object {
	return object.DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy has the type of its original
}

// EventRestored warns of an object of ours in the cluster that somebody had changed or deleted, as eventOnBroker does of one
// on the broker.
func (s *Patcher) EventRestored(other client.Object, note string) {
	s.recorder.Eventf(s.object, other, corev1.EventTypeWarning, EventRepaired, actionReconcile, "%s", status.Shorten(note, maxNote))
}
