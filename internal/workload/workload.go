// Package workload turns a Transport's worker groups into the Deployments and ConfigMaps that run them, ready for
// server-side apply. It is pure: no client, no clock.
package workload

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

const (
	// Container is the name of the worker's container.
	Container = "worker"
	// ConfigKey is the key of the ConfigMap, and so the file, that holds the configuration.
	ConfigKey = "config.json"
	// ConfigHashAnnotation stands on the ConfigMap and holds the hash of the configuration. It never stands on the pod
	// template, where a new hash would restart every pod.
	ConfigHashAnnotation = "redrive.dev/config-hash"
	// SecretVersionAnnotation stands on pods and holds the resource versions of the broker's Secrets: unlike a hash, they
	// tell nothing of a password.
	SecretVersionAnnotation = "redrive.dev/secret-version" //nolint:gosec // a name
)

const (
	// The handler beside the worker shares its address 127.0.0.1, and mostly has port 8080 and the name "http": these must
	// not meet them.

	// PortName is the name of the port on which a worker has its probes, its metrics and its status.
	PortName = "worker-http"
	port     = 9095

	// userID is "nonroot" of the distroless images.
	userID = 65532

	// shutdownGrace is the time to settle what was handled, after the timeout of the last attempt.
	shutdownGrace = 15 * time.Second

	// maxConfigMap is the API server's own limit.
	maxConfigMap = 1 << 20
)

// Options are what the operator knows and the Transport does not.
type Options struct {
	// Image of the worker.
	Image string
	// ImagePullPolicy of the worker's image. Left empty, Kubernetes decides by the tag.
	ImagePullPolicy corev1.PullPolicy
	// Resources of the worker's container, where its template does not say otherwise. nil Requests stand for DefaultRequests.
	Resources corev1.ResourceRequirements
	// Secrets of the broker. Left empty, it is the one that the Transport names.
	Secrets Secrets
	// NativeSidecars is true where every node of the cluster knows init containers that go on running.
	NativeSidecars bool
	// Guarded are the Secrets, of those that SecretsShown names, with a login that is not for pods.
	Guarded map[string]bool
	// Restrict has templates show no Secrets, and take no service account.
	Restrict bool
	// Templates that were merged already; nil keeps none.
	Templates *Templates
}

// DefaultRequests are what a worker needs for itself, without its handler.
func DefaultRequests() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("64Mi")}
}

func (o *Options) resources() corev1.ResourceRequirements {
	of := *o.Resources.DeepCopy()
	if of.Requests == nil {
		of.Requests = DefaultRequests()
	}
	return of
}

// ConfigMap holds the configuration of a worker group. It fails when the configuration is larger than a ConfigMap can be.
func ConfigMap(t *v1alpha1.Transport, config compile.Config) (*corev1.ConfigMap, error) {
	if err := config.Validate(); err != nil { // workers would refuse it, and whoever reads it next would find nothing published
		return nil, fmt.Errorf("the configuration of worker %q: %w", config.Worker, err)
	}
	data, err := compile.Encode(config)
	if err != nil {
		return nil, err
	}
	if len(data) > maxConfigMap {
		return nil, fmt.Errorf("the configuration of worker %q has %d bytes, and a ConfigMap holds %d: use fewer or shorter policies",
			config.Worker, len(data), maxConfigMap)
	}
	meta := objectMeta(t, config.Worker)
	meta.Annotations = map[string]string{ConfigHashAnnotation: compile.Hash(data)}
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: meta,
		Data:       map[string]string{ConfigKey: string(data)},
	}, nil
}

// IsPublished is true for a ConfigMap whose hash is that of its content.
func IsPublished(configMap *corev1.ConfigMap) bool {
	return compile.Hash([]byte(configMap.Data[ConfigKey])) == configMap.Annotations[ConfigHashAnnotation]
}

// Published is the configuration in a ConfigMap. One that cannot be read or that somebody edited is about to be written again, and the lanes that it
// names are not made: a worker that has read it takes another for one that is not there.
func Published(configMap *corev1.ConfigMap) (config compile.Config, ok bool) {
	if !IsPublished(configMap) {
		return config, false
	}
	config, err := compile.Read([]byte(configMap.Data[ConfigKey]))
	return config, err == nil
}

