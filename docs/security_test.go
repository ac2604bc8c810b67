package docs_test

import (
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// stated are the rights of a table of the page, as verbs by resource.
func stated(t *testing.T, resource, verb string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, row := range rows(read(t, "docs/security.md"), resource, verb) {
		verbs := strings.Split(row[verb], ", ")
		slices.Sort(verbs)
		found[strings.Trim(row[resource], "`")] = strings.Join(verbs, ", ")
	}
	return found
}

// granted are the rights of roles in config/rbac.
func granted(t *testing.T, files ...string) map[string]string {
	t.Helper()
	verbs := map[string][]string{}
	for _, file := range files {
		role := rbacv1.ClusterRole{}
		if err := yaml.Unmarshal([]byte(read(t, filepath.Join("config/rbac", file))), &role); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					name := strings.TrimSuffix(resource+"."+group, ".")
					verbs[name] = append(verbs[name], rule.Verbs...)
				}
			}
		}
	}
	found := map[string]string{}
	for name, list := range verbs {
		slices.Sort(list)
		found[name] = strings.Join(list, ", ")
	}
	return found
}

func TestDocs_NameOnlySecurityTestsThatExist(t *testing.T) {
	there := map[string]bool{}
	for _, folder := range []string{"internal", "cmd", "controllers", "api", "handler"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, "_test.go") {
				for _, name := range in(t, strings.TrimPrefix(path, root+"/"), `(?m)^func (Test\w+)\(`) {
					there[name] = true
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	named := in(t, "docs/security.md", "`(Test\\w+)`")
	for _, name := range named {
		if !there[name] {
			t.Errorf("docs/security.md names %s, which is no test", name)
		}
	}
	if len(named) == 0 || len(there) == 0 {
		t.Errorf("the page names %d tests, of %d", len(named), len(there))
	}
}

func TestDocs_StateTheRightsOfTheRoles(t *testing.T) {
	for _, table := range []struct {
		resource, verbs string
		roles           []string
	}{
		{"Resource", "Verbs", []string{"role.yaml", "metrics_auth_role.yaml"}},
		{"Resource there", "Verbs there", []string{"leader_election_role.yaml"}},
	} {
		want, got := granted(t, table.roles...), stated(t, table.resource, table.verbs)
		if len(want) == 0 || !maps.Equal(got, want) {
			t.Errorf("docs/security.md states under %q\n%v\nand the roles are\n%v", table.resource, got, want)
		}
	}
}
