package main

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"redrive.dev/redrive/internal/autoscaling"
	"redrive.dev/redrive/internal/httpserver"
)

// off turns an address off.
const off = "0"

// checkScale refuses a URL that KEDA could not ask.
func (s *settings) checkScale() error {
	if s.scaleAddress == off {
		return nil
	}
	to, err := url.Parse(s.scaleURL)
	if err != nil {
		return fmt.Errorf("--autoscaling-url: %w", err)
	}
	if to.Scheme != "http" && to.Scheme != "https" || to.Host == "" || to.User != nil || to.RawQuery != "" || to.Fragment != "" {
		return fmt.Errorf("--autoscaling-url=%s must be http or https with a host, without a user, a query or a fragment", to.Redacted())
	}
	return nil
}

// scale listens where KEDA asks. What takes the address already ends the program now, and not once it leads.
func (s *settings) scale(ctx context.Context) (autoscaling.Server, error) {
	if s.scaleAddress == off {
		return autoscaling.Server{}, nil
	}
	listener, err := httpserver.Listen(ctx, s.scaleAddress)
	if err != nil {
		return autoscaling.Server{}, fmt.Errorf("--autoscaling-bind-address: %w", err)
	}
	return autoscaling.Server{Listener: listener, URL: strings.TrimSuffix(s.scaleURL, "/")}, nil
}
