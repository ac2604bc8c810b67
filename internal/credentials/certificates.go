package credentials

import (
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
)

// Whoever may write the Secret decides what stands in these keys, and the operator reads them with each look.
const (
	// maxAuthorities is the size of ca.crt in bytes: more than all public authorities take.
	maxAuthorities = 256 << 10
	// maxPair is the size of tls.crt, and of tls.key, in bytes.
	maxPair = 64 << 10
	// maxBits is the size of an RSA key. It is what crypto/tls takes from a server; with a larger one a processor is busy for seconds, or hours.
	maxBits = 8192
	// maxSameName is how many certificates of ca.crt may have one subject. For a certificate of that issuer a handshake tries them one after the other,
	// and a hundred of them took a processor for 0.2 s. An authority that is renewed has two.
	maxSameName = 16
	// maxCertificate is the size of one certificate in bytes. Of an empty URI in it, two bytes, x509 makes 150.
	maxCertificate = 16 << 10
	// maxRead is what all certificates of a Secret may take in memory when they are read. The public authorities take 0.8 MB by this count.
	maxRead = 1 << 20
	// maxLastRead is the same of all that lastRead keeps.
	maxLastRead = 4 << 20
)

// certificates are what the keys hold, read once.
type certificates struct {
	// roots are nil where the system's are trusted.
	roots *x509.CertPool
	// own is the client's; none where there is no certificate.
	own []tls.Certificate
	// size is what both take in memory when they are read.
	size int
}

// lastRead are what the last keys held, or why they cannot be used, by a digest of them: many Transports share a Secret, and each looks at
// it again and again.
var lastRead = newMemory(32) //nolint:gochecknoglobals // as a memory of what a pure function gave

type outcome struct {
	certificates *certificates
	err          error
}

// readCertificates is readAnew where that was not done lately.
func readCertificates(ca, cert, key []byte) (*certificates, error) {
	digest := sha256.New()
	for _, part := range [][]byte{ca, cert, key} {
		_, _ = fmt.Fprintf(digest, "%d:", len(part))
		_, _ = digest.Write(part)
	}
	sum := [sha256.Size]byte(digest.Sum(nil))
	if known, ok := lastRead.get(sum); ok {
		return known.certificates, known.err
	}
	found, err := readAnew(ca, cert, key)
	lastRead.add(sum, outcome{found, err})
	return found, err
}

// readAnew checks sizes before anything is read.
func readAnew(ca, cert, key []byte) (*certificates, error) {
	for name, data := range map[string][]byte{KeyCert: cert, KeyKey: key} {
		if len(data) > maxPair {
			return nil, fmt.Errorf("key %s: is larger than %d bytes", name, maxPair)
		}
	}
	if len(ca) > maxAuthorities {
		return nil, fmt.Errorf("key %s: is larger than %d bytes", KeyCA, maxAuthorities)
	}
	var c certificates
	var err error
	if len(ca) > 0 {
		if c.roots, c.size, err = readAuthorities(ca); err != nil {
			return nil, err
		}
	}
	if len(cert) > 0 {
		var size int
		if c.own, size, err = readPair(cert, key); err != nil {
			return nil, err
		}
		c.size += size
	}
	return &c, nil
}