// Deployment runs the pods of a worker group. It depends on nothing that a RetryPolicy says, and on no more of the handler than
// its kind, its image, its Secrets and its socket, so that a change of the rest restarts no pod. An error names the field of the
// template that is wrong or that a template must not change.
func Deployment(t *v1alpha1.Transport, worker *v1alpha1.Worker, opts Options) (*appsv1.Deployment, error) {
	own, err := podTemplate(t, worker, Labels(t, worker.Name), opts)
	if err != nil {
		return nil, err
	}
	meta := objectMeta(t, worker.Name)
	if worker.Autoscaling != nil {
		meta.Annotations = map[string]string{AutoscaledAnnotation: "true"}
	}
	return deployment(meta, worker, own, opts, appsv1.DeploymentSpec{
		Replicas: worker.Replicas,
		Selector: &metav1.LabelSelector{MatchLabels: Selector(t, worker.Name)},
		Strategy: inPlace("25%"),
	})
}

// inPlace replaces pods while they work: an old one ends when a new one is available.
func inPlace(surge string) appsv1.DeploymentStrategy {
	return appsv1.DeploymentStrategy{
		Type: appsv1.RollingUpdateDeploymentStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDeployment{
			MaxSurge:       new(intstr.FromString(surge)),
			MaxUnavailable: new(intstr.FromInt32(0)),
		},
	}
}

// QuarantineDeployment runs the one pod of a worker group that handles the messages of its quarantine queues, one at a time.
// The pod is as those of the group, and has a directory besides for the journal of what it has in hand. Its template is refused
// where it is refused for the group's own.
func QuarantineDeployment(t *v1alpha1.Transport, worker *v1alpha1.Worker, opts Options) (*appsv1.Deployment, error) {
	own, err := podTemplate(t, worker, QuarantineLabels(t, worker.Name), opts)
	if err != nil {
		return nil, err
	}
	inQuarantine(&own.Spec, &own.Spec.Containers[0])
	return deployment(quarantineMeta(t, worker.Name), worker, own, opts, quarantineSpec(t, worker.Name))
}

// FormerQuarantine is QuarantineDeployment for a worker group that has left the spec: its pod is as those of the group's Deployment, as the cluster has it.
// It is nil where that has no worker.
func FormerQuarantine(t *v1alpha1.Transport, worker string, live *appsv1.Deployment) *appsv1.Deployment {
	template := live.Spec.Template.DeepCopy()
	i := slices.IndexFunc(template.Spec.Containers, func(c corev1.Container) bool { return c.Name == Container })
	if i < 0 {
		return nil
	}
	for label := range Labels(t, worker) {
		delete(template.Labels, label)
	}
	maps.Copy(template.Labels, QuarantineLabels(t, worker))
	inQuarantine(&template.Spec, &template.Spec.Containers[i])
	spec := quarantineSpec(t, worker)
	spec.Template = *template
	return typed(quarantineMeta(t, worker), spec)
}

// inQuarantine has a worker handle the messages of its quarantine queues, with a journal.
func inQuarantine(pod *corev1.PodSpec, worker *corev1.Container) {
	pod.Volumes = append(pod.Volumes, journal())
	worker.Args = append(worker.Args, "--quarantine", "--journal="+journalDir+"/journal")
	worker.VolumeMounts = append(worker.VolumeMounts, corev1.VolumeMount{Name: journalVolume, MountPath: journalDir})
}

func quarantineMeta(t *v1alpha1.Transport, worker string) metav1.ObjectMeta {
	meta := objectMeta(t, worker)
	meta.Name, meta.Labels = QuarantineName(t, worker), QuarantineLabels(t, worker)
	return meta
}

func quarantineSpec(t *v1alpha1.Transport, worker string) appsv1.DeploymentSpec {
	return appsv1.DeploymentSpec{
		Replicas: ptr.To[int32](1),
		Selector: &metav1.LabelSelector{MatchLabels: QuarantineSelector(t, worker)},
		// With Recreate, Kubernetes would make no new pod before each old one is gone, and one on a lost node never goes. While there are two, a
		// quarantine queue gives its messages to one of them: it has a single active consumer.
		Strategy: inPlace("100%"),
	}
}

