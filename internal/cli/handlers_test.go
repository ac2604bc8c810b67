package cli

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/local"
	"redrive.dev/redrive/internal/testtransport"
)

// guarded is an http server that lets in who has the right Authorization, and remembers who came with which.
type guarded struct {
	mu    sync.Mutex
	seen  map[string][]string
	wants string
}

func (g *guarded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := r.Header.Get("Redrive-Message-Id")
	g.seen[id] = append(g.seen[id], r.Header.Get("Authorization"))
	if r.Header.Get("Authorization") != g.wants {
		w.WriteHeader(http.StatusUnauthorized)
	}
}

const secretYAML = `apiVersion: v1
kind: Secret
metadata: {name: partner}
stringData:
  Authorization: Bearer first-s3cret
---
apiVersion: v1
kind: Secret
metadata: {name: trust}
stringData:
  partner.pem: |
`

func TestRun_GivesAnHTTPHandlerItsSecrets(t *testing.T) {
	b, temporary := newBench(t), temporary(t)
	g := &guarded{seen: map[string][]string{}, wants: "Bearer first-s3cret"}
	server := httptest.NewTLSServer(g)
	defer server.Close()
	transport := strings.Replace(transportYAML, `{http: {url: "http://127.0.0.1:1/messages"}}`,
		`{http: {url: "`+server.URL+`", headersSecretRef: {name: partner}, tls: {caSecretRef: {name: trust, key: partner.pem}}}}`, 1)
	secrets := secretYAML + indented(server.Certificate())
	dir := folder(t, map[string]string{"transport.yaml": transport, "policy.yaml": policyYAML, "secret.yaml": secrets})
	run := b.start(t, "run", "-f", dir)
	run.await(t, "as it should be")
	broker := testtransport.Connect(t, b.direct)
	publish(broker, "test", 1, 1)
	testtransport.Eventually(t, "the message to be handled", func() bool { return strings.Contains(run.out.String(), "handled=1 retried=0 failed=0") })

	t.Run("in the quarantine process too", func(t *testing.T) {
		broker.Publish("async.return", "test.quarantine", amqp091.Publishing{MessageId: "quarantine"})
		testtransport.Eventually(t, "the quarantined message to be handled", func() bool { return strings.Contains(run.out.String(), "handled=2 retried=0 failed=0") })
	})
	t.Run("and changed ones without a restart", func(t *testing.T) {
		g.mu.Lock()
		g.wants = "Bearer second-s3cret"
		g.mu.Unlock()
		put(t, dir, "secret.yaml", strings.Replace(secrets, "first", "second", 1))
		run.await(t, "changed files taken over")
		n := 0
		testtransport.Eventually(t, "the new one to be used", func() bool {
			n++
			publish(broker, "test", 100+n, 100+n)
			g.mu.Lock()
			defer g.mu.Unlock()
			for _, seen := range g.seen {
				if seen[len(seen)-1] == g.wants {
					return true
				}
			}
			return false
		})
	})
	t.Run("and none shows", func(t *testing.T) {
		_, plan, errs := b.command(t, "", "plan", "-f", dir, "-o", "json")
		_, text, errs2 := b.command(t, "", "plan", "-f", dir)
		for what, shown := range map[string]string{"the plan": plan + text + errs + errs2, "the log": run.log.String(), "the table": run.out.String()} {
			if strings.Contains(shown, "s3cret") || strings.Contains(shown, "CERTIFICATE") {
				t.Errorf("%s shows it", what)
			}
		}
	})
	run.stop(t)
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

// indented is a certificate in PEM as a block of YAML.
func indented(certificate *x509.Certificate) string {
	text := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw}))
	return "    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ") + "\n"
}

func TestRun_SaysWhichSecretIsMissing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	transport := strings.Replace(transportYAML, `"http://127.0.0.1:1/messages"`, `"https://127.0.0.1:1/", headersSecretRef: {name: gone}`, 1)
	transport += `  - {name: second, queues: [test], handler: {http: {url: "https://127.0.0.1:1/", tls: {caSecretRef: {name: partner, key: no.pem}}}}}` + "\n"
	transport = strings.Replace(transport, "queues: [{name: test, bindingKeys: [test]}]", "queues: [{name: test, bindingKeys: [test]}, {name: more}]", 1)
	transport = strings.Replace(transport, "name: default,", "name: default, queues: [more],", 1)
	dir := folder(t, map[string]string{"transport.yaml": transport, "policy.yaml": policyYAML, "secret.yaml": secretYAML + "    none\n"})
	code, _, errs := b.command(t, "", "run", "-f", dir)
	for _, want := range []string{
		"Transport default/async: spec.workers[0].handler.http.headersSecretRef: Secret default/gone is not in the files: add it to them",
		"Transport default/async: spec.workers[1].handler.http.tls.caSecretRef: Secret default/partner has no key no.pem",
	} {
		if code != exitError || !strings.Contains(errs, want) {
			t.Errorf("exit code %d: %s\nwant %s", code, errs, want)
		}
	}
}

