package workload

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"redrive.dev/redrive/api/v1alpha1"
)

// Labels of the objects of a worker group.
const (
	// TransportLabel holds the name of the Transport, shortened where it is too long for a label.
	TransportLabel = "redrive.dev/transport"
	// WorkerLabel holds the name of the worker group.
	WorkerLabel = "redrive.dev/worker"

	nameLabel      = "app.kubernetes.io/name"
	instanceLabel  = "app.kubernetes.io/instance"
	componentLabel = "app.kubernetes.io/component"
	managedByLabel = "app.kubernetes.io/managed-by"
	partOfLabel    = "app.kubernetes.io/part-of"
)

const (
	maxName    = 63
	hashLength = 5
	// halfName is what the transport's and the worker's part of a name may each claim, come what may.
	halfName = (maxName - hashLength - 2) / 2
)

// Name is the name of the Deployment and of the ConfigMap of a worker group: <transport>-<worker>-<hash>, at most 63
// characters. The hash is over the full names, so that neither a shortened name nor a dash in one lets two groups meet.
func Name(t *v1alpha1.Transport, worker string) string {
	suffix := hash(t.Namespace, t.Name, worker)
	transport := strings.ReplaceAll(t.Name, ".", "-")
	if excess := len(transport) + len(worker) - 2*halfName; excess > 0 {
		transport = cut(transport, max(halfName, len(transport)-excess))
		worker = cut(worker, 2*halfName-len(transport))
	}
	return transport + "-" + worker + "-" + suffix
}

// TransportLabels selects everything that belongs to the workers of a Transport.
func TransportLabels(t *v1alpha1.Transport) map[string]string {
	return map[string]string{
		nameLabel:      "redrive-worker",
		managedByLabel: "redrive",
		TransportLabel: labelValue(t.Name),
	}
}

// Labels of all objects of a worker group.
func Labels(t *v1alpha1.Transport, worker string) map[string]string {
	labels := TransportLabels(t)
	labels[instanceLabel] = labelValue(t.Name)
	labels[componentLabel] = worker
	labels[partOfLabel] = "redrive"
	labels[WorkerLabel] = worker
	return labels
}

// Selector of the pods of a worker group. A Deployment's selector cannot be changed, and so neither can this.
func Selector(t *v1alpha1.Transport, worker string) map[string]string {
	return map[string]string{
		TransportLabel: labelValue(t.Name),
		WorkerLabel:    worker,
	}
}

// labelValue fits the name of an object, which may have 253 characters, into the 63 of a label.
func labelValue(name string) string {
	if len(name) <= maxName {
		return name
	}
	return cut(name, maxName-hashLength-1) + "-" + hash(name)
}

// cut shortens a name to at most n characters and leaves no dash or dot at its end.
func cut(name string, n int) string {
	if len(name) > n {
		name = name[:n]
	}
	return strings.TrimRight(name, "-.")
}

// hash is made of letters and digits. Names hold no slash, so that joining them with one is unambiguous.
func hash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "/")))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:hashLength]
}
