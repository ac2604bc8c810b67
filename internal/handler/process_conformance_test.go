package handler_test

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	public "redrive.dev/redrive/handler"
	"redrive.dev/redrive/handler/process"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/handler/handlertest"
)

// obedient is a program that does what messages order, as many at a time as its second argument says. It floods its standard error.
var obedient = program("process-obedient", func() int {
	concurrency, err := strconv.Atoi(os.Args[2])
	if err != nil {
		return 1
	}
	handle := public.Func(func(ctx context.Context, m *public.Message) error {
		order := handlertest.OrderOf(m.Headers)
		if order == handlertest.FloodSuccess || order == handlertest.FloodFailure {
			flood(os.Stderr, handlertest.FloodSize)
		}
		return obeying(context.WithoutCancel(ctx), m) // one that hangs does so for ever
	})
	if err := process.Serve(context.Background(), os.Stdin, os.Stdout, handle, concurrency); err != nil {
		slog.Error("the program ends", "error", err)
		return 1
	}
	return 0
})

func TestProcess_Conforms(t *testing.T) {
	t.Parallel()
	for name, concurrency := range map[string]string{"one message at a time": "1", "four in flight": "4"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handlertest.Run(t, func(t *testing.T) handlertest.Subject {
				t.Helper()
				return handlertest.Subject{Handler: startProcess(t, v1alpha1.ProcessHandler{Command: append(obedient, concurrency)}, handler.Options{})}
			})
		})
	}
}

// startProcess makes a handler for four messages at a time, and closes it with the test.
func startProcess(t testing.TB, spec v1alpha1.ProcessHandler, o handler.Options) *handler.Process {
	t.Helper()
	if o.Concurrency == 0 {
		o.Concurrency = 4
	}
	made, err := handler.NewProcess(spec, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := made.Close(); err != nil {
			t.Error(err)
		}
	})
	return made
}
