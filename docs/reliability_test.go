package docs_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// names that a pattern finds in files, each once.
func names(t *testing.T, files []string, pattern string) []string {
	t.Helper()
	found := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			found[string(match[1])] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func TestDocs_NameExactlyTheTestsOfTheFaultSuite(t *testing.T) {
	files, err := filepath.Glob("../hack/faults/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(name string) bool { return filepath.Base(name) == "main_test.go" })
	want := names(t, files, `(?m)^func (Test\w+)\(`)
	got := names(t, []string{"reliability.md"}, "(?m)\\| `(Test\\w+)` \\|$")
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("docs/reliability.md names\n%v\nand the tests are\n%v", got, want)
	}
}
