package manifest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kyaml "sigs.k8s.io/yaml"

	"redrive.dev/redrive/api/v1alpha1"
)

// object is one object as it was written.
type object struct {
	source

	gvk  schema.GroupVersionKind
	data []byte
	// strict are the errors of strict decoding that belong to the text and not to the fields: keys given twice.
	strict []error
}

// objectsOf turns a document into its objects: none for an empty one, several for a List.
func objectsOf(at *document) ([]object, error) {
	data, err := kyaml.YAMLToJSON(at.data)
	if err != nil {
		return nil, at.unreadable(err)
	}
	if string(data) == "null" {
		return nil, nil
	}
	var strict []error
	if _, err := kyaml.YAMLToJSONStrict(at.data); err != nil {
		strict = append(strict, err)
	}
	return flatten(object{source: source{document: at}, data: data, strict: strict})
}

// flatten gives an object, or the items of a list, as kubectl takes a list apart.
func flatten(o object) ([]object, error) {
	gvk, err := kindOf(o.data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.at(""), err)
	}
	o.gvk = gvk
	if !isList(gvk) {
		return []object{o}, nil
	}
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(o.data, &list); err != nil {
		return nil, fmt.Errorf("%s: %s: items is no list", o.at("items"), gvk.Kind)
	}
	var objects []object
	var errs []error
	for i, data := range list.Items {
		item := object{source: source{document: o.document, within: fmt.Sprintf("%s.items[%d]", o.within, i)}, data: data}
		if i == 0 {
			item.strict = o.strict
		}
		items, err := flatten(item)
		errs = append(errs, err)
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
func (l *Loader) add(ctx context.Context, set *Set, o object) error {
	switch {
	case o.gvk == corev1.SchemeGroupVersion.WithKind("Secret"):
		secret, err := decodeSecret(o)
		if err != nil {
			return err
		}
		return put(set, set.Secrets, o, secret)
	case o.gvk == v1alpha1.GroupVersion.WithKind("RetryPolicy"):
		policy := &v1alpha1.RetryPolicy{}
		if err := l.admission[o.gvk.Kind].admit(ctx, o, policy); err != nil {
			return err
		}
		return put(set, set.RetryPolicies, o, policy)
	case o.gvk == v1alpha1.GroupVersion.WithKind("Transport"):
		transport := &v1alpha1.Transport{}
		if err := l.admission[o.gvk.Kind].admit(ctx, o, transport); err != nil {
			return err
		}
		return put(set, set.Transports, o, transport)
	case isMeantForUs(o.gvk):
		return l.unknownKind(o)
	default:
		set.Ignored = append(set.Ignored, Ignored{
			Place: o.at(""), APIVersion: o.gvk.GroupVersion().String(), Kind: o.gvk.Kind, Name: nameOf(o.data),
		})
		return nil
	}
}

// put adds an object to a Set. An object that is there already is an error: which one should hold?
func put[T metav1.Object](set *Set, objects map[types.NamespacedName]T, o object, read T) error {
	name := types.NamespacedName{Namespace: read.GetNamespace(), Name: read.GetName()}
	if other, exists := set.sources[key{o.gvk.Kind, name}]; exists {
		return fmt.Errorf("%s: %s %s is already in %s", o.at(""), o.gvk.Kind, name, other.at(""))
	}
	set.sources[key{o.gvk.Kind, name}] = o.source
	objects[name] = read
	return nil
}

// nameOf is empty where an object of another kind has no name in the usual place.
func nameOf(data []byte) string { return metaOf(data).Name }

func metaOf(data []byte) metav1.ObjectMeta {
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(data, &object); err != nil {
		return metav1.ObjectMeta{}
	}
	return object.ObjectMeta
}