// readAuthorities reads what x509 can, and leaves out the rest as that does. It gives what they take in memory when all are read, too.
func readAuthorities(data []byte) (*x509.CertPool, int, error) {
	known, same, size := map[string]bool{}, map[string]int{}, 0
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" || len(block.Headers) > 0 || known[string(block.Bytes)] {
			continue
		}
		known[string(block.Bytes)] = true
		if len(block.Bytes) > maxCertificate {
			return nil, 0, fmt.Errorf("key %s: has a certificate of more than %d bytes", KeyCA, maxCertificate)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue
		}
		if isTooLarge(certificate) {
			return nil, 0, fmt.Errorf("key %s: has an RSA key of more than %d bits", KeyCA, maxBits)
		}
		if size += SizeOf(certificate); size > maxRead {
			return nil, 0, fmt.Errorf("key %s: its certificates take more than %d bytes in memory: leave in it those that are needed", KeyCA, maxRead)
		}
		if same[string(certificate.RawSubject)]++; same[string(certificate.RawSubject)] > maxSameName {
			return nil, 0, fmt.Errorf("key %s: has more than %d certificates of one subject (%.100s): leave in it those that are in use",
				KeyCA, maxSameName, certificate.Subject)
		}
	}
	roots := x509.NewCertPool() // It keeps certificates unread until they are needed.
	if !roots.AppendCertsFromPEM(data) {
		return nil, 0, fmt.Errorf("key %s: holds no PEM certificate", KeyCA)
	}
	return roots, size, nil
}

func isTooLarge(certificate *x509.Certificate) bool {
	key, ok := certificate.PublicKey.(*rsa.PublicKey)
	return ok && key.N.BitLen() > maxBits
}

// readPair gives errors without those of the library: these may quote what they read. It gives what the pair takes in memory, too.
func readPair(cert, key []byte) ([]tls.Certificate, int, error) {
	if err := checkKey(key); err != nil {
		return nil, 0, err
	}
	for block, rest := pem.Decode(cert); block != nil; block, rest = pem.Decode(rest) {
		if len(block.Bytes) > maxCertificate {
			return nil, 0, fmt.Errorf("key %s: has a certificate of more than %d bytes", KeyCert, maxCertificate)
		}
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, 0, fmt.Errorf("keys %s and %s: are not a PEM certificate and its key", KeyCert, KeyKey)
	}
	size := len(cert) + len(key) + SizeOf(pair.Leaf)
	if size > maxRead {
		return nil, 0, fmt.Errorf("key %s: its certificate takes more than %d bytes in memory", KeyCert, maxRead)
	}
	return []tls.Certificate{pair}, size, nil
}

// rsaKey is RSAPrivateKey of RFC 8017, A.1.2, and wrappedKey the PrivateKeyInfo of RFC 5208 around it.
type rsaKey struct {
	Version       int
	N             *big.Int
	E             int
	D, P, Q       *big.Int
	DP, DQ, QInv  *big.Int        `asn1:"optional"`
	OtherPrimeSet []asn1.RawValue `asn1:"optional,omitempty"`
}

type wrappedKey struct {
	Version    int
	Algorithm  pkix.AlgorithmIdentifier
	PrivateKey []byte
}

// checkKey refuses an RSA key of which Go works something out before it looks whether it is one: the time for that grows with the cube of the
// primes. Whatever else is no key is left to the library.
func checkKey(data []byte) error {
	block, rest := pem.Decode(data)
	for block != nil && block.Type != "PRIVATE KEY" && !strings.HasSuffix(block.Type, " PRIVATE KEY") {
		block, rest = pem.Decode(rest)
	}
	if block == nil {
		return nil
	}
	der, wrapped, key := block.Bytes, wrappedKey{}, rsaKey{}
	if _, err := asn1.Unmarshal(der, &wrapped); err == nil {
		der = wrapped.PrivateKey
	}
	if _, err := asn1.Unmarshal(der, &key); err != nil {
		return nil //nolint:nilerr // it is no RSA key
	}
	switch {
	case key.N.BitLen() > maxBits, key.D.BitLen() > maxBits, key.P.BitLen() > maxBits/2, key.Q.BitLen() > maxBits/2:
		return fmt.Errorf("key %s: is an RSA key of more than %d bits", KeyKey, maxBits)
	case key.DP == nil, key.DQ == nil, key.QInv == nil, len(key.OtherPrimeSet) > 0:
		return fmt.Errorf("key %s: is an RSA key that lacks dP, dQ or qInv, or has more than two primes", KeyKey)
	}
	return nil
}
