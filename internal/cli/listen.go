package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"redrive.dev/redrive/internal/httpserver"
)

const (
	// defaultListen is for this machine alone. Port 9095 is that of a worker which somebody starts by hand beside a run.
	defaultListen = "127.0.0.1:9096"
	// lastAnswers bounds the time for answers that are under way at the end.
	lastAnswers = time.Second
)

// listenFlag says where run serves its endpoints.
type listenFlag struct {
	// address is empty where they are not served.
	address string
	// given is true where the user asked for this address, which then has to be free.
	given bool
}

// open listens at the address. It returns nil where there is nothing to listen on.
func (f listenFlag) open(ctx context.Context, log *slog.Logger) (net.Listener, error) {
	if f.address == "" {
		return nil, nil //nolint:nilnil // there is nothing to listen on
	}
	listener, err := httpserver.Listen(ctx, f.address)
	switch {
	case err == nil:
		return listener, nil
	case f.given:
		return nil, fmt.Errorf("--listen: %w", err)
	default:
		log.Warn("/metrics, /status and /healthz are not served; --listen chooses another address", "error", err)
		return nil, nil //nolint:nilnil // there is nothing to listen on
	}
}

// answer serves at a listener, which may be nil, until the function is called that it returns.
func answer(listener net.Listener, handler http.Handler, log *slog.Logger) (stop func()) {
	if listener == nil {
		return func() {}
	}
	server := httpserver.New(handler)
	log.Info("/metrics, /status and /healthz are served", "listen", listener.Addr())
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("/metrics, /status and /healthz are not served any more", "error", err)
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), lastAnswers)
		defer cancel()
		_ = server.Shutdown(ctx) // who is not done in time gets no answer
		_ = server.Close()
	}
}
