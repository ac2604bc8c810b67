package handler_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
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

func duration(d time.Duration) *v1alpha1.Duration {
	made := &v1alpha1.Duration{}
	made.Duration.Duration = d
	return made
}

// innocents hands over three messages that a process keeps in hand the first time, and answers the second time. It returns when a
// process has them, and a function that waits for their outcome and says by which processes they were answered.
func innocents(t *testing.T, p *handler.Process) (await func() (failures []*retry.Failure, answeredBy []string)) {
	t.Helper()
	dir := t.TempDir()
	var calls sync.WaitGroup
	failures := make([]*retry.Failure, 3)
	for i := range failures {
		file := filepath.Join(dir, fmt.Sprintf("message-%d", i))
		calls.Go(func() { failures[i] = give(t, p, patience, "unless "+file) })
		eventually(t, "a process has the message", func() bool { return exists(file) })
	}
	return func() ([]*retry.Failure, []string) {
		calls.Wait()
		answered, err := filepath.Glob(filepath.Join(dir, "message-*.*"))
		if err != nil {
			t.Fatal(err)
		}
		for i, file := range answered {
			answered[i] = filepath.Ext(file)
		}
		return failures, answered
	}
}

func TestProcess_ConvictsOneMessageOfSeveralWhenItDies(t *testing.T) {
	t.Parallel()
	endings := map[string]struct {
		script []string
		class  string
	}{
		"it exits":               {[]string{"exit 3"}, "ExitStatus"},
		"it breaks the protocol": {[]string{"say " + hello}, "MalformedResponse"},
		"it closes its output":   {[]string{"close stdout", "hang"}, "OutputClosed"},
	}
	for name, ending := range endings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry := prometheus.NewRegistry()
			p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello4)}, handler.Options{Metrics: registry})
			await := innocents(t, p)
			if got := give(t, p, patience, ending.script...); got == nil || got.Class != ending.class {
				t.Errorf("the one that ended it: got %+v", got)
			}
			failures, by := await()
			for _, failure := range failures {
				if failure != nil {
					t.Errorf("one that had no part in it: got %+v", failure)
				}
			}
			// Each of the four got a process that was never used before.
			if different := distinct(by); len(different) != 3 {
				t.Errorf("answered by %v", by)
			}
			if got := starts(registry); got < 5 {
				t.Errorf("%v starts", got)
			}
		})
	}
}

func distinct(values []string) map[string]bool {
	found := map[string]bool{}
	for _, value := range values {
		found[value] = true
	}
	return found
}

func TestProcess_ChargesNoOtherMessageForATimeout(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello4)}, handler.Options{})
	await := innocents(t, p)
	if got := give(t, p, 200*time.Millisecond, "hang"); got == nil || got.Source != retry.SourceTimeout || got.Class != handler.ClassTimeout {
		t.Errorf("the one that hangs: got %+v", got)
	}
	if failures, _ := await(); failures[0] != nil || failures[1] != nil || failures[2] != nil {
		t.Errorf("got %+v", failures)
	}
}

func TestProcess_ChargesNoOtherMessageForACancelledOne(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello4)}, handler.Options{})
	await := innocents(t, p)
	begun := filepath.Join(t.TempDir(), "begun")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	outcome := make(chan *retry.Failure, 1)
	go func() { outcome <- p.Handle(ctx, handler.Request{Body: []byte(script("touch "+begun, "hang"))}) }()
	eventually(t, "it has begun", func() bool { return exists(begun) })
	cancel()
	if got := <-outcome; got == nil || got.Class != handler.ClassCanceled {
		t.Errorf("the one that was cancelled: got %+v", got)
	}
	if failures, _ := await(); failures[0] != nil || failures[1] != nil || failures[2] != nil {
		t.Errorf("got %+v", failures)
	}
}