func TestRun_RunsCommandsFromTheWorkingDirectory(t *testing.T) {
	b := newBench(t)
	t.Chdir(t.TempDir())
	script := func(name, text string) {
		if err := os.WriteFile(name, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	script("once.sh", `echo "$REDRIVE_MESSAGE_ID" >> once.txt`)
	script("stays.sh", `echo '{"type":"hello","protocol":1,"concurrency":1}'
while read -r line; do
	id=$(echo "$line" | sed 's/.*"type":"message","id":"\([^"]*\)".*/\1/')
	echo "$line" >> stays.txt
	echo "{\"type\":\"result\",\"id\":\"$id\",\"outcome\":\"ack\"}"
done`)
	transport := strings.Replace(transportYAML, "queues: [{name: test, bindingKeys: [test]}]",
		"queues: [{name: test, bindingKeys: [test]}, {name: more, bindingKeys: [more]}]", 1)
	transport = strings.Replace(transport, `name: default, timeout: 5s, handler: {http: {url: "http://127.0.0.1:1/messages"}}`,
		`name: once, queues: [test], timeout: 5s, handler: {image: team, exec: {command: [./once.sh]}}`, 1)
	transport += "  - {name: stays, queues: [more], timeout: 5s, handler: {image: team, process: {command: [./stays.sh]}}}\n"
	run := b.start(t, "run", "-f", folder(t, map[string]string{"transport.yaml": transport, "policy.yaml": policyYAML}))
	run.await(t, "as it should be")
	broker := testtransport.Connect(t, b.direct)
	publish(broker, "test", 1, 1)
	publish(broker, "more", 2, 2)
	broker.Publish("async.return", "test.quarantine", amqp091.Publishing{MessageId: "m-3"})
	broker.Publish("async.return", "more.quarantine", amqp091.Publishing{MessageId: "m-4"})
	testtransport.Eventually(t, "both to be handled, and a quarantined message of each", func() bool {
		return strings.Contains(run.out.String(), "test ready=0 handled=2 retried=0 failed=0; more ready=0 handled=2 retried=0 failed=0")
	})
	run.stop(t)
	for file, want := range map[string][]string{"once.txt": {"m-1", "m-3"}, "stays.txt": {"m-2", "m-4"}} {
		text, err := os.ReadFile(file)
		for _, id := range want {
			if err != nil || !strings.Contains(string(text), id) {
				t.Errorf("%s holds %q, %v; want %s", file, text, err, id)
			}
		}
	}
}

func TestRun_KeepsItsLoginFromCommands(t *testing.T) {
	b := newBench(t)
	t.Setenv(local.EnvAMQP, b.amqpURL)
	t.Setenv(local.EnvManagement, b.management)
	t.Setenv("KEPT", "as it is")
	seen := t.TempDir()
	tell := func(file string) string { return "env > " + file + ".part; mv " + file + ".part " + file }
	once, stays := filepath.Join(seen, "once"), filepath.Join(seen, "stays")
	transport := strings.Replace(transportYAML, `name: default, timeout: 5s, handler: {http: {url: "http://127.0.0.1:1/messages"}}`,
		`name: once, queues: [test], timeout: 5s, handler: {image: team, exec: {command: [sh, -c, '`+tell(once)+`']}}`, 1)
	transport = strings.Replace(transport, "queues: [{name: test, bindingKeys: [test]}]",
		"queues: [{name: test, bindingKeys: [test]}, {name: more, bindingKeys: [more]}]", 1)
	transport += "  - {name: stays, queues: [more], timeout: 5s, handler: {image: team, process: {command: [sh, -c, '" + tell(stays) + "; cat']}}}\n"
	run := b.start(t, "run", "-f", folder(t, map[string]string{"transport.yaml": transport, "policy.yaml": policyYAML}))
	run.await(t, "as it should be")
	publish(testtransport.Connect(t, b.direct), "test", 1, 1)
	for _, file := range []string{once, stays} {
		var text []byte
		testtransport.Eventually(t, "the command's environment", func() bool {
			text, _ = os.ReadFile(file)
			return strings.Contains(string(text), "KEPT=as it is")
		})
		if strings.Contains(string(text), local.EnvAMQP) || strings.Contains(string(text), local.EnvManagement) {
			t.Errorf("the login is in the environment of %s", filepath.Base(file))
		}
	}
	run.stop(t)
}

func TestRun_LeavesNoProgramBehindWhenKilled(t *testing.T) {
	b, temporary := newBench(t), temporary(t)
	p := &partner{attempts: map[string]int{}, handled: map[string]int{}}
	server := httptest.NewServer(p)
	defer server.Close()
	dir := folder(t, map[string]string{"transport.yaml": inProcessYAML(), "policy.yaml": policyYAML})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := &started{}
	// A shell stands between them, as `go run` does.
	command := exec.CommandContext(t.Context(), self, "run", "-f", dir, "--", "sh", "-c", `"$0" "$@"; exit $?`, self)
	command.Env = append(os.Environ(), partnerVariable+"="+server.URL, "AMQP_URL="+b.amqpURL, "MANAGEMENT_URL="+b.management)
	command.Stdout, command.Stderr = &run.out, &run.log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	broker := testtransport.Connect(t, b.direct)
	run.await(t, "as it should be")
	publish(broker, "test", 1, 1)
	testtransport.Eventually(t, "a message to be handled", func() bool { return p.count() == 1 })
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait()
	for _, id := range run.programs(false) {
		testtransport.Eventually(t, "nothing of the program to be left", func() bool { return errors.Is(syscall.Kill(-id, 0), syscall.ESRCH) })
	}
	if left, err := filepath.Glob(filepath.Join(temporary, "redrive-worker-*")); err != nil || len(left) != 1 {
		t.Errorf("the folder of the program is not where it is looked for: %v, %v", left, err)
	}
}
