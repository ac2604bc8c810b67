package main

import (
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// metricsOptions serve the metrics over HTTPS to those whom the API server knows by their token and allows to get /metrics,
// or to everybody over HTTP. The certificate is read again when its files change; without one it is self-signed, and new
// with each start.
func (s *settings) metricsOptions() metricsserver.Options {
	options := metricsserver.Options{BindAddress: s.metricsAddress}
	if s.metricsSecure {
		options.SecureServing = true
		options.FilterProvider = filters.WithAuthenticationAndAuthorization
		options.CertDir = s.metricsCertDir
	}
	return options
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