func TestProcess_CountsNoAttemptForAWaitToRunAlone(t *testing.T) {
	t.Parallel()
	// The second process never says hello, so there is none for the quarantined message.
	marker := filepath.Join(t.TempDir(), "started")
	command := scripted("say " + hello4)
	command = append([]string{"sh", "-c", fmt.Sprintf(`test -e %q && exec sleep 60; touch %q; exec "$0" "$@"`, marker, marker)}, command...)
	p := startProcess(t, v1alpha1.ProcessHandler{Command: command, StartTimeout: duration(time.Minute)}, handler.Options{})
	awaitReady(t, p)
	kept := filepath.Join(t.TempDir(), "kept")
	quarantined := make(chan *retry.Failure, 1)
	go func() { quarantined <- give(t, p, time.Second, "unless "+kept) }()
	eventually(t, "the process has it", func() bool { return exists(kept) })
	if got := give(t, p, 100*time.Millisecond, "hang"); got == nil || got.Source != retry.SourceTimeout {
		t.Errorf("got %+v", got)
	}
	if got := <-quarantined; got == nil || got.Class != handler.ClassNotBegun {
		t.Errorf("got %+v", got)
	}
}

func TestProcess_GivesUnreadMessagesToAnotherWhenItEnds(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello4)}, handler.Options{Metrics: registry})
	dir := t.TempDir()
	begun, end := filepath.Join(dir, "begun"), filepath.Join(dir, "end")
	guilty := make(chan *retry.Failure, 1)
	go func() { guilty <- give(t, p, patience, "touch "+begun, "await "+end, "exit 3") }()
	eventually(t, "it has begun", func() bool { return exists(begun) })
	unread := make(chan *retry.Failure, 3)
	for range 3 {
		go func() { unread <- give(t, p, patience, "ack") }()
	}
	eventually(t, "it has all four", func() bool { return handler.InHand(p) == 4 })
	touch(end)
	// It alone was read, so it needs no second run to be convicted.
	if got := <-guilty; got == nil || got.Class != "ExitStatus" {
		t.Errorf("got %+v", got)
	}
	for range 3 {
		if got := <-unread; got != nil {
			t.Errorf("got %+v", got)
		}
	}
	if got := starts(registry); got != 2 {
		t.Errorf("%v starts", got)
	}
}

func TestProcess_LosesNoMessageByAnEndAfterItsAnswer(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello)}, handler.Options{})
	for i := range 60 {
		if got := give(t, p, patience, "ack", fmt.Sprint("exit ", i%2)); got != nil {
			t.Fatalf("message %d: got %+v", i, got)
		}
	}
}

func TestProcess_LosesNoMessageByClosingItsInput(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello)}, handler.Options{})
	for i := range 3 {
		if got := give(t, p, patience, "close stdin", "ack", "sleep 60000"); got != nil {
			t.Fatalf("message %d: got %+v", i, got)
		}
	}
}

func TestProcess_ConvictsNoMessageInHandByClosingItsInput(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello4)}, handler.Options{})
	closed, end := filepath.Join(t.TempDir(), "closed"), filepath.Join(t.TempDir(), "end")
	inHand := make(chan *retry.Failure, 1)
	go func() { inHand <- give(t, p, patience, "close stdin", "touch "+closed, "await "+end, "ack") }()
	eventually(t, "the input is closed", func() bool { return exists(closed) })
	if got := give(t, p, patience, "ack"); got != nil {
		t.Errorf("the one that could not be written: got %+v", got)
	}
	touch(end)
	if got := <-inHand; got != nil {
		t.Errorf("the one in hand: got %+v", got)
	}
}

func TestProcess_GetsNoFurtherMessageWithItsOutputClosed(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello4), Processes: ptr.To[int32](1)}, handler.Options{})
	inHand := make(chan *retry.Failure, 1)
	go func() { inHand <- give(t, p, patience, "close stdout", "hang") }()
	eventually(t, "the message is handed over", func() bool { return handler.InHand(p) == 1 })
	spared := 0
	eventually(t, "it takes no message any more", func() bool {
		var free int
		free, spared = handler.Reachable(p)
		return free == 0
	})
	if spared == 0 {
		t.Error("it took messages until it was killed")
	}
	if got := give(t, p, patience, "ack"); got != nil {
		t.Errorf("the next message: got %+v", got)
	}
	if got := <-inHand; got == nil || got.Class != handler.ClassOutputClosed {
		t.Errorf("the one that closed it: got %+v", got)
	}
}

