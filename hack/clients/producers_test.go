//go:build unix

package clients_test

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/testtransport"
)

// snippet is the first program in a language of a section of docs/producers.md, or the last.
func snippet(t *testing.T, section, language string, last bool) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/producers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	fence := "```" + language + "\n"
	at := strings.Index(text, fence)
	if last {
		at = strings.LastIndex(text, fence)
	}
	if !found || at < 0 {
		t.Fatalf("docs/producers.md has no %s under %s", language, section)
	}
	program, _, _ := strings.Cut(text[at+len(fence):], "```\n")
	return program
}

// write writes a file of a test.
func write(t *testing.T, folder, name, text string) string {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestProducers_RunAsTheyStandInTheDocs runs the programs of docs/producers.md, as they stand there.
func TestProducers_RunAsTheyStandInTheDocs(t *testing.T) {
	if testing.Short() {
		return // it needs a RabbitMQ, and interpreters
	}
	t.Parallel()
	p := newPartner(t)
	page, err := os.ReadFile("../../docs/producers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, manifest, _ := strings.Cut(string(page), "```yaml\n")
	manifest, _, _ = strings.Cut(manifest, "```\n")
	s := play(t, ".", strings.Replace(manifest, "http://127.0.0.1:8080", p.URL, 1))
	folder := t.TempDir()
	node, err := filepath.Abs("node")
	if err != nil {
		t.Fatal(err)
	}
	// Node looks for packages above the program.
	inNode := write(t, node, "producers.snippet.mjs", snippet(t, "Node", "js", false))
	t.Cleanup(func() { _ = os.Remove(inNode) })
	python, err := filepath.Abs("python.sh")
	if err != nil {
		t.Fatal(err)
	}
	goProgram := filepath.Join(folder, "publish")
	source := write(t, folder, "publish.go", snippet(t, "Go", "go", false))
	if said, err := exec.CommandContext(t.Context(), "go", "build", "-o", goProgram, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	programs := map[string][]string{
		"Python": {python, write(t, folder, "publish.py", snippet(t, "Python", "python", false))},
		"Node":   {"node", inNode},
		"PHP":    {"php", write(t, folder, "publish.php", snippet(t, "PHP", "php", false))},
		"Go":     {goProgram},
	}
	for name, command := range programs {
		before := len(p.got())
		s.publish(folder, []string{"BROKER=" + s.url}, command...)
		testtransport.EventuallyWithin(t, within, "the message of "+name, func() bool { return len(p.got()) > before })
		got := p.got()[before]
		want := map[string]string{"Redrive-Type": "order.created", "Content-Type": "application/json", "Redrive-Exchange": "shop", "Redrive-Attempt": "1"}
		for header, value := range want {
			if got.header.Get(header) != value {
				t.Errorf("%s: %s is %q, want %q", name, header, got.header.Get(header), value)
			}
		}
		var body map[string]int
		if err := json.Unmarshal([]byte(got.body), &body); err != nil || !maps.Equal(body, map[string]int{"order": 7}) || len(got.name) < 20 || producers(got.header, "Tenant") != "acme" {
			t.Errorf("%s: %v, message-id %q, %s, %v", name, err, got.name, got.body, got.header)
		}
		lost := exec.CommandContext(t.Context(), command[0], append(command[1:], "nobody.wants.it")...)
		lost.Env = s.environment("BROKER=" + s.url)
		if said, err := lost.CombinedOutput(); err == nil {
			t.Errorf("%s does not notice a message that no queue takes: %s", name, said)
		}
	}
	if ids := len(p.attempts()); ids != len(programs) {
		t.Errorf("%d messages for %d programs", ids, len(programs))
	}
}
