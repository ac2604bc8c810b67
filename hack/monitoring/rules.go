package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// root of the repository, from the folder of this program.
const root = "../.."

func read(path string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(root, path)) //nolint:gosec // a file of the repository
	if err != nil {
		return nil, fmt.Errorf("read a file of the repository: %w", err)
	}
	return data, nil
}

// ruleFile is what Prometheus itself reads, out of the PrometheusRule.
func ruleFile() ([]byte, error) {
	data, err := read("config/prometheus/rules.yaml")
	if err != nil {
		return nil, err
	}
	var object struct {
		Spec json.RawMessage `json:"spec"`
	}
	if err := yaml.Unmarshal(data, &object); err != nil {
		return nil, fmt.Errorf("config/prometheus/rules.yaml: %w", err)
	}
	return object.Spec, nil
}