func TestProcess_IsHeardWhereItWritesBeforeItReads(t *testing.T) {
	t.Parallel()
	// Neither what it writes nor the message fits into a pipe.
	const program = `echo '{"type":"hello","protocol":1}'; yes stray | head -n 100000; head -n 1 >/dev/null
		echo '{"type":"result","id":"1","outcome":"ack"}'; cat >/dev/null`
	p := startProcess(t, v1alpha1.ProcessHandler{Command: []string{"sh", "-c", program}}, handler.Options{})
	awaitReady(t, p)
	ctx, cancel := handler.WithTimeout(t.Context(), 10*time.Second, patience)
	defer cancel()
	if got := p.Handle(ctx, handler.Request{Body: []byte(strings.Repeat("x", 1<<20))}); got != nil {
		t.Errorf("got %+v", got)
	}
}

func TestProcess_TimesOutMessagesThatItDoesNotRead(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say "+hello4, "hang")}, handler.Options{})
	body := []byte(strings.Repeat("x", 4<<20))
	awaitReady(t, p)
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if got := p.Handle(ctx, handler.Request{Body: body}); got == nil || got.Source != retry.SourceTimeout {
				t.Errorf("got %+v", got)
			}
		})
	}
	calls.Wait()
}

func TestProcess_ServesOnWhileOthersDieOverEachMessage(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello)}, handler.Options{Metrics: registry, Concurrency: 2})
	stop := make(chan struct{})
	living := make(chan *retry.Failure, 1)
	begun, end := filepath.Join(t.TempDir(), "begun"), filepath.Join(t.TempDir(), "end")
	go func() { living <- give(t, p, patience, "touch "+begun, "await "+end, "ack") }()
	eventually(t, "it has begun", func() bool { return exists(begun) })
	var deadly sync.WaitGroup
	deadly.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if got := give(t, p, patience, "exit 3"); got == nil || got.Source != retry.SourceCrash {
					t.Errorf("got %+v", got)
				}
			}
		}
	})
	eventually(t, "ten of them died", func() bool { return exits(registry, "crashed") >= 10 })
	// There is a pause now, in which the living one serves on.
	touch(end)
	if got := <-living; got != nil {
		t.Errorf("got %+v", got)
	}
	close(stop)
	deadly.Wait()
	if got := give(t, p, patience, "ack"); got != nil {
		t.Errorf("got %+v", got)
	}
}

func TestProcess_IsNotReadyWhenOneAfterTheOtherDies(t *testing.T) {
	t.Parallel()
	well := filepath.Join(t.TempDir(), "well")
	dies := fmt.Sprintf("test -e %q || set -- \"$1\" \"$2\ncomplain out of memory\nexit 9\"; exec \"$0\" \"$@\"", well)
	p := startProcess(t, v1alpha1.ProcessHandler{Command: append([]string{"sh", "-c", dies}, scripted("say "+hello)...)}, handler.Options{})
	awaitTrouble(t, p, "end one after the other, with no answer between", "exit status 9", "out of memory")
	touch(well)
	eventually(t, "a message to be answered once they live", func() bool { return give(t, p, patience, "ack") == nil })
	awaitReady(t, p)
	for range 3 {
		if got := give(t, p, patience, "ack"); got != nil {
			t.Errorf("it does not stay ready: got %+v", got)
		}
	}
	if why, _ := p.Ready(); why != nil {
		t.Errorf("it is not ready: %v", why)
	}
}

func TestProcess_GivesMoreTimeForProgressUpToTheLimit(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello)}, handler.Options{})
	var slow []string
	for range 10 {
		slow = append(slow, "sleep 100", `say {"type":"progress","id":"$ID"}`)
	}
	slow = append(slow, "ack")
	if got := give(t, p, 500*time.Millisecond, slow...); got != nil {
		t.Errorf("with progress: got %+v", got)
	}
	ctx, cancel := handler.WithTimeout(t.Context(), 500*time.Millisecond, 700*time.Millisecond)
	defer cancel()
	if got := p.Handle(ctx, handler.Request{Body: []byte(script(slow...))}); got == nil || got.Source != retry.SourceTimeout {
		t.Errorf("over the limit: got %+v", got)
	}
}

