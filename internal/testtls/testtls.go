// Package testtls is an end of TLS 1.3 that sends what no library would.
package testtls

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"strings"
)

// Types of records, and what is sent in them.
const (
	handshakeRecord, dataRecord = 22, 23
	keyUpdate, sessionTicket    = 24, 4
)

// updateSize is how many bytes a KeyUpdate is on the wire, which is also its answer.
const updateSize = 27

// Peer is one end after the handshake: a connection without TLS, by which it sends records. What it sends is gathered until Flush.
type Peer struct {
	net.Conn

	secret, iv []byte
	aead       cipher.AEAD
	sequence   uint64
	gathered   []byte
}

// Client makes the handshake of a client.
func Client(ctx context.Context, raw net.Conn) (*Peer, error) {
	secrets := &bytes.Buffer{}
	conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, KeyLogWriter: secrets, MinVersion: tls.VersionTLS13}) //nolint:gosec // it says nothing of use
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	return newPeer(raw, conn, secrets.String(), "CLIENT_TRAFFIC_SECRET_0 ")
}

// Server makes the handshake of a server, and reads first what it is asked, if it is asked anything.
func Server(ctx context.Context, raw net.Conn, certificate tls.Certificate, asked bool) (*Peer, error) {
	secrets := &bytes.Buffer{}
	conn := tls.Server(raw, &tls.Config{
		Certificates: []tls.Certificate{certificate}, KeyLogWriter: secrets, MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true,
	})
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	if asked {
		if _, err := conn.Read(make([]byte, 8<<10)); err != nil {
			return nil, fmt.Errorf("read the question: %w", err)
		}
	}
	return newPeer(raw, conn, secrets.String(), "SERVER_TRAFFIC_SECRET_0 ")
}

func newPeer(raw net.Conn, conn *tls.Conn, secrets, label string) (*Peer, error) {
	if suite := conn.ConnectionState().CipherSuite; suite != tls.TLS_AES_128_GCM_SHA256 {
		return nil, fmt.Errorf("this machine chooses %s", tls.CipherSuiteName(suite))
	}
	_, line, _ := strings.Cut(secrets, label)
	line, _, _ = strings.Cut(line, "\n")
	_, text, _ := strings.Cut(line, " ")
	secret, err := hex.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("the log of the keys: %w", err)
	}
	p := &Peer{Conn: raw}
	return p, p.useKey(secret)
}

// Data sends data in a record of its own.
func (p *Peer) Data(data []byte) { p.record(dataRecord, data) }

// Ticket sends a ticket of so many bytes for a later session.
func (p *Peer) Ticket(size int) {
	body := append(make([]byte, 8), 0) // lifetime, age and an empty nonce
	body = append(sized(body, size), make([]byte, size)...)
	p.record(handshakeRecord, message(sessionTicket, append(body, 0, 0)))
}

// Update sends a KeyUpdate, which wants an answer, and uses the next keys.
func (p *Peer) Update() error {
	p.record(handshakeRecord, message(keyUpdate, []byte{1}))
	next, err := expand(p.secret, "traffic upd", sha256.Size)
	if err != nil {
		return err
	}
	return p.useKey(next)
}

// Flush writes what is gathered.
func (p *Peer) Flush() error {
	defer func() { p.gathered = p.gathered[:0] }()
	if _, err := p.Write(p.gathered); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// Flood sends a text, and then letters without an end, each in a record of its own after so many KeyUpdates, until the other end is no longer there. It
// tells how many of them were answered.
func (p *Peer) Flood(text string, updates int) (answered int, err error) {
	read := make(chan int64)
	go func() {
		n, _ := io.Copy(io.Discard, p)
		read <- n
	}()
	p.Data([]byte(text))
	for err == nil {
		for range updates {
			if err := p.Update(); err != nil {
				return 0, err
			}
		}
		if p.Data([]byte{'a'}); len(p.gathered) > 16<<10 {
			err = p.Flush()
		}
	}
	_ = p.Close()
	return int(<-read / updateSize), nil
}

func message(kind byte, body []byte) []byte {
	return append(sized([]byte{kind, 0}, len(body)), body...)
}

// sized appends a length.
func sized(to []byte, size int) []byte {
	return binary.BigEndian.AppendUint16(to, uint16(size)) //nolint:gosec // no record has more
}

func (p *Peer) record(kind byte, data []byte) {
	header := sized([]byte{dataRecord, 3, 3}, len(data)+1+p.aead.Overhead())
	nonce := bytes.Clone(p.iv)
	for i, b := range binary.BigEndian.AppendUint64(nil, p.sequence) {
		nonce[len(nonce)-8+i] ^= b
	}
	p.sequence++
	p.gathered = p.aead.Seal(append(p.gathered, header...), nonce, append(bytes.Clone(data), kind), header)
}

func (p *Peer) useKey(secret []byte) error {
	key, err := expand(secret, "key", 16)
	if err != nil {
		return err
	}
	iv, err := expand(secret, "iv", 12)
	if err != nil {
		return err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return fmt.Errorf("a key: %w", err)
	}
	p.secret, p.iv, p.sequence = secret, iv, 0
	if p.aead, err = cipher.NewGCM(block); err != nil {
		return fmt.Errorf("a cipher: %w", err)
	}
	return nil
}

// expand is HKDF-Expand-Label of RFC 8446, 7.1.
func expand(secret []byte, label string, size int) ([]byte, error) {
	label = "tls13 " + label
	info := append(sized(nil, size), byte(len(label))) //nolint:gosec // it is short
	info = append(append(info, label...), 0)
	key, err := hkdf.Expand(sha256.New, secret, string(info), size)
	if err != nil {
		return nil, fmt.Errorf("derive the %s: %w", label, err)
	}
	return key, nil
}
