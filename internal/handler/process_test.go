package handler_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// awaitReady waits until a handler is ready, as the worker does.
func awaitReady(t testing.TB, h handler.Handler) {
	t.Helper()
	deadline := time.After(patience)
	for {
		why, changed := h.Ready()
		if why == nil {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("not ready: %v", why)
		}
	}
}

// awaitTrouble waits until a handler is not ready for a reason with each of the words.
func awaitTrouble(t testing.TB, h handler.Handler, words ...string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		why, changed := h.Ready()
		if why != nil && containsAll(why.Error(), words) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("it says %v, not %q", why, words)
		}
	}
}

func containsAll(text string, words []string) bool {
	for _, word := range words {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// give hands over a message whose body is a script, as the worker does.
func give(t testing.TB, h handler.Handler, timeout time.Duration, commands ...string) *retry.Failure {
	t.Helper()
	awaitReady(t, h)
	ctx, cancel := handler.WithTimeout(t.Context(), timeout, patience)
	defer cancel()
	return h.Handle(ctx, handler.Request{ID: "m-1", Body: []byte(script(commands...))})
}

// pidOf is the process that gets the next message.
func pidOf(t testing.TB, h handler.Handler) int {
	t.Helper()
	failure := give(t, h, patience, "pid")
	if failure == nil || failure.Status == 0 {
		t.Fatalf("got %+v", failure)
	}
	return failure.Status
}

// exits is how many processes ended for a reason.
func exits(registry *prometheus.Registry, reason string) float64 {
	return sample(registry, "redrive_handler_process_exits_total", "reason", reason)
}

func starts(registry *prometheus.Registry) float64 {
	return sample(registry, "redrive_handler_process_starts_total", "", "")
}

func sample(registry *prometheus.Registry, name, label, value string) float64 {
	families, err := registry.Gather()
	if err != nil {
		panic(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			labels := metric.GetLabel()
			if label == "" || len(labels) > 0 && labels[0].GetName() == label && labels[0].GetValue() == value {
				return metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
			}
		}
	}
	return 0
}

func TestProcess_FailsClearlyAndHandlesTheNext(t *testing.T) {
	t.Parallel()
	const long, brief = patience, 2 * time.Second
	cases := map[string]struct {
		script  []string
		timeout time.Duration
		source  retry.Source
		class   string
		status  int
		text    string
		exit    string
	}{
		"it exits":                      {[]string{"complain out of luck", "exit 3"}, long, retry.SourceCrash, "ExitStatus", 3, "exit status 3; its standard error: out of luck", "crashed"},
		"it exits with 0":               {[]string{"exit 0"}, long, retry.SourceCrash, "ExitStatus", 0, "exit status 0", "crashed"},
		"it is killed by a signal":      {[]string{"signal 9"}, long, retry.SourceCrash, "SIGKILL", 137, "killed by SIGKILL", "crashed"},
		"it forks away":                 {[]string{"fork", "exit 0"}, long, retry.SourceCrash, "ExitStatus", 0, "exit status 0", "crashed"},
		"it forks away from its group":  {[]string{"fork away", "exit 0"}, long, retry.SourceCrash, "ExitStatus", 0, "exit status 0", "crashed"},
		"it writes a gigabyte":          {[]string{"flood stdout", "ack"}, long, retry.SourceHandler, "MalformedResponse", 0, `a line of more than 1048576 bytes, which begins with "flood flood`, "protocol"},
		"it writes a gigabyte of lines": {[]string{"flood stdout lines", "ack"}, long, retry.SourceHandler, "MalformedResponse", 0, `more than 1048576 bytes that are no frame, the last of them "flood"`, "protocol"},
		"it closes its stdout":          {[]string{"close stdout", "hang"}, long, retry.SourceCrash, "OutputClosed", 0, "closed its standard output", "protocol"},
		"it answers with another id":    {[]string{`say {"type":"result","id":"99","outcome":"ack"}`}, long, retry.SourceHandler, "MalformedResponse", 0, "a result for the message 99, which it was never given", "protocol"},
		"it answers with no number":     {[]string{`say {"type":"result","id":"mine","outcome":"ack"}`}, long, retry.SourceHandler, "MalformedResponse", 0, `has the id "\"mine\"", which it was not given`, "protocol"},
		"it answers without an id":      {[]string{`say {"type":"result","outcome":"ack"}`}, long, retry.SourceHandler, "MalformedResponse", 0, "has the id (none)", "protocol"},
		"it says hello again":           {[]string{"say " + hello}, long, retry.SourceHandler, "MalformedResponse", 0, "said hello twice", "protocol"},
		"it answers garbage":            {[]string{"say <b>Warning</b>: no flour"}, brief, retry.SourceTimeout, "Timeout", 0, `"<b>Warning</b>: no flour"`, "timeout"},
		"it answers half a frame":       {[]string{`say {"type":"result","id":"$ID","outcome":`}, long, retry.SourceHandler, "MalformedResponse", 0, "a result is no JSON", "protocol"},
		"its answer nests deeply":       {[]string{`say {"type":"result","id":"$ID","outcome":"ack","x":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + "}"}, long, retry.SourceHandler, "MalformedResponse", 0, "a result is no JSON", "protocol"},
		"it never answers":              {[]string{"hang"}, brief, retry.SourceTimeout, "Timeout", 0, "no answer in time", "timeout"},
		"its answer has no outcome":     {[]string{`say {"type":"result","id":"$ID"}`}, long, retry.SourceHandler, "MalformedResponse", 0, "outcome", ""},
		"its answer has a wrong type":   {[]string{`say {"type":"result","id":"$ID","outcome":"failure","status":"bad"}`}, long, retry.SourceHandler, "MalformedResponse", 0, "status cannot be a JSON string", ""},
		"its answer is not UTF-8":       {[]string{`say {"type":"result","id":"$ID","outcome":"failure","class":"X","message":"caf\xff\xfe."}`}, long, retry.SourceHandler, "X", 0, "caf??.", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry := prometheus.NewRegistry()
			p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello)}, handler.Options{Metrics: registry})
			got := give(t, p, c.timeout, c.script...)
			if got == nil || got.Source != c.source || got.Class != c.class || got.Status != c.status || !strings.Contains(got.Message, c.text) {
				t.Errorf("got  %+v\nwant %s %s %d %q", got, c.source, c.class, c.status, c.text)
			}
			if got := give(t, p, patience, "ack"); got != nil {
				t.Errorf("the next one: got %+v", got)
			}
			if c.exit != "" {
				eventually(t, "the exit is counted", func() bool { return exits(registry, c.exit) == 1 })
			}
		})
	}
}

func TestProcess_MayWriteMoreBesideItsAnswer(t *testing.T) {
	t.Parallel()
	cases := map[string][]string{
		"it answers twice":                          {"ack", "ack"},
		"it answers twice, differently":             {"ack", `say {"type":"result","id":"$ID","outcome":"failure"}`},
		"it reports progress after its answer":      {"ack", `say {"type":"progress","id":"$ID"}`},
		"it prints before its answer":               {"say Notice: undefined variable", "say ", "ack"},
		"it logs objects to its standard output":    {`say {"level":"info","msg":"working"}`, "say [1]", "say 17", "ack"},
		"it writes a frame of another version":      {`say {"type":"metrics","id":"1"}`, "ack"},
		"it answers with spaces and unknown fields": {`say  { "outcome" : "ack" , "took": {"ms":[1]}, "id" : "$ID" , "type":"result" } `},
		"its id is a number":                        {`say {"type":"result","id":$ID,"outcome":"ack"}`},
		"it writes a gigabyte to its stderr":        {"flood stderr", "ack"},
		"it writes lines to its stderr":             {"flood stderr lines", "ack"},
	}
	for name, commands := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello)}, handler.Options{})
			before := pidOf(t, p)
			for range 2 {
				if got := give(t, p, patience, commands...); got != nil {
					t.Errorf("got %+v", got)
				}
			}
			if after := pidOf(t, p); after != before {
				t.Errorf("process %d was replaced by %d", before, after)
			}
		})
	}
}

func TestProcess_IsNotReadyAndSaysWhyItDoesNotStart(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	plain := filepath.Join(t.TempDir(), "plain")
	touch(plain)
	brief := &v1alpha1.Duration{}
	brief.Duration.Duration = 3 * time.Second
	cases := map[string]struct {
		command []string
		words   []string
	}{
		"it does not exist":            {[]string{missing}, []string{"cannot be started", missing, "does not exist"}},
		"it is not executable":         {[]string{plain}, []string{"cannot be started", plain, "may not be executed"}},
		"it exits before its hello":    {scripted("complain no database", "exit 7"), []string{"exit status 7, before it said hello", "its standard error: no database"}},
		"it is killed before":          {scripted("signal 15"), []string{"killed by SIGTERM", "before it said hello"}},
		"it says hello too late":       {scripted("complain loading", "hang"), []string{"did not say hello within 3s", "loading"}},
		"it says something else":       {scripted("say Hello, world", "hang"), []string{"did not say hello within 3s", `"Hello, world"`}},
		"it writes a gigabyte instead": {scripted("flood stdout", "hang"), []string{"a line of more than 1048576 bytes"}},
		"it speaks another protocol":   {scripted(`say {"type":"hello","protocol":2}`, "hang"), []string{`its hello is of protocol "2"; this worker speaks protocol 1`}},
		"it says no protocol":          {scripted(`say {"type":"hello"}`, "hang"), []string{"its hello is of protocol (none)"}},
		"its concurrency is a text":    {scripted(`say {"type":"hello","protocol":1,"concurrency":"four"}`, "hang"), []string{`has the concurrency "\"four\"", which is no number`}},
		"it answers before its hello":  {scripted(`say {"type":"result","id":"1","outcome":"ack"}`, "hang"), []string{"wrote a result before its hello"}},
		"it closes its stdout":         {scripted("close stdout", "hang"), []string{"closed its standard output", "before it said hello"}},
		"it forks away":                {scripted("fork", "exit 0"), []string{"exit status 0, before it said hello"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := v1alpha1.ProcessHandler{Command: c.command}
			if strings.Contains(c.words[0], "3s") {
				spec.StartTimeout = brief
			}
			p := startProcess(t, spec, handler.Options{})
			awaitTrouble(t, p, c.words...)
		})
	}
}

func TestProcess_CountsNoAttemptWhereItNeverStarts(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("complain no database", "exit 7")}, handler.Options{})
	awaitTrouble(t, p, "no database")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	got := p.Handle(ctx, handler.Request{})
	if got == nil || got.Class != handler.ClassNotBegun || !strings.Contains(got.Message, "no database") {
		t.Errorf("got %+v", got)
	}
}

func TestProcess_IsTriedAgainWithPausesUntilItStarts(t *testing.T) {
	t.Parallel()
	database := filepath.Join(t.TempDir(), "database")
	command := []string{"sh", "-c", fmt.Sprintf(`test -e %q || exit 7; echo '%s'; exec cat >/dev/null`, database, hello)}
	registry := prometheus.NewRegistry()
	began := time.Now()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: command}, handler.Options{Metrics: registry})
	eventually(t, "it is started three times", func() bool { return starts(registry) >= 3 })
	if took := time.Since(began); took < 2400*time.Millisecond { // 1 s and 2 s, less a fifth of each
		t.Errorf("three starts within %s", took)
	}
	touch(database)
	awaitReady(t, p)
	if idle := sample(registry, "redrive_handler_processes", "state", "idle"); idle != 1 {
		t.Errorf("%v idle processes", idle)
	}
}

func TestProcess_TakesAnyNumberForConcurrencyInItsHello(t *testing.T) {
	t.Parallel()
	for _, number := range []string{"0", "-1", "1e9", "1e999", "-1e999", "1.5", "null", "123456789012345678901234567890"} {
		t.Run(number, func(t *testing.T) {
			t.Parallel()
			p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted(`say {"type":"hello","protocol":1,"concurrency":` + number + `}`)}, handler.Options{})
			var calls sync.WaitGroup
			for range 8 {
				calls.Go(func() {
					if got := give(t, p, patience, "ack"); got != nil {
						t.Errorf("got %+v", got)
					}
				})
			}
			calls.Wait()
		})
	}
}

func TestProcess_GoesOnWithTheMetricsOfTheOneBefore(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	spec := v1alpha1.ProcessHandler{Command: scripted("say " + hello)}
	first, err := handler.NewProcess(spec, handler.Options{Metrics: registry, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	awaitReady(t, first)
	second := startProcess(t, spec, handler.Options{Metrics: registry})
	awaitReady(t, second)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if got := starts(registry); got != 2 {
		t.Errorf("%v starts", got)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	for _, state := range []string{"starting", "idle", "busy", "stopping"} {
		if got := sample(registry, "redrive_handler_processes", "state", state); got != 0 {
			t.Errorf("%v %s processes when all have ended", got, state)
		}
	}
	if got := exits(registry, "stopped"); got != 2 {
		t.Errorf("%v were stopped", got)
	}
}

// Nothing else would end a process that writes of messages which it has answered, and it takes a processor of the worker.
func TestProcess_IsKilledWhereItRepeatsItsAnswerWithoutEnd(t *testing.T) {
	t.Parallel()
	p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello)}, handler.Options{})
	if got := give(t, p, patience, "ack"); got != nil {
		t.Fatalf("the first message: %+v", got)
	}
	if got := give(t, p, patience, "repeat 1000", "ack"); got != nil {
		t.Errorf("some answers too many: %+v", got)
	}
	got := give(t, p, patience, "repeat 100000", "hang")
	if got == nil || got.Class != handler.ClassMalformedResponse || !strings.Contains(got.Message, "about messages that it had answered") {
		t.Errorf("got %+v", got)
	}
}
