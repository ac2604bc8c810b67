package main_test

import (
	"os"
	"syscall"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testcollector"
	"redrive.dev/redrive/internal/testtransport"
)

func TestWorker_SendsItsLastSpansAtItsEnd(t *testing.T) {
	collector := testcollector.New(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000") // nothing is sent before the end
	s := newScene(t, testbroker.Shared(t))
	s.process.start()
	s.Publish("async", testtransport.Queue, amqp091.Publishing{MessageId: "1"})
	testtransport.Eventually(t, "the third attempt", func() bool { return s.partner.requests.Load() == 3 })
	if err := s.process.end(syscall.SIGTERM); err != nil {
		t.Fatalf("%v\n%s", err, s.process.log)
	}
	if got := len(collector.Named("process test")); got != 3 {
		t.Errorf("%d spans came, want 3\n%s", got, s.process.log)
	}
	if r := collector.Resource(); r["service.name"] != "redrive-worker" || r["redrive.transport"] != "default/async" || r["redrive.worker"] != "default" {
		t.Errorf("sent by %v", r)
	}
}

func TestWorker_EndsThoughTheCollectorNeverAnswers(t *testing.T) {
	testtransport.Long(t)
	collector := testcollector.New(t)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	collector.Hang(release)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	s := newScene(t, testbroker.Shared(t))
	s.process.start()
	s.Publish("async", testtransport.Queue, amqp091.Publishing{MessageId: "1"})
	testtransport.Eventually(t, "the third attempt", func() bool { return s.partner.requests.Load() == 3 })
	ended := make(chan error, 1)
	go func() { ended <- s.process.end(syscall.SIGTERM) }()
	select {
	case err := <-ended:
		if err != nil {
			t.Fatalf("%v\n%s", err, s.process.log)
		}
	case <-time.After(30 * time.Second): // three seconds, and the time of a busy machine
		_ = s.process.command.Process.Signal(os.Kill)
		t.Fatal("the worker waits for the collector")
	}
}