// Attempts that went on by progress were broken off with the worker's sessions, and their messages quarantined at each rollout.
func TestProcess_GivesNoMoreTimeForProgressOnceItIsDrained(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello)}, handler.Options{Concurrency: 2})
	dir := t.TempDir()
	begun, hangs := filepath.Join(dir, "begun"), filepath.Join(dir, "hangs")
	steps := []string{"touch " + begun}
	for range 40 {
		steps = append(steps, "sleep 100", `say {"type":"progress","id":"$ID"}`)
	}
	atWork, silent := make(chan *retry.Failure, 1), make(chan *retry.Failure, 1)
	go func() { atWork <- give(t, p, time.Second, append(steps, "ack")...) }()
	go func() { silent <- give(t, p, time.Second, "touch "+hangs, "hang") }()
	eventually(t, "both have begun", func() bool { return exists(begun) && exists(hangs) })
	p.Drain()
	if got := <-atWork; !handler.IsNotBegun(got) {
		t.Errorf("one that is at work when the worker stops: %+v", got)
	}
	if got := <-silent; got == nil || got.Source != retry.SourceTimeout || handler.IsNotBegun(got) {
		t.Errorf("one that hangs: %+v", got)
	}
}

func TestProcess_UsesTheLastOneAgainAndStartsOthersOnNeed(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello), Processes: ptr.To[int32](3)}, handler.Options{Metrics: registry, Concurrency: 8})
	first := pidOf(t, p)
	for range 20 {
		if got := pidOf(t, p); got != first {
			t.Errorf("process %d, not %d", got, first)
		}
	}
	if got := starts(registry); got != 1 {
		t.Errorf("%v starts for one message at a time", got)
	}
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			if got := give(t, p, patience, "sleep 50", "ack"); got != nil {
				t.Errorf("got %+v", got)
			}
		})
	}
	calls.Wait()
	if got := starts(registry); got != 3 {
		t.Errorf("%v starts for eight messages at a time", got)
	}
}

func TestProcess_CountsNoWaitForAFreeOneAsTheAttempt(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello), Processes: ptr.To[int32](1)}, handler.Options{})
	var calls sync.WaitGroup
	for range 3 {
		calls.Go(func() {
			ctx, cancel := handler.WithTimeout(t.Context(), 900*time.Millisecond, patience)
			defer cancel()
			got := p.Handle(ctx, handler.Request{Body: []byte(script("sleep 400", "ack"))})
			if got != nil && got.Class != handler.ClassNotBegun {
				t.Errorf("got %+v", got)
			}
		})
	}
	calls.Wait()
}

// A message was handed over when a process was free at last, however long after its deadline that was.
func TestProcess_TakesNoMessageAfterItsDeadline(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello), Processes: ptr.To[int32](1)}, handler.Options{})
	dir := t.TempDir()
	begun, end, late := filepath.Join(dir, "begun"), filepath.Join(dir, "end"), filepath.Join(dir, "late")
	first := make(chan *retry.Failure, 1)
	go func() { first <- give(t, p, patience, "touch "+begun, "await "+end, "ack") }()
	eventually(t, "the first has begun", func() bool { return exists(begun) })
	due := func(after time.Duration) *retry.Failure {
		ctx, cancel := handler.WithTimeout(t.Context(), patience, patience)
		defer cancel()
		return p.Handle(ctx, handler.Request{ID: "m-2", Deadline: time.Now().Add(after), Body: []byte(script("touch "+late, "ack"))})
	}
	began := time.Now()
	for _, after := range []time.Duration{200 * time.Millisecond, -time.Second} {
		if got := due(after); !handler.IsNotBegun(got) || !strings.Contains(got.Message, "deadline") {
			t.Errorf("%s before its deadline: %+v", after, got)
		}
	}
	if waited := time.Since(began); waited > patience/2 {
		t.Errorf("they waited for %s", waited)
	}
	touch(end)
	if got := <-first; got != nil {
		t.Errorf("the first: %+v", got)
	}
	if got := due(-time.Second); !handler.IsNotBegun(got) || exists(late) {
		t.Errorf("after its deadline, and a process is free: %+v", got)
	}
	if got := due(patience); got != nil || !exists(late) {
		t.Errorf("long before its deadline: %+v", got)
	}
}

