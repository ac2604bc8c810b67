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
	// The journal has a name that a volume of the template hardly has.
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

// secretsOf are the Secrets of a Transport: the one that its spec names, else those that its cluster was found to have.
func secretsOf(t *v1alpha1.Transport, opts Options) (Secrets, error) {
	if ref := t.Spec.Broker.SecretRef; ref != nil {
		return Secrets{Login: ref.Name}, nil
	}
	if opts.Secrets.Login == "" {
		return Secrets{}, errors.New("the Secret of the broker is not known")
	}
	return opts.Secrets, nil
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

// projections show a pod the keys that a worker reads, and no other: the login for the management API stays away from it.
func (s Secrets) projections() []corev1.VolumeProjection {
	keys := credentials.WorkerKeys()
	if s.CA == "" {
		return []corev1.VolumeProjection{projection(s.Login, keys)}
	}
	keys = slices.DeleteFunc(keys, func(key string) bool { return key == credentials.KeyCA })
	return []corev1.VolumeProjection{projection(s.Login, keys), projection(s.CA, []string{credentials.KeyCA})}
}

// projection is optional, since most keys are: the kubelet leaves out what is not there. So a pod also starts without the
// Secret; its worker says what it waits for.
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
