package worker_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/worker"
)

func files(t *testing.T, dir string, content map[string]string) {
	t.Helper()
	for name, text := range content {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLogin_KeepsTheOneBeforeASpoiltOne(t *testing.T) {
	dir := t.TempDir()
	login := worker.NewLogin(dir, "shop")
	if _, err := login.Target(); err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "keys host (or uri), username, password: missing") {
		t.Errorf("an empty folder: %v", err)
	}
	files(t, dir, map[string]string{"host": "rabbit", "username": "u", "password": "first"})
	for _, change := range []struct {
		name, password string
		do             func()
	}{
		{"what comes later is read", "first", func() {}},
		{"what changes is read", "second", func() { files(t, dir, map[string]string{"password": "second"}) }},
		{"what is spoilt is not", "second", func() { files(t, dir, map[string]string{"password": "third", "port": "none"}) }},
		{"what is gone is remembered", "second", func() {
			for _, name := range []string{"host", "port", "username", "password"} {
				_ = os.Remove(filepath.Join(dir, name))
			}
		}},
	} {
		change.do()
		target, err := login.Target()
		if err != nil || target.Password != change.password || target.VHost != "shop" || target.Address != "rabbit:5672" {
			t.Errorf("%s: got %s at %s, %v", change.name, target.Password, target.Address, err)
		}
	}
}

// ready is the answer of /readyz.
func ready(t *testing.T, w *worker.Worker) (status int, text string) {
	t.Helper()
	recorder := httptest.NewRecorder()
	w.Endpoints(prometheus.NewRegistry()).ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/readyz", http.NoBody))
	body, err := io.ReadAll(recorder.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return recorder.Code, string(body)
}

func TestReady_TellsWhyThereIsNoSession(t *testing.T) {
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), nil)
	r.use(func(target *amqp.Target) { target.Password = "not-the-password" })
	r.worker.Renew()
	testtransport.Eventually(t, "the refusal to be told of while the sessions stand", func() bool {
		status, text := ready(t, r.worker)
		return status == http.StatusOK && strings.Contains(text, "failed to switch to the new credentials") && strings.Contains(text, "not allowed") &&
			value(t, r.registry, "redrive_credential_rotation_failed") == 1
	})
	r.proxy.Cut()
	testtransport.Eventually(t, "the refusal to be the reason", func() bool {
		status, text := ready(t, r.worker)
		return status == http.StatusServiceUnavailable && strings.Contains(text, "not allowed")
	})
	if _, text := ready(t, r.worker); strings.Contains(text, "not-the-password") {
		t.Error("the password is shown")
	}
	r.use(func(target *amqp.Target) { target.Password = r.password })
	r.worker.Renew()
	testtransport.Eventually(t, "the sessions", func() bool { status, _ := ready(t, r.worker); return status == http.StatusOK })
}
