package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/quarantine"
	"redrive.dev/redrive/internal/tracing"
	"redrive.dev/redrive/internal/version"
	"redrive.dev/redrive/internal/worker"
)

// orders are what the quarantine worker of a group is told on its standard input: one JSON document at its start, and one after
// each change. So no secret is in its arguments, its environment or a file.
type orders struct {
	Config json.RawMessage `json:"config"`
	// Broker has the keys of a Secret.
	Broker map[string][]byte `json:"broker"`
	// Files is the folder of what the handler takes from Secrets; empty where it takes nothing.
	Files string `json:"files,omitempty"`
	// Journal is the folder of its journal. It and LogLevel hold from the start to the end.
	Journal  string     `json:"journal"`
	LogLevel slog.Level `json:"logLevel"`
}

// secretOf is a Secret for a broker. The vhost of the spec is in it.
func secretOf(on Broker) map[string][]byte {
	return map[string][]byte{
		credentials.KeyURI:  []byte(on.Credentials.AMQPURL(on.VHost)),
		credentials.KeyCA:   on.Credentials.CA,
		credentials.KeyCert: on.Credentials.Cert,
		credentials.KeyKey:  on.Credentials.Key,
	}
}

// settings are orders that can be followed.
type settings struct {
	orders

	config compile.Config
	broker Broker
}

// receive reads the next orders; io.EOF where there are none any more. What a decoder says of a broken document is left out, as it
// may hold a password.
func receive(from *json.Decoder) (settings, error) {
	var s settings
	err := from.Decode(&s.orders)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return settings{}, io.EOF
	}
	if err != nil {
		return settings{}, errors.New("orders: not a JSON document as expected")
	}
	if s.config, err = compile.Decode(s.Config); err != nil {
		return settings{}, fmt.Errorf("orders: %w", err)
	}
	login, err := credentials.FromSecret(s.Broker)
	if err != nil {
		return settings{}, fmt.Errorf("orders: broker: %w", err)
	}
	s.broker = Broker{Credentials: login, VHost: login.VHostOr(nil)}
	return s, nil
}

// QuarantineWorker is the process that a Runner starts with QuarantineArgument, called with its standard streams. It handles the
// messages of a group's quarantine queues until in or ctx ends.
func QuarantineWorker(ctx context.Context, in io.Reader, out, logTo io.Writer) error {
	from := json.NewDecoder(in)
	s, err := receive(from)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(logTo, &slog.HandlerOptions{Level: s.LogLevel})).
		With("transport", s.config.Transport, "worker", s.config.Worker, "process", processQuarantine)
	journal, err := quarantine.Open(s.Journal, time.Now, log)
	if err != nil {
		return err
	}
	given := &given{}
	given.broker.Store(&s.broker)
	given.files.Store(&s.Files)
	registry := prometheus.NewRegistry()
	w, flush, err := newWorker(s.config, given, registry, log, journal, worker.NewMemory(0)) //nolint:contextcheck // its handlers live until it closes them
	if err != nil {
		return err
	}
	defer flush()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		defer stop()
		follow(from, w, given, log)
	}()
	var reporting sync.WaitGroup
	running, ended := context.WithCancel(context.WithoutCancel(ctx))
	reporting.Go(func() { reportTo(running, out, w.Status, registry) })
	w.Run(ctx)
	ended()
	reporting.Wait()
	return nil
}

// follow takes over changed orders until there are none any more.
func follow(from *json.Decoder, w *worker.Worker, given *given, log *slog.Logger) {
	for {
		s, err := receive(from)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				log.Error("the quarantine worker stops", "error", err)
			}
			return
		}
		given.broker.Store(&s.broker)
		given.files.Store(&s.Files)
		if err := w.Reload(s.config); err != nil {
			log.Error("the quarantine worker keeps its configuration", "error", err)
		}
	}
}

// given is what a worker in this process looks up whenever it needs it.
type given struct {
	// broker to log in to at the start of each session.
	broker atomic.Pointer[Broker]
	// files is the folder of what a handler takes from Secrets, when it is made.
	files atomic.Pointer[string]
}

// newWorker makes a worker. flush is for when it has stopped: it sends what is left of its traces.
func newWorker(
	config compile.Config, given *given, registry *prometheus.Registry, log *slog.Logger, journal worker.Journal, memory *worker.Memory,
) (w *worker.Worker, flush func(), err error) {
	host, _ := os.Hostname() // without one the process id has to do
	traces, flush := tracing.Start(context.Background(), log, tracing.Transport(config.Transport), tracing.Worker(config.Worker))
	w, err = worker.New(worker.Options{
		Config: config,
		Source: func() (amqp.Target, error) { return given.broker.Load().target() },
		Handlers: func(spec v1alpha1.Handler, concurrency int) (handler.Handler, error) {
			return handler.New(spec, handler.Options{
				Concurrency: concurrency, Version: version.Version(), Files: *given.files.Load(), Log: log, Metrics: registry,
				Withheld: logins(), Lines: memory.Lines(),
			})
		},
		Now:     time.Now,
		Rand:    worker.Random{},
		Metrics: worker.NewMetrics(registry),
		Log:     log,
		Traces:  traces,
		Journal: journal,
		Shared:  memory,
		Name:    host + "/" + strconv.Itoa(os.Getpid()),
	})
	if err != nil {
		flush()
		return nil, nil, fmt.Errorf("worker %s: %w", config.Worker, err)
	}
	return w, flush, nil
}
