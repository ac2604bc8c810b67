package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"

	"redrive.dev/redrive/internal/httpserver"
)

const (
	// maxScrapes is how many answers with metrics are made at a time.
	maxScrapes = 8
	// perSecond is how many requests of one address are answered.
	perSecond = 4
	// refusalsLogged is how often the log tells of a caller that is not let through.
	refusalsLogged = time.Minute
)

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
		if handler, err = authorized(mgr, handler); err != nil {
			return err
		}
		certificate, err := s.metricsCertificate(mgr)
		if err != nil {
			return err
		}
		listener = httpserver.Secure(ctx, listener, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate})
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", handler)
	return addServer(mgr, "metrics", listener, mux)
}

// authorized lets those through whom the API server allows to get /metrics. It asks about a few tokens of each address, and tells the log of one in a
// minute: whoever reaches the port can send them by the hundred.
func authorized(mgr manager.Manager, handler http.Handler) (http.Handler, error) {
	filter, err := filters.WithAuthenticationAndAuthorization(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("make the filter of the metrics: %w", err)
	}
	log := ctrl.Log.WithName("metrics")
	log = log.WithSink(&rareSink{LogSink: log.GetSink(), limit: rate.NewLimiter(rate.Every(refusalsLogged), 1)})
	if handler, err = filter(log, handler); err != nil {
		return nil, fmt.Errorf("add the filter of the metrics: %w", err)
	}
	return httpserver.LimitEach(handler, perSecond, maxScrapes), nil
}

// rareSink passes few lines on.
type rareSink struct {
	logr.LogSink

	limit *rate.Limiter
}

// Info implements logr.LogSink.
func (s *rareSink) Info(level int, message string, values ...any) {
	if s.limit.Allow() {
		s.LogSink.Info(level, message, values...)
	}
}

// Error implements logr.LogSink.
func (s *rareSink) Error(err error, message string, values ...any) {
	if s.limit.Allow() {
		s.LogSink.Error(err, message, values...)
	}
}

// metricsCertificate is that of --metrics-cert-dir, read again when its files change, or a self-signed one, new with each start.
func (s *settings) metricsCertificate(mgr manager.Manager) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if s.metricsCertDir == "" {
		pair, err := selfSigned()
		if err != nil {
			return nil, fmt.Errorf("make a certificate for the metrics: %w", err)
		}
		return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair, nil }, nil
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

// selfSigned is a certificate for localhost. Its key is one of P-256: a signature of RSA takes thirty times as long, and any caller has one made.
func selfSigned() (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "localhost"},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{{127, 0, 0, 1}},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign it: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{certificate}, PrivateKey: key}, nil
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
