package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/autoscaling"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/objectwriter"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/ssa"
	"redrive.dev/redrive/internal/workload"
)

// untilScalerGoes is how soon it is looked again whether a scaler that is in the way of another is gone.
const untilScalerGoes = 2 * time.Second

// scalers remembers which Transports have nothing that scales them, so that those that never had are not looked up all the time.
// It is safe for concurrent use.
type scalers struct {
	mu   sync.Mutex
	none map[types.NamespacedName]bool
}

func newScalers() *scalers { return &scalers{none: map[types.NamespacedName]bool{}} }

func (s *scalers) mayHave(name types.NamespacedName) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.none[name]
}

func (s *scalers) found(name types.NamespacedName, some bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.none[name] = !some
}

func (s *scalers) forget(name types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.none, name)
}

// liveScalers are what scales the workers of a Transport, as the cluster has it.
type liveScalers struct {
	// kind is what is to scale them.
	kind schema.GroupVersionKind
	// ours carry the Transport's name, and others the names of others who made them from ours, as KEDA does.
	ours, others []*unstructured.Unstructured
}

// of is the scaler of a kind for a Deployment; nil where it has none.
func (l *liveScalers) of(kind schema.GroupVersionKind, name string) *unstructured.Unstructured {
	for _, object := range l.ours {
		if object.GetName() == name && object.GroupVersionKind() == kind {
			return object
		}
	}
	return nil
}

// other is what of another scales a Deployment; nil where nothing does.
func (l *liveScalers) other(name string) *unstructured.Unstructured {
	for _, object := range l.others {
		if target, _, _ := unstructured.NestedString(object.Object, "spec", "scaleTargetRef", "name"); target == name {
			return object
		}
	}
	return nil
}

// readScalers finds what scales the workers. It asks the API server itself, and only where there may be something.
func (r *TransportReconciler) readScalers(ctx context.Context, run *transportRun) error {
	name, wanted := client.ObjectKeyFromObject(run.transport), len(autoscaling.ScaledNames(run.transport)) > 0
	run.scaled = liveScalers{kind: workload.AutoscalerKind()}
	if !wanted && !r.scalers.mayHave(name) {
		return nil
	}
	kinds := []schema.GroupVersionKind{workload.AutoscalerKind()}
	there, err := r.keda.Known(ctx, time.Now())
	if err != nil {
		return err
	}
	if there {
		kinds = append(kinds, workload.ScaledObjectKind())
		if r.Options.Scale.URL != "" {
			run.scaled.kind = workload.ScaledObjectKind()
		}
	}
	for _, kind := range kinds {
		if err := r.listScalers(ctx, run, kind); err != nil {
			return err
		}
	}
	r.scalers.found(name, wanted || len(run.scaled.ours) > 0)
	return nil
}

func (r *TransportReconciler) listScalers(ctx context.Context, run *transportRun, kind schema.GroupVersionKind) error {
	t := run.transport
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	err := r.Live.List(ctx, list, client.InNamespace(t.Namespace), client.MatchingLabels(workload.TransportLabels(t)))
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		r.keda.Doubt()
		return outcome.Waiting(v1alpha1.ReasonProgressing, untilScalerGoes, fmt.Errorf("the cluster no longer serves the kind %s", kind.Kind))
	}
	if err != nil {
		return fmt.Errorf("list the objects of kind %s: %w", kind.Kind, err)
	}
	for i := range list.Items {
		if object := &list.Items[i]; metav1.IsControlledBy(object, t) {
			run.scaled.ours = append(run.scaled.ours, object)
		} else {
			run.scaled.others = append(run.scaled.others, object)
		}
	}
	return nil
}

