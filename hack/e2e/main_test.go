//go:build e2e

package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// atOnce is how many scenarios run beside each other. They mostly wait.
const atOnce = "5"

// suite is what all scenarios share.
var suite *environment

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.list").Value.String() != "" {
		os.Exit(m.Run())
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if err := flag.Set("test.parallel", atOnce); err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var err error
	suite, err = newEnvironment(ctx)
	if err != nil {
		return fail(errors.Join(err, suite.close()))
	}
	closeWhenInterrupted(suite)
	code := m.Run()
	if err := errors.Join(suite.verify(), suite.close()); err != nil {
		return fail(err)
	}
	return code
}

func fail(err error) int {
	_, _ = fmt.Fprintln(os.Stderr, "FAIL e2e:", err)
	return 1
}

// closeWhenInterrupted leaves no namespaces behind when somebody loses patience.
func closeWhenInterrupted(e *environment) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		os.Exit(fail(errors.Join(errors.New("interrupted"), e.close())))
	}()
}

// long leaves a scenario out of the short form.
func long(t *testing.T) {
	t.Helper()
	if suite.short {
		t.Skip("not in the short form")
	}
}

// await polls until a condition holds, and else fails with the state that it gave last.
func await(t testing.TB, limit time.Duration, what string, condition func() (done bool, state any)) {
	t.Helper()
	if state, ok := poll(t.Context(), limit, condition); !ok {
		t.Fatalf("waited %s for %s; it is: %v", limit, what, state)
	}
}

func poll(ctx context.Context, limit time.Duration, condition func() (bool, any)) (state any, done bool) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		if done, state = condition(); done {
			return state, true
		}
		select {
		case <-ctx.Done():
			return state, false
		case <-tick.C:
		}
	}
}
