package credentials

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// CertificateError is a TLS connection that failed for a certificate. It says whose, and which key can put it right. It lives as long as what it is
// told in, so it holds texts only: the library's error holds the certificate, which may take megabytes.
type CertificateError struct {
	// Address that was to be reached, host:port.
	Address string

	text string
}

// Error names the address, what is wrong, and the key of the Secret.
func (e *CertificateError) Error() string { return e.text }

// ExplainTLS finds the certificate that is to blame for a failed connection to an address. Any other error is returned as it
// is.
func ExplainTLS(address string, err error) error {
	explained := func(format string, args ...any) error {
		return &CertificateError{Address: address, text: fmt.Sprintf(format, args...)}
	}
	if unknown, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		// So it is also where the key holds an expired one, and the server sends a newer one of the same authority along.
		return explained("the certificate of %s is signed by an unknown authority%s: key %s must hold that authority's certificate, and one that is not expired",
			address, issuer(unknown.Cert), KeyCA)
	}
	if wrong, ok := errors.AsType[x509.HostnameError](err); ok {
		return explained("the certificate of %s is for %.300s and not for %s: the keys %s and %s must name the broker as its certificate does",
			address, names(wrong.Certificate), wrong.Host, KeyHost, KeyManagementURI)
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		if invalid.Reason == x509.Expired {
			return explained("the certificate of %s, or one that signed it, is valid from %s to %s only: the broker needs a new one, or key %s",
				address, date(invalid.Cert.NotBefore), date(invalid.Cert.NotAfter), KeyCA)
		}
		return explained("the certificate of %s cannot be used: %.300s", address, invalid.Error())
	}
	if alert, ok := clientAlert(err); ok {
		return explained("%s refuses the client certificate (%s): the keys %s and %s must hold one that the broker trusts",
			address, alert, KeyCert, KeyKey)
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return explained("%s does not speak TLS: the certificates in the Secret, the port or the URL's scheme ask for it", address)
	}
	return err
}

// issuer is who signed a certificate, where it says so.
func issuer(certificate *x509.Certificate) string {
	if certificate == nil || certificate.Issuer.String() == "" {
		return ""
	}
	return fmt.Sprintf(" (%.100s)", certificate.Issuer.String())
}

// names are the hosts of a certificate, or a few of them.
func names(certificate *x509.Certificate) string {
	const most = 5
	var all []string
	if certificate != nil {
		all = append(all, certificate.DNSNames...)
		for _, ip := range certificate.IPAddresses {
			all = append(all, ip.String())
		}
	}
	switch {
	case len(all) == 0:
		return "no host"
	case len(all) > most:
		return strings.Join(all[:most], ", ") + ", …"
	default:
		return strings.Join(all, ", ")
	}
}

func date(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// clientAlert tells an alert by which a server refuses its client's certificate from other alerts. The library keeps their
// numbers to itself, but not their texts. With TLS 1.3 such an alert comes only after the handshake.
func clientAlert(err error) (string, bool) {
	socket, ok := errors.AsType[*net.OpError](err)
	if !ok || socket.Op != "remote error" {
		return "", false
	}
	text := strings.TrimPrefix(socket.Err.Error(), "tls: ")
	for _, sign := range []string{"certificate", "access denied"} {
		if strings.Contains(text, sign) {
			return text, true
		}
	}
	return "", false
}
