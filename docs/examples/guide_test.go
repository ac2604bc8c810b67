//go:build unix

package examples_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os/exec"
	"strings"
	"testing"
)

func TestConsumeCommand_HandsMessagesToAnApplication(t *testing.T) {
	if testing.Short() {
		return // it needs PHP
	}
	worker := exec.CommandContext(t.Context(), "php", "bin/console", "redrive:consume", "async")
	worker.Dir = "process-php"
	worker.Stdin = strings.NewReader(`{"type":"message","id":"1","message":{"id":"a","attempt":1,"retries":0,"queue":"q","headers":{"type":"App\\PlaceOrder"}},"body":"{\"customer\":\"Ada\"}"}
{"type":"message","id":"2","message":{"id":"b","attempt":1,"retries":0,"queue":"q","headers":{"type":"App\\PlaceOrder"}},"body":"{\"customer\":\"\"}"}
{"type":"message","id":"3","message":{"id":"c","attempt":1,"retries":0,"queue":"q","headers":{"type":"App\\PlaceOrder"}},"body":"{\"customer\":\"Grace\",\"busy\":true}"}
{"type":"message","id":"4","message":{"id":"d","attempt":1,"retries":0,"queue":"q","headers":{"type":"App\\Unknown"}},"body":"{}"}
{"type":"message","id":"5","message":{"id":"e","attempt":2,"retries":1,"queue":"q","headers":{"type":"App\\PlaceOrder"},"carry":"{\"handled\":[\"App\\\\PlaceOrderHandler::__invoke\"]}"},"body":"{\"customer\":\"Done before\"}"}
{"type":"message","id":"6","message":{"id":"f","attempt":1,"retries":0,"queue":"q","headers":{"type":"App\\PlaceOrder"},"carry":"what somebody else made up"},"body":"{\"customer\":\"Lin\"}"}
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
		if err := json.Unmarshal([]byte(line), &frame); err != nil {
			t.Errorf("%v: %s", err, line)
		}
		if frame.Type == "result" {
			got[frame.ID] = strings.TrimSpace(strings.Join([]string{frame.Outcome, frame.Class, frame.Advice}, " "))
		}
	}
	want := map[string]string{
		"1": "ack", "2": `failure Symfony\Component\Messenger\Exception\UnrecoverableMessageHandlingException fail`,
		"3": "failure RuntimeException", "4": "failure NotDecoded fail", "5": "ack", "6": "ack",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got  %q\nwant %q\n%s%s", got, want, said, &stderr)
	}
	for text, there := range map[string]bool{"order of Ada stored": true, "order of Lin stored": true, "order of Done before stored": false} {
		if strings.Contains(stderr.String(), text) != there {
			t.Errorf("%q is printed: %t\n%s", text, !there, &stderr)
		}
	}
}

func TestReleaseException_ReleasesItsMessage(t *testing.T) {
	if testing.Short() {
		return // it needs PHP
	}
	const later, sooner, other, hopeless = `new ReleaseException("taken", null, 5000)`, `new ReleaseException("taken", retryDelay: 1500)`, `new RuntimeException("broken")`,
		`new UnrecoverableMessageHandlingException("wrong")`
	for name, c := range map[string]struct{ thrown, want string }{
		"alone":                          {`new ReleaseException("taken")`, `{"outcome":"failure","class":"Redrive\\Messenger\\ReleaseException","message":"taken","advice":"release"}`},
		"with a delay":                   {later, `"advice":"release","retryAfter":5}`},
		"the shortest of two":            {several(later, sooner), `"advice":"release","retryAfter":1.5}`},
		"beside another failure":         {several(other, later), `"advice":"retry","retryAfter":5}`},
		"beside one that no retry mends": {several(hopeless, later), `"advice":"retry","retryAfter":5}`},
	} {
		t.Run(name, func(t *testing.T) {
			script := exec.CommandContext(t.Context(), "php", "-r", `require "autoload.php";
				use Redrive\Messenger\{ReleaseException, Result};
				use Symfony\Component\Messenger\Envelope;
				use Symfony\Component\Messenger\Exception\{HandlerFailedException, UnrecoverableMessageHandlingException};
				echo json_encode(Result::failure(`+c.thrown+`));`)
			script.Dir = "process-php"
			said, err := script.CombinedOutput()
			if err != nil || !strings.HasSuffix(string(said), c.want) {
				t.Errorf("%v: got %s, want %s", err, said, c.want)
			}
		})
	}
}

// several is what Symfony throws where handlers of a message failed.
func several(thrown ...string) string {
	return "new HandlerFailedException(new Envelope(new stdClass()), [" + strings.Join(thrown, ", ") + "])"
}
