package worker_test

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/worker"
)

// The files are what earlier operators wrote. During an upgrade, and where it was taken back in part, a worker meets them.
func TestNew_TakesTheConfigurationOfAnEarlierOperator(t *testing.T) {
	for version := 1; version < compile.Version; version++ {
		t.Run(strconv.Itoa(version), func(t *testing.T) {
			path := filepath.Join("..", "compile", "testdata", fmt.Sprintf("version-%d.json", version))
			config, err := worker.ReadConfig(path)
			if err != nil {
				t.Fatal(err)
			}
			if config.Version != version {
				t.Fatalf("it is of version %d", config.Version)
			}
			w, err := worker.New(worker.Options{
				Config:   config,
				Source:   func() (amqp.Target, error) { return amqp.Target{}, errors.New("no broker is needed") },
				Handlers: newHandler,
				Now:      time.Now, Rand: worker.Random{}, Metrics: worker.NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			if w.ConfigHash() == "" || len(config.Queues) == 0 || config.Handler.HTTP == nil {
				t.Errorf("it runs with %+v", config)
			}
		})
	}
}
