package manifest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kyaml "sigs.k8s.io/yaml"

	"redrive.dev/redrive/api/v1alpha1"
)

// object is one object as it was written.
type object struct {
	// within is its place in a list, empty for an object that is a document of its own.
	within string
	gvk    schema.GroupVersionKind
	data   []byte
	// strict are the errors of strict decoding that belong to the text and not to the fields: keys given twice.
	strict []error
}

// objectsOf turns a document into its objects: none for an empty one, several for a List.
func objectsOf(document []byte) ([]object, error) {
	data, err := kyaml.YAMLToJSON(document)
	if err != nil {
		// The parser quotes what it takes for an anchor, which may be a password that begins with an asterisk.
		return nil, errors.New(regexp.MustCompile(`'[^']*'`).ReplaceAllString(err.Error(), "'…'"))
	}
	if string(data) == "null" {
		return nil, nil
	}
	var strict []error
	if _, err := kyaml.YAMLToJSONStrict(document); err != nil {
		strict = append(strict, err)
	}
	return flatten(object{data: data, strict: strict})
}

// flatten gives an object, or the items of a list, as kubectl takes a list apart.
func flatten(o object) ([]object, error) {
	gvk, err := kindOf(o.data)
	if err != nil {
		return nil, err
	}
	o.gvk = gvk
	if !isList(gvk) {
		return []object{o}, nil
	}
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(o.data, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", gvk.Kind, err)
	}
	var objects []object
	var errs []error
	for i, data := range list.Items {
		item := object{within: fmt.Sprintf("%s, item %d", o.within, i+1), data: data}
		if i == 0 {
			item.strict = o.strict
		}
		items, err := flatten(item)
		if err != nil {
			errs = append(errs, fmt.Errorf("item %d: %w", i+1, err))
		}
		objects = append(objects, items...)
	}
	return objects, errors.Join(errs...)
}

func isList(gvk schema.GroupVersionKind) bool {
	switch gvk.Group {
	case "":
		return gvk.Kind == "List" || gvk.Kind == "SecretList"
	case v1alpha1.GroupVersion.Group:
		return gvk.Kind == "RetryPolicyList" || gvk.Kind == "TransportList"
	default:
		return false
	}
}

func kindOf(data []byte) (schema.GroupVersionKind, error) {
	var h struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.Unmarshal(data, &h); err != nil {
		return schema.GroupVersionKind{}, errors.New("is not an object with apiVersion and kind")
	}
	if h.Kind == "" {
		return schema.GroupVersionKind{}, errors.New("kind is not set")
	}
	if h.APIVersion == "" {
		return schema.GroupVersionKind{}, errors.New("apiVersion is not set")
	}
	gv, err := schema.ParseGroupVersion(h.APIVersion)
	if err != nil {
		return schema.GroupVersionKind{}, fmt.Errorf("apiVersion: %w", err)
	}
	return gv.WithKind(h.Kind), nil
}

// add puts an object where it belongs.
func (l *Loader) add(ctx context.Context, set *Set, place string, o object) error {
	switch {
	case o.gvk == corev1.SchemeGroupVersion.WithKind("Secret"):
		secret, err := decodeSecret(o)
		if err != nil {
			return err
		}
		return put(set, set.Secrets, place, o.gvk.Kind, secret)
	case o.gvk == v1alpha1.GroupVersion.WithKind("RetryPolicy"):
		policy := &v1alpha1.RetryPolicy{}
		if err := l.admission[o.gvk.Kind].admit(ctx, o, policy); err != nil {
			return err
		}
		return put(set, set.RetryPolicies, place, o.gvk.Kind, policy)
	case o.gvk == v1alpha1.GroupVersion.WithKind("Transport"):
		transport := &v1alpha1.Transport{}
		if err := l.admission[o.gvk.Kind].admit(ctx, o, transport); err != nil {
			return err
		}
		return put(set, set.Transports, place, o.gvk.Kind, transport)
	case o.gvk.Group == v1alpha1.GroupVersion.Group:
		return &meta.NoKindMatchError{GroupKind: o.gvk.GroupKind(), SearchedVersions: []string{o.gvk.Version}}
	default:
		set.Ignored = append(set.Ignored, Ignored{
			Place: place, APIVersion: o.gvk.GroupVersion().String(), Kind: o.gvk.Kind, Name: nameOf(o.data),
		})
		return nil
	}
}

// put adds an object to a Set. An object that is there already is an error: which one should hold?
func put[T metav1.Object](set *Set, objects map[types.NamespacedName]T, place, kind string, o T) error {
	name := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
	if other, exists := set.places[key{kind, name}]; exists {
		return fmt.Errorf("%s %s is already in %s", kind, name, other)
	}
	set.places[key{kind, name}] = place
	objects[name] = o
	return nil
}

// nameOf is empty where an object of another kind has no name in the usual place.
func nameOf(data []byte) string {
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(data, &object); err != nil {
		return ""
	}
	return object.Name
}
