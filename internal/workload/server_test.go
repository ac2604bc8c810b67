package workload_test

import (
	"maps"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/manifest"
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

// subject is a worker group whose pods the server is shown.
type subject struct {
	*v1alpha1.Worker

	options workload.Options
}

// subjects are worker groups with pods of every shape, with and without a template.
func subjects() map[string]subject {
	all := map[string]subject{"plain": {worker("plain"), options}, "with a handler": {withTemplate(handlerBeside), options}}
	for name, s := range shapes() {
		all[name] = subject{s.worker(""), s.options()}
		all[name+", with a template"] = subject{s.worker(`{"spec":{"imagePullSecrets":[{"name":"registry"}],"volumes":[{"name":"data","emptyDir":{}}],
			"containers":[{"name":"worker","env":[{"name":"A","value":"b"}],"volumeMounts":[{"name":"data","mountPath":"/data"}]}]}}`), s.options()}
		if s.handler.HTTP == nil {
			all[name+", that writes"] = subject{s.worker(inWorker(`"securityContext":{"readOnlyRootFilesystem":false,"runAsUser":33}`)), s.options()}
		} else if s.handler.Image != nil {
			all[name+", with a port"] = subject{s.worker(beside(`"ports":[{"containerPort":8080}],"securityContext":{"runAsUser":33}`)), s.options()}
		}
	}
	return all
}

func TestDeployment_ChangesNothingWhenAppliedAgain(t *testing.T) {
	cluster, tr := serverTransport(t)
	for name, w := range subjects() {
		t.Run(name, func(t *testing.T) {
			tr := tr.DeepCopy()
			tr.Namespace = cluster.Namespace(t)
			cm, err := workload.ConfigMap(tr, config())
			if err != nil {
				t.Fatal(err)
			}
			d, err := workload.Deployment(tr, w.Worker, w.options)
			if err != nil {
				t.Fatal(err)
			}
			s, err := workload.QuarantineDeployment(tr, w.Worker, w.options)
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

// Earlier operators replaced the quarantine pod with Recreate, and one may be installed again.
func TestQuarantineDeployment_EarlierOperatorsMayHaveAnotherStrategy(t *testing.T) {
	cluster, tr := serverTransport(t)
	now, err := workload.QuarantineDeployment(tr, worker("default"), options)
	if err != nil {
		t.Fatal(err)
	}
	earlier := now.DeepCopy()
	earlier.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	for _, d := range []*appsv1.Deployment{earlier, now, earlier} {
		applied(t, cluster, d)
		var live appsv1.Deployment
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(d), &live); err != nil {
			t.Fatal(err)
		}
		if !equality.Semantic.DeepEqual(live.Spec.Strategy, d.Spec.Strategy) {
			t.Errorf("the strategy is %+v, want %+v", live.Spec.Strategy, d.Spec.Strategy)
		}
	}
}

func TestDeployment_KeepsTheReplicasOfAnAutoscaler(t *testing.T) {
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

func TestTemplate_RemovesWhatItNoLongerAdds(t *testing.T) {
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

type builder func(*v1alpha1.Transport, *v1alpha1.Worker, workload.Options) (*appsv1.Deployment, error)

// restrictedServer creates a pod of what is built, in a dry run, where the restricted Pod Security Standard is enforced.
func restrictedServer(t *testing.T) (create func(builder, subject) error) {
	t.Helper()
	cluster, tr := serverTransport(t)
	var namespace corev1.Namespace
	if err := cluster.Client.Get(t.Context(), client.ObjectKey{Name: tr.Namespace}, &namespace); err != nil {
		t.Fatal(err)
	}
	namespace.Labels["pod-security.kubernetes.io/enforce"] = "restricted"
	if err := cluster.Client.Update(t.Context(), &namespace); err != nil {
		t.Fatal(err)
	}
	return func(build builder, w subject) error {
		d, err := build(tr, w.Worker, w.options)
		if err != nil {
			t.Fatal(err)
		}
		pod := &corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
		pod.Namespace, pod.Name = tr.Namespace, "subject"
		return cluster.Client.Create(t.Context(), pod, client.DryRunAll)
	}
}

func TestDeployment_PassesTheRestrictedPodSecurityStandard(t *testing.T) {
	create := restrictedServer(t)
	for name, w := range subjects() {
		if err := create(workload.Deployment, w); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := create(workload.QuarantineDeployment, w); err != nil {
			t.Errorf("quarantined messages, %s: %v", name, err)
		}
	}
	// The namespace does enforce it: a handler at baseline, which is its team's choice, is refused here.
	baseline := withTemplate(`{"spec":{"containers":[{"name":"handler","image":"shop:v1"}]}}`)
	if err := create(workload.Deployment, subject{baseline, options}); err == nil {
		t.Error("the namespace accepts a container that is not restricted")
	}
}

func TestDeployment_MakesRestrictedPodsOfAllExamples(t *testing.T) {
	create := restrictedServer(t)
	loader, err := manifest.NewLoader()
	if err != nil {
		t.Fatal(err)
	}
	set, err := loader.Load(t.Context(), nil, "../../docs/examples/handlers")
	if err != nil {
		t.Fatal(err)
	}
	for name, example := range set.Transports {
		for i := range example.Spec.Workers {
			for _, native := range []bool{true, false} {
				with := options
				with.NativeSidecars = native
				for _, build := range []builder{workload.Deployment, workload.QuarantineDeployment} {
					if err := create(build, subject{&example.Spec.Workers[i], with}); err != nil {
						t.Errorf("%s, native %v: %v", name, native, err)
					}
				}
			}
		}
	}
	if len(set.Transports) < 5 {
		t.Errorf("there are only %d examples", len(set.Transports))
	}
}

// A cluster may get to know sidecars while Transports run: the handler's container changes its list, and stays one.
func TestSidecar_MovesWithTheClustersVersion(t *testing.T) {
	cluster, tr := serverTransport(t)
	for _, native := range []bool{false, true, false} {
		s := shape{handler: sidecar(), native: native}
		d, err := workload.Deployment(tr, s.worker(beside(`"ports":[{"containerPort":8080}]`)), s.options())
		if err != nil {
			t.Fatal(err)
		}
		applied(t, cluster, d)
		var live appsv1.Deployment
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(d), &live); err != nil {
			t.Fatal(err)
		}
		if got, want := places(&live.Spec.Template), places(&d.Spec.Template); !maps.Equal(got, want) {
			t.Errorf("the containers are %v, want %v", got, want)
		}
	}
}
