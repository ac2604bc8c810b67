package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/config/crd"
	"redrive.dev/redrive/internal/status"
)

const (
	operations     = "docs/operations.md"
	conditionsPage = "docs/conditions.md"
)

// rows are those of the tables of a page that have certain headings, each row by heading.
func rows(page string, headings ...string) []map[string]string {
	cells := make([][]string, len(headings))
	for i, heading := range headings {
		cells[i] = columns(page, heading)
	}
	found := make([]map[string]string, len(cells[0]))
	for i := range found {
		found[i] = map[string]string{}
		for j, heading := range headings {
			if i < len(cells[j]) {
				found[i][heading] = cells[j][i]
			}
		}
	}
	return found
}

func TestDocs_AnswerEveryReason(t *testing.T) {
	reasons := in(t, "api/v1alpha1/conditions.go", `(?m)^\tReason\w+ += "(\w+)"$`)
	answers := map[string]map[string]string{}
	for _, row := range rows(read(t, conditionsPage), "Condition", "Reason", "Means", "What to do") {
		answers[strings.Trim(row["Reason"], "`")] = row
	}
	if len(reasons) == 0 || len(answers) == 0 {
		t.Fatalf("%d reasons and %d rows: the test reads nothing", len(reasons), len(answers))
	}
	for _, reason := range reasons {
		row, exists := answers[reason]
		advice := status.WhatToDo(reason)
		switch {
		case !exists:
			t.Errorf("%s has no row for `%s`", conditionsPage, reason)
		case len(row["Means"]) < 10 || len(row["What to do"]) < 5:
			t.Errorf("%s says nothing about `%s`: %q", conditionsPage, reason, row)
		case !strings.HasPrefix(row["What to do"], advice):
			t.Errorf("%s: what to do about `%s` does not begin as redrive status has it: %q", conditionsPage, reason, advice)
		case advice == "" && reason != "Succeeded":
			t.Errorf("redrive status has no advice on %s", reason)
		}
	}
	for reason := range answers {
		if !slices.Contains(reasons, reason) {
			t.Errorf("%s: there is no reason `%s`", conditionsPage, reason)
		}
	}
}

// Events of a new reason of Ready have the reason's name; all others stand in the controllers and in what they use.
func TestDocs_NameEveryEvent(t *testing.T) {
	var files []string
	for _, folder := range []string{"controllers", "internal/brokeruser", "internal/outcome"} {
		found, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	reasons := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, pattern := range []string{
			`\b[eE]vent[A-Z]\w* += "([A-Z]\w+)"`, `\.Event(?:About|OnBroker|OnceWritten)?\([^"\n]*"([A-Z]\w+)"`,
		} {
			for _, reason := range in(t, strings.TrimPrefix(file, root+"/"), pattern) {
				reasons[reason] = true
			}
		}
	}
	if !reasons["Repaired"] || !reasons["Retained"] || !reasons["BrokerUserCreated"] {
		t.Errorf("found %v: the test does not read the controllers", sorted(reasons))
	}
	told := strings.Join(columns(read(t, operations), "Event"), " ")
	for _, reason := range sorted(reasons) {
		if !strings.Contains(told, "`"+reason+"`") {
			t.Errorf("%s has no row for the event `%s`", operations, reason)
		}
	}
}

func TestDocs_NameEveryColumnOfKubectl(t *testing.T) {
	files, err := fs.Glob(crd.FS, "bases/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d definitions, %v", len(files), err)
	}
	told := strings.Join(columns(read(t, operations), "Column"), " ")
	for _, file := range files {
		data, err := fs.ReadFile(crd.FS, file)
		if err != nil {
			t.Fatal(err)
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(data, &definition); err != nil {
			t.Fatal(err)
		}
		for _, column := range definition.Spec.Versions[0].AdditionalPrinterColumns {
			if !strings.Contains(told, "`"+column.Name+"`") {
				t.Errorf("%s has no row for the column `%s` of %s", operations, column.Name, definition.Spec.Names.Kind)
			}
		}
	}
}

// What a command names must be there: targets of make, and files of this repository.
func TestDocs_NameOnlyTargetsAndFilesThatExist(t *testing.T) {
	targets := in(t, "Makefile", `(?m)^([a-z0-9-]+):`)
	seen := 0
	for name, page := range pages(t) {
		for _, block := range blocks(page, "sh") {
			for _, match := range regexp.MustCompile(`(?m)^make ([a-z-]+)`).FindAllStringSubmatch(block, -1) {
				seen++
				if !slices.Contains(targets, match[1]) {
					t.Errorf("%s: there is no `make %s`", name, match[1])
				}
			}
			for _, path := range regexp.MustCompile(`\b(?:config|docs|hack)/[\w./-]+`).FindAllString(block, -1) {
				seen++
				if _, err := os.Stat(filepath.Join(root, path)); err != nil {
					t.Errorf("%s: there is no %s", name, path)
				}
			}
		}
	}
	if seen == 0 {
		t.Error("no command was found: the test reads nothing")
	}
}