func TestDrain_TurnsAwayWaitingMessagesAndLetsOthersFinish(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello), Processes: ptr.To[int32](1)}, handler.Options{})
	dir := t.TempDir()
	begun, end := filepath.Join(dir, "begun"), filepath.Join(dir, "end")
	first, second := make(chan *retry.Failure, 1), make(chan *retry.Failure, 1)
	go func() { first <- give(t, p, patience, "touch "+begun, "await "+end, "ack") }()
	eventually(t, "the first has begun", func() bool { return exists(begun) })
	go func() { second <- give(t, p, patience, "ack") }()
	eventually(t, "the second waits", func() bool { return handler.Waiting(p) == 1 })
	p.Drain()
	p.Drain()
	for range 2 {
		if got := <-second; !handler.IsNotBegun(got) {
			t.Errorf("the one that waits: %+v", got)
		}
		second <- give(t, p, patience, "ack") // one that comes later
	}
	touch(end)
	if got := <-first; got != nil {
		t.Errorf("the one that has begun: %+v", got)
	}
	if got := give(t, p, patience, "ack"); got != nil {
		t.Errorf("one that need not wait: %+v", got)
	}
}

// A reload that replaces the handler left all of its processes to the machine until its last call was over, beside as many of the next one.
func TestRetire_EndsProcessesThatHaveNoMessage(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello), Processes: ptr.To[int32](3)}, handler.Options{Metrics: registry, Concurrency: 3})
	dir := t.TempDir()
	end := filepath.Join(dir, "end")
	calls := make(chan *retry.Failure, 3)
	for i, steps := range [][]string{{"await " + end, "ack"}, {"sleep 50", "ack"}, {"sleep 50", "ack"}} {
		begun := filepath.Join(dir, strconv.Itoa(i))
		go func() { calls <- give(t, p, patience, append([]string{"touch " + begun}, steps...)...) }()
		eventually(t, "it has begun", func() bool { return exists(begun) })
	}
	for range 2 {
		if got := <-calls; got != nil {
			t.Errorf("got %+v", got)
		}
	}
	ended := func() float64 { return exits(registry, "recycled") }
	if ended() != 0 {
		t.Fatal("a process has ended already, so this shows nothing")
	}
	started := starts(registry)
	p.Retire()
	eventually(t, "those without a message to end", func() bool { return ended() == started-1 })
	if got := give(t, p, patience, "ack"); got != nil {
		t.Errorf("one that comes yet: %+v", got)
	}
	touch(end)
	if got := <-calls; got != nil {
		t.Errorf("the one that was in hand: %+v", got)
	}
	eventually(t, "all to end", func() bool { return ended() == starts(registry) })
}

// The messages of a process that ended run alone, each in a fresh process: one that was started for them must not end before it has them.
func TestRetire_LeavesMessagesThatRunAloneTheirProcesses(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello4), Processes: ptr.To[int32](1)}, handler.Options{Concurrency: 4})
	dir := t.TempDir()
	had, both := filepath.Join(dir, "had"), filepath.Join(dir, "both")
	innocent, deadly := make(chan *retry.Failure, 1), make(chan *retry.Failure, 1)
	go func() { innocent <- give(t, p, patience, "unless "+had) }()
	eventually(t, "it has the first", func() bool { return exists(had) })
	go func() { deadly <- give(t, p, patience, "await "+both, "exit 1") }()
	eventually(t, "it has both", func() bool { return handler.InHand(p) == 2 })
	p.Retire()
	touch(both)
	if got := <-innocent; got != nil {
		t.Errorf("the one that only was beside it: %+v", got)
	}
	if got := <-deadly; got == nil || got.Source != retry.SourceCrash {
		t.Errorf("the one that ends its process: %+v", got)
	}
}

func TestClose_LetsProcessesFinishAndKillsStubbornOnes(t *testing.T) {
	t.Parallel()
	done := filepath.Join(t.TempDir(), "done")
	polite := []string{"sh", "-c", fmt.Sprintf(`echo '%s'; cat >/dev/null; touch %q`, hello, done)}
	stubborn := scripted("say "+hello, "hang")
	for _, command := range [][]string{polite, stubborn} {
		registry := prometheus.NewRegistry()
		p, err := handler.NewProcess(v1alpha1.ProcessHandler{Command: command}, handler.Options{Metrics: registry})
		if err != nil {
			t.Fatal(err)
		}
		handler.SetCloseGrace(p, 200*time.Millisecond)
		awaitReady(t, p)
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if got := exits(registry, "stopped"); got != 1 {
			t.Errorf("%v stopped", got)
		}
	}
	if !exists(done) {
		t.Error("the polite one did not finish")
	}
}

