package workload_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/workload"
)

func quarantine(t *testing.T, w *v1alpha1.Worker) *appsv1.Deployment {
	t.Helper()
	d, err := workload.QuarantineDeployment(transport("async"), w, options)
	if err != nil {
		t.Fatalf("QuarantineDeployment: %v", err)
	}
	return d
}

func TestQuarantineDeployment_MatchesItsGoldenFile(t *testing.T) {
	w := worker("default")
	w.Replicas = ptr.To[int32](5)
	u, err := workload.ApplyForm(quarantine(t, w))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(u, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	compareGolden(t, "testdata/quarantine.json", append(got, '\n'))
}

func TestQuarantineDeployment_DiffersFromItsGroupByItsJournal(t *testing.T) {
	w := withTemplate(`{"metadata":{"labels":{"team":"shop"}},"spec":{"nodeSelector":{"disk":"ssd"},
		"containers":[{"name":"worker","resources":{"limits":{"memory":"256Mi"}}},{"name":"handler","image":"shop:v1"}]}}`)
	group, own := deployment(t, w).Spec.Template, quarantine(t, w).Spec.Template
	if own.Labels["team"] != "shop" {
		t.Errorf("its labels are %v", own.Labels)
	}
	container := find(&own, "worker")
	if got := container.Args[len(container.Args)-2:]; !slices.Equal(got, []string{"--quarantine", "--journal=/var/lib/redrive/journal"}) {
		t.Errorf("its arguments end with %v", got)
	}
	volume := own.Spec.Volumes[len(own.Spec.Volumes)-1]
	mounts := container.VolumeMounts
	if mount := mounts[len(mounts)-1]; volume.EmptyDir == nil || volume.EmptyDir.SizeLimit == nil || mount.Name != volume.Name ||
		mount.ReadOnly || mount.MountPath != "/var/lib/redrive" {
		t.Errorf("the journal is in %+v at %+v", volume, mount)
	}
	container.Args, container.VolumeMounts = container.Args[:len(container.Args)-2], mounts[:len(mounts)-1]
	own.Spec.Volumes = own.Spec.Volumes[:len(own.Spec.Volumes)-1]
	if !equality.Semantic.DeepEqual(group.Spec, own.Spec) {
		t.Errorf("besides, it differs:\n%+v\n%+v", group.Spec, own.Spec)
	}
}

// With Recreate, Kubernetes makes no new pod as long as there is an old one, also one that is being deleted on a lost node: nobody would handle
// quarantined messages until somebody deletes that by force.
func TestQuarantineDeployment_ANewPodWaitsForNoneThatIsBeingDeleted(t *testing.T) {
	strategy := quarantine(t, worker("default")).Spec.Strategy
	if strategy.Type != appsv1.RollingUpdateDeploymentStrategyType {
		t.Fatalf("the strategy is %s", strategy.Type)
	}
	// Whether and since when the pod is unavailable is told by the Deployment's condition, which counts from 1 only where none may be unavailable.
	surge, err := intstr.GetScaledValueFromIntOrPercent(strategy.RollingUpdate.MaxSurge, 1, true)
	if err != nil || surge != 1 || strategy.RollingUpdate.MaxUnavailable.IntValue() != 0 {
		t.Errorf("%d more and %s less than its pod, %v", surge, strategy.RollingUpdate.MaxUnavailable, err)
	}
}

func TestDeployment_SelectsNoPodOfTheQuarantineDeployment(t *testing.T) {
	w := worker("default")
	group, own := deployment(t, w), quarantine(t, w)
	for _, one := range []*appsv1.Deployment{group, own} {
		for _, other := range []*appsv1.Deployment{group, own} {
			selected := labels.SelectorFromSet(one.Spec.Selector.MatchLabels).Matches(labels.Set(other.Spec.Template.Labels))
			if selected != (one == other) {
				t.Errorf("that %s selects the pods of %s is %v", one.Name, other.Name, selected)
			}
		}
		if ours := labels.SelectorFromSet(workload.TransportLabels(transport("async"))); !ours.Matches(labels.Set(one.Labels)) ||
			!ours.Matches(labels.Set(one.Spec.Template.Labels)) {
			t.Errorf("%s and its pods are not among the Transport's objects", one.Name)
		}
		if got := workload.GroupOf(one.Spec.Template.Labels); got != "default" {
			t.Errorf("the pods of %s belong to the group %q", one.Name, got)
		}
	}
	// A Deployment's selector can never be changed: it is that of every installation.
	if want := map[string]string{workload.TransportLabel: "async", workload.WorkerLabel: "default"}; !maps.Equal(group.Spec.Selector.MatchLabels, want) {
		t.Errorf("the selector of the workers is %v, want %v for ever", group.Spec.Selector.MatchLabels, want)
	}
}

func TestTemplate_RefusesToMixUpWorkersAndQuarantine(t *testing.T) {
	checkRefusals(t, map[string]refusal{
		"the label of the quarantined messages": {`{"metadata":{"labels":{"redrive.dev/quarantine":"default"}}}`, templatePath + ".metadata.labels[redrive.dev/quarantine]", "find the pods"},
	})
	for name, tc := range map[string]refusal{
		"the label of the workers": {`{"metadata":{"labels":{"redrive.dev/worker":"default"}}}`, templatePath + ".metadata.labels[redrive.dev/worker]", "find the pods"},
		"a mount over the journal": {
			`{"spec":{"volumes":[{"name":"data","emptyDir":{}}],"containers":[{"name":"worker","volumeMounts":[{"mountPath":"/var/lib","name":"data"}]}]}}`,
			templatePath + ".spec.containers[worker].volumeMounts[/var/lib]", "lies over",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := workload.QuarantineDeployment(transport("async"), withTemplate(tc.patch), options)
			if err == nil || !strings.Contains(err.Error(), tc.path+":") || !strings.Contains(err.Error(), tc.detail) {
				t.Errorf("error is %v, want the path %s and %s", err, tc.path, tc.detail)
			}
		})
	}
}

