package handler_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	public "redrive.dev/redrive/handler"
	"redrive.dev/redrive/handler/process"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

// visited is a program that notes in the folder of its second argument each message that it begins, four at a time. A message with a body
// brings it down, in the way that this says.
var visited = program("process-visited", func() int {
	handle := public.Func(func(_ context.Context, m *public.Message) error {
		note(filepath.Join(os.Args[2], m.ID))
		time.Sleep(2 * time.Millisecond) // so that there are others in hand
		switch way := string(m.Body); way {
		case "exit":
			os.Exit(3)
		case "hang":
			select {}
		case "break the protocol":
			_, _ = os.Stdout.WriteString(hello + "\n")
			select {}
		case "close stdout":
			_ = os.Stdout.Close()
			select {}
		}
		return nil
	})
	if err := process.Serve(context.Background(), os.Stdin, os.Stdout, handle, 4); err != nil {
		slog.Error("the program ends", "error", err)
		return 1
	}
	return 0
})

// note adds a byte to a file.
func note(path string) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = file.WriteString("x")
	}
	if err != nil {
		panic(err)
	}
	_ = file.Close()
}

// visits are how often a message was begun.
func visits(t testing.TB, dir, id string) int {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, id))
	if err != nil {
		return 0
	}
	return int(info.Size())
}

// deliver hands a message over until its attempt is over, as the worker does: what was not begun comes again. It says how often it came.
func deliver(t testing.TB, p *handler.Process, id, body string, timeout time.Duration) (failure *retry.Failure, deliveries int) {
	t.Helper()
	for deliveries = 1; ; deliveries++ {
		awaitReady(t, p)
		ctx, cancel := handler.WithTimeout(t.Context(), timeout, patience)
		failure = p.Handle(ctx, handler.Request{ID: id, IdempotencyKey: "key of " + id, Body: []byte(body)})
		cancel()
		if !handler.IsNotBegun(failure) {
			return failure, deliveries
		}
	}
}

// What docs/process-protocol.md says of those that are in hand beside one that ends their process: they are begun once more, alone.
func TestProcess_BeginsAnInnocentMessageTwiceAtMost(t *testing.T) {
	t.Parallel()
	ways := map[string]string{"exit": "ExitStatus", "hang": handler.ClassTimeout, "break the protocol": "MalformedResponse", "close stdout": "OutputClosed"}
	for name, c := range map[string]struct {
		processes int32
		timeout   time.Duration
		ways      []string
	}{
		"with time for all":                      {4, patience, []string{"exit", "exit", "break the protocol", "close stdout"}},
		"where some wait too long for a process": {2, 300 * time.Millisecond, []string{"exit", "hang", "break the protocol"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const messages, every = 120, 10
			dir := t.TempDir()
			p := startProcess(t, v1alpha1.ProcessHandler{Command: append(visited, dir), Processes: new(c.processes)}, handler.Options{Concurrency: 16})
			var mu sync.Mutex
			begun, redelivered := map[int]int{}, 0
			hands := make(chan int)
			var working sync.WaitGroup
			for range 16 {
				working.Go(func() {
					for n := range hands {
						id, way := fmt.Sprint("m-", n), ""
						if n%every == every/2 {
							way = c.ways[n/every%len(c.ways)]
						}
						failure, deliveries := deliver(t, p, id, way, c.timeout)
						times := visits(t, dir, id)
						mu.Lock()
						begun[times]++
						redelivered += deliveries - 1
						mu.Unlock()
						switch {
						case way == "" && failure != nil && failure.Class != handler.ClassTimeout:
							t.Errorf("the innocent %s: got %+v", id, failure)
						case way != "" && (failure == nil || failure.Class != ways[way] && failure.Class != handler.ClassTimeout):
							t.Errorf("%s, which is to %s: got %+v", id, way, failure)
						}
						if times > 2 {
							t.Errorf("%s (%s) was begun %d times, and delivered %d times", id, strings.TrimSpace("innocent "+way), times, deliveries)
						}
					}
				})
			}
			for n := range messages {
				hands <- n
			}
			close(hands)
			working.Wait()
			t.Logf("messages by how often they were begun: %v; deliveries that came to no process in time: %d", begun, redelivered)
		})
	}
}