func TestProcess_IsToldTheVersionOfTheProtocol(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "environment")
	p := startProcess(t, v1alpha1.ProcessHandler{Command: []string{"sh", "-c", fmt.Sprintf(`echo "$REDRIVE_PROTOCOL" >%q; echo '%s'; cat >/dev/null`, file, hello)}}, handler.Options{})
	awaitReady(t, p)
	opened, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	if text, err := io.ReadAll(opened); err != nil || string(text) != "1\n" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestProcess_IsReplacedWithPausesWhereItGoesOnDying(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	began := time.Now()
	startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say "+hello, "exit 9")}, handler.Options{Metrics: registry})
	eventually(t, "eight have died at once, and two more with a pause", func() bool { return starts(registry) >= 11 })
	// A second and two, less a fifth of each; or a second twice, where one ends before its hello is read, and so failed to start.
	if took := time.Since(began); took < 1600*time.Millisecond {
		t.Errorf("eleven starts within %s", took)
	}
}

// What a process that ends with a message in hand wrote may be of that message.
func TestProcess_TellsNothingOfAMessageInItsReadiness(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello)}, handler.Options{Concurrency: 1})
	told := ""
	for range 12 {
		if failure := give(t, p, patience, "complain cannot book marked", "exit 3"); failure == nil || strings.Contains(failure.Logged, "marked") {
			t.Fatalf("failure %+v", failure)
		}
		if why, _ := p.Ready(); why != nil {
			told = why.Error()
		}
		if strings.Contains(told, "marked") {
			t.Fatalf("it is told: %s", told)
		}
	}
	if !strings.Contains(told, "exit status 3") {
		t.Errorf("told is %q", told)
	}
}

// What let a message go, such as a breaker, may have taken that back while the message waited for a process.
func TestProcess_GoesToAnotherWhereAMessageMayNotBegin(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello), Processes: ptr.To[int32](1)}, handler.Options{})
	dir := t.TempDir()
	begun, end, refused := filepath.Join(dir, "begun"), filepath.Join(dir, "end"), filepath.Join(dir, "refused")
	first, second, third := make(chan *retry.Failure, 1), make(chan *retry.Failure, 1), make(chan *retry.Failure, 1)
	go func() { first <- give(t, p, patience, "touch "+begun, "await "+end, "ack") }()
	eventually(t, "the first has begun", func() bool { return exists(begun) })
	ask := func(answer bool) *retry.Failure {
		ctx, cancel := handler.WithTimeout(t.Context(), patience, patience)
		defer cancel()
		return p.Handle(ctx, handler.Request{
			Body:  []byte(script("touch "+refused, "ack")),
			Begin: func(context.Context) bool { return answer && exists(end) },
		})
	}
	go func() { second <- ask(false) }()
	eventually(t, "the second waits", func() bool { return handler.Waiting(p) == 1 })
	go func() { third <- give(t, p, patience, "ack") }()
	eventually(t, "the third waits", func() bool { return handler.Waiting(p) == 2 })
	touch(end)
	if got := <-second; !handler.IsNotBegun(got) || exists(refused) {
		t.Errorf("the one that may not begin: %+v", got)
	}
	for name, answer := range map[string]chan *retry.Failure{"first": first, "third": third} {
		if got := <-answer; got != nil {
			t.Errorf("the %s: %+v", name, got)
		}
	}
	if got := ask(false); !handler.IsNotBegun(got) || exists(refused) {
		t.Errorf("one that may not begin although a process is free: %+v", got)
	}
	if got := ask(true); got != nil || !exists(refused) {
		t.Errorf("one that may begin: %+v", got)
	}
}

// Who gives leave may have others go first, for longer than an attempt may take: the attempt has its whole time from then on.
func TestProcess_CountsNoWaitForLeaveAsTheAttempt(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello)}, handler.Options{Concurrency: 1})
	awaitReady(t, p)
	ctx, cancel := handler.WithTimeout(t.Context(), timeout, patience)
	defer cancel()
	failure := p.Handle(ctx, handler.Request{
		Body: []byte(script("sleep 500", "ack")),
		Begin: func(ctx context.Context) bool {
			select {
			case <-time.After(timeout + timeout/10):
			case <-ctx.Done():
			}
			return ctx.Err() == nil
		},
	})
	if failure != nil {
		t.Errorf("%+v", failure)
	}
}