// applyScaled writes the Deployment of a worker group and what scales it. Who scaled it before lets go of it first, and nobody but
// the scaler has a say in its replicas then.
func (r *TransportReconciler) applyScaled(ctx context.Context, run *transportRun, worker *v1alpha1.Worker, deployment *appsv1.Deployment) error {
	name := deployment.Name
	scaling, scaled := compile.ScalingOf(worker)
	var keep schema.GroupVersionKind
	if scaled {
		keep = run.scaled.kind
	}
	free, err := r.freeFrom(ctx, run, worker, name, keep)
	if err != nil {
		return err
	}
	if err := r.handOver(ctx, run, deployment); err != nil {
		return err
	}
	if err := r.applyDeployment(ctx, run, deployment); err != nil {
		return err
	}
	live := run.live.deployments[name]
	if !scaled || live == nil {
		return nil
	}
	decided, err := ssa.HasReplicas(live)
	if err != nil {
		return err
	}
	// A HorizontalPodAutoscaler leaves alone what has no pods, as KEDA may have left it.
	if asleep := workload.Replicas(live) == 0 && keep == workload.AutoscalerKind(); asleep || !decided && workload.Replicas(live) < scaling.Min {
		if err := r.setReplicas(ctx, run, live, max(1, scaling.Min)); err != nil {
			return err
		}
	}
	if !free {
		return nil
	}
	return r.applyScaler(ctx, run, worker, scaling)
}

// freeFrom takes away what scales a Deployment, but for one kind that is to. It is false where something does not go at once: two
// who scale would undo each other's work.
func (r *TransportReconciler) freeFrom(
	ctx context.Context, run *transportRun, worker *v1alpha1.Worker, name string, keep schema.GroupVersionKind,
) (bool, error) {
	for _, kind := range []schema.GroupVersionKind{workload.AutoscalerKind(), workload.ScaledObjectKind()} {
		object := run.scaled.of(kind, name)
		if object == nil || kind == keep {
			continue
		}
		if live := run.live.deployments[name]; live != nil && workload.Replicas(live) == 0 && worker.Replicas == nil {
			// Nobody would wake it any more.
			if err := r.setReplicas(ctx, run, live, 1); err != nil {
				return false, err
			}
		}
		if err := r.removeScaler(ctx, run, object); err != nil {
			return false, err
		}
		if len(object.GetFinalizers()) > 0 {
			run.partly(outcome.Waiting(v1alpha1.ReasonProgressing, untilScalerGoes,
				fmt.Errorf("worker %q: %s %s is being deleted, waiting for its finalizers", worker.Name, kind.Kind, name)))
			return false, nil
		}
	}
	if other := run.scaled.other(name); other != nil && keep == workload.AutoscalerKind() {
		run.partly(outcome.Waiting(v1alpha1.ReasonProgressing, untilScalerGoes,
			fmt.Errorf("worker %q: %s %s already scales it and is not managed by Redrive: delete it first", worker.Name, other.GetKind(), other.GetName())))
		return false, nil
	}
	return true, nil
}

// applyScaler writes what scales a worker group.
func (r *TransportReconciler) applyScaler(ctx context.Context, run *transportRun, worker *v1alpha1.Worker, scaling compile.Scaling) error {
	name, kind := workload.Name(run.transport, worker.Name), run.scaled.kind
	var desired *unstructured.Unstructured
	var err error
	if kind != workload.AutoscalerKind() {
		desired = workload.ScaledObject(run.transport, worker, scaling, r.Options.Scale.URL)
	} else {
		desired, err = workload.Autoscaler(run.transport, worker, scaling)
		if scaling.Min == 0 {
			run.warnings = append(run.warnings, fmt.Sprintf(
				"worker %q: autoscaling.min is 0, which needs KEDA, and KEDA is not installed: one pod keeps running", worker.Name))
		}
	}
	if err != nil {
		return err
	}
	var current client.Object
	if live := run.scaled.of(kind, name); live != nil {
		current = live
		if reason := scalingProblem(live); reason != "" {
			run.warnings = append(run.warnings, fmt.Sprintf("worker %q: %s %s does not scale it, and its status says why: %s",
				worker.Name, kind.Kind, name, reason))
		}
	}
	err = r.applyObject(ctx, run, desired, current, nil)
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		r.keda.Doubt()
		run.partly(outcome.Waiting(v1alpha1.ReasonProgressing, untilScalerGoes, err))
		return nil
	case apierrors.IsForbidden(err):
		return objectwriter.Refused(err) // mostly by a webhook of KEDA's, because something else scales the Deployment already
	}
	return err
}

