package workload

import (
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

// Live are the workers' objects of one Transport as the cluster has them, by name. The zero value has none.
type Live struct {
	// Deployments of the workers, and those for quarantined messages, which count for nothing else.
	Deployments, Quarantine map[string]*appsv1.Deployment
	ConfigMaps              map[string]*corev1.ConfigMap
	// decoded are the configurations in ConfigMaps that were asked for; nil for one that is not published. A nil map keeps none.
	decoded map[*corev1.ConfigMap]*compile.Config
}

// NewLive sorts the objects of a Transport's namespace; Deployments that the Transport does not control are left out.
func NewLive(t *v1alpha1.Transport, deployments []appsv1.Deployment, configMaps map[string]*corev1.ConfigMap) Live {
	live := Live{
		Deployments: map[string]*appsv1.Deployment{}, Quarantine: map[string]*appsv1.Deployment{},
		ConfigMaps: configMaps, decoded: map[*corev1.ConfigMap]*compile.Config{},
	}
	for i := range deployments {
		deployment := &deployments[i]
		switch {
		case !metav1.IsControlledBy(deployment, t):
		case deployment.Labels[QuarantineLabel] != "":
			live.Quarantine[deployment.Name] = deployment
		default:
			live.Deployments[deployment.Name] = deployment
		}
	}
	return live
}

// Configs are the configurations that are published; they are not to be changed.
func (l Live) Configs() []compile.Config {
	var configs []compile.Config
	for name := range l.ConfigMaps {
		if config, ok := l.Config(name); ok {
			configs = append(configs, config)
		}
	}
	return configs
}

// Config is the configuration that is published under a name; it is not to be changed. Each is decoded once, since steps ask for every queue.
func (l Live) Config(name string) (config compile.Config, ok bool) {
	configMap := l.ConfigMaps[name]
	if configMap == nil {
		return config, false
	}
	known, decoded := l.decoded[configMap]
	if !decoded {
		if config, ok := Published(configMap); ok {
			known = &config
		}
		if l.decoded != nil {
			l.decoded[configMap] = known
		}
	}
	if known == nil {
		return config, false
	}
	return *known, true
}

// All are the Deployments of the workers and their quarantine.
func (l Live) All() []*appsv1.Deployment {
	return slices.AppendSeq(slices.Collect(maps.Values(l.Deployments)), maps.Values(l.Quarantine))
}

// Ready is the number of pods that are ready.
func (l Live) Ready() int32 {
	var ready int32
	for _, deployment := range l.Deployments {
		ready += deployment.Status.ReadyReplicas
	}
	return ready
}

// Summary is the number of ready and of wanted pods, such as "2/3"; empty where there are no workers.
func (l Live) Summary() string {
	if len(l.Deployments) == 0 {
		return ""
	}
	var wanted int32
	for _, deployment := range l.Deployments {
		wanted += Replicas(deployment)
	}
	return fmt.Sprintf("%d/%d", l.Ready(), wanted)
}

// Rolling are the Deployments whose pods are not all available and current, by name.
func (l Live) Rolling() []*appsv1.Deployment {
	var rolling []*appsv1.Deployment
	for _, name := range slices.Sorted(maps.Keys(l.Deployments)) {
		if isRolling(l.Deployments[name]) {
			rolling = append(rolling, l.Deployments[name])
		}
	}
	return rolling
}

func isRolling(deployment *appsv1.Deployment) bool {
	wanted, status := Replicas(deployment), deployment.Status
	return !IsCurrent(deployment) || status.UpdatedReplicas < wanted || status.AvailableReplicas < wanted
}

// HasRolledOut is true where all pods of a Deployment were made for the handler of a configuration, and are available.
func HasRolledOut(deployment *appsv1.Deployment, config *compile.Config) bool {
	return HasNoFormerPods(deployment, config) && !isRolling(deployment)
}

// HasNoFormerPods is true where all pods that a Deployment has were made for the handler of a configuration.
func HasNoFormerPods(deployment *appsv1.Deployment, config *compile.Config) bool {
	variable := corev1.EnvVar{Name: compile.MadeForVariable, Value: config.MadeFor}
	return IsCurrent(deployment) && slices.ContainsFunc(deployment.Spec.Template.Spec.Containers, func(container corev1.Container) bool {
		return slices.Contains(container.Env, variable)
	})
}

// IsCurrent is true where all pods that a Deployment has are of its present template.
func IsCurrent(deployment *appsv1.Deployment) bool {
	return deployment.Status.ObservedGeneration >= deployment.Generation && deployment.Status.Replicas <= deployment.Status.UpdatedReplicas
}

// MayHavePods is true for a worker group that has pods, or that gets some by an autoscaler, or when its Deployment is made. That of a group that has left
// the spec is not made again.
func (l Live) MayHavePods(t *v1alpha1.Transport, name string) bool {
	workers := l.Deployments[name]
	if workers == nil {
		return Names(t)[name]
	}
	return Replicas(workers) > 0 || workers.Annotations[AutoscaledAnnotation] != ""
}

// HasFormer is true while a worker group that has left the spec has a Deployment.
func (l Live) HasFormer(t *v1alpha1.Transport) bool {
	inSpec := Names(t)
	return slices.ContainsFunc(l.All(), func(deployment *appsv1.Deployment) bool { return !inSpec[deployment.Name] })
}

// Names are the names that the objects of all worker groups in the spec may have.
func Names(t *v1alpha1.Transport) map[string]bool {
	names := make(map[string]bool, 2*len(t.Spec.Workers))
	for i := range t.Spec.Workers {
		names[Name(t, t.Spec.Workers[i].Name)] = true
		names[QuarantineName(t, t.Spec.Workers[i].Name)] = true
	}
	return names
}
