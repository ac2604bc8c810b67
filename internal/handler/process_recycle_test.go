package handler_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

func TestRecycle_ReplacesAProcessAfterItsMessages(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	p := startProcess(t, v1alpha1.ProcessHandler{
		Command: scripted("say " + hello), Recycle: &v1alpha1.Recycle{Messages: ptr.To[int64](3)},
	}, handler.Options{Metrics: registry})
	var mu sync.Mutex
	handled := map[int]int{}
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() {
			for range 15 {
				pid := pidOf(t, p)
				mu.Lock()
				handled[pid]++
				mu.Unlock()
			}
		})
	}
	calls.Wait()
	for pid, messages := range handled {
		if messages > 3 {
			t.Errorf("process %d handled %d messages", pid, messages)
		}
	}
	eventually(t, "those that had their messages have ended", func() bool { return exits(registry, "recycled") >= 60/3-4 })
	if got := exits(registry, "crashed"); got != 0 {
		t.Errorf("%v crashed", got)
	}
}

func TestRecycle_ReplacesAProcessAtItsAge(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{
		Command: scripted("say " + hello), Recycle: &v1alpha1.Recycle{Age: duration(time.Second)},
	}, handler.Options{})
	first := pidOf(t, p)
	eventually(t, "another process handles messages", func() bool { return pidOf(t, p) != first })
}

func TestRecycle_ReplacesAProcessWithTooMuchMemory(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{
		Command: scripted("say " + hello), Recycle: &v1alpha1.Recycle{Memory: new("256Mi")},
	}, handler.Options{})
	first := pidOf(t, p)
	if again := pidOf(t, p); again != first {
		t.Errorf("process %d was replaced by %d, which needs no more", first, again)
	}
	if got := give(t, p, patience, "eat 300", "ack"); got != nil {
		t.Fatalf("got %+v", got)
	}
	eventually(t, "another process handles messages", func() bool { return pidOf(t, p) != first })
}

func TestRecycle_KeepsAProcessUntilItsSuccessorServes(t *testing.T) {
	t.Parallel()
	marker := filepath.Join(t.TempDir(), "started")
	command := append([]string{"sh", "-c", fmt.Sprintf(`test -e %q && exit 7; touch %q; exec "$0" "$@"`, marker, marker)}, scripted("say "+hello)...)
	registry := prometheus.NewRegistry()
	p := startProcess(t, v1alpha1.ProcessHandler{
		Command: command, Processes: ptr.To[int32](1), Recycle: &v1alpha1.Recycle{Age: duration(100 * time.Millisecond)},
	}, handler.Options{Metrics: registry})
	first := pidOf(t, p)
	eventually(t, "a successor fails", func() bool { return starts(registry) >= 2 && exits(registry, "crashed") >= 1 })
	if got := pidOf(t, p); got != first {
		t.Errorf("process %d, not %d", got, first)
	}
}

func TestRecycle_KillsAReplacedProcessThatClosesItsOutput(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	p := startProcess(t, v1alpha1.ProcessHandler{
		Command: scripted("say " + hello), Processes: ptr.To[int32](1), Recycle: &v1alpha1.Recycle{Age: duration(time.Second)},
	}, handler.Options{Metrics: registry})
	dir := t.TempDir()
	begun, replaced := filepath.Join(dir, "begun"), filepath.Join(dir, "replaced")
	outcome := make(chan *retry.Failure, 1)
	go func() { outcome <- give(t, p, patience, "touch "+begun, "await "+replaced, "close stdout", "hang") }()
	eventually(t, "it has a message when its successor is there", func() bool {
		return exists(begun) && sample(registry, "redrive_handler_processes", "state", "stopping") == 1
	})
	touch(replaced)
	if got := <-outcome; got == nil || got.Class != handler.ClassOutputClosed {
		t.Errorf("got %+v", got)
	}
}

