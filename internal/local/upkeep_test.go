package local

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"redrive.dev/redrive/internal/subprocess"
	"redrive.dev/redrive/internal/testtransport"
)

// printed is what a program printed, and what was logged about it.
type printed struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *printed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *printed) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// script keeps a shell script running; its file "here" is what the test can wait for.
func script(t *testing.T, limit time.Duration, text string) (u *upkeep, out *printed, here string) {
	t.Helper()
	out, here = &printed{}, filepath.Join(t.TempDir(), "here")
	log := slog.New(slog.NewTextHandler(out, nil))
	return newUpkeep([]string{"sh", "-c", text, here}, out, func() time.Duration { return limit }, log), out, here
}

func awaitFile(t *testing.T, path string) {
	t.Helper()
	testtransport.Eventually(t, "the script to be there", func() bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

func TestUpkeep_TellsAProgramToStopInTwoWays(t *testing.T) {
	for name, text := range map[string]string{
		"the end of its input":     `trap '' INT; touch "$0"; cat >/dev/null; echo has stopped`,
		"what Ctrl-C sends":        `trap 'echo has stopped; exit 0' INT; touch "$0"; while :; do sleep 0.01; done`,
		"through a program before": `trap : INT; sh -c 'trap "exit 0" INT; touch "$0"; while :; do sleep 0.01; done' "$0"; echo has stopped`,
	} {
		t.Run(name, func(t *testing.T) {
			u, out, here := script(t, time.Hour, text)
			ctx, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { u.run(ctx) })
			awaitFile(t, here)
			stop()
			running.Wait()
			if !strings.Contains(out.String(), "has stopped\n") || strings.Contains(out.String(), "killed") {
				t.Errorf("got %s", out)
			}
		})
	}
}

func TestUpkeep_KillsAProgramThatDoesNotStop(t *testing.T) {
	u, out, here := script(t, time.Millisecond, `trap '' INT; touch "$0"; while :; do sleep 0.01; done`)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { u.run(ctx) })
	awaitFile(t, here)
	stop()
	running.Wait()
	if !strings.Contains(out.String(), "is killed: it has not stopped in time") {
		t.Errorf("got %s", out)
	}
}

func TestUpkeep_DoesNotWaitForWhatAProgramLeavesBehind(t *testing.T) {
	const lives = 60 * time.Second
	u, out, here := script(t, time.Hour, `setsid sleep 60 & echo $! >"$0"; printf 'last words'; exit 7`)
	defer endLeft(t, here)
	began := time.Now()
	if exit := u.once(t.Context()); exit != "exit status 7" {
		t.Errorf("got %s", exit)
	}
	if took := time.Since(began); took > lives/2 {
		t.Errorf("it was waited for: %s", took)
	}
	if !strings.HasSuffix(out.String(), "last words") {
		t.Errorf("got %s", out)
	}
}

// endLeft ends what a script has left behind, of which the file has the number.
func endLeft(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

func TestUpkeep_SaysWhyAProgramCannotStart(t *testing.T) {
	u := newUpkeep([]string{"/nowhere/at/all"}, &printed{}, func() time.Duration { return 0 }, slog.New(slog.DiscardHandler))
	if exit := u.once(t.Context()); exit != "/nowhere/at/all does not exist" {
		t.Errorf("got %s", exit)
	}
}

func TestUpkeep_CountsWhatAllItsProgramsDid(t *testing.T) {
	metrics := "# TYPE redrive_messages_handled_total counter\n" +
		`redrive_messages_handled_total{queue="test",outcome="succeeded",strategy=""} 3` + "\n" +
		`redrive_messages_handled_total{queue="test",outcome="failed",strategy="x"} 1` + "\n" +
		"# TYPE redrive_handler_calls_in_flight gauge\n" + `redrive_handler_calls_in_flight{queue="test"} 2` + "\n"
	status := `{"troubles": [{"reason": "CircuitOpen", "message": "the breaker is open"}]}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(map[string]string{"/metrics": metrics, "/status": status}[r.URL.Path]))
	}))
	defer server.Close()
	u, _, _ := script(t, 0, "")
	ask := func() {
		t.Helper()
		now, err := u.ask.worker(t.Context(), server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		u.told.now = now
	}
	expect := func(want Tally, hindrances string) {
		t.Helper()
		all := tallies{}
		u.addTo(all)
		if got := *all.of("test"); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		texts := ""
		told, _ := u.member("")
		for _, trouble := range told.status.troubles() {
			texts += trouble.Message
		}
		if texts != hindrances {
			t.Errorf("troubles %q, want %q", texts, hindrances)
		}
	}
	ask()
	expect(Tally{AtHandler: 2, Handled: 3, Failed: 1}, "the breaker is open")
	u.ended()
	expect(Tally{Handled: 3, Failed: 1}, "")
	u.report("it does not run")
	expect(Tally{Handled: 3, Failed: 1}, "it does not run")
	u.report("")
	ask()
	expect(Tally{AtHandler: 2, Handled: 6, Failed: 2}, "the breaker is open")

	metrics = "no metrics"
	if _, err := u.ask.worker(t.Context(), server.Listener.Addr().String()); err == nil {
		t.Error("an answer that is none was taken for one")
	}
}

func TestUpkeep_TakesAProgramThatHangsForNoReadyOne(t *testing.T) {
	var hangs atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hangs.Load() {
			<-r.Context().Done()
		}
		_, _ = w.Write([]byte(map[string]string{"/status": "{}"}[r.URL.Path]))
	}))
	defer server.Close()
	u, out, _ := script(t, 0, "")
	u.process = new(subprocess.Process)
	u.ask.client.Timeout = 200 * time.Millisecond
	over, end := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() { u.follow(over, nil, server.Listener.Addr().String()) })
	defer following.Wait()
	defer end()
	for _, ready := range []bool{true, false, true} {
		hangs.Store(!ready)
		testtransport.Eventually(t, "the program to be ready: "+strconv.FormatBool(ready), func() bool { return u.ready() == ready })
		u.mu.Lock()
		problem := u.problem
		u.mu.Unlock()
		if (problem == "") != ready {
			t.Errorf("ready %t: %q", ready, problem)
		}
	}
	if !strings.Contains(out.String(), "does not answer") {
		t.Errorf("got %s", out)
	}
}

func TestCopyLines_PassesLinesOnWhole(t *testing.T) {
	var writes []string
	copyLines(writer(func(p []byte) { writes = append(writes, string(p)) }),
		strings.NewReader("one\n\ntwo\n"+strings.Repeat("x", maxLine+1)+"\nlast"))
	want := []string{"one\n", "\n", "two\n", strings.Repeat("x", maxLine), "x\n", "last"}
	if len(writes) != len(want) {
		t.Fatalf("%d writes, want %d", len(writes), len(want))
	}
	for i := range want {
		if writes[i] != want[i] {
			t.Errorf("write %d is of %d bytes, want %d", i, len(writes[i]), len(want[i]))
		}
	}
}

// writer is a function that is written to.
type writer func(p []byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}
