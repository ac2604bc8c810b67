package faults

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testclock"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/worker"
)

// clockVariable makes this binary a worker whose clock differs from the machine's by what stands in the file that it names.
const clockVariable = "REDRIVE_FAULTS_CLOCK"

// stepClock sets how far the workers' clock is from the machine's.
func (s *scene) stepClock(offset time.Duration) {
	s.t.Helper()
	write(s.t, s.clock, offset.String())
}

// steppedClock reads the offset anew each time. As of a system whose clock is set, it moves what the clock shows, and not what has passed.
func steppedClock(file string) func() time.Time {
	return func() time.Time {
		text, err := os.ReadFile(file)
		if err != nil {
			panic(err)
		}
		offset, err := time.ParseDuration(string(text))
		if err != nil {
			panic(err)
		}
		return testclock.Set(time.Now(), offset)
	}
}

// steppedWorker is cmd/worker with another clock. It returns the exit code.
func steppedWorker(clock string) int {
	flags := flag.NewFlagSet("worker", flag.ExitOnError)
	path, credentials := flags.String("config", "", ""), flags.String("credentials", "", "")
	_, _ = flags.String("listen", "", ""), flags.String("log-level", "", "")
	_ = flags.Parse(os.Args[1:])
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	config, err := worker.ReadConfig(*path)
	if err != nil {
		log.Error("configuration", "error", err)
		return 1
	}
	w, err := worker.New(worker.Options{
		Config: config,
		Source: worker.NewLogin(*credentials, config.VHost).Target,
		Handlers: func(spec v1alpha1.Handler, concurrency int) (handler.Handler, error) {
			return handler.New(spec, handler.Options{Concurrency: concurrency, Version: "test"})
		},
		Now:     steppedClock(clock),
		Rand:    worker.Random{},
		Metrics: worker.NewMetrics(prometheus.NewRegistry()),
		Log:     log,
	})
	if err != nil {
		log.Error("worker", "error", err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	w.Run(ctx)
	return 0
}

// While the clock is behind, what was to be tried again by the clock before waits on, for its delay once more. When it is right again all is
// handled, and no message is an hour older for it.
func TestWorker_LosesAndCountsNothingWhenTheClockStepsAnHour(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	rounds(t, func(t *testing.T) {
		const batch, steps = 20, 2
		var mu sync.Mutex
		attempts := map[int][]int{}
		policy := testtransport.Explicit(2*time.Second, 2*time.Second)
		policy.MaxAge = v1alpha1.NewDuration(30 * time.Minute)
		s := newScene(t, testbroker.Shared(t), plan{
			policy: policy, steppedClock: true,
			answer: func(c call) int {
				mu.Lock()
				defer mu.Unlock()
				attempts[c.id] = append(attempts[c.id], c.attempt)
				if c.attempt <= 2 {
					return http.StatusBadGateway
				}
				return http.StatusOK
			},
		})
		// The messages wait in a lane when the clock steps: first back from the right time, then back to it.
		for range steps {
			for _, right := range []time.Duration{0, time.Hour} {
				s.stepClock(right)
				first := s.publish(batch)
				s.await(atOnceWithin, "the first attempts", func() bool { return s.Waiting() == batch })
				s.stepClock(right - time.Hour)
				parked := s.wire.count(point{fromClient, basicPublish}) + batch
				s.await(atOnceWithin, "all to be parked", func() bool { return s.wire.count(point{fromClient, basicPublish}) >= parked })
				if ended := len(s.ends()); ended != first {
					t.Errorf("%d messages were handled before their time", ended-first)
				}
				s.stepClock(right)
				s.worksAgain(func() bool { return len(s.ends()) > first })
				s.hasEnded(atOnceWithin, first)
			}
		}
		s.settle(bounds{faults: 2 * steps})
		for id, got := range attempts {
			if fmt.Sprint(got) != "[1 2 3]" {
				t.Fatalf("message %d had the attempts %v, want 1 to 3", id, got)
			}
		}
	})
}
