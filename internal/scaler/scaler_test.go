package scaler

import (
	"context"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/objectwriter"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/ssa"
	"redrive.dev/redrive/internal/workload"
)

// protected is a cluster that lets nobody delete a scaler.
type protected struct {
	client.Client
}

func (protected) Delete(_ context.Context, object client.Object, _ ...client.DeleteOption) error {
	return apierrors.NewForbidden(schema.GroupResource{Group: "keda.sh", Resource: "scaledobjects"}, object.GetName(), nil)
}

func (protected) Apply(context.Context, runtime.ApplyConfiguration, ...client.ApplyOption) error {
	return nil
}

// KEDA gets no number any more for a group that the spec does not have it scale, and leaves it asleep for as long as its ScaledObject stays.
func TestApply_WakesAGroupWhoseScalerCannotBeDeleted(t *testing.T) {
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async", UID: "u"}}
	owner := objectwriter.Owner{
		Transport: client.ObjectKeyFromObject(transport), Status: outcome.OfTransport(transport, nil, events.NewFakeRecorder(16)),
	}
	for name, c := range map[string]struct{ spec, want int32 }{"two pods": {2, 1}, "none": {0, 0}} {
		worker := &v1alpha1.Worker{Name: "default", Replicas: ptr.To(c.spec)}
		scaled := &unstructured.Unstructured{}
		scaled.SetGroupVersionKind(workload.ScaledObjectKind())
		scaled.SetName(workload.Name(transport, worker.Name))
		live := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: scaled.GetName(), Annotations: map[string]string{workload.AutoscaledAnnotation: "true"}},
			Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](0)},
		}
		group := &Group{
			Transport: transport, Owner: owner, Worker: worker, Live: live,
			Scalers: &Found{kind: workload.AutoscalerKind(), ours: []*unstructured.Unstructured{scaled}},
		}
		keeper := NewKeeper(&objectwriter.Writer{Client: protected{}, Repairs: ssa.NewRepairs(time.Minute)}, nil, "")
		err := keeper.Apply(t.Context(), group, live.DeepCopy(), func() error { return nil })
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: got %v", name, err)
		}
		if got := workload.Replicas(group.Live); got != c.want {
			t.Errorf("%s: the group has %d pods, want %d", name, got, c.want)
		}
	}
}
