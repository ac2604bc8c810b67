package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"redrive.dev/redrive/api/v1alpha1"
)

// customise applies a worker's template, a strategic merge patch, to the pod template that the operator made.
func customise(own *corev1.PodTemplateSpec, worker *v1alpha1.Worker, opts Options) (*corev1.PodTemplateSpec, error) {
	if worker.Template == nil || len(worker.Template.Raw) == 0 {
		return own, nil
	}
	path := workerPath(worker).Child("template")
	if errs := checkPatch(path, worker.Template.Raw); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	patch, err := placeHandler(path, own, worker.Template.Raw)
	if err != nil {
		return nil, err
	}
	merged, err := merge(own, patch)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if errs := checkMerged(path, worker, own, merged, opts); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	return merged, nil
}

func workerPath(worker *v1alpha1.Worker) *field.Path {
	return field.NewPath("spec", "workers").Key(worker.Name)
}

// A strategic merge compares each element of a list with each other: 16,000 of them took 15 s, at each look at the Transport.
const (
	// maxTemplate bounds a template in bytes.
	maxTemplate = 64 << 10
	// maxAllTemplates bounds those of a Transport together.
	maxAllTemplates = 256 << 10
	// maxElements bounds each list in it, and maxContainers those of containers: each of them is some kilobyte in the Deployment and in the
	// list of who manages its fields, however short it is here.
	maxElements   = 256
	maxContainers = 32

	// tooLong and tooLongTogether stand for templates that are refused, whatever is in them.
	tooLong         = `"too long"`
	tooLongTogether = `"too long together"`
)

// BoundTemplates puts something short in the place of templates that are too long, alone or with those of the workers before: the cache of the
// operator keeps none of them. They are refused as they would be.
func BoundTemplates(t *v1alpha1.Transport) {
	all := 0
	for i := range t.Spec.Workers {
		template := t.Spec.Workers[i].Template
		switch {
		case template == nil:
		case len(template.Raw) > maxTemplate:
			template.Raw = []byte(tooLong)
		case all+len(template.Raw) > maxAllTemplates:
			template.Raw = []byte(tooLongTogether)
		default:
			all += len(template.Raw)
		}
	}
}

// checkSize refuses a template that is too long.
func checkSize(path *field.Path, raw []byte) field.ErrorList {
	switch {
	case len(raw) > maxTemplate || string(raw) == tooLong:
		return field.ErrorList{field.TooLong(path, "", maxTemplate)}
	case string(raw) == tooLongTogether:
		detail := fmt.Sprintf("the templates of all workers together may not be more than %d bytes", maxAllTemplates)
		return field.ErrorList{field.Forbidden(path, detail)}
	default:
		return nil
	}
}

// checkLists refuses lists that are too long, at any depth.
func checkLists(path *field.Path, node any) (errs field.ErrorList) {
	switch node := node.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(node)) {
			if list, ok := node[key].([]any); ok && len(list) > maxContainers && (key == "containers" || key == "initContainers") {
				errs = append(errs, field.TooMany(path.Child(key), len(list), maxContainers))
				continue
			}
			errs = append(errs, checkLists(path.Child(key), node[key])...)
		}
	case []any:
		if len(node) > maxElements {
			return field.ErrorList{field.TooMany(path, len(node), maxElements)}
		}
		for i, element := range node {
			errs = append(errs, checkLists(path.Index(i), element)...)
		}
	}
	return errs
}

// checkPatch decodes a patch as strictly as the API server decodes a Deployment, so that a misspelt field is an error and
// not silently without effect.
func checkPatch(path *field.Path, raw []byte) field.ErrorList {
	if errs := checkSize(path, raw); len(errs) > 0 {
		return errs
	}
	var patch any
	strict, err := kjson.UnmarshalStrict(raw, &patch)
	if err != nil {
		return field.ErrorList{field.Invalid(path, "", "is not valid JSON")}
	}
	if errs := checkLists(path, patch); len(errs) > 0 {
		return errs
	}
	document, ok := withoutDirectives(patch).(map[string]any)
	if !ok {
		return field.ErrorList{field.Invalid(path, "", "is not an object")}
	}
	unknown, err := decodeTemplate(document)
	if err != nil {
		return field.ErrorList{locate(path, document, func(part any) error {
			_, err := decodeTemplate(part)
			return err
		})}
	}
	errs := strictErrors(path, append(strict, unknown...))
	if len(errs) > 0 {
		return errs
	}
	schema, err := strategicpatch.NewPatchMetaFromStruct(corev1.PodTemplateSpec{})
	if err != nil {
		return field.ErrorList{field.InternalError(path, err)}
	}
	return checkMergeKeys(path, schema, patch)
}

func merge(own *corev1.PodTemplateSpec, patch []byte) (*corev1.PodTemplateSpec, error) {
	original, err := json.Marshal(own)
	if err != nil {
		return nil, fmt.Errorf("encode the pod template: %w", err)
	}
	result, err := strategicpatch.StrategicMergePatch(original, patch, corev1.PodTemplateSpec{})
	if err != nil {
		return nil, fmt.Errorf("is not a strategic merge patch: %w", err)
	}
	merged := &corev1.PodTemplateSpec{}
	if err := json.Unmarshal(result, merged); err != nil {
		return nil, fmt.Errorf("decode the patched pod template: %w", err)
	}
	return merged, nil
}

