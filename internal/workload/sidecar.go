package workload

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// The lists of containers in a pod.
const (
	ordinaryContainers = "containers"
	initContainers     = "initContainers"
)

// listOf is the list in which a pod has a container; empty where it has none of that name.
func listOf(pod *corev1.PodSpec, name string) string {
	is := func(c corev1.Container) bool { return c.Name == name }
	switch {
	case slices.ContainsFunc(pod.InitContainers, is):
		return initContainers
	case slices.ContainsFunc(pod.Containers, is):
		return ordinaryContainers
	default:
		return ""
	}
}

// placeHandler moves what a patch says of the handler's container to the list in which the pod has it: that depends on the
// cluster, of which the author of a template need not know. Where the pod has no such container of ours, the patch stays as it
// is, and the name is the author's own.
func placeHandler(path *field.Path, own *corev1.PodTemplateSpec, raw []byte) ([]byte, error) {
	to, from := listOf(&own.Spec, HandlerContainer), ordinaryContainers
	switch to {
	case "":
		return raw, nil
	case ordinaryContainers:
		from = initContainers
	}
	var patch map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &patch); err != nil {
		return nil, fmt.Errorf("%s: decode: %w", path, err)
	}
	spec, _ := patch["spec"].(map[string]any)
	list, _ := spec[from].([]any)
	at := slices.IndexFunc(list, isHandler)
	if at < 0 {
		return raw, nil
	}
	others, _ := spec[to].([]any)
	if slices.ContainsFunc(others, isHandler) {
		return nil, field.Duplicate(path.Child("spec", from).Index(at).Child("name"), HandlerContainer) //nolint:wrapcheck // it names the field
	}
	handler := list[at].(map[string]any) //nolint:forcetypeassert // isHandler has seen that
	if to == ordinaryContainers && handler["restartPolicy"] == string(corev1.ContainerRestartPolicyAlways) {
		delete(handler, "restartPolicy") // it only says that the container is to go on running
	}
	spec[from], spec[to] = slices.Delete(list, at, at+1), append(others, handler)
	moved, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("%s: encode: %w", path, err)
	}
	return moved, nil
}

func isHandler(item any) bool {
	container, _ := item.(map[string]any)
	return container["name"] == HandlerContainer
}
