package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/handler"
	"redrive.dev/redrive/internal/testtransport"
)

// partnerVariable makes the worker of a team of the test's program. It holds the URL that its handler calls.
const partnerVariable = "REDRIVE_TEST_PARTNER"

// deadly is the partner's answer that ends the program.
const deadly = http.StatusTeapot

// callPartner is the team's handler. It says what the partner answers.
func callPartner(ctx context.Context, m *handler.Message) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, os.Getenv(partnerVariable), http.NoBody)
	if err != nil {
		return handler.Fail(err)
	}
	request.Header.Set("Redrive-Message-Id", m.ID)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusUnprocessableEntity:
		return handler.Fail(errors.New(response.Status))
	case deadly:
		os.Exit(9)
		return nil
	default:
		return errors.New(response.Status)
	}
}

// inProcessYAML is transportYAML with a handler that is the worker itself.
func inProcessYAML() string {
	return strings.Replace(transportYAML, `{http: {url: "http://127.0.0.1:1/messages"}}`, `{image: "registry.example/team:1", inProcess: {}}`, 1)
}

// team starts `redrive run` with the team's program, which calls a partner, and awaits its topology.
func (b *bench) team(t *testing.T, dir string, partner http.Handler, flags ...string) *started {
	t.Helper()
	server := httptest.NewServer(partner)
	t.Cleanup(server.Close)
	t.Setenv(partnerVariable, server.URL)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := b.start(t, slices.Concat([]string{"run", "-f", dir}, flags, []string{"--", self})...)
	run.await(t, "as it should be")
	return run
}

func (s *started) logged(text string) func() bool {
	return func() bool { return strings.Contains(s.log.String(), text) }
}

func (s *started) await(t *testing.T, text string) {
	t.Helper()
	testtransport.Eventually(t, text, s.logged(text))
}

// stop sends a signal as Ctrl-C does, and expects a clean end.
func (s *started) stop(t *testing.T) {
	t.Helper()
	s.signals <- nil
	if code := <-s.code; code != exitOK {
		t.Errorf("exit code %d: %s", code, s.log.String())
	}
}

var programLine = regexp.MustCompile(`the worker's program starts".* worker=(\S+)( process=quarantine)? process=(\d+)`)

// programs are the processes of the team's program that were started, by their ids.
func (s *started) programs(quarantine bool) []int {
	var found []int
	for _, match := range programLine.FindAllStringSubmatch(s.log.String(), -1) {
		if (match[2] != "") == quarantine {
			id, _ := strconv.Atoi(match[3])
			found = append(found, id)
		}
	}
	return found
}

// isGone expects that no process of a group is left, and no file.
func isGone(t *testing.T, groups []int, temporary string) {
	t.Helper()
	for _, id := range groups {
		if err := syscall.Kill(-id, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("of the group %d something is left: %v", id, err)
		}
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

func temporary(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	return dir
}

func TestRun_RunsAProgramAsTheWorker(t *testing.T) {
	b, temporary := newBench(t), temporary(t)
	p := &partner{attempts: map[string]int{}, handled: map[string]int{}}
	dir := folder(t, map[string]string{"transport.yaml": inProcessYAML(), "policy.yaml": policyYAML})
	run := b.team(t, dir, p)
	broker := testtransport.Connect(t, b.direct)
	publish(broker, "test", 1, 50)
	testtransport.Eventually(t, "50 messages to be handled or failed", func() bool { return p.count() == 43 && broker.Ready("async.failed") == 7 })
	testtransport.Eventually(t, "the table to count what the program did", func() bool {
		return strings.Contains(run.out.String(), "handled=43 retried=9 failed=7")
	})
	privateFolder(t, temporary)

	t.Run("a changed policy reaches it without a restart", func(t *testing.T) {
		put(t, dir, "policy.yaml", strings.Replace(policyYAML, "delay: 200ms", "delay: 300ms", 1))
		run.await(t, "configuration taken over")
		publish(broker, "test", 55, 55)
		testtransport.Eventually(t, "its retry by the new lane", func() bool { return p.count() == 44 })
	})
	t.Run("what it says is in the log", func(t *testing.T) {
		run.await(t, `"msg":"attempt failed","transport":"default/async","worker":"default","queue":"test","message":"m-55"`)
	})
	t.Run("another kind of handler takes its place", func(t *testing.T) {
		server := httptest.NewServer(p)
		defer server.Close()
		put(t, dir, "transport.yaml", strings.ReplaceAll(transportYAML, "http://127.0.0.1:1", server.URL))
		run.await(t, "worker group stops, for another kind of handler")
		publish(broker, "test", 56, 59)
		testtransport.Eventually(t, "messages of both", func() bool { return p.count() == 47 })
		put(t, dir, "transport.yaml", inProcessYAML())
		testtransport.Eventually(t, "a second program", func() bool { return len(run.programs(false)) == 2 })
		publish(broker, "test", 61, 61)
		testtransport.Eventually(t, "its message", func() bool { return p.count() == 48 })
	})
	run.stop(t)
	isGone(t, run.programs(false), temporary)
	testtransport.Eventually(t, "the table to have counted the last one", func() bool { return strings.Contains(run.out.String(), "handled=48") })
}

// privateFolder expects that nobody else may read what a program gets.
func privateFolder(t *testing.T, temporary string) {
	t.Helper()
	found := 0
	err := filepath.WalkDir(temporary, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil && path != temporary && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has the mode %s", path, info.Mode())
		}
		if entry.Name() == "uri" || entry.Name() == "config.json" {
			found++
		}
		return err
	})
	if err != nil || found != 2 {
		t.Errorf("%d files of the program were found: %v", found, err)
	}
}

