package scaler

import (
	"context"
	"fmt"
	"strconv"
	"strings"
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
	"redrive.dev/redrive/internal/tenancy"
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
		worker := &v1alpha1.Worker{Name: "default", Replicas: new(c.spec)}
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

// pages is a cluster with scalers, which are read a page at a time. most is the longest page that was asked for.
type pages struct {
	client.Reader

	all  []unstructured.Unstructured
	most int
}

func (p *pages) List(_ context.Context, into client.ObjectList, options ...client.ListOption) error {
	asked := (&client.ListOptions{}).ApplyOptions(options)
	list := into.(*unstructured.UnstructuredList)
	from, _ := strconv.Atoi(asked.Continue)
	end := len(p.all)
	if asked.Limit > 0 {
		end = min(end, from+int(asked.Limit))
	}
	p.most = max(p.most, end-from)
	for _, object := range p.all[from:end] {
		list.Items = append(list.Items, *object.DeepCopy())
	}
	if end < len(p.all) {
		list.SetContinue(strconv.Itoa(end))
	}
	return nil
}

// A hundred with a megabyte of labels each ended the operator.
func TestKeeper_KeepsLittleOfManyLargeScalers(t *testing.T) {
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async", UID: "u"}}
	live := &pages{}
	for i := range 2 * maxScalers {
		object := unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"scaleTargetRef": map[string]any{"name": fmt.Sprint("target-", i)}}}}
		object.SetGroupVersionKind(workload.AutoscalerKind())
		object.SetName(fmt.Sprint("scaler-", i))
		object.SetLabels(map[string]string{"label": "value"})
		object.SetFinalizers([]string{"example.org/one", "example.org/another"})
		if i%3 == 1 {
			object.SetLabels(map[string]string{"label": strings.Repeat("x", maxScaler)})
		}
		if i%3 > 0 {
			object.SetOwnerReferences([]metav1.OwnerReference{{UID: "u", Controller: new(true)}})
		}
		live.all = append(live.all, object)
	}
	found := &Found{}
	keeper := NewKeeper(&objectwriter.Writer{Live: live, Reads: &tenancy.Reader{}}, nil, "")
	if err := keeper.list(t.Context(), transport, found, workload.AutoscalerKind()); err != nil {
		t.Fatal(err)
	}
	if n := len(found.ours) + len(found.others); n != maxScalers || live.most != tenancy.Page {
		t.Errorf("%d scalers are kept, read %d at a time", n, live.most)
	}
	if other := found.other("target-3"); other == nil || other.GetName() != "scaler-3" || len(other.GetLabels()) > 0 {
		t.Errorf("of another's scaler is kept %v", other)
	}
	large, small := found.of(workload.AutoscalerKind(), "scaler-1"), found.of(workload.AutoscalerKind(), "scaler-2")
	if large == nil || len(large.GetLabels()) > 0 || len(large.GetFinalizers()) != 1 {
		t.Errorf("of a large one is kept %v", large)
	}
	if small == nil || len(small.GetLabels()) != 1 || len(small.GetFinalizers()) != 2 {
		t.Errorf("of a small one is kept %v", small)
	}
}
