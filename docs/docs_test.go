// Package docs_test keeps the documentation true: its YAML is valid, its links lead somewhere, its picture is the one that
// the code draws, and every field, condition, metric and header has its place on a page.
package docs_test

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/config/crd"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/local"
	"redrive.dev/redrive/internal/manifest"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/topology"
)

const root = ".."

// pages are the Markdown files by their path from the root of the repository.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{"README.md": read(t, "README.md")}
	files, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"runbooks", "upstream"} {
		more, err := filepath.Glob(folder + "/*.md")
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, more...)
	}
	for _, file := range files {
		found["docs/"+file] = read(t, "docs/"+file)
	}
	return found
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

var fence = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

// blocks are the fenced blocks of a page in one language.
func blocks(page, language string) []string {
	var found []string
	for _, match := range fence.FindAllStringSubmatch(page, -1) {
		if match[1] == language {
			found = append(found, match[2])
		}
	}
	return found
}

func loader(t *testing.T) *manifest.Loader {
	t.Helper()
	made, err := manifest.NewLoader()
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestDocs_HoldOnlyValidManifests(t *testing.T) {
	load := loader(t)
	kinds := map[string]int{}
	for name, page := range pages(t) {
		for i, block := range blocks(page, "yaml") {
			set, err := load.Load(context.Background(), strings.NewReader(block), manifest.Stdin)
			if err != nil {
				t.Errorf("%s, YAML block %d: %v", name, i+1, err)
				continue
			}
			kinds["RetryPolicy"] += len(set.RetryPolicies)
			kinds["Transport"] += len(set.Transports)
			checkPolicies(t, fmt.Sprintf("%s, YAML block %d", name, i+1), set)
			checkTransports(t, fmt.Sprintf("%s, YAML block %d", name, i+1), set)
		}
	}
	if kinds["RetryPolicy"] == 0 || kinds["Transport"] == 0 {
		t.Errorf("found %v: the blocks are not read", kinds)
	}
}

// checkPolicies compiles policies with what they include.
func checkPolicies(t *testing.T, place string, set *manifest.Set) {
	t.Helper()
	policies := byName(set)
	for _, policy := range policies {
		spec, err := compile.Resolve(policy, policies)
		if err == nil {
			_, err = retry.Compile(policy.Name, spec)
		}
		if err != nil {
			t.Errorf("%s: %v", place, err)
		}
	}
}

// checkTransports compiles Transports, with empty policies where the block does not hold them.
func checkTransports(t *testing.T, place string, set *manifest.Set) {
	t.Helper()
	for _, transport := range set.Transports {
		policies := byName(set)
		for _, name := range compile.References(transport) {
			if policies[name] == nil {
				policies[name] = &v1alpha1.RetryPolicy{}
			}
		}
		compiled, err := compile.Compile(transport, policies)
		if err == nil {
			_, err = topology.Desired(transport, compiled.Needs, local.Owner(local.Cluster, transport))
		}
		if err != nil {
			t.Errorf("%s: Transport %s: %v", place, transport.Name, err)
		}
	}
}

func byName(set *manifest.Set) map[string]*v1alpha1.RetryPolicy {
	policies := map[string]*v1alpha1.RetryPolicy{}
	for name, policy := range set.RetryPolicies {
		policies[name.Name] = policy
	}
	return policies
}

var statedSchedule = regexp.MustCompile(`(?m)^spec: # schedule: (.*)$`)

func TestDocs_StateTheScheduleThatAPolicyHas(t *testing.T) {
	load := loader(t)
	stated := 0
	for name, page := range pages(t) {
		for _, block := range blocks(page, "yaml") {
			for document := range strings.SplitSeq(block, "\n---\n") {
				want := statedSchedule.FindStringSubmatch(document)
				if want == nil {
					continue
				}
				stated++
				set, err := load.Load(context.Background(), strings.NewReader(document), manifest.Stdin)
				if err != nil {
					t.Errorf("%s: %v", name, err)
					continue
				}
				for _, policy := range set.RetryPolicies {
					compiled, err := retry.Compile(policy.Name, policy.Spec)
					if err != nil {
						t.Errorf("%s: %v", name, err)
					} else if got := compiled.Schedule(); got != want[1] {
						t.Errorf("%s: RetryPolicy %s states %q and has %q", name, policy.Name, want[1], got)
					}
				}
			}
		}
	}
	if stated == 0 {
		t.Error("no schedule is stated: the test reads nothing")
	}
}

// Tables with a column "Expression" hold one in each row, and those with a column "Filter" one of redrive failed.
func TestDocs_HoldOnlyExpressionsThatCompile(t *testing.T) {
	count := 0
	for name, page := range pages(t) {
		for _, row := range columns(page, "Expression") {
			text := strings.Trim(row, "`")
			when := v1alpha1.Strategy{Name: "documented", When: text}
			if _, err := retry.Compile("docs", v1alpha1.RetryPolicySpec{Strategies: []v1alpha1.Strategy{when}}); err != nil {
				t.Errorf("%s: %s: %v", name, text, err)
			}
			count++
		}
		for _, row := range columns(page, "Filter") {
			if _, err := retry.CompileFilter(name, strings.Trim(row, "`")); err != nil {
				t.Error(err)
			}
			count++
		}
	}
	if count == 0 {
		t.Error("no expression was found: the test reads nothing")
	}
}

// columns are the cells under a heading, in all tables of a page.
func columns(page, heading string) []string {
	var found []string
	column := -1
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "|") {
			column = -1
			continue
		}
		cells := strings.Split(strings.TrimSpace(line), " | ")
		for i := range cells {
			cells[i] = strings.TrimSpace(strings.Trim(cells[i], "|"))
		}
		switch {
		case column < 0:
			column = slices.Index(cells, heading)
			if column < 0 {
				column = len(cells) // a table without it
			}
		case column < len(cells) && !strings.HasPrefix(cells[0], "---"):
			found = append(found, cells[column])
		}
	}
	return found
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func TestDocs_HoldOnlyRelativeLinksThatLeadSomewhere(t *testing.T) {
	all := pages(t)
	for _, name := range []string{"CONTRIBUTING.md", "CHANGELOG.md", "config/chart/README.md", "handler/php/README.md"} {
		all[name] = read(t, name)
	}
	for name, page := range all {
		for _, match := range link.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
			target, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			path := name
			if target != "" {
				path = filepath.ToSlash(filepath.Join(filepath.Dir(name), target))
			}
			if _, err := os.Stat(filepath.Join(root, path)); err != nil {
				t.Errorf("%s: the link %s leads nowhere", name, match[1])
			} else if anchor != "" && !slices.Contains(anchors(all[path]), anchor) {
				t.Errorf("%s: the link %s leads to no heading of %s, which has %v", name, match[1], path, anchors(all[path]))
			}
		}
	}
}

