// Package crdcheck compares the CustomResourceDefinitions of a cluster with the types that the operator was built with. The API server drops fields that
// a CRD does not have, and says so to nobody: an operator that is newer than the CRDs would write down in the status what it must not forget, such as
// a deletion that has no answer yet, and find nothing there after its next start.
package crdcheck

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi3"
	ctrl "sigs.k8s.io/controller-runtime"

	"redrive.dev/redrive/api/v1alpha1"
)

const (
	// patience is how long CRDs that were applied beside the operator may take until the API server serves them.
	patience = 30 * time.Second
	interval = time.Second
	// maxNamed is how many missing fields an error names.
	maxNamed = 8
)

// errUnreadable wraps what keeps the schema from being read.
var errUnreadable = errors.New("read the OpenAPI schema of " + v1alpha1.GroupVersion.String())

// Check waits until the cluster's CRDs have all fields of the operator's types, for half a minute. The error names fields that are missing. A
// schema that cannot be read, for want of rights for example, is logged and is no error.
func Check(ctx context.Context, client openapi.Client) error {
	return check(ctx, client, patience)
}

func check(ctx context.Context, client openapi.Client, patience time.Duration) error {
	var found error
	err := wait.PollUntilContextTimeout(ctx, interval, patience, true, func(context.Context) (bool, error) {
		found = compare(client)
		return found == nil || errors.Is(found, errUnreadable), nil
	})
	switch {
	case errors.Is(found, errUnreadable):
		ctrl.LoggerFrom(ctx).Info("the CustomResourceDefinitions were not compared with this version of the operator", "cause", found.Error())
		return nil
	case found == nil && err != nil: // it was stopped before it had looked
		return fmt.Errorf("compare the CustomResourceDefinitions: %w", err)
	default:
		return found
	}
}

// compare looks once.
func compare(client openapi.Client) error {
	spec, err := openapi3.NewRoot(client).GVSpecAsMap(v1alpha1.GroupVersion)
	var unknown *openapi3.GroupVersionNotFoundError
	switch {
	case errors.As(err, &unknown):
		return fmt.Errorf("the cluster has no CustomResourceDefinitions of %s: apply those of this version of the operator", v1alpha1.GroupVersion)
	case err != nil:
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	missing := Missing(spec)
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("the CustomResourceDefinitions in the cluster are older than the operator, and the API server would drop what it writes to %s:"+
		" apply the CustomResourceDefinitions of this version, then restart the operator", named(missing))
}

// Missing lists the fields of both kinds, such as Transport.status.deletions, that an OpenAPI document of their version does not have.
func Missing(document map[string]any) (fields []string) {
	schemas := child(child(document, "components"), "schemas")
	for _, kind := range []reflect.Type{reflect.TypeFor[v1alpha1.Transport](), reflect.TypeFor[v1alpha1.RetryPolicy]()} {
		schema := child(schemas, schemaName(kind.Name()))
		fields = append(fields, missing(kind, schema, kind.Name())...)
	}
	return fields
}

// schemaName is what the API server calls the schema of a kind: the group's labels in the order of a Java package, the version, the kind.
func schemaName(kind string) string {
	labels := strings.Split(v1alpha1.GroupVersion.Group, ".")
	name := v1alpha1.GroupVersion.Version + "." + kind
	for _, label := range labels {
		name = label + "." + name
	}
	return name
}

// missing compares a type with its schema. Types of other packages are those of Kubernetes, which a CRD has whole.
func missing(kind reflect.Type, schema map[string]any, path string) (fields []string) {
	if keeps, _ := schema["x-kubernetes-preserve-unknown-fields"].(bool); keeps {
		return nil
	}
	switch kind.Kind() {
	case reflect.Pointer:
		return missing(kind.Elem(), schema, path)
	case reflect.Slice:
		return missing(kind.Elem(), child(schema, "items"), path)
	case reflect.Map:
		return missing(kind.Elem(), child(schema, "additionalProperties"), path)
	case reflect.Struct:
		if kind.PkgPath() == reflect.TypeFor[v1alpha1.Transport]().PkgPath() {
			return missingIn(kind, schema, path)
		}
		return nil
	default:
		return nil
	}
}

func missingIn(kind reflect.Type, schema map[string]any, path string) (fields []string) {
	properties := child(schema, "properties")
	for field := range kind.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "":
			fields = append(fields, missing(field.Type, schema, path)...)
		case properties[name] == nil:
			fields = append(fields, path+"."+name)
		default:
			fields = append(fields, missing(field.Type, child(properties, name), path+"."+name)...)
		}
	}
	return fields
}

// named are the first of the fields, and how many there are in addition.
func named(fields []string) string {
	if more := len(fields) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(fields[:maxNamed], ", "), more)
	}
	return strings.Join(fields, ", ")
}

func child(parent map[string]any, name string) map[string]any {
	found, _ := parent[name].(map[string]any)
	return found
}
