package cli

import (
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	program "redrive.dev/redrive/handler/run"
	"redrive.dev/redrive/internal/local"
	"redrive.dev/redrive/internal/testtransport"
)

var servedLine = regexp.MustCompile(`are served" listen=(\S+)`)

// served is the address that a run listens on.
func (s *started) served(t *testing.T) string {
	t.Helper()
	s.await(t, "are served")
	return servedLine.FindStringSubmatch(s.log.String())[1]
}

// ask reads a path of a run; it is empty where there is no answer but an error.
func ask(t *testing.T, address, path string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d, %v: %s", path, response.StatusCode, err, body)
	}
	return string(body)
}

// twoGroups are a worker in this process, second, and one that is the team's program, default.
func twoGroups(url string) string {
	text := strings.Replace(inProcessYAML(), "bindingKeys: [test]}", "bindingKeys: [test]}, {name: more, bindingKeys: [more]}", 1)
	text = strings.Replace(text, "name: default,", "name: default, queues: [test],", 1)
	return text + "  - {name: second, queues: [more], handler: {http: {url: \"" + url + "\"}}}\n"
}

func TestRun_ServesMetricsAndStatusOfAllWorkers(t *testing.T) {
	b := newBench(t)
	p := &partner{attempts: map[string]int{}, handled: map[string]int{}}
	server := httptest.NewServer(p)
	defer server.Close()
	dir := folder(t, map[string]string{"transport.yaml": twoGroups(server.URL), "policy.yaml": policyYAML})
	run := b.team(t, dir, p, "--listen", "127.0.0.1:0")
	address := run.served(t)
	broker := testtransport.Connect(t, b.direct)
	publish(broker, "test", 1, 3)
	publish(broker, "more", 7, 9) // 7 is rejected
	for _, want := range []string{
		`redrive_messages_handled_total{namespace="default",outcome="succeeded",queue="test",strategy="",transport="async",worker="default"} 3`,
		`redrive_messages_handled_total{namespace="default",outcome="succeeded",queue="more",strategy="",transport="async",worker="second"} 2`,
		`redrive_messages_handled_total{namespace="default",outcome="failed",queue="more",strategy="rejected",transport="async",worker="second"} 1`,
		`process_start_time_seconds{namespace="default",transport="async",worker="default"} `,
		"\nprocess_start_time_seconds ",
	} {
		testtransport.Eventually(t, want, func() bool { return strings.Contains(ask(t, address, "/metrics"), want) })
	}
	quarantineAreServed(t, broker, address)
	if text := ask(t, address, "/healthz"); text != "ok\n" {
		t.Errorf("/healthz says %q", text)
	}

	var status local.Status
	testtransport.Eventually(t, "the status to know all", func() bool {
		status = local.Status{}
		if err := json.Unmarshal([]byte(ask(t, address, "/status")), &status); err != nil {
			t.Fatal(err)
		}
		return len(status.Transports) == 1 && status.Transports[0].Failures != nil && *status.Transports[0].Failures == 1
	})
	transport := status.Transports[0]
	if transport.Transport != "default/async" || transport.Problem != "" || len(transport.Queues) != 2 ||
		transport.Queues[0].Handled != 3 || transport.Queues[1].Handled != 3 || transport.Queues[1].Failed != 1 || transport.Queues[1].Ready == nil {
		t.Errorf("the status is %+v", transport)
	}
	if len(transport.Workers) != 3 {
		t.Fatalf("workers %+v, want two, and a quarantine process", transport.Workers)
	}
	for i, want := range []string{"default", "second", "second quarantine"} {
		if got := transport.Workers[i]; strings.TrimSpace(got.Worker+" "+got.Process) != want || got.ConfigHash == "" || len(got.Pipeline) == 0 {
			t.Errorf("worker %d is %+v, want %s", i, got, want)
		}
	}
	if strings.Contains(ask(t, address, "/status"), "guest:") {
		t.Error("the status holds a login")
	}
	run.stop(t)
	if connection, err := net.Dial("tcp", address); err == nil {
		_ = connection.Close()
		t.Error("something listens after the end")
	}
}

