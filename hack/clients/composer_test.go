//go:build unix

package clients_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestComposer_InstallsThePackageRedriveHandler installs the package redrive/handler as its README says, with Symfony from elsewhere.
func TestComposer_InstallsThePackageRedriveHandler(t *testing.T) {
	if testing.Short() {
		return // it needs PHP
	}
	t.Parallel()
	source, err := filepath.Abs("../../handler/php")
	if err != nil {
		t.Fatal(err)
	}
	split := filepath.Join(t.TempDir(), "redrive-handler")
	for _, command := range [][]string{
		{"cp", "-R", source, split},
		{"git", "-C", split, "init", "--quiet", "--initial-branch=main"},
		{"git", "-C", split, "add", "."},
		{"git", "-C", split, "-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "--quiet", "--message=split off"},
	} {
		run(t, "", command...)
	}
	for name, c := range map[string]struct{ kind, url, version string }{
		"from a folder": {"path", source, "*@dev"},
		"from a VCS":    {"vcs", "file://" + split, "dev-main"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			project := t.TempDir()
			elsewhere := map[string]string{"psr/log": "3.0.0"}
			for _, component := range []string{"config", "console", "dependency-injection", "event-dispatcher", "http-kernel", "messenger"} {
				elsewhere["symfony/"+component] = "5.4.53"
			}
			manifest, err := json.Marshal(map[string]any{
				"name": "shop/app", "require": map[string]string{"redrive/handler": c.version}, "replace": elsewhere,
				"repositories": []any{map[string]any{"packagist.org": false}, map[string]string{"type": c.kind, "url": c.url}},
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(project, "composer.json"), manifest, 0o600); err != nil {
				t.Fatal(err)
			}
			run(t, project, "composer", "install", "--no-interaction", "--no-progress")
			script := `require "vendor/autoload.php"; echo (new ReflectionClass("Redrive\\Messenger\\Protocol"))->getFileName();`
			if said := run(t, project, "php", "-r", script); !strings.HasSuffix(said, "src/Messenger/Protocol.php") {
				t.Errorf("the class is in %q", said)
			}
		})
	}
}

// run runs a command to its end and returns what it prints.
func run(t *testing.T, folder string, command ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), command[0], command[1:]...)
	c.Dir = folder
	c.Env = append(os.Environ(), "COMPOSER_ALLOW_SUPERUSER=1", "COMPOSER_HOME="+t.TempDir())
	said, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", command, err, said)
	}
	return string(said)
}
