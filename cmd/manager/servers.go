package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"redrive.dev/redrive/internal/tenancy"
)

const (
	// serverTimeout bounds reading a request and writing its answer, and idleTimeout how long a connection may wait for the next.
	serverTimeout = 30 * time.Second
	idleTimeout   = 90 * time.Second
	// maxHeaders bounds the headers of a request, of which a token is the longest.
	maxHeaders = 16 << 10
	// shutdownTimeout is how long the end of the process waits for answers under way.
	shutdownTimeout = 5 * time.Second
)

// listen takes an address that any pod may reach. What has it already ends the program now.
func listen(ctx context.Context, address string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the address, and the caller the flag
	}
	return tenancy.BoundConnections(listener, tenancy.MaxConnections), nil
}

// addServer has a manager serve, whether it leads or not.
func addServer(mgr manager.Manager, name string, listener net.Listener, handler http.Handler) error {
	err := mgr.Add(&manager.Server{Name: name, Listener: listener, ShutdownTimeout: new(shutdownTimeout), Server: &http.Server{
		Handler: handler, ReadTimeout: serverTimeout, WriteTimeout: serverTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaders,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0), // what callers do wrong, for each of them
	}})
	if err != nil {
		return fmt.Errorf("add the server of %s: %w", name, err)
	}
	return nil
}

// addProbes serves /healthz and /readyz.
func (s *settings) addProbes(ctx context.Context, mgr manager.Manager) error {
	if s.probeAddress == off {
		return nil
	}
	listener, err := listen(ctx, s.probeAddress)
	if err != nil {
		return fmt.Errorf("--health-probe-bind-address: %w", err)
	}
	mux := http.NewServeMux()
	for _, path := range []string{"/healthz", "/readyz"} {
		mux.Handle(path, http.StripPrefix(path, &healthz.Handler{}))
	}
	return addServer(mgr, "probes", listener, mux)
}
