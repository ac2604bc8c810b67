package credentials_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"math/big"
	"runtime"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/testcert"
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

// heap is what is in use after a collection.
func heap() int {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

// A handshake keeps the authorities that it looks into as x509 reads them, and empty URIs take 76 times their text.
func TestFromSecret_BoundsWhatCertificatesTakeInMemory(t *testing.T) {
	ours := testcert.NewAuthority(t, "ours")
	pair, crowded := ours.IssueCrowded(t, 7500), string(ours.Crowded(t, 5800).PEM)+string(ours.Crowded(t, 5800).PEM)
	for name, c := range map[string]struct {
		want   string
		values []string
	}{
		"authorities":        {"key ca.crt: its certificates take more than 1048576 bytes in memory", []string{"ca.crt", crowded}},
		"an authority":       {"key ca.crt: has a certificate of more than 16384 bytes", []string{"ca.crt", string(ours.Crowded(t, 8200).PEM)}},
		"a client":           {"key tls.crt: its certificate takes more than 1048576 bytes", []string{"tls.crt", string(pair.Cert), "tls.key", string(pair.Key)}},
		"few names":          {"", []string{"ca.crt", string(ours.Crowded(t, 100).PEM)}},
		"public authorities": {"", []string{"ca.crt", publicAuthorities(t, ours)}},
	} {
		got := ""
		if _, err := credentials.FromSecret(data(append([]string{"host", "h", "username", "u", "password", "p"}, c.values...)...)); err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: want %q, got %q", name, c.want, got)
		}
	}
}

// publicAuthorities are as many and as large as those of a system: 250 kB.
func publicAuthorities(t *testing.T, ours *testcert.Authority) string {
	t.Helper()
	text := ""
	for i := range 150 {
		names := make([]string, 20)
		for j := range names {
			names[j] = fmt.Sprintf("%04d-%02d-%s.example", i, j, strings.Repeat("x", 20))
		}
		text += string(ours.Issue(t, names...).Cert)
	}
	if len(text) < 200<<10 || len(text) > 256<<10 {
		t.Fatalf("%d bytes", len(text))
	}
	return text
}

// What the last Secrets held is kept in memory.
func TestFromSecret_BoundsWhatAllLastCertificatesTake(t *testing.T) {
	ours := testcert.NewAuthority(t, "ours")
	var all []map[string][]byte
	for range 32 {
		all = append(all, data("host", "h", "username", "u", "password", "p", "ca.crt", string(ours.Crowded(t, 5800).PEM)))
	}
	shown, err := x509.ParseCertificate(decoded(ours.Issue(t, "h").Cert))
	if err != nil {
		t.Fatal(err)
	}
	before := heap()
	for _, one := range all {
		login, err := credentials.FromSecret(one)
		if err != nil {
			t.Fatal(err)
		}
		login.Secure = true
		config, err := login.TLS()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = shown.Verify(x509.VerifyOptions{Roots: config.RootCAs, DNSName: "h"}) // A handshake does.
	}
	if grown := heap() - before; grown > 8<<20 {
		t.Errorf("%d kB are kept of 32 Secrets", grown>>10)
	} else {
		t.Logf("%d kB are kept of 32 Secrets", grown>>10)
	}
	runtime.KeepAlive(all)
}

// The error of a broker that does not answer is kept as long as its Transport.
func TestExplainTLS_KeepsNoCertificate(t *testing.T) {
	ours := testcert.NewAuthority(t, "ours")
	before := heap()
	var kept []error
	for range 20 {
		shown, err := x509.ParseCertificate(decoded(ours.IssueCrowded(t, 7500).Cert))
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, credentials.ExplainTLS("h:1", x509.UnknownAuthorityError{Cert: shown}))
	}
	if grown := heap() - before; grown > 1<<20 {
		t.Errorf("%d kB are kept of 20 errors", grown>>10)
	}
	runtime.KeepAlive(kept)
}

func decoded(text []byte) []byte {
	block, _ := pem.Decode(text)
	return block.Bytes
}
