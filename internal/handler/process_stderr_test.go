package handler_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

// stderrRecord is a record of a process's standard error.
type stderrRecord struct {
	Msg, Text string
	Messages  []string
}

// stderrRecords are the records so far of a log in JSON.
func stderrRecords(log *book) []stderrRecord {
	var found []stderrRecord
	for _, line := range log.lines() {
		var r stderrRecord
		if json.Unmarshal([]byte(line), &r) == nil && r.Msg == "handler's standard error" {
			found = append(found, r)
		}
	}
	return found
}

// complaining starts a process of which the log is read.
func complaining(t *testing.T, command []string) (*handler.Process, *book) {
	t.Helper()
	log := &book{}
	p := startProcess(t, v1alpha1.ProcessHandler{Command: command, Processes: ptr.To[int32](1)},
		handler.Options{Concurrency: 4, Log: slog.New(slog.NewJSONHandler(log, nil))})
	awaitReady(t, p)
	return p, log
}

// handOver hands over a message with an id.
func handOver(t *testing.T, p *handler.Process, id, body string) *retry.Failure {
	t.Helper()
	ctx, cancel := handler.WithTimeout(t.Context(), patience, patience)
	defer cancel()
	return p.Handle(ctx, handler.Request{ID: id, Body: []byte(body)})
}

func TestProcess_LogsTheStackTraceOfAMessageAsOneRecord(t *testing.T) {
	t.Parallel()
	p, log := complaining(t, scripted("say "+hello))
	const messages = 50
	for n := range messages {
		body := []string{fmt.Sprintf("complain Error of %d", n)}
		for line := range 13 {
			body = append(body, fmt.Sprintf("complain   at line %d", line))
		}
		if got := handOver(t, p, fmt.Sprintf("m-%d", n), script(append(body, "ack")...)); got != nil {
			t.Fatalf("got %+v", got)
		}
	}
	eventually(t, "all are logged", func() bool { return len(stderrRecords(log)) >= messages })
	for n, r := range stderrRecords(log) {
		if !strings.HasPrefix(r.Text, fmt.Sprintf("Error of %d\n", n)) || strings.Count(r.Text, "\n") != 13 ||
			!slices.Equal(r.Messages, []string{fmt.Sprintf("m-%d", n)}) {
			t.Errorf("record %d: %+v", n, r)
		}
	}
}

func TestProcess_LogsWordsAfterItsAnswerWithThatMessage(t *testing.T) {
	t.Parallel()
	p, log := complaining(t, scripted("say "+hello))
	if got := handOver(t, p, "first", script("ack", "complain later", "complain and later")); got != nil {
		t.Fatalf("got %+v", got)
	}
	eventually(t, "it is logged", func() bool { return len(stderrRecords(log)) > 0 })
	if got := stderrRecords(log)[0]; got.Text != "later\nand later" || !slices.Equal(got.Messages, []string{"first"}) {
		t.Errorf("got %+v", got)
	}
}

func TestProcess_NamesAllMessagesInHandInItsRecords(t *testing.T) {
	t.Parallel()
	p, log := complaining(t, scripted("say "+hello4))
	dir := t.TempDir()
	had, both := filepath.Join(dir, "had"), filepath.Join(dir, "both")
	var calls sync.WaitGroup
	calls.Go(func() { handOver(t, p, "first", script("unless "+had, "complain one")) }) // it answers when it is run again, alone
	calls.Go(func() {
		eventually(t, "it has written of the first", func() bool { return log.with("one") > 0 })
		handOver(t, p, "second", script("await "+both, "complain three", "exit 1"))
	})
	eventually(t, "it has both", func() bool { return handler.InHand(p) == 2 })
	touch(both)
	calls.Wait()
	eventually(t, "all is logged", func() bool { return log.with("three") > 1 })
	var of [][]string // the second message is run again, alone
	for _, r := range stderrRecords(log) {
		if strings.Contains(r.Text, "three") {
			slices.Sort(r.Messages)
			of = append(of, r.Messages)
		}
	}
	if want := [][]string{{"first", "second"}, {"second"}}; !reflect.DeepEqual(of, want) {
		t.Errorf("the records are of %v, want %v", of, want)
	}
}

func TestProcess_HoldsNoOtherMessagesTraceInACrash(t *testing.T) {
	t.Parallel()
	p, _ := complaining(t, scripted("say "+hello))
	for n := range 20 {
		if got := handOver(t, p, "innocent", script("complain trace of the innocent", "ack")); got != nil {
			t.Fatalf("got %+v", got)
		}
		if got := handOver(t, p, "silent", "signal 9"); got == nil || got.Class != "SIGKILL" || strings.Contains(got.Message, "innocent") {
			t.Fatalf("round %d: got %+v", n, got)
		}
		if got := handOver(t, p, "loud", script("complain trace of the loud", "exit 3")); got == nil || got.Status != 3 ||
			!strings.Contains(got.Message, "trace of the loud") {
			t.Fatalf("round %d: got %+v", n, got)
		}
	}
}

// phpDies and pythonDies log an exception for a message "warn …", and end with a fatal error of any other.
const (
	phpDies = `
fwrite(STDOUT, '{"type":"hello","protocol":1}' . "\n");
function handle($frame) {
	if (str_starts_with($frame->body, 'warn')) { error_log((string) new LogicException($frame->body)); return; }
	no_such_function();
}
while (($line = fgets(STDIN)) !== false) {
	$frame = json_decode($line);
	handle($frame);
	fwrite(STDOUT, '{"type":"result","id":"' . $frame->id . '","outcome":"ack"}' . "\n");
}`
	pythonDies = `
import json, sys, traceback
print('{"type":"hello","protocol":1}', flush=True)
def handle(frame):
    if frame["body"].startswith("warn"):
        try:
            raise LookupError(frame["body"])
        except LookupError:
            traceback.print_exc()
        return
    no_such_function()
for line in sys.stdin:
    frame = json.loads(line)
    handle(frame)
    print(json.dumps({"type": "result", "id": frame["id"], "outcome": "ack"}), flush=True)`
)

func TestProcess_LogsFatalErrorsOfRealLanguagesWithTheirMessages(t *testing.T) {
	if testing.Short() {
		return // test-unit needs nothing but Go
	}
	t.Parallel()
	for name, tt := range map[string]struct {
		command []string
		dies    string
	}{
		"PHP":    {[]string{"php", "-d", "display_errors=stderr", "-d", "log_errors=0", "-r", phpDies}, "undefined function no_such_function"},
		"Python": {[]string{"python3", "-c", pythonDies}, "NameError: name 'no_such_function' is not defined"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, log := complaining(t, tt.command)
			for _, id := range []string{"a", "b"} {
				if got := handOver(t, p, id, "warn of "+id); got != nil {
					t.Fatalf("got %+v", got)
				}
			}
			got := handOver(t, p, "c", "die")
			if got == nil || got.Class != "ExitStatus" || !strings.Contains(got.Message, tt.dies) || strings.Contains(got.Message, "warn of") {
				t.Errorf("got %+v", got)
			}
			eventually(t, "all is logged", func() bool { return len(stderrRecords(log)) >= 3 })
			records := stderrRecords(log)
			for i, want := range []struct{ id, text string }{{"a", "warn of a"}, {"b", "warn of b"}, {"c", tt.dies}} {
				if r := records[i]; !strings.Contains(r.Text, want.text) || !slices.Equal(r.Messages, []string{want.id}) {
					t.Errorf("record %d: %+v", i, r)
				}
			}
			if len(records) != 3 {
				t.Errorf("%d records: %+v", len(records), records)
			}
		})
	}
}
