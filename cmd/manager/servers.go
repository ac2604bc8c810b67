package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"redrive.dev/redrive/internal/httpserver"
)

// shutdownTimeout is how long the end of the process waits for answers under way.
const shutdownTimeout = 5 * time.Second

// addServer has a manager serve, whether it leads or not.
func addServer(mgr manager.Manager, name string, listener net.Listener, handler http.Handler) error {
	err := mgr.Add(&manager.Server{Name: name, Listener: listener, ShutdownTimeout: new(shutdownTimeout), Server: httpserver.New(handler)})
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
	listener, err := httpserver.Listen(ctx, s.probeAddress)
	if err != nil {
		return fmt.Errorf("--health-probe-bind-address: %w", err)
	}
	mux := http.NewServeMux()
	for _, path := range []string{"/healthz", "/readyz"} {
		mux.Handle(path, http.StripPrefix(path, &healthz.Handler{}))
	}
	return addServer(mgr, "probes", listener, mux)
}
