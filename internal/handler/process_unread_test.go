package handler_test

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

// unread is more than a pipe has room for.
var unread = bytes.Repeat([]byte("x"), 128<<10)

// handed gives a message to a process that awaits a file before it does anything, makes that file, and returns what becomes of the message.
func handed(t *testing.T, registry *prometheus.Registry, h handler.Handler, limit time.Duration, file string) <-chan *retry.Failure {
	t.Helper()
	awaitReady(t, h)
	end := make(chan *retry.Failure, 1)
	ctx, cancel := handler.WithTimeout(t.Context(), limit, patience)
	t.Cleanup(cancel)
	go func() { end <- h.Handle(ctx, handler.Request{ID: "m-1", Body: unread}) }()
	eventually(t, "the process has it", func() bool { return sample(registry, "redrive_handler_processes", "state", "busy") == 1 })
	touch(file)
	return end
}

// What a process did not read stayed in memory, uncounted, while the next message was received in place of the answered one: the worker
// was killed.
func TestProcess_HasAnUnreadMessageInHandDespiteItsAnswer(t *testing.T) {
	t.Parallel()
	folder, registry := t.TempDir(), prometheus.NewRegistry()
	begin, answered, read := filepath.Join(folder, "begin"), filepath.Join(folder, "answered"), filepath.Join(folder, "read")
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say "+hello, "await "+begin,
		`say {"type":"result","id":"1","outcome":"ack"}`, "touch "+answered, "await "+read)}, handler.Options{Metrics: registry})
	end := handed(t, registry, p, patience, begin)
	eventually(t, "its answer", func() bool { return exists(answered) })
	select {
	case got := <-end:
		t.Fatalf("it has ended with %+v, and nothing of it was read", got)
	case <-time.After(100 * time.Millisecond):
	}
	touch(read)
	if got := <-end; got != nil {
		t.Errorf("got %+v", got)
	}
	if got := give(t, p, patience, "ack"); got != nil {
		t.Errorf("the next one: got %+v", got)
	}
}

func TestProcess_IsKilledInTimeWhereItAnswersUnread(t *testing.T) {
	t.Parallel()
	folder, registry := t.TempDir(), prometheus.NewRegistry()
	begin, once := filepath.Join(folder, "begin"), filepath.Join(folder, "once")
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say "+hello, "await "+begin, "unless "+once,
		`say {"type":"result","id":"1","outcome":"ack"}`, "hang")}, handler.Options{Metrics: registry})
	select {
	case got := <-handed(t, registry, p, time.Second, begin):
		if got != nil {
			t.Errorf("got %+v", got)
		}
	case <-time.After(patience):
		t.Fatal("it is in hand for ever")
	}
	eventually(t, "the process is killed", func() bool { return exits(registry, "timeout") == 1 })
}

// What a process wrote of a message, in place of an id, was in the log where the process had nothing in hand any more.
func TestProcess_LogsNothingThatItWroteAfterAMessage(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]string{
		"an id that is none": `say {"type":"result","id":"card-4111-of-Jane","outcome":"ack"}`, "a line that is no JSON": `say {"type":"result" card-4111-of-Jane`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log, registry := &book{}, prometheus.NewRegistry()
			p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello)},
				handler.Options{Metrics: registry, Log: slog.New(slog.NewTextHandler(log, nil))})
			if got := give(t, p, patience, "ack", "sleep 50", begin, "hang"); got != nil {
				t.Errorf("got %+v", got)
			}
			eventually(t, "its end in the log", func() bool {
				return strings.Contains(strings.Join(log.lines(), "\n"), "a process of the handler ended")
			})
			if text := strings.Join(log.lines(), "\n"); strings.Contains(text, "4111") || !strings.Contains(text, "broke the protocol") {
				t.Errorf("the log says: %s", text)
			}
		})
	}
}
