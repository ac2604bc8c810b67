package workload_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/workload"
)

func TestMain(m *testing.M) { testcluster.Main(m) }

const handlerBeside = `{"spec":{"containers":[{"name":"handler","image":"shop:v1","ports":[{"containerPort":8080,"name":"http"}],
	"securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}}]}}`

// applied puts an object on the server as the operator does, and returns what the server made of it.
func applied(t *testing.T, cluster *testcluster.Cluster, object runtime.Object) metav1.Object {
	t.Helper()
	u, err := workload.ApplyForm(object)
	if err != nil {
		t.Fatal(err)
	}
	err = cluster.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u),
		client.FieldOwner("redrive"), client.ForceOwnership)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func serverTransport(t *testing.T) (*testcluster.Cluster, *v1alpha1.Transport) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs the API server")
	}
	cluster := testcluster.Start(t)
	tr := transport("async")
	tr.Namespace = cluster.Namespace(t)
	return cluster, tr
}

func TestASecondApplyChangesNothing(t *testing.T) {
	cluster, tr := serverTransport(t)
	for name, w := range map[string]*v1alpha1.Worker{"plain": worker("plain"), "with a handler": withTemplate(handlerBeside)} {
		t.Run(name, func(t *testing.T) {
			cm, err := workload.ConfigMap(tr, config())
			if err != nil {
				t.Fatal(err)
			}
			d, err := workload.Deployment(tr, w, options)
			if err != nil {
				t.Fatal(err)
			}
			s, err := workload.SuspectsDeployment(tr, w, options)
			if err != nil {
				t.Fatal(err)
			}
			for _, object := range []runtime.Object{cm, d, s} {
				first := applied(t, cluster, object)
				second := applied(t, cluster, object)
				if first.GetResourceVersion() != second.GetResourceVersion() || second.GetGeneration() > 1 {
					t.Errorf("%T: the second apply wrote", object)
				}
			}
		})
	}
}

func TestAnAutoscalersReplicasSurvive(t *testing.T) {
	cluster, tr := serverTransport(t)
	d, err := workload.Deployment(tr, worker("default"), options)
	if err != nil {
		t.Fatal(err)
	}
	applied(t, cluster, d)
	var live appsv1.Deployment
	key := client.ObjectKeyFromObject(d)
	if err := cluster.Client.Get(t.Context(), key, &live); err != nil {
		t.Fatal(err)
	}
	live.Spec.Replicas = new(int32)
	*live.Spec.Replicas = 7
	if err := cluster.Client.Update(t.Context(), &live, client.FieldOwner("autoscaler")); err != nil {
		t.Fatal(err)
	}
	applied(t, cluster, d)
	if err := cluster.Client.Get(t.Context(), key, &live); err != nil {
		t.Fatal(err)
	}
	if *live.Spec.Replicas != 7 {
		t.Errorf("replicas is %d, want the autoscaler's 7", *live.Spec.Replicas)
	}
}

func TestWhatATemplateNoLongerAddsIsRemoved(t *testing.T) {
	cluster, tr := serverTransport(t)
	for _, w := range []*v1alpha1.Worker{withTemplate(handlerBeside), worker("default")} {
		d, err := workload.Deployment(tr, w, options)
		if err != nil {
			t.Fatal(err)
		}
		applied(t, cluster, d)
		var live appsv1.Deployment
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(d), &live); err != nil {
			t.Fatal(err)
		}
		if got, want := len(live.Spec.Template.Spec.Containers), len(d.Spec.Template.Spec.Containers); got != want {
			t.Errorf("%d containers, want %d", got, want)
		}
	}
}

func TestPodsPassTheRestrictedPodSecurityStandard(t *testing.T) {
	cluster, tr := serverTransport(t)
	var namespace corev1.Namespace
	if err := cluster.Client.Get(t.Context(), client.ObjectKey{Name: tr.Namespace}, &namespace); err != nil {
		t.Fatal(err)
	}
	namespace.Labels["pod-security.kubernetes.io/enforce"] = "restricted"
	if err := cluster.Client.Update(t.Context(), &namespace); err != nil {
		t.Fatal(err)
	}
	create := func(build func(*v1alpha1.Transport, *v1alpha1.Worker, workload.Options) (*appsv1.Deployment, error), w *v1alpha1.Worker) error {
		d, err := build(tr, w, options)
		if err != nil {
			t.Fatal(err)
		}
		pod := &corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
		pod.Namespace, pod.Name = tr.Namespace, "subject"
		return cluster.Client.Create(t.Context(), pod, client.DryRunAll)
	}
	for name, w := range map[string]*v1alpha1.Worker{"plain": worker("default"), "with a handler": withTemplate(handlerBeside)} {
		if err := create(workload.Deployment, w); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := create(workload.SuspectsDeployment, w); err != nil {
			t.Errorf("suspects, %s: %v", name, err)
		}
	}
	// The namespace does enforce it: a handler at baseline, which is its team's choice, is refused here.
	if err := create(workload.Deployment, withTemplate(`{"spec":{"containers":[{"name":"handler","image":"shop:v1"}]}}`)); err == nil {
		t.Error("the namespace accepts a container that is not restricted")
	}
}
