package worker_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/worker"
)

// mount is a ConfigMap's folder as the kubelet writes it: the file is a link into a folder that is itself a link, and an
// update swaps the latter.
type mount struct {
	t      *testing.T
	folder string
	swaps  int
}

func newMount(t *testing.T, content string) *mount {
	t.Helper()
	m := &mount{t: t, folder: t.TempDir()}
	m.write(content)
	if err := os.Symlink(filepath.Join("..data", "config.json"), m.path()); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *mount) path() string { return filepath.Join(m.folder, "config.json") }

func (m *mount) write(content string) {
	m.t.Helper()
	m.swaps++
	version := strings.Repeat("v", m.swaps)
	next := filepath.Join(m.folder, "..next")
	for _, err := range []error{
		os.Mkdir(filepath.Join(m.folder, version), 0o700),
		os.WriteFile(filepath.Join(m.folder, version, "config.json"), []byte(content), 0o600),
		os.Symlink(version, next),
		os.Rename(next, filepath.Join(m.folder, "..data")),
	} {
		if err != nil {
			m.t.Fatal(err)
		}
	}
}

func encoded(t *testing.T, policy v1alpha1.RetryPolicySpec) string {
	t.Helper()
	data, err := compile.Encode(testtransport.Compile(t, testtransport.New("http://127.0.0.1:1/"), policy).Workers[0])
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// newFollower makes a worker that runs nothing.
func newFollower(t *testing.T, config compile.Config, registry *prometheus.Registry, log slog.Handler) *worker.Worker {
	t.Helper()
	w, err := worker.New(worker.Options{
		Config:   config,
		Source:   func() (amqp.Target, error) { return amqp.Target{}, errors.New("no broker is needed") },
		Handlers: newHandler,
		Now:      time.Now, Rand: worker.Random{}, Metrics: worker.NewMetrics(registry), Log: slog.New(log),
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestFollowConfig_TakesAMountedChangeAndRefusesABrokenOne(t *testing.T) {
	first, second := encoded(t, testtransport.Explicit(time.Second)), encoded(t, testtransport.Explicit(2*time.Second))
	m := newMount(t, first)
	config, err := worker.ReadConfig(m.path())
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	w := newFollower(t, config, registry, slog.DiscardHandler)
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() { w.FollowConfig(ctx, m.path()) })
	defer following.Wait()
	defer cancel()
	hash := func(content string) func() bool {
		return func() bool { return w.ConfigHash() == compile.Hash([]byte(content)) }
	}
	// Once the watch stands, the first change is seen; until then each try is one more chance.
	testtransport.Eventually(t, "the second configuration", func() bool {
		if hash(second)() {
			return true
		}
		m.write(second)
		return false
	})
	broken := func() float64 { return value(t, registry, "redrive_config_errors_total") }
	for _, content := range []string{"{", strings.Replace(second, `"version": 2`, `"version": 99`, 1)} {
		before := broken()
		m.write(content)
		testtransport.Eventually(t, "the refusal", func() bool { return broken() > before })
		if !hash(second)() {
			t.Error("the broken configuration is in force")
		}
	}
	m.write(first)
	testtransport.Eventually(t, "the first configuration again", hash(first))
}

func TestFollowConfig_WorksInAFolderThatCannotBeWatched(t *testing.T) {
	first, second := encoded(t, testtransport.Explicit(time.Second)), encoded(t, testtransport.Explicit(2*time.Second))
	config, err := compile.Decode([]byte(first))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := newFollower(t, config, prometheus.NewRegistry(), slog.NewTextHandler(&log, nil))
		ctx, cancel := context.WithCancel(t.Context())
		var following sync.WaitGroup
		folder := filepath.Join(t.TempDir(), "later") // what is not there cannot be watched
		following.Go(func() { w.FollowConfig(ctx, filepath.Join(folder, "config.json")) })
		synctest.Wait()
		for _, err := range []error{os.Mkdir(folder, 0o700), os.WriteFile(filepath.Join(folder, "config.json"), []byte(second), 0o600)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Minute) // of the clock of this test, which takes no time
		synctest.Wait()
		if w.ConfigHash() != compile.Hash([]byte(second)) {
			t.Error("the changed configuration is not in force")
		}
		cancel()
		following.Wait()
		if text := log.String(); strings.Count(text, "cannot be watched") != 1 || !strings.Contains(text, "fs.inotify.max_user_instances") {
			t.Errorf("the log says: %s", text)
		}
	})
}

// value of a counter or gauge without labels.
func value(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			metric := family.GetMetric()[0]
			return metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
