// Package testcert makes certificates for tests.
package testcert

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"
)

// Authority signs certificates.
type Authority struct {
	// PEM is its own certificate.
	PEM []byte

	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// Pair is a certificate and its key, in PEM.
type Pair struct{ Cert, Key []byte }

// NewAuthority makes an authority that nobody knows.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	return newAuthority(t, name, newKey(t), time.Now().Add(time.Hour))
}

// Until is the same authority, by name and key, with another certificate, which is valid until then.
func (a *Authority) Until(t testing.TB, until time.Time) *Authority {
	t.Helper()
	return newAuthority(t, a.certificate.Subject.CommonName, a.key, until)
}

func newAuthority(t testing.TB, name string, key *ecdsa.PrivateKey, until time.Time) *Authority {
	t.Helper()
	template := template(t, name, until)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der := sign(t, template, template, key, key)
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{PEM: block("CERTIFICATE", der), certificate: certificate, key: key}
}

// Crowded is the same authority, by name and key, with another certificate, which lists so many empty URIs: x509 makes 150 bytes of two.
func (a *Authority) Crowded(t testing.TB, uris int) *Authority {
	t.Helper()
	template := template(t, a.certificate.Subject.CommonName, time.Now().Add(time.Hour))
	template.IsCA, template.BasicConstraintsValid = true, true
	return a.crowd(t, template, a.key, uris)
}

// IssueCrowded makes a certificate for 127.0.0.1 that lists so many empty URIs beside it.
func (a *Authority) IssueCrowded(t testing.TB, uris int) Pair {
	t.Helper()
	key := newKey(t)
	encoded, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return Pair{Cert: a.crowd(t, template(t, "127.0.0.1", time.Now().Add(time.Hour)), key, uris).PEM, Key: block("EC PRIVATE KEY", encoded)}
}

func (a *Authority) crowd(t testing.TB, template *x509.Certificate, key *ecdsa.PrivateKey, uris int) *Authority {
	t.Helper()
	list := append([]byte{0x87, 4, 127, 0, 0, 1}, bytes.Repeat([]byte{0x86, 0}, uris)...)
	names, err := asn1.Marshal(asn1.RawValue{Tag: asn1.TagSequence, IsCompound: true, Bytes: list})
	if err != nil {
		t.Fatal(err)
	}
	template.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: names}}
	return &Authority{PEM: block("CERTIFICATE", sign(t, template, a.certificate, key, a.key)), certificate: a.certificate, key: key}
}

// Issue makes a certificate for hosts: names and addresses. It serves servers and clients.
func (a *Authority) Issue(t testing.TB, hosts ...string) Pair {
	t.Helper()
	return a.IssueUntil(t, time.Now().Add(time.Hour), hosts...)
}

// IssueExpired makes a certificate that was valid an hour ago.
func (a *Authority) IssueExpired(t testing.TB, hosts ...string) Pair {
	t.Helper()
	return a.IssueUntil(t, time.Now().Add(-time.Hour), hosts...)
}

// IssueUntil makes a certificate that is valid until then.
func (a *Authority) IssueUntil(t testing.TB, until time.Time, hosts ...string) Pair {
	t.Helper()
	template := template(t, hosts[0], until)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	key := newKey(t)
	der := sign(t, template, a.certificate, key, a.key)
	encoded, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return Pair{Cert: block("CERTIFICATE", der), Key: block("EC PRIVATE KEY", encoded)}
}

func template(t testing.TB, name string, until time.Time) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
