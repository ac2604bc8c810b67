package v1alpha1_test

import (
	"io/fs"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/config/crd"
)

// A reference to another namespace would let who may write a Transport use Secrets that they may not read.
func TestCRD_HasNoFieldForAnotherNamespace(t *testing.T) {
	fields := 0
	var search func(path string, schema apiextensionsv1.JSONSchemaProps)
	search = func(path string, schema apiextensionsv1.JSONSchemaProps) {
		for name, field := range schema.Properties {
			fields++
			if strings.Contains(strings.ToLower(name), "namespace") {
				t.Errorf("%s.%s", path, name)
			}
			search(path+"."+name, field)
		}
		if schema.Items != nil {
			search(path+"[]", *schema.Items.Schema)
		}
	}
	for _, file := range []string{"bases/redrive.dev_retrypolicies.yaml", "bases/redrive.dev_transports.yaml"} {
		data, err := fs.ReadFile(crd.FS, file)
		if err != nil {
			t.Fatal(err)
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(data, &definition); err != nil {
			t.Fatal(err)
		}
		spec := definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		search(definition.Spec.Names.Kind+".spec", spec)
	}
	if fields < 50 {
		t.Errorf("only %d fields were looked at", fields)
	}
}
