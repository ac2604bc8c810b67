// Package scaler writes what scales the worker Deployments of a Transport: a HorizontalPodAutoscaler, or a ScaledObject where the cluster has KEDA.
package scaler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/autoscaling"
	"redrive.dev/redrive/internal/clusterinfo"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/objectwriter"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/ssa"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/workload"
)

const (
	// untilScalerGoes is how soon it is looked again whether a scaler that is in the way of another is gone.
	untilScalerGoes = 2 * time.Second
	// maxScalers is how many scalers of a Transport are kept of a look, and maxScaler how large those are that are kept whole, in bytes of JSON. Whoever may
	// write scalers can give hundreds of them our labels, and a megabyte of others each.
	maxScalers = 256
	maxScaler  = 32 << 10
)

// Keeper reads, writes and deletes the scalers of Transports. It is safe for concurrent use.
type Keeper struct {
	client client.Client
	// live reads from the API server itself.
	live   client.Reader
	writer *objectwriter.Writer
	keda   *clusterinfo.Question
	// url is where KEDA asks for the numbers to scale by; empty where it cannot.
	url string

	mu sync.Mutex
	// none are Transports without a scaler: those that never had one are not looked up all the time.
	none map[types.NamespacedName]bool
}

// NewKeeper returns one that writes as a writer does.
func NewKeeper(writer *objectwriter.Writer, keda *clusterinfo.Question, url string) *Keeper {
	return &Keeper{client: writer.Client, live: writer.Live, writer: writer, keda: keda, url: url, none: map[types.NamespacedName]bool{}}
}

func (k *Keeper) mayHave(name types.NamespacedName) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.none[name]
}

func (k *Keeper) found(name types.NamespacedName, some bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.none[name] = !some
}

// Forget drops what is remembered of a Transport.
func (k *Keeper) Forget(name types.NamespacedName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.none, name)
}

// Found are the scalers of a Transport's Deployments, as the cluster has them.
type Found struct {
	// kind is what is to scale them.
	kind schema.GroupVersionKind
	// ours carry the Transport's name, and others the names of others who made them from ours, as KEDA does.
	ours, others []*unstructured.Unstructured
}

// of is the scaler of a kind for a Deployment; nil where it has none.
func (f *Found) of(kind schema.GroupVersionKind, name string) *unstructured.Unstructured {
	for _, object := range f.ours {
		if object.GetName() == name && object.GroupVersionKind() == kind {
			return object
		}
	}
	return nil
}

// other is the scaler of a Deployment that somebody else has made; nil where there is none.
func (f *Found) other(name string) *unstructured.Unstructured {
	for _, object := range f.others {
		if target, _, _ := unstructured.NestedString(object.Object, "spec", "scaleTargetRef", "name"); target == name {
			return object
		}
	}
	return nil
}

// Read finds the scalers of a Transport. It asks the API server itself, and only where there may be one.
func (k *Keeper) Read(ctx context.Context, t *v1alpha1.Transport) (*Found, error) {
	name, wanted := client.ObjectKeyFromObject(t), len(autoscaling.ScaledNames(t)) > 0
	found := &Found{kind: workload.AutoscalerKind()}
	if !wanted && !k.mayHave(name) {
		return found, nil
	}
	kinds := []schema.GroupVersionKind{workload.AutoscalerKind()}
	there, err := k.keda.Answer(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	if there {
		kinds = append(kinds, workload.ScaledObjectKind())
		if k.url != "" {
			found.kind = workload.ScaledObjectKind()
		}
	}
	for _, kind := range kinds {
		if err := k.list(ctx, t, found, kind); err != nil {
			return nil, err
		}
	}
	k.found(name, wanted || len(found.ours) > 0)
	return found, nil
}

func (k *Keeper) list(ctx context.Context, t *v1alpha1.Transport, found *Found, kind schema.GroupVersionKind) error {
	for page := ""; ; {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		err := k.writer.Reads.List(ctx, k.live, t.Namespace, list,
			client.MatchingLabels(workload.TransportLabels(t)), client.Limit(tenancy.Page), client.Continue(page))
		if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			k.keda.Doubt()
			return outcome.Waiting(v1alpha1.ReasonProgressing, untilScalerGoes, fmt.Errorf("the cluster no longer serves the kind %s", kind.Kind))
		}
		if err != nil {
			return fmt.Errorf("list the objects of kind %s: %w", kind.Kind, err)
		}
		for i := range list.Items {
			if err := found.add(t, &list.Items[i]); err != nil {
				return err
			}
		}
		if page = list.GetContinue(); page == "" {
			return nil
		}
	}
}