// scalingProblem is the reason that a scaler gives in its status for not scaling; empty where it scales, or says nothing yet. Its message
// has figures that change from moment to moment.
func scalingProblem(scaler *unstructured.Unstructured) string {
	telling := []string{"Ready"} // of KEDA
	if scaler.GroupVersionKind() == workload.AutoscalerKind() {
		telling = []string{string(autoscalingv2.AbleToScale), string(autoscalingv2.ScalingActive)}
	}
	conditions, _, _ := unstructured.NestedSlice(scaler.Object, "status", "conditions")
	for _, condition := range conditions {
		fields, _ := condition.(map[string]any)
		kind, _, _ := unstructured.NestedString(fields, "type")
		status, _, _ := unstructured.NestedString(fields, "status")
		reason, _, _ := unstructured.NestedString(fields, "reason")
		// Without pods there is nothing to scale.
		if slices.Contains(telling, kind) && status == string(metav1.ConditionFalse) && reason != "ScalingDisabled" {
			return cmp.Or(reason, kind+" is False")
		}
	}
	return ""
}

// handOver gives the replicas of a Deployment that we no longer decide on to a name of their own. An apply that just left them out
// would let the API server set them to 1.
func (r *TransportReconciler) handOver(ctx context.Context, run *transportRun, desired *appsv1.Deployment) error {
	live := run.live.deployments[desired.Name]
	if live == nil || desired.Spec.Replicas != nil {
		return nil
	}
	ours, err := ssa.OwnsReplicas(live)
	if err != nil || !ours {
		return err
	}
	return r.setReplicas(ctx, run, live, workload.Replicas(live))
}

// setReplicas writes the replicas of a Deployment once, for others to go on from there. It fails where the Deployment has changed
// since it was read: an autoscaler may have set another number.
func (r *TransportReconciler) setReplicas(ctx context.Context, run *transportRun, live *appsv1.Deployment, n int32) error {
	form := workload.ReplicasForm(live, n)
	err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(form), client.FieldOwner(ssa.ReplicasOwner), client.ForceOwnership)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return outcome.Waiting(v1alpha1.ReasonProgressing, outcome.RetryAfterConflict, errors.New("its Deployment has changed since it was read"))
	}
	if err != nil {
		return fmt.Errorf("set the replicas of Deployment %s: %w", live.Name, err)
	}
	changed, err := deploymentOf(form)
	if err != nil {
		return err
	}
	run.live.deployments[live.Name] = changed
	return nil
}

// removeScalers deletes what scales Deployments that the spec does not let be scaled.
func (r *TransportReconciler) removeScalers(ctx context.Context, run *transportRun, scaled []string) error {
	for _, object := range run.scaled.ours {
		if !slices.Contains(scaled, object.GetName()) {
			if err := r.removeScaler(ctx, run, object); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *TransportReconciler) removeAllScalers(ctx context.Context, run *transportRun) error {
	return r.removeScalers(ctx, run, nil)
}

func (r *TransportReconciler) removeScaler(ctx context.Context, run *transportRun, object *unstructured.Unstructured) error {
	err := r.writer.Delete(ctx, run.objectOwner(), object.GetKind(), object)
	if err == nil {
		object.SetDeletionTimestamp(new(metav1.Now())) // so that it is not deleted twice
	}
	return err
}

func deploymentOf(object *unstructured.Unstructured) (*appsv1.Deployment, error) {
	deployment := &appsv1.Deployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, deployment); err != nil {
		return nil, fmt.Errorf("read Deployment %s: %w", object.GetName(), err)
	}
	return deployment, nil
}
