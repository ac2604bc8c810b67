package manifest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/operation"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	kjson "sigs.k8s.io/json"
	kyaml "sigs.k8s.io/yaml"

	"redrive.dev/redrive/api/v1alpha1"
	crd "redrive.dev/redrive/config/crd"
)

// admission does to an object of one kind what the API server does on create, in the same order.
type admission struct {
	gvk        schema.GroupVersionKind
	structural *structuralschema.Structural
	schema     validation.SchemaValidator
	rules      *cel.Validator
	// verbatim leaves the errors as the API server words them.
	verbatim bool
}

// compileCRDs returns an admission for each kind in the embedded CustomResourceDefinitions.
func compileCRDs() (map[string]*admission, error) {
	files, err := fs.Glob(crd.FS, "bases/*.yaml")
	if err != nil {
		return nil, fmt.Errorf("list the embedded CustomResourceDefinitions: %w", err)
	}
	admissions := make(map[string]*admission, len(files))
	for _, file := range files {
		data, err := crd.FS.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read the embedded CustomResourceDefinition: %w", err)
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := kyaml.UnmarshalStrict(data, &definition); err != nil {
			return nil, fmt.Errorf("decode the embedded %s: %w", file, err)
		}
		a, err := compileCRD(&definition)
		if err != nil {
			return nil, fmt.Errorf("compile the embedded %s: %w", file, err)
		}
		admissions[a.gvk.Kind] = a
	}
	return admissions, nil
}

func compileCRD(definition *apiextensionsv1.CustomResourceDefinition) (*admission, error) {
	for _, version := range definition.Spec.Versions {
		if version.Name != v1alpha1.GroupVersion.Version {
			continue
		}
		var props apiextensions.JSONSchemaProps
		err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(version.Schema.OpenAPIV3Schema, &props, nil)
		if err != nil {
			return nil, fmt.Errorf("convert the schema: %w", err)
		}
		structural, err := structuralschema.NewStructural(&props)
		if err != nil {
			return nil, fmt.Errorf("structural schema: %w", err)
		}
		validator, _, err := validation.NewSchemaValidator(&props)
		if err != nil {
			return nil, fmt.Errorf("schema validator: %w", err)
		}
		return &admission{
			gvk:        schema.GroupVersionKind{Group: definition.Spec.Group, Version: version.Name, Kind: definition.Spec.Names.Kind},
			structural: structural,
			schema:     validator,
			rules:      cel.NewValidator(structural, true, celconfig.PerCallLimit),
		}, nil
	}
	return nil, fmt.Errorf("version %s is not among its versions", v1alpha1.GroupVersion.Version)
}

// admit decodes, defaults and validates an object into the type of its kind. The error joins all that is wrong with it.
func (a *admission) admit(ctx context.Context, o object, into metav1.Object) error {
	found, err := a.decode(o)
	if err == nil && a.verbatim && len(found.strict) > 0 {
		err = runtime.NewStrictDecodingError(found.strict)
	}
	if err != nil {
		return a.undecodable(o, err)
	}
	content, meta := found.content, found.meta
	defaulting.Default(content, a.structural)
	// A new object's status is the operator's, whatever the file says.
	delete(content, "status")
	errs := a.validate(ctx, content, meta)
	switch {
	case a.verbatim && len(errs) > 0:
		return apierrors.NewInvalid(a.gvk.GroupKind(), meta.Name, errs)
	case len(errs) > 0 || len(found.strict) > 0:
		return a.explain(o, found, errs)
	case meta.Name == "":
		return o.mistake("metadata.name", "an object that is applied needs a name")
	}
	defaulting.Default(content, a.structural)
	data, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return nil
}

// undecodable is the error of an object that has not the form of an object at all.
func (a *admission) undecodable(o object, err error) error {
	if a.verbatim {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", a.gvk.Kind, a.gvk.Version, a.gvk.Kind, err))
	}
	return o.malformed(err)
}

// decoded is an object as it was written, without what its kind does not know.
type decoded struct {
	content map[string]any
	meta    *metav1.ObjectMeta
	// unknown are the paths of the fields that the kind does not have; strict has an error for each of them, and for each field that
	// is given twice.
	unknown []string
	strict  []error
}

// decode is as strict as kubectl asks the API server to be: a field that is unknown or given twice is an error.
func (a *admission) decode(o object) (decoded, error) {
	content := map[string]any{}
	strict, err := kjson.UnmarshalStrict(o.data, &content)
	if err != nil {
		return decoded{}, err //nolint:wrapcheck // undecodable puts words around it
	}
	strict = append(o.strict, strict...)
	meta, found, unknown, err := objectmeta.GetObjectMetaWithOptions(content, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
	if err != nil {
		return decoded{}, err //nolint:wrapcheck // as above
	}
	if !found {
		meta = &metav1.ObjectMeta{}
	}
	unknown = append(unknown, pruning.PruneWithOptions(content, a.structural, true,
		structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})...)
	for _, path := range unknown {
		strict = append(strict, errors.New(`unknown field "`+path+`"`))
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(content, a.structural)
	if meta.Namespace == "" {
		meta.Namespace = DefaultNamespace
	}
	if err := objectmeta.SetObjectMeta(content, meta); err != nil {
		return decoded{}, err //nolint:wrapcheck // as above
	}
	return decoded{content: content, meta: meta, unknown: unknown, strict: strict}, nil
}

func (a *admission) validate(ctx context.Context, content map[string]any, meta *metav1.ObjectMeta) field.ErrorList {
	var errs field.ErrorList
	if meta.Name != "" || meta.GenerateName == "" {
		errs = apivalidation.ValidateObjectMetaDeclaratively(ctx, operation.Create, meta, nil, true,
			apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"), true)
	}
	errs = append(errs, sorted(validation.ValidateCustomResource(nil, content, a.schema))...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, a.structural, content)...)
	if blocksRules(errs) {
		return append(errs, field.Invalid(nil, nil,
			"some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"))
	}
	broken, _ := a.rules.Validate(ctx, nil, a.structural, content, nil, celconfig.RuntimeCELCostBudget)
	return append(errs, sorted(broken)...)
}

// sorted puts errors in the order of their fields, which the libraries visit in a random one. Those without a field go to
// the end, as they follow from others.
func sorted(errs field.ErrorList) field.ErrorList {
	slices.SortStableFunc(errs, func(a, b *field.Error) int {
		switch {
		case a.Field == b.Field:
			return 0
		case a.Field == nowhere():
			return 1
		case b.Field == nowhere():
			return -1
		default:
			return strings.Compare(a.Field, b.Field)
		}
	})
	return errs
}

// blocksRules is true for errors after which the API server does not look at CEL rules, as they may not fit the object.
func blocksRules(errs field.ErrorList) bool {
	for _, err := range errs {
		switch err.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return true
		default:
		}
	}
	return false
}
