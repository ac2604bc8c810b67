// Command partner is the other side of the end-to-end suite, one static program in several roles: the partner that handles
// messages, as a service of its own or beside the worker; the ledger that counts what partners answered; and a tap on the
// broker's management API that notes what the operator asks of it. It is also what a team has in an image of its own: a command
// for each message, a process that stays, and, with the worker's arguments and no role, the worker itself.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"redrive.dev/redrive/hack/e2e/ledger"
	"redrive.dev/redrive/handler/process"
	worker "redrive.dev/redrive/handler/run"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "partner:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 0 {
		return errors.New("give a role: partner, ledger, tap, exec or process; or a worker's flags")
	}
	role := arguments[0]
	switch {
	case strings.HasPrefix(role, "-"):
		worker.Main(newTeam()) // does not return
	case role == "exec":
		return command(context.Background(), newTeam())
	case role == "process":
		return process.Serve(context.Background(), os.Stdin, os.Stdout, newTeam(), atOnce)
	}
	flags := flag.NewFlagSet(role, flag.ContinueOnError)
	listen := flags.String("listen", ":8080", "address to listen on, or the path of a socket")
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

// serve until SIGTERM, and then until what is being answered is answered: a handler beside a worker may get the signal in
// the same moment as the worker.
func serve(address string, handler http.Handler) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	server := &http.Server{Handler: guarded(handler), ReadHeaderTimeout: 10 * time.Second}
	listener, err := listen(ctx, address)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	slog.Info("listening", "address", address)
	select {
	case err := <-failed:
		return fmt.Errorf("serve on %s: %w", address, err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err := server.Shutdown(last); err != nil {
		return fmt.Errorf("stop listening: %w", err)
	}
	return nil
}

// Variables that make a server of one that only workers with the right Secrets can speak to.
const (
	authorizationVariable = "E2E_AUTHORIZATION"
	certificateVariable   = "E2E_CERTIFICATE"
	keyVariable           = "E2E_KEY"
)

// guarded answers only who has the header Authorization that the environment asks for, if it does.
func guarded(next http.Handler) http.Handler {
	want := os.Getenv(authorizationVariable)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if want != "" && r.Header.Get("Authorization") != want {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// listen on an address, or on a socket if it is a path; with TLS where the environment has a certificate.
func listen(ctx context.Context, address string) (net.Listener, error) {
	network := "tcp"
	if strings.HasPrefix(address, "/") {
		network = "unix"
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	certificate := os.Getenv(certificateVariable)
	if certificate == "" {
		return listener, nil
	}
	pair, err := tls.X509KeyPair([]byte(certificate), []byte(os.Getenv(keyVariable)))
	if err != nil {
		return nil, fmt.Errorf("the certificate in %s: %w", certificateVariable, err)
	}
	return tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}), nil
}
