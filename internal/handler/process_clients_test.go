package handler_test

import (
	"log/slog"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/handler/handlertest"
	"redrive.dev/redrive/internal/retry"
)

// client is a reference client, with a program that obeys orders by it.
type client struct {
	interpreter string
	command     []string
}

// clients are the reference clients. Where there is no interpreter they fail, or are left out under -short.
func clients(t testing.TB) map[string]client {
	t.Helper()
	found := map[string]client{}
	for name, c := range map[string]struct{ language, interpreter, program, concurrency string }{
		"PHP": {"php", "php", "obedient.php", ""}, "Python": {"python", "python3", "obedient.py", ""},
		"Node": {"node", "node", "obedient.mjs", "1"}, "Node, four in flight": {"node", "node", "obedient.mjs", "4"},
	} {
		folder, err := filepath.Abs(filepath.Join("../../docs/examples/clients", c.language))
		if err != nil {
			t.Fatal(err)
		}
		program, err := filepath.Abs(filepath.Join("testdata/clients", c.program))
		if err != nil {
			t.Fatal(err)
		}
		found[name] = client{c.interpreter, []string{c.interpreter, program, folder, c.concurrency}}
	}
	return found
}

// forEachClient runs a test with each.
func forEachClient(t *testing.T, test func(t *testing.T, spec v1alpha1.ProcessHandler)) {
	t.Helper()
	if testing.Short() {
		return // test-unit needs nothing but Go
	}
	for name, c := range clients(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(c.interpreter); err != nil {
				t.Fatalf("%s is not there: hack/languages.sh installs it, or says how; go test -short does without", c.interpreter)
			}
			test(t, v1alpha1.ProcessHandler{Command: c.command})
		})
	}
}

func TestReferenceClients_Conform(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, spec v1alpha1.ProcessHandler) {
		handlertest.Run(t, func(t *testing.T) handlertest.Subject {
			t.Helper()
			return handlertest.Subject{Handler: startProcess(t, spec, handler.Options{})}
		})
	})
}

func TestReferenceClients_ReportProgress(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, spec v1alpha1.ProcessHandler) {
		p := startProcess(t, spec, handler.Options{})
		awaitReady(t, p)
		ctx, cancel := handler.WithTimeout(t.Context(), 3*time.Second, patience)
		defer cancel()
		if got := p.Handle(ctx, handlertest.Message("progress", "{}")); got != nil {
			t.Errorf("got %+v", got)
		}
	})
}

func TestReferenceClients_Carry(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, spec v1alpha1.ProcessHandler) {
		p := startProcess(t, spec, handler.Options{})
		awaitReady(t, p)
		request := handlertest.Message("carry", "{}")
		for carried, want := range map[string]string{"": "+1", "[\"é\n\"]": "[\"é\n\"]+1"} {
			request.Carry = carried
			if got := p.Handle(t.Context(), request); got == nil || got.Class != "Half" || got.Carry == nil || *got.Carry != want {
				t.Errorf("carried %q: got %+v", carried, got)
			}
		}
	})
}

func TestReferenceClients_FailWithTheClassAndLogTheRest(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, spec v1alpha1.ProcessHandler) {
		log := &book{}
		p := startProcess(t, spec, handler.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
		awaitReady(t, p)
		got := p.Handle(t.Context(), handlertest.Message("raise", "{}"))
		classes := map[string]bool{"KeyError": true, "TypeError": true, "LogicException": true}
		if got == nil || got.Source != retry.SourceHandler || !classes[got.Class] || !containsAll(got.Message, []string{"no such thing"}) {
			t.Errorf("got %+v", got)
		}
		eventually(t, "where it was thrown is in the log", func() bool { return log.with("handler's standard error", "obedient.") > 0 })
		eventually(t, "what was printed is in the log", func() bool { return log.with("handler's standard error", "a stray print") > 0 })
		if log.with("is no frame of the protocol") > 0 {
			t.Error("a print got among the frames")
		}
	})
}

func TestReferenceClients_EndWithTheirInput(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, spec v1alpha1.ProcessHandler) {
		command := exec.CommandContext(t.Context(), spec.Command[0], spec.Command[1:]...) // with nothing on its input
		if output, err := command.Output(); err != nil || !containsAll(string(output), []string{`"type"`, `"hello"`}) {
			t.Errorf("%q, %v", output, err)
		}
	})
}

func TestReferenceClients_SayWhatEndsThem(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, spec v1alpha1.ProcessHandler) {
		p := startProcess(t, spec, handler.Options{})
		awaitReady(t, p)
		got := p.Handle(t.Context(), handlertest.Message(handlertest.Crash, "{}"))
		if got == nil || got.Source != retry.SourceCrash {
			t.Fatalf("got %+v", got)
		}
		aborted := got.Class == "SIGABRT" && got.Status == 134
		fatal := got.Class == handler.ClassExitStatus && got.Status == 255 && containsAll(got.Message, []string{"exit status 255", "Allowed memory size"})
		if !aborted && !fatal {
			t.Errorf("got %+v", got)
		}
	})
}
