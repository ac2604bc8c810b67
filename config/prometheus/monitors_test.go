package prometheus_test

import (
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

// monitor is what a ServiceMonitor and a PodMonitor say of whom they scrape.
type monitor struct {
	Spec struct {
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []endpoint           `json:"endpoints"`
		Pods      []endpoint           `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

type endpoint struct {
	Port        string       `json:"port"`
	Relabelings []relabeling `json:"relabelings"`
}

type relabeling struct {
	SourceLabels []string `json:"sourceLabels"`
	TargetLabel  string   `json:"targetLabel"`
}

func decode(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", path))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

func (m *monitor) selects(t *testing.T, set map[string]string) bool {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(&m.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	return selector.Matches(labels.Set(set))
}

func TestManagerMonitor_FindsItsService(t *testing.T) {
	var m monitor
	decode(t, "prometheus/manager_monitor.yaml", &m)
	var service corev1.Service
	decode(t, "manager/metrics_service.yaml", &service)
	if !m.selects(t, service.Labels) {
		t.Errorf("%v does not select the Service, with %v", m.Spec.Selector, service.Labels)
	}
	if len(m.Spec.Endpoints) != 1 || m.Spec.Endpoints[0].Port != service.Spec.Ports[0].Name {
		t.Errorf("%v is not the port %s", m.Spec.Endpoints, service.Spec.Ports[0].Name)
	}
}

func TestWorkersMonitor_FindsPodsOfWorkersAndOfQuarantine(t *testing.T) {
	var m monitor
	decode(t, "prometheus/workers_monitor.yaml", &m)
	transport := testtransport.New("http://127.0.0.1:8080/")
	options := workload.Options{Image: "redrive-worker"}
	for name, build := range map[string]func(*v1alpha1.Transport, *v1alpha1.Worker, workload.Options) (*appsv1.Deployment, error){
		"workers": workload.Deployment, "quarantine": workload.QuarantineDeployment,
	} {
		made, err := build(transport, &transport.Spec.Workers[0], options)
		if err != nil {
			t.Fatal(err)
		}
		template := made.Spec.Template
		if !m.selects(t, template.Labels) || m.selects(t, map[string]string{"app": "other"}) {
			t.Errorf("%v does not select the pods of %s alone, with %v", m.Spec.Selector, name, template.Labels)
		}
		if got, want := m.Spec.Pods[0].Port, template.Spec.Containers[0].Ports[0].Name; got != want {
			t.Errorf("%s is not the port %s of %s", got, want, name)
		}
		if got := relabelled(m.Spec.Pods[0].Relabelings, template.Labels); got["transport"] != "async" || got["worker"] != "default" {
			t.Errorf("the pods of %s get the labels %v", name, got)
		}
	}
}

// relabelled are the labels that Prometheus takes from those of a pod: it joins what the sources hold.
func relabelled(rules []relabeling, pod map[string]string) map[string]string {
	got := map[string]string{}
	for _, rule := range rules {
		for _, source := range rule.SourceLabels {
			for name, value := range pod {
				if source == "__meta_kubernetes_pod_label_"+underscored(name) {
					got[rule.TargetLabel] += value
				}
			}
		}
	}
	return got
}

// underscored is the name of a label as Prometheus can have it.
func underscored(name string) string {
	text := []byte(name)
	for i, c := range text {
		if c == '.' || c == '/' || c == '-' {
			text[i] = '_'
		}
	}
	return string(text)
}
