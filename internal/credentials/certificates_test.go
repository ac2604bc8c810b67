package credentials_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"math/big"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/credentials"
)

// number is odd and has so many bits.
func number(t *testing.T, bits int) *big.Int {
	t.Helper()
	raw := make([]byte, bits/8)
	if _, err := rand.Read(raw); err != nil {
		t.Fatal(err)
	}
	raw[0] |= 0x80
	raw[len(raw)-1] |= 1
	return new(big.Int).SetBytes(raw)
}

// unprovedKey is an RSA key of two numbers of so many bits that are not prime, without the values that follow from them, in PKCS#1.
func unprovedKey(t *testing.T, bits int) []byte {
	t.Helper()
	p, q := number(t, bits), number(t, bits)
	der, err := asn1.Marshal(struct {
		Version int
		N       *big.Int
		E       int
		D, P, Q *big.Int
	}{0, new(big.Int).Mul(p, q), 65537, number(t, bits), p, q})
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// wrapped is a key in PKCS#8.
func wrapped(t *testing.T, key []byte) []byte {
	t.Helper()
	der, err := asn1.Marshal(struct {
		Version    int
		Algorithm  struct{ ID asn1.ObjectIdentifier }
		PrivateKey []byte
	}{0, struct{ ID asn1.ObjectIdentifier }{asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}}, key})
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// Go worked for a minute on numbers of 32,768 bits before it looked whether they are a key, and for an hour on the largest that a Secret holds.
// A time is no test: what is refused here is refused before the library sees it, which shows in the error.
func TestFromSecret_RefusesAKeyThatTakesLongToRead(t *testing.T) {
	certificate, _ := pair(t)
	for name, c := range map[string]struct{ key, want string }{
		"large":                   {encoded("RSA PRIVATE KEY", unprovedKey(t, 16384)), "key tls.key: is an RSA key of more than 8192 bits"},
		"large, in PKCS#8":        {encoded("PRIVATE KEY", wrapped(t, unprovedKey(t, 16384))), "key tls.key: is an RSA key of more than 8192 bits"},
		"large, behind a comment": {encoded("COMMENT", nil) + encoded("RSA PRIVATE KEY", unprovedKey(t, 16384)), "key tls.key: is an RSA key of more than 8192 bits"},
		"not complete":            {encoded("RSA PRIVATE KEY", unprovedKey(t, 1024)), "key tls.key: is an RSA key that lacks dP, dQ or qInv"},
	} {
		_, err := credentials.FromSecret(data("host", "h", "username", "u", "password", "p", "tls.crt", certificate, "tls.key", c.key))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: want %q, got %v", name, c.want, err)
		}
	}
}

func TestFromSecret_TakesAnRSAKeyOfAnyUsualForm(t *testing.T) {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	certificate := certificateOf(t, &private.PublicKey, private)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{encoded("PRIVATE KEY", pkcs8), encoded("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(private))} {
		got, err := credentials.FromSecret(data("host", "h", "username", "u", "password", "p", "tls.crt", certificate, "tls.key", key))
		if err != nil {
			t.Fatal(err)
		}
		if config, err := got.TLS(); err != nil || len(config.Certificates) != 1 {
			t.Errorf("the certificate is not used: %v", err)
		}
	}
}

// A handshake with an authority whose key has a million bits takes a processor for a minute.
func TestFromSecret_RefusesAnAuthorityWithAnEndlessKey(t *testing.T) {
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	authority := certificateOf(t, &rsa.PublicKey{N: number(t, 16384), E: 65537}, signer)
	_, err = credentials.FromSecret(data("host", "h", "username", "u", "password", "p", "ca.crt", authority))
	if want := "key ca.crt: has an RSA key of more than 8192 bits"; err == nil || err.Error() != want {
		t.Errorf("want %q, got %v", want, err)
	}
}

// For a server's certificate whose issuer has a hundred certificates in ca.crt a handshake tries all of them. One that is there twice is tried once.
func TestFromSecret_RefusesManyAuthoritiesOfOneName(t *testing.T) {
	var all []string
	for range 17 {
		one, _ := pair(t)
		all = append(all, one)
	}
	most := strings.Join(all[:16], "")
	for text, want := range map[string]string{
		most:                  "",
		most + most:           "",
		strings.Join(all, ""): "key ca.crt: has more than 16 certificates of one subject (CN=broker): leave in it those that are in use",
	} {
		got := ""
		if _, err := credentials.FromSecret(data("host", "h", "username", "u", "password", "p", "ca.crt", text)); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("want %q, got %q", want, got)
		}
	}
}
