package workload

import (
	pathpkg "path"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

const (
	// HandlerContainer is the name of the container of an http handler's image.
	HandlerContainer = "handler"
	// installContainer puts the worker's binary where the team's image finds it.
	installContainer = "install"

	// workerBinary is where it is then.
	workerBinary = binDir + "/worker"
)

// shape gives a pod with the worker's container what its handler needs: the team's image, and what of Secrets an http
// handler reads.
func shape(pod *corev1.PodSpec, worker *v1alpha1.Worker, opts Options) error {
	handler, container := &worker.Handler, &pod.Containers[0]
	// Which of two configurations is meant for this pod, while the pods of the next one roll out.
	container.Env = append(container.Env,
		corev1.EnvVar{Name: compile.MadeForVariable, Value: compile.MadeFor(handler, compile.TemplateDigest(worker))},
		corev1.EnvVar{Name: compile.MaxTimeoutVariable, Value: (time.Duration(gracePeriod(worker))*time.Second - shutdownGrace).String()})
	switch {
	case handler.HTTP != nil:
		showSecrets(pod, container, handler.HTTP)
		return besideWorker(pod, worker, opts)
	case handler.Image == nil:
		return field.Required(handlerPath(worker).Child("image"), "the worker runs in it") //nolint:wrapcheck // it names the field
	case handler.InProcess != nil:
		runTeams(pod, container, *handler.Image)
	default:
		runTeams(pod, container, *handler.Image)
		install(pod, container, opts)
	}
	return nil
}

func handlerPath(worker *v1alpha1.Worker) *field.Path { return workerPath(worker).Child("handler") }

// runTeams has a container run the team's image, which may want a home and a place for files although its own cannot be
// written to.
func runTeams(pod *corev1.PodSpec, container *corev1.Container, image string) {
	container.Image, container.ImagePullPolicy = image, ""
	container.Env = append(container.Env, corev1.EnvVar{Name: "HOME", Value: tmpDir})
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: tmpVolume, MountPath: tmpDir})
	pod.Volumes = append(pod.Volumes, emptyDir(tmpVolume))
}

// install has an init container copy the worker's binary, which needs nothing but the kernel, and the worker's container run
// it in the team's image.
func install(pod *corev1.PodSpec, container *corev1.Container, opts Options) {
	container.Command = []string{workerBinary}
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: binVolume, MountPath: binDir, ReadOnly: true})
	pod.Volumes = append(pod.Volumes, emptyDir(binVolume))
	pod.InitContainers = append(pod.InitContainers, corev1.Container{
		Name:            installContainer,
		Image:           opts.Image,
		ImagePullPolicy: opts.ImagePullPolicy,
		Args:            []string{"--install=" + binDir},
		VolumeMounts:    []corev1.VolumeMount{{Name: binVolume, MountPath: binDir}},
		Resources: corev1.ResourceRequirements{Limits: opts.Resources.DeepCopy().Limits, Requests: corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("10m"),
			corev1.ResourceMemory: resource.MustParse("16Mi"),
		}},
		SecurityContext: restricted(),
	})
}

// besideWorker runs the image of an http handler, if it has one, in a container of its own: one that starts before the worker
// and outlives it, where the cluster has such.
func besideWorker(pod *corev1.PodSpec, worker *v1alpha1.Worker, opts Options) error {
	handler := &worker.Handler
	if handler.Image == nil {
		return nil
	}
	beside := corev1.Container{Name: HandlerContainer, SecurityContext: restricted()}
	runTeams(pod, &beside, *handler.Image)
	if handler.HTTP.UnixSocket != nil {
		if err := shareSocket(pod, &beside, worker); err != nil {
			return err
		}
	}
	if opts.NativeSidecars {
		beside.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		pod.InitContainers = append(pod.InitContainers, beside)
		return nil
	}
	pod.Containers = append(pod.Containers, beside)
	return nil
}

// shareSocket mounts the folder of a socket in the worker's container and in that of the handler. It fails where the worker
// has files of its own there.
func shareSocket(pod *corev1.PodSpec, beside *corev1.Container, worker *v1alpha1.Worker) error {
	shared := pathpkg.Dir(*worker.Handler.HTTP.UnixSocket)
	for _, own := range []string{configDir, brokerDir, handlerDir, journalDir} {
		if overlap(own, shared) {
			return field.Forbidden(handlerPath(worker).Child("http", "unixSocket"), //nolint:wrapcheck // as above
				"both containers share its folder, which must not lie over "+own+": use another, such as /run/handler")
		}
	}
	mount := corev1.VolumeMount{Name: socketVolume, MountPath: shared}
	if shared == tmpDir {
		mount.Name = tmpVolume // the handler has that already
	} else {
		pod.Volumes = append(pod.Volumes, emptyDir(socketVolume))
		beside.VolumeMounts = append(beside.VolumeMounts, mount)
	}
	pod.Containers[0].VolumeMounts = append(pod.Containers[0].VolumeMounts, mount)
	return nil
}

// restricted is what the restricted Pod Security Standard asks of a container, and a root file system that is not written to.
func restricted() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		ReadOnlyRootFilesystem:   new(true),
		RunAsNonRoot:             new(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// replaceable are the volumes that are only a default: a template may put others in their place.
func replaceable(volume string) bool {
	return slices.Contains([]string{tmpVolume, socketVolume}, volume)
}
