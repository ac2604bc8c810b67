package handler

import (
	"crypto/tls"
	"crypto/x509"
)

// Trust makes a handler accept a test server's certificate, if there is one.
func Trust(h *HTTP, certificate *x509.Certificate) {
	if certificate == nil {
		return
	}
	roots := x509.NewCertPool()
	roots.AddCert(certificate)
	h.transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}
