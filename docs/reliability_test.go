package docs_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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

func TestTests_AreNamedByUnitAndBehaviour(t *testing.T) {
	var files []string
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && (entry.Name() == "node_modules" || len(entry.Name()) > 2 && entry.Name()[0] == '.') {
			return fs.SkipDir
		}
		if strings.HasSuffix(path, "_test.go") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	all := names(t, files, `(?m)^func (Test\w+)\(`)
	if len(all) < 1000 {
		t.Errorf("only %d tests are found", len(all))
	}
	form := regexp.MustCompile(`^Test[A-Z][A-Za-z0-9]*_[A-Z][A-Za-z0-9]*$`)
	for _, name := range all {
		if name != "TestMain" && !form.MatchString(name) {
			t.Errorf("%s is not of the form TestUnit_Behaviour", name)
		}
	}
}
