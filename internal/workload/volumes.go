package workload

import (
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/credentials"
)

const (
	configVolume = "config"
	configDir    = "/etc/redrive/config"
	brokerVolume = "broker"
	brokerDir    = "/etc/redrive/broker"
	// handlerDir is the folder of what an http handler reads of Secrets: ca.crt, and a file for each header.
	handlerDir = "/etc/redrive/handler"
	headersDir = handlerDir + "/headers"
	caFile     = "ca.crt"

	// Those that not every pod has have names that a volume of the template hardly has.
	caVolume      = "redrive-handler-ca"
	headersVolume = "redrive-handler-headers"
	binVolume     = "redrive-bin"
	binDir        = "/redrive/bin"
	tmpVolume     = "redrive-tmp"
	tmpDir        = "/tmp"
	socketVolume  = "redrive-socket"
	journalVolume = "redrive-journal"
	journalDir    = "/var/lib/redrive"
	// journalSize is far more than the note of one message.
	journalSize = "16Mi"
)

// Secrets are those from which worker pods get the broker's address, login and certificates.
type Secrets struct {
	// Login is the Secret with host, port, username and password, or uri.
	Login string
	// CA is the Secret whose ca.crt holds in place of Login's; empty where Login's holds.
	CA string
}

// secretsOf are the Secrets of a Transport: those that its user or its cluster was found to have, else the one that its spec names.
func secretsOf(t *v1alpha1.Transport, opts Options) (Secrets, error) {
	if opts.Secrets.Login != "" {
		return opts.Secrets, nil
	}
	if ref := t.Spec.Broker.SecretRef; ref != nil {
		return Secrets{Login: ref.Name}, nil
	}
	return Secrets{}, errors.New("the Secret of the broker is not known")
}

// volumes are directories, never single files by subPath: those are not refreshed when the ConfigMap or a Secret changes.
func volumes(t *v1alpha1.Transport, worker *v1alpha1.Worker, secrets Secrets) []corev1.Volume {
	return []corev1.Volume{
		{Name: configVolume, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: Name(t, worker.Name)},
			DefaultMode:          ptr.To[int32](0o440),
		}}},
		{Name: brokerVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources:     secrets.projections(),
			DefaultMode: ptr.To[int32](0o440),
		}}},
	}
}

// journal survives a container that ends, and goes with its pod.
func journal() corev1.Volume {
	return corev1.Volume{Name: journalVolume, VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse(journalSize))},
	}}
}

// emptyDir is a folder that the containers of a pod share, without a bound of its own.
func emptyDir(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
}

// showSecrets mounts in the worker's container what an http handler reads of Secrets, and in no other. Which headers there
// are only the Secret knows: all its keys are files of a folder, and that is a volume of its own, since without a list of keys
// they stand at its root. The kubelet makes the place for it in the volume around it.
func showSecrets(pod *corev1.PodSpec, container *corev1.Container, http *v1alpha1.HTTPHandler) {
	show := func(volume, folder string, source corev1.VolumeProjection) {
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{source}, DefaultMode: ptr.To[int32](0o440)},
		}})
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: folder, ReadOnly: true})
	}
	if http.TLS != nil {
		source := projection(http.TLS.CASecretRef.Name, []string{ptr.Deref(http.TLS.CASecretRef.Key, caFile)})
		source.Secret.Items[0].Path = caFile
		show(caVolume, handlerDir, source)
	}
	if http.HeadersSecretRef != nil {
		show(headersVolume, headersDir, projection(http.HeadersSecretRef.Name, nil))
	}
	if http.TLS != nil || http.HeadersSecretRef != nil {
		container.Args = append(container.Args, "--handler-files="+handlerDir)
	}
}

// projections show a pod the keys that a worker reads, and no other: the login for the management API stays away from it.
func (s Secrets) projections() []corev1.VolumeProjection {
	keys := credentials.WorkerKeys()
	if s.CA == "" {
		return []corev1.VolumeProjection{projection(s.Login, keys)}
	}
	keys = slices.DeleteFunc(keys, func(key string) bool { return key == credentials.KeyCA })
	return []corev1.VolumeProjection{projection(s.Login, keys), projection(s.CA, []string{credentials.KeyCA})}
}

// projection shows the keys of a Secret, or all where none is named. It is optional, since most keys are: the kubelet leaves
// out what is not there. So a pod also starts without the Secret; its worker says what it waits for.
func projection(secret string, keys []string) corev1.VolumeProjection {
	items := make([]corev1.KeyToPath, len(keys))
	for i, key := range keys {
		items[i] = corev1.KeyToPath{Key: key, Path: key}
	}
	return corev1.VolumeProjection{Secret: &corev1.SecretProjection{
		LocalObjectReference: corev1.LocalObjectReference{Name: secret},
		Items:                items,
		Optional:             new(true),
	}}
}