// add keeps what is needed of a scaler: of another's, and of one that is larger than any of ours, whose it is and what it scales.
func (f *Found) add(t *v1alpha1.Transport, object *unstructured.Unstructured) error {
	ours := metav1.IsControlledBy(object, t)
	if len(f.ours)+len(f.others) >= maxScalers {
		return nil
	}
	if text, err := object.MarshalJSON(); err != nil {
		return fmt.Errorf("read a scaler: %w", err)
	} else if !ours || len(text) > maxScaler {
		target, _, _ := unstructured.NestedString(object.Object, "spec", "scaleTargetRef", "name")
		bare := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"scaleTargetRef": map[string]any{"name": strings.Clone(target)}}}}
		bare.SetGroupVersionKind(object.GroupVersionKind())
		bare.SetNamespace(t.Namespace)
		bare.SetName(strings.Clone(object.GetName()))
		bare.SetUID(object.GetUID())
		bare.SetResourceVersion(object.GetResourceVersion())
		bare.SetDeletionTimestamp(object.GetDeletionTimestamp())
		if len(object.GetFinalizers()) > 0 {
			bare.SetFinalizers([]string{"some"})
		}
		object = bare
	}
	if ours {
		f.ours = append(f.ours, object)
	} else {
		f.others = append(f.others, object)
	}
	return nil
}

// Group is a worker group whose Deployment and scaler are written.
type Group struct {
	Transport *v1alpha1.Transport
	Owner     objectwriter.Owner
	Worker    *v1alpha1.Worker
	Scalers   *Found
	// Live is its Deployment as the cluster has it, before and after; nil where there is none.
	Live *appsv1.Deployment
	// TakesOver is true where another group goes on with its queues until it has an available pod. That one keeps the queues empty, so that an autoscaler
	// would put this one to sleep before it has shown that it can run: it gets none until then.
	TakesOver bool
	// Wait is why the Transport is not ready yet; nil where nothing keeps it.
	Wait error
	// Warnings are what works, but not as the user may believe.
	Warnings []string
}

func (g *Group) name() string { return workload.Name(g.Transport, g.Worker.Name) }

func (g *Group) wait(err error) {
	if g.Wait == nil {
		g.Wait = outcome.Waiting(v1alpha1.ReasonProgressing, untilScalerGoes, err)
	}
}

func (g *Group) warnf(format string, arguments ...any) {
	g.Warnings = append(g.Warnings, fmt.Sprintf("worker %q: "+format, append([]any{g.Worker.Name}, arguments...)...))
}

// Apply has the Deployment of a worker group written, which sets Live, and writes what scales it. Who scaled it before lets go of it first, and nobody
// but the scaler has a say in its replicas then.
func (k *Keeper) Apply(ctx context.Context, group *Group, desired *appsv1.Deployment, write func() error) error {
	scaling, scaled := compile.ScalingOf(group.Worker)
	var keep schema.GroupVersionKind
	switch {
	case scaled:
		keep = group.Scalers.kind
	case group.hasScaler(): // which may put it to sleep until it is gone
		metav1.SetMetaDataAnnotation(&desired.ObjectMeta, workload.AutoscaledAnnotation, "true")
	}
	if !scaled && group.Worker.Replicas == nil { // also where the scaler went before the spec
		if err := k.Wake(ctx, group); err != nil {
			return err
		}
	}
	free, err := k.free(ctx, group, keep)
	if err != nil {
		return err
	}
	if err := k.handOver(ctx, group, desired); err != nil {
		return err
	}
	if err := write(); err != nil {
		return err
	}
	if !scaled || group.Live == nil {
		return nil
	}
	decided, err := ssa.HasReplicas(group.Live)
	if err != nil {
		return err
	}
	// A HorizontalPodAutoscaler leaves alone what has no pods, as KEDA may have left it.
	if asleep := workload.Replicas(group.Live) == 0 && keep == workload.AutoscalerKind(); asleep || !decided && workload.Replicas(group.Live) < scaling.Min {
		if err := k.setReplicas(ctx, group, max(1, scaling.Min)); err != nil {
			return err
		}
	}
	if !free || group.TakesOver && group.Scalers.of(keep, group.name()) == nil {
		return nil
	}
	return k.write(ctx, group, scaling)
}

// Wake gives a Deployment a pod that an autoscaler of ours has put to sleep, and that none is to scale any more: nobody would wake it.
func (k *Keeper) Wake(ctx context.Context, group *Group) error {
	if group.Live == nil || workload.Replicas(group.Live) > 0 || !group.hasScaler() && group.Live.Annotations[workload.AutoscaledAnnotation] == "" {
		return nil
	}
	return k.setReplicas(ctx, group, 1)
}

// WakeUnscaled wakes a Deployment that no autoscaler scales any more, as where KEDA was removed, or where the spec does not have it scaled any more: KEDA
// gets no number for it then.
func (k *Keeper) WakeUnscaled(ctx context.Context, group *Group) error {
	if group.hasScaler() && slices.Contains(autoscaling.ScaledNames(group.Transport), group.name()) {
		return nil
	}
	return k.Wake(ctx, group)
}

// wakeWanted wakes a Deployment whose replicas are not written yet, unless the spec asks for none: KEDA gets no number for it.
func (k *Keeper) wakeWanted(ctx context.Context, group *Group) error {
	if ptr.Deref(group.Worker.Replicas, 1) == 0 {
		return nil
	}
	return k.Wake(ctx, group)
}