// quarantineAreServed lets the worker in this process have a quarantined message: what its other process measures is in the same answer, no series twice.
func quarantineAreServed(t *testing.T, broker *testtransport.Broker, address string) {
	t.Helper()
	broker.Publish("async.return", "more.quarantine", amqp091.Publishing{MessageId: "m-2"})
	const want = `redrive_messages_handled_total{namespace="default",outcome="succeeded",process="quarantine",queue="more",strategy="",transport="async",worker="second"} 1`
	text := ""
	testtransport.Eventually(t, want, func() bool {
		text = ask(t, address, "/metrics")
		return strings.Contains(text, want)
	})
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		series, _, _ := strings.Cut(line, "} ")
		if strings.HasPrefix(line, "redrive_") && seen[series] {
			t.Errorf("twice in one answer: %s", line)
		}
		seen[series] = true
	}
}

func TestRun_ServesWhileItDrains(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	reached, release := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(reached)
		<-release
	}))
	defer server.Close()
	dir := folder(t, map[string]string{"transport.yaml": strings.ReplaceAll(transportYAML, "http://127.0.0.1:1", server.URL), "policy.yaml": policyYAML})
	run := b.start(t, "run", "-f", dir, "--listen", "127.0.0.1:0")
	address := run.served(t)
	run.await(t, "as it should be")
	publish(testtransport.Connect(t, b.direct), "test", 1, 1)
	<-reached
	run.signals <- nil
	run.await(t, "draining")
	testtransport.Eventually(t, "the status to say so", func() bool {
		return strings.Contains(ask(t, address, "/status"), `"problem":"draining"`)
	})
	if text := ask(t, address, "/metrics"); !strings.Contains(text, `redrive_handler_calls_in_flight{namespace="default",queue="test",transport="async",worker="default"} 1`) {
		t.Errorf("the metrics do not show the message in hand:\n%s", text)
	}
	_ = ask(t, address, "/healthz")
	close(release)
	if code := <-run.code; code != exitOK {
		t.Errorf("exit code %d: %s", code, run.log.String())
	}
}

func TestDefaultListen_LeavesTheWorkersPortFree(t *testing.T) {
	t.Parallel()
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	program.Flags(flags)
	_, worker, errWorker := net.SplitHostPort(flags.Lookup("listen").DefValue)
	_, run, errRun := net.SplitHostPort(defaultListen)
	if err := errors.Join(errWorker, errRun); err != nil || worker == run {
		t.Errorf("a worker listens on port %s, redrive run on %s: %v", worker, run, err)
	}
}

func TestListenFlag_RefusesATakenPortOnlyWhereAskedFor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := folder(t, map[string]string{"transport.yaml": transportYAML, "policy.yaml": policyYAML})
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	address := taken.Addr().String()

	code, _, errs := b.command(t, "", "run", "-f", dir, "--listen", address)
	if want := "redrive: --listen: listen tcp " + address + ": bind: address already in use"; code != exitError || !strings.Contains(errs, want) {
		t.Errorf("exit code %d, want %q:\n%s", code, want, errs)
	}
	if b.writes.Load() > 0 {
		t.Error("it wrote to the broker before it found out")
	}

	var log shared
	listener, err := listenFlag{address: address}.open(t.Context(), slog.New(slog.NewTextHandler(&log, nil)))
	if listener != nil || err != nil || !strings.Contains(log.String(), "are not served; --listen chooses another address") ||
		!strings.Contains(log.String(), address) {
		t.Errorf("as the default: %v, %v, and the log does not say that nothing is served:\n%s", listener, err, log.String())
	}
	// Others on this machine may have the default or not.
	run := b.start(t, "run", "-f", dir)
	run.await(t, "as it should be")
	if !strings.Contains(run.log.String(), "/metrics, /status and /healthz are") || !strings.Contains(run.log.String(), defaultListen) {
		t.Errorf("the log does not say what is served where:\n%s", run.log.String())
	}
	run.stop(t)

	run = b.start(t, "run", "-f", dir, "--listen", "")
	run.await(t, "as it should be")
	if strings.Contains(run.log.String(), "served") {
		t.Errorf("it serves although nobody wants it:\n%s", run.log.String())
	}
	run.stop(t)
}
