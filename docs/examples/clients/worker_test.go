// Package clients_test runs the reference clients of the process protocol behind the worker, on a real RabbitMQ.
package clients_test

import (
	"context"
	"log/slog"
	"net/url"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/handler/handlertest"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/worker"
)

func TestMain(m *testing.M) { testbroker.Main(m) }

func TestReferenceClients_HandleMessagesOfARealWorker(t *testing.T) {
	if testing.Short() {
		return // it needs a RabbitMQ, and interpreters
	}
	programs := map[string][]string{
		"PHP": {"php", "obedient.php", "php"}, "Python": {"python3", "obedient.py", "python"}, "Node": {"node", "obedient.mjs", "node", "4"},
	}
	for name, p := range programs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(p[0]); err != nil {
				t.Fatalf("%s is not there: hack/languages.sh installs it, or says how; go test -short does without", p[0])
			}
			command := append([]string{p[0], filepath.Join("../../../internal/handler/testdata/clients", p[1])}, p[2:]...)
			handlesAll(t, v1alpha1.Handler{Process: &v1alpha1.ProcessHandler{Command: command}})
		})
	}
}

// handlesAll expects each message to become what the program was told to make of it.
func handlesAll(t *testing.T, spec v1alpha1.Handler) {
	transport := testtransport.New("http://unused")
	image := "unused"
	spec.Image = &image
	transport.Spec.Workers[0].Handler = spec
	policy := testtransport.Explicit()
	policy.HandlerAdvice = v1alpha1.HandlerAdviceFollow
	result := testtransport.Compile(t, transport, policy)
	shared := testbroker.Shared(t)
	address := shared.URL(shared.Vhost(t))
	broker := testtransport.Declare(t, address, transport, result)
	counts := map[handlertest.Order]int{handlertest.Succeed: 60, handlertest.AdviseFail: 5, handlertest.AdviseDrop: 5, handlertest.Crash: 3}
	for order, count := range counts {
		for range count {
			body := []byte("a body \x00\xff for " + order)
			broker.Publish("async", testtransport.Queue, amqp091.Publishing{
				Body: body, Headers: amqp091.Table{handlertest.OrderHeader: string(order), handlertest.SumHeader: handlertest.Sum(body)},
			})
		}
	}
	registry := prometheus.NewRegistry()
	w, err := worker.New(worker.Options{
		Config: result.Workers[0],
		Source: sourceOf(t, address),
		Handlers: func(spec v1alpha1.Handler, concurrency int) (handler.Handler, error) {
			return handler.NewProcess(*spec.Process, handler.Options{Concurrency: concurrency, Metrics: registry, Log: slog.New(slog.DiscardHandler)})
		},
		Now: time.Now, Rand: worker.Random{}, Metrics: worker.NewMetrics(registry), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	failures, failed := map[string]int{}, 0
	testtransport.Eventually(t, "every message has its outcome", func() bool {
		for _, m := range broker.TakeAll("async.failed") {
			class, _ := m.Headers[message.HeaderErrorClass].(string)
			failures[class]++
			failed++
		}
		return handled(registry, "succeeded") >= 60 && handled(registry, "dropped") >= 5 && failed >= 8 && broker.Stored() == 0
	})
	cancel()
	running.Wait()
	if handled(registry, "succeeded") != 60 || handled(registry, "dropped") != 5 || failures["Advised"] != 5 || len(failures) != 2 {
		t.Errorf("%v succeeded, %v dropped, failed: %v", handled(registry, "succeeded"), handled(registry, "dropped"), failures)
	}
}

func sourceOf(t *testing.T, address string) amqp.Source {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	return func() (amqp.Target, error) {
		return amqp.Target{Address: u.Host, Username: u.User.Username(), Password: password, VHost: u.Path[1:]}, nil
	}
}

// handled is how many messages had an outcome.
func handled(registry *prometheus.Registry, outcome string) (count float64) {
	families, err := registry.Gather()
	if err != nil {
		panic(err)
	}
	for _, family := range families {
		if family.GetName() != "redrive_messages_handled_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "outcome" && label.GetValue() == outcome {
					count += metric.GetCounter().GetValue()
				}
			}
		}
	}
	return count
}