// Code names pages by their path from the root, and links in it have a heading as well.
func TestDocs_HaveEveryPageThatCodeNames(t *testing.T) {
	named := regexp.MustCompile(`\bdocs/([\w/-]+\.md)(?:#([\w-]+))?`)
	seen := 0
	for _, folder := range []string{"api", "cmd", "config", "controllers", "handler", "hack", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !slices.Contains([]string{".go", ".yaml", ".yml", ".sh", ".json", ".txt", ".tpl"}, filepath.Ext(path)) {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, match := range named.FindAllStringSubmatch(string(data), -1) {
				seen++
				page, err := os.ReadFile(match[1])
				if err != nil {
					t.Errorf("%s names docs/%s, which is not there", path, match[1])
				} else if match[2] != "" && !slices.Contains(anchors(string(page)), match[2]) {
					t.Errorf("%s names docs/%s, which has no heading %s", path, match[1], match[2])
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen == 0 {
		t.Error("no page is named: the test reads nothing")
	}
}

// anchors of the headings of a page, as GitHub makes them.
func anchors(page string) []string {
	var found []string
	for line := range strings.Lines(fence.ReplaceAllString(page, "")) {
		heading := strings.TrimLeft(line, "#")
		if heading == line {
			continue
		}
		found = append(found, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(heading)))
	}
	return found
}

// mentioned fails for each name that a page does not have as a word in backquotes.
func mentioned(t *testing.T, path string, names ...string) {
	t.Helper()
	if len(names) == 0 {
		t.Errorf("nothing is looked for on %s", path)
	}
	code := strings.Join(regexp.MustCompile("`[^`\n]+`").FindAllString(fence.ReplaceAllString(read(t, path), ""), -1), "\n")
	for _, name := range names {
		if !regexp.MustCompile(`(^|[^-\w])` + regexp.QuoteMeta(name) + `($|[^-\w])`).MatchString(code) {
			t.Errorf("%s does not mention `%s`", path, name)
		}
	}
}

func TestDocs_NameEveryFieldOnThePageOfItsKind(t *testing.T) {
	for kind, path := range map[string]string{"retrypolicies": "docs/retrypolicy.md", "transports": "docs/transport.md"} {
		data, err := fs.ReadFile(crd.FS, "bases/redrive.dev_"+kind+".yaml")
		if err != nil {
			t.Fatal(err)
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(data, &definition); err != nil {
			t.Fatal(err)
		}
		top := definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties
		names := map[string]bool{}
		for _, part := range []string{"spec", "status"} {
			schema := top[part]
			fieldNames(&schema, names)
		}
		mentioned(t, path, sorted(names)...)
	}
}

// fieldNames are the names of all fields below. Those of a condition are Kubernetes' own.
func fieldNames(schema *apiextensionsv1.JSONSchemaProps, into map[string]bool) {
	for name, field := range schema.Properties {
		into[name] = true
		if name != "conditions" {
			fieldNames(&field, into)
		}
	}
	if schema.Items != nil {
		fieldNames(schema.Items.Schema, into)
	}
}

// in finds the first group of a pattern in a source file.
func in(t *testing.T, path, pattern string) []string {
	t.Helper()
	var found []string
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(read(t, path), -1) {
		found = append(found, match[1])
	}
	return found
}

func TestDocs_NameEveryConditionAndReason(t *testing.T) {
	mentioned(t, conditionsPage, in(t, "api/v1alpha1/conditions.go", `(?m)^\t\w+ += "(\w+)"$`)...)
}

func TestDocs_NameEveryHeaderOfMessages(t *testing.T) {
	const source = "internal/message/headers.go"
	for _, page := range []string{"docs/messages.md", "docs/security.md"} {
		for _, name := range in(t, source, `HeaderPrefix \+ "([a-z-]+)"`) {
			mentioned(t, page, "redrive-"+name)
		}
		mentioned(t, page, in(t, source, `"(x-[a-z-]*[a-z]|B?CC)"`)...)
	}
}

func TestDocs_NameEveryHeaderOfRequests(t *testing.T) {
	mentioned(t, "docs/http-handler.md", in(t, "internal/handler/header.go", `set\("(Redrive-[A-Za-z-]+)"`)...)
}

func TestDocs_NameEveryMetricOfTheOperator(t *testing.T) {
	mentioned(t, "docs/operator.md", in(t, "internal/opmetrics/queues.go", `desc\("(\w+)"`)...)
	mentioned(t, "docs/operator.md", in(t, "internal/opmetrics/conditions.go", `NewDesc\("(\w+)"`)...)
	mentioned(t, "docs/operator.md", in(t, "internal/drift/drift.go", `Name: "(\w+)"`)...)
	mentioned(t, "docs/changing.md", in(t, "internal/drift/drift.go", `"(namespace|transport|kind|action)"`)...)
}

func TestDocs_NameEveryFlagOfWorkerAndManager(t *testing.T) {
	for source, page := range map[string]string{"handler/run/options.go": "docs/worker.md", "cmd/manager/main.go": "docs/operator.md"} {
		for _, flag := range in(t, source, `flags?\.\w*Var\(&[\w.]+, "([a-z-]+)"`) {
			mentioned(t, page, "--"+flag)
		}
	}
}

func TestDocs_ShowThePictureThatPlanDraws(t *testing.T) {
	set, err := loader(t).Load(context.Background(), nil, filepath.Join(root, "config/samples"))
	if err != nil {
		t.Fatal(err)
	}
	units, err := local.Prepare(set)
	if err != nil {
		t.Fatal(err)
	}
	index := slices.IndexFunc(units, func(u local.Unit) bool {
		return u.Name() == types.NamespacedName{Namespace: manifest.DefaultNamespace, Name: "async"}
	})
	if index < 0 {
		t.Fatal("the samples have no Transport async")
	}
	want := "%% Transport default/async\n" + topology.Mermaid(units[index].Objects)
	if got := blocks(read(t, "docs/topology.md"), "mermaid"); len(got) != 1 || got[0] != want {
		t.Errorf("docs/topology.md does not have the picture of `redrive plan -o mermaid -f config/samples`:\n%s", want)
	}
}

// The house in CONTRIBUTING is the tree: each package of internal has its line, and each line its package.
func TestContributing_ListsEachPackageOfInternal(t *testing.T) {
	text, err := os.ReadFile("../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^internal/(\S+)/ `).FindAllSubmatch(text, -1) {
		listed[string(match[1])] = true
	}
	folders, err := os.ReadDir("../internal")
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{"test*": true}
	for _, folder := range folders {
		name := folder.Name()
		there[name] = true
		if !listed[name] && !strings.HasPrefix(name, "test") {
			t.Errorf("CONTRIBUTING lists no internal/%s/", name)
		}
	}
	for name := range listed {
		if !there[name] {
			t.Errorf("CONTRIBUTING lists internal/%s/, which does not exist", name)
		}
	}
}

// Where a newcomer is to begin is there: each function of the table in its file.
func TestContributing_NamesFunctionsWhereTheyAre(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "CONTRIBUTING.md"), "## Where to begin")
	table, _, _ = strings.Cut(table, "\n## ")
	places := regexp.MustCompile("`([a-z/_]+\\.go)`: ((?:`[A-Za-z_]+`(?:, )?)+)").FindAllStringSubmatch(table, -1)
	if len(places) < 20 {
		t.Fatalf("%d places are read", len(places))
	}
	for _, place := range places {
		text := read(t, place[1])
		for name := range strings.SplitSeq(place[2], ", ") {
			name = strings.Trim(name, "`")
			if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + name + `\(`).MatchString(text) {
				t.Errorf("%s has no function %s", place[1], name)
			}
		}
	}
}
