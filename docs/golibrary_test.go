package docs_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestDocs_HoldOnlyGoThatCompiles checks the blocks that are whole files, as if each stood in a folder of its own in this module.
func TestDocs_HoldOnlyGoThatCompiles(t *testing.T) {
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	made := t.TempDir()
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	programs, tests := []string{"build"}, []string{"test", "-c", "-vet=off", "-o", made}
	for page, text := range pages(t) {
		for i, block := range blocks(text, "go") {
			if !strings.HasPrefix(block, "package ") {
				continue
			}
			folder := fmt.Sprintf("docs/%s-%d", strings.TrimSuffix(filepath.Base(page), ".md"), i+1)
			name, arguments := "main.go", &programs
			if strings.Contains(block, `"testing"`) {
				name, arguments = "main_test.go", &tests
			}
			file := filepath.Join(t.TempDir(), name)
			if err := os.WriteFile(file, []byte(block), 0o600); err != nil {
				t.Fatal(err)
			}
			overlay.Replace[filepath.Join(top, folder, name)] = file
			*arguments = append(*arguments, "./"+folder)
		}
	}
	if len(programs) == 1 || len(tests) == 5 {
		t.Fatal("the blocks are not found")
	}
	data, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(made, "overlay.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, arguments := range [][]string{programs, tests} {
		command := exec.CommandContext(t.Context(), "go", arguments...)
		command.Dir = top
		command.Env = append(os.Environ(), "GOFLAGS=-overlay="+file)
		if out, err := command.CombinedOutput(); err != nil {
			t.Errorf("go %v: %v\n%s", arguments, err, out)
		}
	}
}
