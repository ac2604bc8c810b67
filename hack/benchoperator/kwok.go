package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
)

const (
	kwokModule  = "hack/tools/kwok"
	kwokPackage = "sigs.k8s.io/kwok/cmd/kwok"
)

// writeStages writes down what KWOK does: nodes and pods are ready at once.
func (c *cluster) writeStages(ctx context.Context) error {
	module, err := output(ctx, "go", "-C", kwokModule, "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok")
	if err != nil {
		return err
	}
	var stages [][]byte
	for _, name := range []string{
		"node/fast/node-initialize", "node/heartbeat-with-lease/node-heartbeat-with-lease",
		"pod/fast/pod-ready", "pod/fast/pod-complete", "pod/fast/pod-delete",
	} {
		stage, err := os.ReadFile(filepath.Join(module, "kustomize", "stage", name+".yaml")) //nolint:gosec // of the module
		if err != nil {
			return fmt.Errorf("the stages of KWOK: %w", err)
		}
		stages = append(stages, stage)
	}
	return os.WriteFile(c.file("stages.yaml"), bytes.Join(stages, []byte("\n---\n")), 0o600) //nolint:gosec,wrapcheck // our own folder; it names the file
}