func TestQuarantineName_IsValidAndMeetsNoOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := transport(dnsName(253, true).Draw(t, "transport"))
		w := dnsName(63, false).Draw(t, "worker")
		name := workload.QuarantineName(tr, w)
		if errs := validation.IsDNS1123Label(name); len(errs) > 0 || !strings.Contains(name, "-quarantine-") {
			t.Errorf("name %q: %v", name, errs)
		}
		for _, worker := range []string{w, w + "-quarantine"} {
			if workload.Name(tr, worker) == name {
				t.Errorf("the group %q has a Deployment of the same name %s", worker, name)
			}
		}
		for key, value := range workload.QuarantineLabels(tr, w) {
			if errs := validation.IsValidLabelValue(value); len(errs) > 0 {
				t.Errorf("label %s=%q: %v", key, value, errs)
			}
		}
	})
	if got, want := workload.QuarantineName(transport("async"), "default"), "async-default-quarantine-"; !strings.HasPrefix(got, want) || len(got) != len(want)+5 {
		t.Errorf("name is %q", got)
	}
}

func TestQuarantineDeployment_KeepsItsRootFileSystemReadOnly(t *testing.T) {
	template := quarantine(t, worker("default")).Spec.Template
	if context := find(&template, "worker").SecurityContext; context.ReadOnlyRootFilesystem == nil || !*context.ReadOnlyRootFilesystem {
		t.Error("it can be written to")
	}
	writable := slices.DeleteFunc(find(&template, "worker").VolumeMounts, func(m corev1.VolumeMount) bool { return m.ReadOnly })
	if len(writable) != 1 {
		t.Errorf("what can be written to is %v", writable)
	}
}

// The quarantine pod of a group that has left the spec goes by its Deployment, since nothing else is known of it.
func TestFormerQuarantine_IsTheOneThatTheSpecWouldGive(t *testing.T) {
	w := worker("default")
	w.Template = nil
	d, err := workload.Deployment(transport("async"), w, options)
	if err != nil {
		t.Fatal(err)
	}
	want, err := workload.QuarantineDeployment(transport("async"), w, options)
	if err != nil {
		t.Fatal(err)
	}
	if got := workload.FormerQuarantine(transport("async"), "default", d); !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	d.Spec.Template.Spec.Containers[0].Name = "other"
	if got := workload.FormerQuarantine(transport("async"), "default", d); got != nil {
		t.Errorf("of a Deployment without a worker it is %+v", got)
	}
}