func TestRun_LosesNothingWhenItsProgramIsKilled(t *testing.T) {
	b, temporary := newBench(t), temporary(t)
	var mu sync.Mutex
	reached, hold := make(chan struct{}, 100), true
	handled := map[string]int{}
	run := b.team(t, folder(t, map[string]string{"transport.yaml": inProcessYAML(), "policy.yaml": policyYAML}),
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			mu.Lock()
			held := hold
			mu.Unlock()
			reached <- struct{}{}
			if held {
				<-r.Context().Done() // until the program is killed
				return
			}
			mu.Lock()
			handled[r.Header.Get("Redrive-Message-Id")]++
			mu.Unlock()
		}))
	broker := testtransport.Connect(t, b.direct)
	const messages = 30
	publish(broker, "test", 1, messages)
	<-reached
	mu.Lock()
	hold = false
	mu.Unlock()
	if err := syscall.Kill(run.programs(false)[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testtransport.Eventually(t, "all messages to be handled", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(handled) == messages
	})
	if n := len(run.programs(true)); n != 1 {
		t.Errorf("%d processes ran for quarantined messages, want 1", n)
	}
	if !run.logged("the worker's program ended by itself and is started again")() || !run.logged(`exit="killed by SIGKILL"`)() {
		t.Error("the log does not say how the program ended")
	}
	if failed := broker.Ready("async.failed"); failed > 0 {
		t.Errorf("%d messages failed", failed)
	}
	run.stop(t)
	isGone(t, append(run.programs(false), run.programs(true)...), temporary)
}

func TestRun_ConvictsOnlyTheMessageThatKillsItsProgram(t *testing.T) {
	b, temporary := newBench(t), temporary(t)
	p := &partner{attempts: map[string]int{}, handled: map[string]int{}}
	run := b.team(t, folder(t, map[string]string{"transport.yaml": inProcessYAML(), "policy.yaml": policyYAML}),
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Redrive-Message-Id") == "deadly" {
				w.WriteHeader(deadly)
				return
			}
			p.ServeHTTP(w, r)
		}))
	broker := testtransport.Connect(t, b.direct)
	publish(broker, "test", 1, 4)
	broker.Publish("async", "test", amqp091.Publishing{MessageId: "deadly"})
	publish(broker, "test", 8, 13)
	failed := broker.TakeAll("async.failed")
	testtransport.Eventually(t, "the message to be given up", func() bool {
		failed = append(failed, broker.TakeAll("async.failed")...)
		return len(failed) > 0
	})
	if got := failed[0]; got.MessageId != "deadly" || got.Headers["redrive-reason"] != "PoisonCrash" || got.Headers["redrive-crash-exit"] != "exit status 9" {
		t.Errorf("%s failed with %v", got.MessageId, got.Headers)
	}
	testtransport.Eventually(t, "all others to be handled", func() bool { return p.count() == 10 })
	run.stop(t)
	if failed = append(failed, broker.TakeAll("async.failed")...); len(failed) != 1 {
		t.Errorf("%d messages failed, want one", len(failed))
	}
	isGone(t, append(run.programs(false), run.programs(true)...), temporary)
}

func TestRun_WaitsForAProgramAtWorkAfterCtrlC(t *testing.T) {
	b, temporary := newBench(t), temporary(t)
	reached, release := make(chan struct{}), make(chan struct{})
	run := b.team(t, folder(t, map[string]string{"transport.yaml": inProcessYAML(), "policy.yaml": policyYAML}),
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			reached <- struct{}{}
			<-release
		}))
	broker := testtransport.Connect(t, b.direct)
	publish(broker, "test", 1, 1)
	<-reached
	run.signals <- nil
	run.await(t, "draining; a second Ctrl-C stops at once")
	select {
	case code := <-run.code:
		t.Fatalf("it has not waited for the handler: exit code %d", code)
	default:
	}
	close(release)
	if code := <-run.code; code != exitOK {
		t.Errorf("exit code %d: %s", code, run.log.String())
	}
	if ready := broker.Ready("test") + broker.Ready("async.failed") + broker.Ready("test.quarantine"); ready > 0 {
		t.Errorf("%d messages are left", ready)
	}
	isGone(t, run.programs(false), temporary)
}