// deployment completes a Deployment by the pod template, as the worker's own template changes it.
func deployment(
	meta metav1.ObjectMeta, worker *v1alpha1.Worker, own *corev1.PodTemplateSpec, opts Options, spec appsv1.DeploymentSpec,
) (*appsv1.Deployment, error) {
	template, err := opts.Templates.customise(own, worker, opts)
	if err != nil {
		return nil, err
	}
	spec.Template = *template
	return typed(meta, spec), nil
}

// typed is a Deployment as server-side apply needs it.
func typed(meta metav1.ObjectMeta, spec appsv1.DeploymentSpec) *appsv1.Deployment {
	return &appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: meta, Spec: spec}
}

// ApplyForm is an object as server-side apply takes it: without the status, which the cluster owns.
func ApplyForm(object runtime.Object) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("convert %T for apply: %w", object, err)
	}
	delete(content, "status")
	return &unstructured.Unstructured{Object: content}, nil
}

func objectMeta(t *v1alpha1.Transport, worker string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:      Name(t, worker),
		Namespace: t.Namespace,
		Labels:    Labels(t, worker),
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(t, v1alpha1.GroupVersion.WithKind("Transport")),
		},
	}
}

func podTemplate(t *v1alpha1.Transport, worker *v1alpha1.Worker, labels map[string]string, opts Options) (*corev1.PodTemplateSpec, error) {
	if opts.Image == "" {
		return nil, errors.New("the image of the worker is not set")
	}
	if err := checkHandlerSecrets(worker, opts); err != nil {
		return nil, err
	}
	secrets, err := secretsOf(t, opts)
	if err != nil {
		return nil, err
	}
	template := &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels:      labels,
			Annotations: map[string]string{"kubectl.kubernetes.io/default-container": Container},
		},
		Spec: corev1.PodSpec{
			Containers:                    []corev1.Container{workerContainer(opts)},
			Volumes:                       volumes(t, worker, secrets),
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			TerminationGracePeriodSeconds: new(gracePeriod(worker)),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true),
				RunAsUser:    ptr.To[int64](userID),
				RunAsGroup:   ptr.To[int64](userID),
				// The files of the mounts belong to root and to this group, which is how the worker can read them.
				FSGroup:        ptr.To[int64](userID),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
		},
	}
	return template, shape(&template.Spec, worker, opts)
}

func workerContainer(opts Options) corev1.Container {
	return corev1.Container{
		Name:            Container,
		Image:           opts.Image,
		ImagePullPolicy: opts.ImagePullPolicy,
		Args: []string{
			"--config=" + configDir + "/" + ConfigKey,
			"--credentials=" + brokerDir,
			fmt.Sprintf("--listen=:%d", port),
		},
		Env: []corev1.EnvVar{{
			Name:      "POD_NAME",
			ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}},
		}},
		Ports: []corev1.ContainerPort{{Name: PortName, ContainerPort: port, Protocol: corev1.ProtocolTCP}},
		VolumeMounts: []corev1.VolumeMount{
			{Name: configVolume, MountPath: configDir, ReadOnly: true},
			{Name: brokerVolume, MountPath: brokerDir, ReadOnly: true},
		},
		Resources:       opts.resources(),
		LivenessProbe:   probe("/healthz"),
		ReadinessProbe:  probe("/readyz"),
		SecurityContext: restricted(),
	}
}

func probe(path string) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString(PortName)},
		},
		PeriodSeconds:  10,
		TimeoutSeconds: 5,
	}
}

// gracePeriod is the time in seconds that a pod has to finish the attempts it began.
func gracePeriod(worker *v1alpha1.Worker) int64 {
	timeout := compile.DefaultTimeout
	if worker.Timeout != nil {
		timeout = worker.Timeout.Duration.Duration
	}
	return int64((timeout + shutdownGrace + time.Second - 1) / time.Second)
}
