// Command partner is the other side of the end-to-end suite, one static program in three roles: the partner that handles
// messages, as a service of its own or beside the worker; the ledger that counts what partners answered; and a tap on the
// broker's management API that notes what the operator asks of it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"redrive.dev/redrive/hack/e2e/ledger"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "partner:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 0 {
		return errors.New("give a role: partner, ledger or tap")
	}
	role := arguments[0]
	flags := flag.NewFlagSet(role, flag.ContinueOnError)
	listen := flags.String("listen", ":8080", "address to listen on")
	to := flags.String("to", "", "partner: URL of the ledger; tap: URL of the management API")
	if err := flags.Parse(arguments[1:]); err != nil {
		return fmt.Errorf("flags of the role %s: %w", role, err)
	}
	handler, err := handlerOf(role, *to)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.Handle("/", handler)
	return serve(*listen, mux)
}

func handlerOf(role, to string) (http.Handler, error) {
	switch role {
	case "partner":
		return newPartner(ledger.NewReporter(to)), nil
	case "ledger":
		return ledger.NewBook(time.Now), nil
	case "tap":
		return newTap(to)
	default:
		return nil, fmt.Errorf("no role %q: partner, ledger or tap", role)
	}
}

// serve until SIGTERM, and then until what is being answered is answered: a handler beside a worker gets the signal in
// the same moment as the worker.
func serve(address string, handler http.Handler) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	server := &http.Server{Addr: address, Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	slog.Info("listening", "address", address)
	select {
	case err := <-failed:
		return fmt.Errorf("listen on %s: %w", address, err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err := server.Shutdown(last); err != nil {
		return fmt.Errorf("stop listening: %w", err)
	}
	return nil
}
