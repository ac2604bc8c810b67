package worker_test

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/worker"
)

// While another image rolls out, the pods of the one before see the configuration for the next: its command may not be in
// their image, and every message would fail.
func TestAConfigurationForAnotherImageKeepsTheHandler(t *testing.T) {
	config := func(image, command string, delay time.Duration) compile.Config {
		transport := testtransport.New("http://127.0.0.1:1/")
		transport.Spec.Workers[0].Handler = v1alpha1.Handler{Image: &image, Exec: &v1alpha1.ExecHandler{Command: []string{command}}}
		return testtransport.Compile(t, transport, testtransport.Explicit(delay)).Workers[0]
	}
	for image, want := range map[string][]string{
		"shop:v1": {"one", "two", "four"},
		"shop:v2": {"one", "three"}, // what it starts with is better than nothing
		"":        {"one", "two", "three", "four"},
	} {
		t.Run("image "+image, func(t *testing.T) {
			var made []string
			w, err := worker.New(worker.Options{
				Config: config("shop:v1", "one", time.Second),
				Source: func() (amqp.Target, error) { return amqp.Target{}, errors.New("no broker is needed") },
				Handlers: func(spec v1alpha1.Handler, _ int) (handler.Handler, error) {
					made = append(made, spec.Exec.Command[0])
					return newProgram(), nil
				},
				Now: time.Now, Rand: worker.Random{}, Metrics: worker.NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
				Image: image,
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, next := range []compile.Config{
				config("shop:v1", "two", time.Second), config("shop:v2", "three", 2*time.Second), config("shop:v1", "four", time.Second),
			} {
				if err := w.Reload(next); err != nil {
					t.Fatal(err)
				}
				if data, err := compile.Encode(next); err != nil || w.ConfigHash() != compile.Hash(data) {
					t.Errorf("the rest of the configuration is not in force: %v", err)
				}
			}
			if !slices.Equal(made, want) {
				t.Errorf("the handlers were %v, want %v", made, want)
			}
		})
	}
}
