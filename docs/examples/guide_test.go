//go:build unix

package examples_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// application stands for what the guide's program finds in a project: an autoloader, and a kernel with Symfony's services. Its bus is
// that of the example.
const application = `<?php
namespace App;

class Kernel {
    private $bus;
    public function __construct(string $environment, bool $debug) {}
    public function boot(): void { $this->bus = require %q; }
    public function getContainer(): object { return new Container($this->bus); }
}

class Container {
    public function __construct(private $bus) {}
    public function get(string $id): object {
        return match ($id) {
            'messenger.default_bus' => $this->bus,
            'redrive.serializer' => \Symfony\Component\Messenger\Transport\Serialization\Serializer::create(),
            'services_resetter' => new class { public function reset(): void { fwrite(STDERR, "services are reset\n"); } },
        };
    }
}
`

func TestTheProgramOfTheGuideHandsMessagesToAnApplication(t *testing.T) {
	if testing.Short() {
		return // it needs PHP
	}
	project := t.TempDir()
	put := func(name, text string) {
		path := filepath.Join(project, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bus, err := filepath.Abs("process-php/bus.php")
	if err != nil {
		t.Fatal(err)
	}
	put("vendor/autoload.php", fmt.Sprintf(application, bus))
	put("bin/worker.php", guidesProgram(t))
	client, err := os.ReadFile("clients/php/redrive.php")
	if err != nil {
		t.Fatal(err)
	}
	put("bin/redrive.php", string(client))

	worker := exec.CommandContext(t.Context(), "php", filepath.Join(project, "bin/worker.php"))
	worker.Stdin = strings.NewReader(`{"type":"message","id":"1","message":{"id":"a","attempt":1,"retries":0,"queue":"q","headers":{"type":"App\\PlaceOrder"}},"body":"{\"customer\":\"Ada\"}"}
{"type":"message","id":"2","message":{"id":"b","attempt":1,"retries":0,"queue":"q","headers":{"type":"App\\PlaceOrder"}},"body":"{\"customer\":\"\"}"}
{"type":"message","id":"3","message":{"id":"c","attempt":1,"retries":0,"queue":"q","headers":{"type":"App\\PlaceOrder"}},"body":"{\"customer\":\"Grace\",\"busy\":true}"}
{"type":"message","id":"4","message":{"id":"d","attempt":1,"retries":0,"queue":"q","headers":{"type":"App\\Unknown"}},"body":"{}"}
`)
	var stderr bytes.Buffer
	worker.Stderr = &stderr
	said, err := worker.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, said, &stderr)
	}
	got := map[string]string{}
	for line := range strings.Lines(string(said)) {
		var frame struct{ Type, ID, Outcome, Class, Advice string }
		if json.Unmarshal([]byte(line), &frame) == nil && frame.Type == "result" {
			got[frame.ID] = strings.TrimSpace(strings.Join([]string{frame.Outcome, frame.Class, frame.Advice}, " "))
		}
	}
	want := map[string]string{
		"1": "ack", "2": `failure Symfony\Component\Messenger\Exception\UnrecoverableMessageHandlingException fail`,
		"3": "failure RuntimeException", "4": "failure NotDecoded fail",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got  %q\nwant %q\n%s%s", got, want, said, &stderr)
	}
	if resets := strings.Count(stderr.String(), "services are reset"); resets != 3 { // what cannot be decoded reaches no service
		t.Errorf("services were reset %d times", resets)
	}
}

// guidesProgram is the program in PHP of docs/handlers.md.
func guidesProgram(t *testing.T) string {
	t.Helper()
	guide, err := os.ReadFile("../handlers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, program, _ := strings.Cut(string(guide), "   ```php\n")
	program, _, found := strings.Cut(program, "   ```\n")
	if !found || !strings.Contains(program, `Redrive\serve(`) {
		t.Fatal("docs/handlers.md has no program in PHP")
	}
	return strings.TrimSpace(program)
}
