package workload

import (
	"cmp"
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
	// QuarantineLabel holds the name of the worker group on its quarantine Deployment and pod, which have no WorkerLabel: by
	// that the group's own Deployment would take them for its own.
	QuarantineLabel = "redrive.dev/quarantine"

	nameLabel      = "app.kubernetes.io/name"
	instanceLabel  = "app.kubernetes.io/instance"
	componentLabel = "app.kubernetes.io/component"
	managedByLabel = "app.kubernetes.io/managed-by"
	partOfLabel    = "app.kubernetes.io/part-of"
)

// AutoscaledAnnotation stands on the Deployment of a worker group as long as an autoscaler of ours may set its replicas, and one look longer: when it is
// gone, a Deployment that it has left without pods is given one.
const AutoscaledAnnotation = "redrive.dev/autoscaled"

const (
	maxName    = 63
	hashLength = 5
)

// Name is the name of the Deployment and of the ConfigMap of a worker group: <transport>-<worker>-<hash>, at most 63
// characters. The hash is over the full names, so that neither a shortened name nor a dash in one lets two groups meet.
func Name(t *v1alpha1.Transport, worker string) string {
	return nameWith(t, worker, hash(t.Namespace, t.Name, worker))
}

// QuarantineName is the name of the quarantine Deployment of a worker group: <transport>-<worker>-quarantine-<hash>.
func QuarantineName(t *v1alpha1.Transport, worker string) string {
	return nameWith(t, worker, "quarantine-"+hash(t.Namespace, t.Name, worker, "quarantine"))
}

// UserSecretName is the name of the Secret with the login of a Transport's own RabbitMQ user: <transport>-broker-user-<hash>.
func UserSecretName(t *v1alpha1.Transport) string {
	return nameWith(t, "broker", "user-"+hash(t.Namespace, t.Name, "broker user"))
}

func nameWith(t *v1alpha1.Transport, worker, suffix string) string {
	// What the transport's and the worker's part of a name may each claim, come what may.
	half := (maxName - len(suffix) - 2) / 2
	transport := strings.ReplaceAll(t.Name, ".", "-")
	if excess := len(transport) + len(worker) - 2*half; excess > 0 {
		transport = cut(transport, max(half, len(transport)-excess))
		worker = cut(worker, 2*half-len(transport))
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

// OwnLabels are those of some labels that the objects of worker groups have.
func OwnLabels(labels map[string]string) map[string]string {
	own := map[string]string{}
	for _, name := range []string{
		TransportLabel, WorkerLabel, QuarantineLabel, nameLabel, instanceLabel, componentLabel, managedByLabel, partOfLabel,
	} {
		if value, has := labels[name]; has {
			own[name] = value
		}
	}
	return own
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

// QuarantineLabels of the quarantine Deployment of a worker group and of its pod.
func QuarantineLabels(t *v1alpha1.Transport, worker string) map[string]string {
	labels := TransportLabels(t)
	labels[instanceLabel] = labelValue(t.Name)
	labels[componentLabel] = "quarantine"
	labels[partOfLabel] = "redrive"
	labels[QuarantineLabel] = worker
	return labels
}

// QuarantineSelector of the quarantine pod of a worker group. It cannot be changed either.
func QuarantineSelector(t *v1alpha1.Transport, worker string) map[string]string {
	return map[string]string{
		TransportLabel:  labelValue(t.Name),
		QuarantineLabel: worker,
	}
}

// GroupOf is the name of the worker group to which an object with these labels belongs, as one of its workers' or as one of
// its quarantined messages'; empty where it belongs to none.
func GroupOf(labels map[string]string) string {
	return cmp.Or(labels[WorkerLabel], labels[QuarantineLabel])
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