// hasScaler is true while an autoscaler of ours is there.
func (g *Group) hasScaler() bool {
	return g.Scalers != nil && (g.Scalers.of(workload.AutoscalerKind(), g.name()) != nil || g.Scalers.of(workload.ScaledObjectKind(), g.name()) != nil)
}

// free takes away what scales a Deployment, but for one kind that is to. It is false where something does not go at once: two who scale would undo each
// other's work.
func (k *Keeper) free(ctx context.Context, group *Group, keep schema.GroupVersionKind) (bool, error) {
	for _, kind := range []schema.GroupVersionKind{workload.AutoscalerKind(), workload.ScaledObjectKind()} {
		object := group.Scalers.of(kind, group.name())
		if object == nil || kind == keep {
			continue
		}
		if group.Worker.Replicas == nil {
			if err := k.Wake(ctx, group); err != nil {
				return false, err
			}
		}
		if err := k.remove(ctx, group.Owner, object); err != nil {
			return false, errors.Join(err, k.wakeWanted(ctx, group))
		}
		if len(object.GetFinalizers()) > 0 {
			group.wait(fmt.Errorf("worker %q: %s %s is being deleted, waiting for its finalizers", group.Worker.Name, kind.Kind, group.name()))
			return false, nil
		}
	}
	if other := group.Scalers.other(group.name()); other != nil && keep == workload.AutoscalerKind() {
		group.wait(fmt.Errorf("worker %q: %s %s already scales it and is not managed by Redrive: delete it first",
			group.Worker.Name, other.GetKind(), other.GetName()))
		return false, nil
	}
	return true, nil
}

// write writes the scaler of a worker group.
func (k *Keeper) write(ctx context.Context, group *Group, scaling compile.Scaling) error {
	kind := group.Scalers.kind
	var desired *unstructured.Unstructured
	var err error
	if kind != workload.AutoscalerKind() {
		desired = workload.ScaledObject(group.Transport, group.Worker, scaling, k.url)
	} else {
		desired, err = workload.Autoscaler(group.Transport, group.Worker, scaling)
		if scaling.Min == 0 {
			group.warnf("autoscaling.min is 0, which needs KEDA, and KEDA is not installed: one pod keeps running")
		}
	}
	if err != nil {
		return err
	}
	var current client.Object
	if live := group.Scalers.of(kind, group.name()); live != nil {
		current = live
		if reason := problem(live); reason != "" {
			group.warnf("%s %s does not scale it, and its status says why: %s", kind.Kind, group.name(), reason)
		}
	}
	err = k.writer.Write(ctx, group.Owner, desired, current, nil)
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		k.keda.Doubt()
		group.wait(err)
		return nil
	case apierrors.IsForbidden(err):
		return objectwriter.Refused(err) // mostly by a webhook of KEDA's, because something else scales the Deployment already
	}
	return err
}

// problem is the reason that a scaler gives in its status for not scaling; empty where it scales, or says nothing yet. Its message has figures that
// change from moment to moment.
func problem(scaler *unstructured.Unstructured) string {
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

// handOver gives the replicas of a Deployment that we no longer decide on to a name of their own. An apply that just left them out would let the API
// server set them to 1.
func (k *Keeper) handOver(ctx context.Context, group *Group, desired *appsv1.Deployment) error {
	if group.Live == nil || desired.Spec.Replicas != nil {
		return nil
	}
	ours, err := ssa.OwnsReplicas(group.Live)
	if err != nil || !ours {
		return err
	}
	return k.setReplicas(ctx, group, workload.Replicas(group.Live))
}

// setReplicas writes the replicas of a Deployment once, for others to go on from there. It fails where the Deployment has changed since it was read: an
// autoscaler may have set another number.
func (k *Keeper) setReplicas(ctx context.Context, group *Group, n int32) error {
	form := workload.ReplicasForm(group.Live, n)
	err := k.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(form), client.FieldOwner(ssa.ReplicasOwner), client.ForceOwnership)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return outcome.Waiting(v1alpha1.ReasonProgressing, outcome.RetryAfterConflict, errors.New("its Deployment has changed since it was read"))
	}
	if err != nil {
		return fmt.Errorf("set the replicas of Deployment %s: %w", group.name(), err)
	}
	changed := &appsv1.Deployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(form.Object, changed); err != nil {
		return fmt.Errorf("read Deployment %s: %w", group.name(), err)
	}
	group.Live = changed
	return nil
}

// RemoveAllBut deletes the scalers that were found, but those of some Deployments. Nothing is found where that is nil.
func (k *Keeper) RemoveAllBut(ctx context.Context, owner objectwriter.Owner, found *Found, scaled []string) error {
	if found == nil {
		return nil
	}
	for _, object := range found.ours {
		if !slices.Contains(scaled, object.GetName()) {
			if err := k.remove(ctx, owner, object); err != nil {
				return err
			}
		}
	}
	return nil
}

func (k *Keeper) remove(ctx context.Context, owner objectwriter.Owner, object *unstructured.Unstructured) error {
	err := k.writer.Delete(ctx, owner, object.GetKind(), object)
	if err == nil {
		object.SetDeletionTimestamp(new(metav1.Now())) // so that it is not deleted twice
	}
	return err
}