func TestRun_KillsItsProgramAtASecondCtrlC(t *testing.T) {
	b, temporary := newBench(t), temporary(t)
	reached := make(chan struct{})
	run := b.team(t, folder(t, map[string]string{"transport.yaml": inProcessYAML(), "policy.yaml": policyYAML}),
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			reached <- struct{}{}
			<-r.Context().Done()
		}))
	broker := testtransport.Connect(t, b.direct)
	publish(broker, "test", 1, 1)
	<-reached
	run.signals <- nil
	run.await(t, "draining")
	<-time.After(oneCtrlC)
	run.signals <- nil
	if code := <-run.code; code != exitError || !run.logged("the broker delivers the rest again")() {
		t.Errorf("exit code %d: %s", code, run.log.String())
	}
	testtransport.Eventually(t, "the message to be back", func() bool { return broker.Ready("test") == 1 })
	for _, id := range run.programs(false) {
		testtransport.Eventually(t, "the program to be gone", func() bool { return errors.Is(syscall.Kill(-id, 0), syscall.ESRCH) })
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

func TestRun_StopsGoRunCleanly(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const example = "../../docs/examples/go-library"
	broker := testtransport.Connect(t, b.direct)
	run := b.start(t, "run", "-f", example, "--", "go", "run", example)
	run.await(t, "as it should be")
	for id, body := range map[string]string{"stored": `{"customer": "Ada"}`, "late": `{"customer": "Grace", "busy": true}`, "no JSON": `no JSON`} {
		broker.Publish("orders", "orders", amqp091.Publishing{MessageId: id, Body: []byte(body)})
	}
	testtransport.Eventually(t, "all orders", func() bool { return strings.Contains(run.out.String(), "handled=2 retried=1 failed=1") })
	if failed := broker.Take("orders.failed"); failed.MessageId != "no JSON" || failed.Headers["redrive-error-class"] != "json.SyntaxError" {
		t.Errorf("%s failed with %v", failed.MessageId, failed.Headers)
	}
	run.stop(t)
	if !run.logged(`"msg":"worker stopped"`)() {
		t.Error("the program was not asked to stop, or not waited for")
	}
	for _, id := range run.programs(false) {
		if err := syscall.Kill(-id, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("of the group %d something is left: %v", id, err)
		}
	}
}

func TestRun_ShowsAProgramThatDoesNotRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := folder(t, map[string]string{"transport.yaml": inProcessYAML(), "policy.yaml": policyYAML})
	run := b.start(t, "run", "-f", dir, "--", "sh", "-c", "echo cannot go on >&2; exit 3")
	run.await(t, "cannot go on")
	run.await(t, `exit="exit status 3"`)
	testtransport.Eventually(t, "the table to say so", func() bool {
		return strings.Contains(run.out.String(), "; worker default: its program does not run: exit status 3")
	})
	run.stop(t)
}

func TestRun_SaysWhatToDoWithoutTheProgramThatItNeeds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := folder(t, map[string]string{"transport.yaml": inProcessYAML(), "policy.yaml": policyYAML})
	tests := map[string]struct {
		args []string
		want string
	}{
		"none": {
			nil, fmt.Sprintf("%s/transport.yaml:1: Transport default/async: the handler of worker default is inProcess, and so a Go program "+
				"is the worker: add it to the command line, such as redrive run -f DIR -- go run ./cmd/orders", dir),
		},
		"nothing after the dashes":      {[]string{"--"}, "there is no program after --"},
		"one that does not exist":       {[]string{"--", "./no-such-program"}, "the program after --: ./no-such-program does not exist"},
		"one that is not in the PATH":   {[]string{"--", "no-such-program"}, `the program after --: there is no program "no-such-program" in PATH`},
		"an argument before the dashes": {[]string{"worker", "--", "true"}, `unknown command "worker" for "redrive run"`},
		"an argument without dashes":    {[]string{"worker"}, `unknown command "worker" for "redrive run"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			code, _, errs := b.command(t, "", append([]string{"run", "-f", dir}, tt.args...)...)
			if code != exitError || !strings.Contains(errs, tt.want) {
				t.Errorf("exit code %d: %s", code, errs)
			}
		})
	}
}