func TestRecycle_PilesUpNoProcessesThatEndSlowly(t *testing.T) {
	t.Parallel()
	end := filepath.Join(t.TempDir(), "end")
	program := fmt.Sprintf(`echo '%s'; read -r message || exit 0; echo '{"type":"result","id":"1","outcome":"ack"}'; until test -e %q; do sleep 0.01; done`, hello, end)
	registry := prometheus.NewRegistry()
	p := startProcess(t, v1alpha1.ProcessHandler{
		Command: []string{"sh", "-c", program}, Processes: ptr.To[int32](1), Recycle: &v1alpha1.Recycle{Messages: ptr.To[int64](1)},
	}, handler.Options{Metrics: registry})
	outcomes := make(chan *retry.Failure, 3)
	for range 3 {
		go func() { outcomes <- give(t, p, patience) }()
	}
	for range 2 {
		if got := <-outcomes; got != nil {
			t.Errorf("got %+v", got)
		}
	}
	if got := starts(registry); got != 2 {
		t.Errorf("%v processes live, of which two have not ended yet", got)
	}
	touch(end)
	if got := <-outcomes; got != nil {
		t.Errorf("got %+v", got)
	}
}

func TestRecycle_LosesNoMessage(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{
		Command: scripted("say " + hello4), Processes: ptr.To[int32](2),
		Recycle: &v1alpha1.Recycle{Messages: ptr.To[int64](7), Age: duration(50 * time.Millisecond)},
	}, handler.Options{Concurrency: 8})
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			for range 100 {
				if got := give(t, p, patience, "ack"); got != nil {
					t.Errorf("got %+v", got)
				}
			}
		})
	}
	calls.Wait()
}

func TestRecycle_RefusesAMemoryThatIsNoSize(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "Mi", "256", "256M", "-1Mi", "0Mi", "1Ti", "1.5Gi"} {
		_, err := handler.NewProcess(v1alpha1.ProcessHandler{
			Command: scripted(), Recycle: &v1alpha1.Recycle{Memory: &text},
		}, handler.Options{})
		if err == nil || !strings.Contains(err.Error(), "recycle.memory") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// book is a log that tests read.
type book struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *book) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *book) lines() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Split(b.text.String(), "\n")
}

// with is the lines that have all the words.
func (b *book) with(words ...string) int {
	found := 0
	for _, line := range b.lines() {
		if containsAll(line, words) {
			found++
		}
	}
	return found
}

func TestProcess_LogsComplaintsWithItsMessages(t *testing.T) {
	t.Parallel()
	log := &book{}
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello)}, handler.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	done := filepath.Join(t.TempDir(), "done")
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if got := give(t, p, patience, `complain no "flour" left`, "await "+done, "ack"); got != nil {
			t.Errorf("got %+v", got)
		}
	}()
	eventually(t, "the line is logged with the id", func() bool {
		return log.with("handler's standard error", `text="no \"flour\" left"`, "messages=[m-1]") == 1
	})
	touch(done)
	<-answered
}

func TestProcess_LogsAFewLinesOfAFloodOnStandardError(t *testing.T) {
	t.Parallel()
	log := &book{}
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello)}, handler.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	if got := give(t, p, patience, "flood stderr lines", "ack"); got != nil {
		t.Errorf("got %+v", got)
	}
	if got := log.with(`text="flood`); got == 0 || got > 2000 {
		t.Errorf("%d records", got)
	}
	if got := give(t, p, patience, "complain "+strings.Repeat("long ", 100_000), "ack"); got != nil {
		t.Errorf("got %+v", got)
	}
	eventually(t, "a long line is cut", func() bool { return log.with("long lo") == 1 })
	if log.with("leftOut=") == 0 {
		t.Error("those left out are not counted")
	}
	for _, line := range log.lines() {
		if len(line) > 12<<10 {
			t.Errorf("a record of %d bytes", len(line))
		}
	}
}

func TestProcess_LogsStrayOutputOnceInAWhile(t *testing.T) {
	t.Parallel()
	log := &book{}
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello)}, handler.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	for range 50 {
		if got := give(t, p, patience, "say Notice: here", "ack", "ack"); got != nil {
			t.Errorf("got %+v", got)
		}
	}
	if got := log.with("is no frame of the protocol", "Notice: here", "m-1"); got != 1 {
		t.Errorf("%d times", got)
	}
	eventually(t, "the second answer is told", func() bool { return log.with("speaks of a message that it has answered") == 1 })
}
