package worker_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/worker"
)

const (
	benchConcurrency = 32
	benchMessages    = 2000
)

// BenchmarkHandled and BenchmarkFailed handle the same messages twice in one run: with the worker, and with the least code
// that a team could write for itself on the same client library. The metric bare/ours is the share of the bare loop's
// speed that the worker reaches; absolute times say little, for broker and partner run on the same machine.
func BenchmarkHandled(b *testing.B) { compareWithBare(b, http.StatusOK) }

// BenchmarkFailed sends every message to the failure queue: each is published with a confirm before it is acknowledged.
func BenchmarkFailed(b *testing.B) { compareWithBare(b, http.StatusUnprocessableEntity) }

func compareWithBare(b *testing.B, status int) {
	var answered atomic.Int64
	partner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		answered.Add(1)
		w.WriteHeader(status)
	}))
	b.Cleanup(partner.Close)
	transport := testtransport.New(partner.URL)
	concurrency := int32(benchConcurrency)
	transport.Spec.Workers[0].Concurrency = &concurrency
	result := testtransport.Compile(b, transport, testtransport.Explicit())
	shared := testbroker.Shared(b)
	vhost := shared.Vhost(b)
	broker := testtransport.Declare(b, shared.URL(vhost), transport, result)

	measure := func(run func(ctx context.Context)) time.Duration {
		broker.Publish("async", testtransport.Queue, make([]amqp091.Publishing, benchMessages)...)
		answered.Store(0)
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		began := time.Now()
		running.Go(func() { run(ctx) })
		testtransport.EventuallyWithin(b, time.Minute, "all answers", func() bool { return answered.Load() >= benchMessages })
		took := time.Since(began)
		cancel()
		running.Wait()
		broker.TakeAll("async.failed")
		return took
	}
	w := benchWorker(b, shared.URL(vhost), result.Workers[0])
	var bare, ours time.Duration
	for b.Loop() {
		bare += measure(func(ctx context.Context) { bareLoop(ctx, b, shared.URL(vhost), partner.URL) })
		ours += measure(w().Run)
	}
	b.ReportMetric(bare.Seconds()/ours.Seconds(), "bare/ours")
	b.ReportMetric(float64(benchMessages*b.N)/ours.Seconds(), "messages/s")
}

func benchWorker(b *testing.B, address string, config compile.Config) func() *worker.Worker {
	u, err := url.Parse(address)
	if err != nil {
		b.Fatal(err)
	}
	password, _ := u.User.Password()
	return func() *worker.Worker {
		w, err := worker.New(worker.Options{
			Config: config,
			Source: func() (amqp.Target, error) {
				return amqp.Target{Address: u.Host, Username: u.User.Username(), Password: password, VHost: u.Path[1:]}, nil
			},
			Handlers: func(spec v1alpha1.Handler, concurrency int) (handler.Handler, error) {
				return handler.New(spec, concurrency, "bench")
			},
			Now:     time.Now,
			Rand:    worker.Random{},
			Metrics: worker.NewMetrics(prometheus.NewRegistry()),
			Log:     slog.New(slog.DiscardHandler),
		})
		if err != nil {
			b.Fatal(err)
		}
		return w
	}
}

// bareLoop consumes, posts and acknowledges with the same concurrency and prefetch. A failed message is published to the
// failure queue with a confirm, on one channel for each of its goroutines.
func bareLoop(ctx context.Context, b *testing.B, address, partner string) {
	conn, err := amqp091.Dial(address)
	if err != nil {
		b.Error(err)
		return
	}
	defer func() { _ = conn.Close() }()
	consumer, err := conn.Channel()
	if err != nil {
		b.Error(err)
		return
	}
	if err := consumer.Qos(2*benchConcurrency, 0, false); err != nil {
		b.Error(err)
		return
	}
	deliveries, err := consumer.ConsumeWithContext(ctx, testtransport.Queue, "", false, false, false, false, nil)
	if err != nil {
		b.Error(err)
		return
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: benchConcurrency}}
	var running sync.WaitGroup
	for range benchConcurrency {
		channel, err := conn.Channel()
		if err != nil || channel.Confirm(false) != nil {
			b.Error("no channel with confirms")
			return
		}
		running.Go(func() {
			for d := range deliveries {
				bareHandle(ctx, b, client, partner, channel, &d)
			}
		})
	}
	running.Wait()
}

func bareHandle(ctx context.Context, b *testing.B, client *http.Client, partner string, channel *amqp091.Channel, d *amqp091.Delivery) {
	request, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodPost, partner, bytes.NewReader(d.Body))
	if err != nil {
		b.Error(err)
		return
	}
	response, err := client.Do(request)
	if err != nil {
		b.Error(err)
		return
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		confirm, err := channel.PublishWithDeferredConfirm("async.failed", d.RoutingKey, true, false,
			amqp091.Publishing{DeliveryMode: amqp091.Persistent, Body: d.Body})
		if err != nil || !confirm.Wait() {
			b.Error("not confirmed")
			return
		}
	}
	_ = d.Ack(false)
}
