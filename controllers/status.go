package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

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
)

// statusPatcher is the resource of one reconcile: as it was read, and with the status that it gets.
type statusPatcher struct {
	object     client.Object
	conditions *[]metav1.Condition
	observed   *int64
	// success is the message of a Ready that is true.
	success string
	// warning is the reason of Degraded; Other where it is empty.
	warning  string
	recorder events.EventRecorder

	// eventsOf is what events are about instead of the object, where the object's namespace takes none any more.
	eventsOf client.Object

	// news are what is to be done once the status is written: events mostly, which are true only then.
	news []func()

	// written is the object as the API server has it, without its spec.
	written client.Object
	// before is Ready as it was read; nil where there was none.
	before *metav1.Condition
}

func ofPolicy(p *v1alpha1.RetryPolicy, recorder events.EventRecorder) *statusPatcher {
	return newStatusPatcher(&statusPatcher{
		object: p, conditions: &p.Status.Conditions, observed: &p.Status.ObservedGeneration,
		success: "the policy is valid", recorder: recorder,
	})
}

func ofTransport(t *v1alpha1.Transport, recorder events.EventRecorder) *statusPatcher {
	return newStatusPatcher(&statusPatcher{
		object: t, conditions: &t.Status.Conditions, observed: &t.Status.ObservedGeneration,
		success: "the broker and the workers are as the spec asks", recorder: recorder,
	})
}

func newStatusPatcher(s *statusPatcher) *statusPatcher {
	s.written = copyOf(withoutSpec(s.object))
	if ready := meta.FindStatusCondition(*s.conditions, v1alpha1.ReadyCondition); ready != nil {
		s.before = ready.DeepCopy()
	}
	return s
}

// summarise turns the error of the steps into conditions. Ready follows from the others.
func (s *statusPatcher) summarise(outcome error, warnings []string) {
	*s.observed = s.object.GetGeneration()
	ready := metav1.Condition{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded, Message: s.success}
	abnormal := map[string]metav1.Condition{}
	if outcome != nil {
		why := interpret(outcome)
		ready = metav1.Condition{Status: metav1.ConditionFalse, Reason: why.reason, Message: status.Shorten(status.OneLine(why.Error()), maxMessage)}
		cause := ready
		cause.Status = metav1.ConditionTrue
		abnormal[why.outcome.condition()] = cause
	}
	if len(warnings) > 0 {
		abnormal[v1alpha1.DegradedCondition] = metav1.Condition{
			Status: metav1.ConditionTrue, Reason: cmp.Or(s.warning, v1alpha1.ReasonOther),
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

func (s *statusPatcher) set(name string, condition metav1.Condition) {
	condition.Type = name
	condition.ObservedGeneration = s.object.GetGeneration()
	meta.SetStatusCondition(s.conditions, condition)
}

// writeStatus patches the status if it differs from what the API server has. It fails with a conflict where the copy that
// was read is outdated: status holds what must not be forgotten, such as which objects are ours.
func (s *statusPatcher) writeStatus(ctx context.Context, c client.Client) error {
	if equality.Semantic.DeepEqual(s.written, withoutSpec(s.object)) {
		return nil
	}
	err := s.write(c, func(answer client.Object, patch client.Patch) error { return c.Status().Patch(ctx, answer, patch) })
	if err != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	return nil
}

// writeMeta patches the metadata, which the API server keeps apart from the status.
func (s *statusPatcher) writeMeta(ctx context.Context, c client.Client) error {
	err := s.write(c, func(answer client.Object, patch client.Patch) error { return c.Patch(ctx, answer, patch) })
	if err != nil {
		return fmt.Errorf("write the finalizer: %w", err)
	}
	return nil
}

// write sends what differs in the metadata and the status, and nothing else: what the cache leaves out of an object is not to be taken out of it.
// Of the answer it asks for the metadata only, since the spec may be large.
func (s *statusPatcher) write(c client.Client, send func(answer client.Object, patch client.Patch) error) error {
	patch := client.MergeFromWithOptions(s.written, client.MergeFromWithOptimisticLock{})
	changes, err := patch.Data(withoutSpec(s.object))
	if err != nil {
		return fmt.Errorf("encode the changes: %w", err)
	}
	kind, err := c.GroupVersionKindFor(s.object)
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
func (s *statusPatcher) rebase(answer client.Object) {
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
func (s *statusPatcher) emitReadyEvent() {
	ready := meta.FindStatusCondition(*s.conditions, v1alpha1.ReadyCondition)
	if ready == nil || s.before != nil && s.before.Status == ready.Status && s.before.Reason == ready.Reason {
		return
	}
	kind := corev1.EventTypeWarning
	if ready.Status == metav1.ConditionTrue || slices.Contains(ordinary(), ready.Reason) {
		kind = corev1.EventTypeNormal
	}
	s.event(kind, ready.Reason, ready.Message)
}

// eventOnceWritten records that something happened which the status remembers, so that it is told once: a reconcile that
// worked on an outdated copy cannot write its status, and tells nothing.
func (s *statusPatcher) eventOnceWritten(kind, reason, note string) {
	s.afterPatch(func() { s.event(kind, reason, note) })
}

// afterPatch has something done once the status is written.
func (s *statusPatcher) afterPatch(do func()) { s.news = append(s.news, do) }

// flushEvents does what waited for the status.
func (s *statusPatcher) flushEvents() {
	for _, send := range s.news {
		send()
	}
	s.news = nil
}

// event records that something happened.
func (s *statusPatcher) event(kind, reason, note string) {
	if s.eventsOf != nil {
		s.recorder.Eventf(s.eventsOf, s.object, kind, reason, actionReconcile, "%s", status.Shorten(note, maxNote))
		return
	}
	s.recorder.Eventf(s.object, nil, kind, reason, actionReconcile, "%s", status.Shorten(note, maxNote))
}

// eventAbout records what was done to another object.
func (s *statusPatcher) eventAbout(other client.Object, reason, note string) {
	s.recorder.Eventf(s.object, other, corev1.EventTypeNormal, reason, actionReconcile, "%s", status.Shorten(note, maxNote))
}

// eventOnBroker warns of what happened to an object on the broker. Its name tells the event from those about others, which
// would be put together with it.
func (s *statusPatcher) eventOnBroker(kind, name, reason, note string) {
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

// eventRestored warns of an object of ours in the cluster that somebody had changed or deleted, as eventOnBroker does of one
// on the broker.
func (s *statusPatcher) eventRestored(other client.Object, note string) {
	s.recorder.Eventf(s.object, other, corev1.EventTypeWarning, eventRepaired, actionReconcile, "%s", status.Shorten(note, maxNote))
}
