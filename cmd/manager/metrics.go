package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"

	"redrive.dev/redrive/internal/httpserver"
)

// maxScrapes is how many answers with metrics are made at a time.
const maxScrapes = 8

// addMetrics serves the metrics over HTTPS to those whom the API server knows by their token and allows to get /metrics, or to everybody over HTTP. The
// server of controller-runtime does not bound how many connections there are, nor what each may send: whoever reached the port could end the operator.
func (s *settings) addMetrics(ctx context.Context, mgr manager.Manager) error {
	if s.metricsAddress == off {
		return nil
	}
	listener, err := httpserver.Listen(ctx, s.metricsAddress)
	if err != nil {
		return fmt.Errorf("--metrics-bind-address: %w", err)
	}
	handler := promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError, MaxRequestsInFlight: maxScrapes})
	if s.metricsSecure {
		filter, err := filters.WithAuthenticationAndAuthorization(mgr.GetConfig(), mgr.GetHTTPClient())
		if err != nil {
			return fmt.Errorf("make the filter of the metrics: %w", err)
		}
		if handler, err = filter(ctrl.Log.WithName("metrics"), handler); err != nil {
			return fmt.Errorf("add the filter of the metrics: %w", err)
		}
		certificate, err := s.metricsCertificate(mgr)
		if err != nil {
			return err
		}
		listener = tls.NewListener(listener, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate})
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", handler)
	return addServer(mgr, "metrics", listener, mux)
}

// metricsCertificate is that of --metrics-cert-dir, read again when its files change, or a self-signed one, new with each start.
func (s *settings) metricsCertificate(mgr manager.Manager) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if s.metricsCertDir == "" {
		certificate, key, err := cert.GenerateSelfSignedCertKeyWithFixtures("localhost", []net.IP{{127, 0, 0, 1}}, nil, "")
		if err != nil {
			return nil, fmt.Errorf("make a certificate for the metrics: %w", err)
		}
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return nil, fmt.Errorf("make a certificate for the metrics: %w", err)
		}
		return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }, nil
	}
	watcher, err := certwatcher.New(filepath.Join(s.metricsCertDir, corev1.TLSCertKey), filepath.Join(s.metricsCertDir, corev1.TLSPrivateKeyKey))
	if err != nil {
		return nil, fmt.Errorf("--metrics-cert-dir: %w", err)
	}
	if err := mgr.Add(watcher); err != nil {
		return nil, fmt.Errorf("watch the certificate of the metrics: %w", err)
	}
	return watcher.GetCertificate, nil
}

// checkMetrics refuses what would be served otherwise than the flags say: the library takes a self-signed certificate
// where it does not find the one it was told of.
func (s *settings) checkMetrics() error {
	if s.metricsCertDir == "" {
		return nil
	}
	if !s.metricsSecure {
		return fmt.Errorf("--metrics-cert-dir=%s has no effect with --metrics-secure=false", s.metricsCertDir)
	}
	for _, file := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		if _, err := os.Stat(filepath.Join(s.metricsCertDir, file)); err != nil {
			return fmt.Errorf("--metrics-cert-dir needs a file %s: %w", file, err)
		}
	}
	return nil
}
