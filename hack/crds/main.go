// Command crds tells whether an API server of one version of Kubernetes would take CustomResourceDefinitions: it asks that version's own
// code, without a server. Each version has a modfile beside this file, so that
//
//	cd hack/crds && go run -modfile=1.25.mod . ../../config/crd/bases/*.yaml
//
// asks Kubernetes 1.25. What it estimates of the cost of CEL rules differs from version to version, and a definition that it refuses
// cannot be installed.
package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"sigs.k8s.io/yaml"
)

func main() {
	refused := false
	for _, file := range os.Args[1:] {
		problems, err := check(file)
		if err != nil {
			fmt.Fprintf(os.Stderr, "crds: %s: %v\n", file, err)
			os.Exit(2)
		}
		for _, problem := range problems {
			refused = true
			fmt.Printf("%s: %s\n", file, problem)
		}
	}
	if refused {
		os.Exit(1)
	}
}

// check gives what is wrong with the definition in a file.
func check(file string) ([]string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var definition apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(data, &definition); err != nil {
		return nil, err
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(&definition)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&definition.Spec)
	var internal apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&definition, &internal, nil); err != nil {
		return nil, err
	}
	// The server fills it in.
	for _, version := range internal.Spec.Versions {
		if version.Storage {
			internal.Status.StoredVersions = append(internal.Status.StoredVersions, version.Name)
		}
	}
	var problems []string
	for _, problem := range validation.ValidateCustomResourceDefinition(context.Background(), &internal) {
		problems = append(problems, problem.Error())
	}
	return problems, nil
}