// decodeTemplate returns the fields that a pod template does not have, or the error of a value that cannot be decoded.
func decodeTemplate(document any) (unknown []error, err error) {
	data, err := json.Marshal(document)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	unknown, err = kjson.UnmarshalStrict(data, &corev1.PodTemplateSpec{})
	if err != nil {
		return nil, err //nolint:wrapcheck // the cause is put beside its path by locate
	}
	return unknown, nil
}

// withoutDirectives copies a patch without the keys that steer a strategic merge, such as $patch: what is left is a part
// of a pod template. Elements of lists keep their places.
func withoutDirectives(node any) any {
	switch node := node.(type) {
	case map[string]any:
		rest := make(map[string]any, len(node))
		for key, value := range node {
			if !isDirective(key) {
				rest[key] = withoutDirectives(value)
			}
		}
		return rest
	case []any:
		rest := make([]any, len(node))
		for i, value := range node {
			rest[i] = withoutDirectives(value)
		}
		return rest
	default:
		return node
	}
}

func isDirective(key string) bool {
	return key == "$patch" || key == "$retainKeys" ||
		strings.HasPrefix(key, "$setElementOrder/") || strings.HasPrefix(key, "$deleteFromPrimitiveList/")
}

// locate finds the smallest part of a document that decode refuses. The decoder itself names no place for most values,
// such as a quantity that is none.
func locate(path *field.Path, node any, decode func(part any) error) *field.Error {
	switch node := node.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(node)) {
			alone := func(part any) error { return decode(map[string]any{key: part}) }
			if alone(node[key]) != nil {
				return locate(path.Child(key), node[key], alone)
			}
		}
	case []any:
		for i := range node {
			alone := func(part any) error { return decode([]any{part}) }
			if alone(node[i]) != nil {
				return locate(path.Index(i), node[i], alone)
			}
		}
	}
	return field.TypeInvalid(path, field.OmitValueType{}, reason(decode(node)))
}

// reason words the error of a decoder without Go's names for types and fields.
func reason(err error) string {
	if mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		value, _, _ := strings.Cut(mismatch.Value, " ")
		return fmt.Sprintf("must be of type %s, is %s", mismatch.Type.Kind(), value)
	}
	return err.Error()
}

func strictErrors(path *field.Path, causes []error) field.ErrorList {
	errs := make(field.ErrorList, 0, len(causes))
	for _, cause := range causes {
		var at kjson.FieldError
		if !errors.As(cause, &at) {
			errs = append(errs, field.Invalid(path, field.OmitValueType{}, cause.Error()))
			continue
		}
		detail, _, _ := strings.Cut(cause.Error(), " \"")
		errs = append(errs, field.Invalid(field.NewPath(path.String()+"."+at.FieldPath()), field.OmitValueType{}, detail))
	}
	return errs
}

// checkMergeKeys finds elements of merged lists, such as containers, that do not say which element they mean.
func checkMergeKeys(path *field.Path, schema strategicpatch.LookupPatchMeta, node any) field.ErrorList {
	object, ok := node.(map[string]any)
	if !ok {
		return nil
	}
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(object)) {
		switch value := object[key].(type) {
		case map[string]any:
			// A map without fields of its own, such as labels, has no schema and no lists.
			if child, _, err := schema.LookupPatchMetadataForStruct(key); err == nil {
				errs = append(errs, checkMergeKeys(path.Child(key), child, value)...)
			}
		case []any:
			child, meta, err := schema.LookupPatchMetadataForSlice(key)
			if err != nil {
				continue
			}
			errs = append(errs, checkTwice(path.Child(key), value)...)
			for i, item := range value {
				errs = append(errs, checkElement(path.Child(key).Index(i), meta, item)...)
				errs = append(errs, checkMergeKeys(path.Child(key).Index(i), child, item)...)
			}
		}
	}
	return errs
}

// checkTwice finds what a patch adds or changes twice: only the merge of the two would be left of it.
func checkTwice(path *field.Path, items []any) field.ErrorList {
	switch path.String()[strings.LastIndex(path.String(), ".")+1:] {
	case "containers", "initContainers", "volumes":
	default:
		return nil // others may hold a name twice, such as env, or are merged by more than it
	}
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, item := range items {
		element, _ := item.(map[string]any)
		name, named := element["name"].(string)
		if !named || element["$patch"] != nil {
			continue
		}
		if seen[name] {
			errs = append(errs, field.Duplicate(path.Index(i).Child("name"), name))
		}
		seen[name] = true
	}
	return errs
}

func checkElement(path *field.Path, meta strategicpatch.PatchMeta, item any) field.ErrorList {
	element, ok := item.(map[string]any)
	if !ok || !slices.Contains(meta.GetPatchStrategies(), "merge") || element["$patch"] == "replace" {
		return nil
	}
	if key := meta.GetPatchMergeKey(); key != "" && element[key] == nil {
		return field.ErrorList{field.Required(path.Child(key), "says which element of the list is meant")}
	}
	return nil
}
