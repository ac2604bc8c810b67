// Package tlsconn makes TLS connections with peers that nobody trusts: what a peer may have computed after the handshake is bounded.
package tlsconn

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
)

// After the handshake each record may be a KeyUpdate of TLS 1.3: 27 bytes for which this end derives keys and answers, in the time in which it deciphers 50 kB.
// Libraries send one in millions of records, and Go takes 16 between two bytes of data. A record of one byte costs as much as one of a kilobyte.
const (
	// dataForEmpty is how many reads of data allow for one record without any, beyond mostEmpty: of KeyUpdates, session tickets and alerts.
	dataForEmpty, mostEmpty = 64, 64
	// bytesForRecord is how many bytes of data allow for a record, beyond mostSmall.
	bytesForRecord, mostSmall = 8, 512
	// readAhead is how much is read beyond a record: those in it are deciphered before the next look. crypto/tls asks for as much.
	readAhead = 512

	headerSize = 5
)

var errTooMany = errors.New("the other end sends more TLS records than its data needs")

// Client makes the handshake of a client.
func Client(ctx context.Context, raw net.Conn, config *tls.Config) (net.Conn, error) {
	from := &records{Conn: raw}
	return from.begin(ctx, tls.Client(from, config))
}

// Server makes the handshake of a server.
func Server(ctx context.Context, raw net.Conn, config *tls.Config) (net.Conn, error) {
	from := &records{Conn: raw}
	return from.begin(ctx, tls.Server(from, config))
}

// conn counts the data of the records that are counted below it.
type conn struct {
	*tls.Conn

	from *records
}

// Read implements net.Conn. It reads no more than the data of one record.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.from.reads.Add(1)
		c.from.bytes.Add(int64(n))
	}
	return n, err //nolint:wrapcheck // it is the connection's
}

// records is a connection that carries TLS, and counts its records while they come in. crypto/tls reads in one goroutine at a time.
type records struct {
	net.Conn

	// bounded is true after the handshake.
	bounded bool
	// count is how many came since.
	count int64
	// left is how much of the last record is to come. Of the header of the next, seen bytes were there, of which the last two are the length.
	left, seen int
	length     uint16

	// reads and bytes are how often data was read, and how much.
	reads, bytes atomic.Int64
}

func (r *records) begin(ctx context.Context, secured *tls.Conn) (net.Conn, error) {
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, err //nolint:wrapcheck // the caller tells what it means
	}
	r.bounded, r.count = true, 0
	return &conn{Conn: secured, from: r}, nil
}

// Read implements net.Conn. All records that were read before are deciphered by now, but for the beginning of one.
func (r *records) Read(p []byte) (int, error) {
	if r.bounded {
		if reads := r.reads.Load(); r.count > reads+reads/dataForEmpty+mostEmpty || r.count > r.bytes.Load()/bytesForRecord+mostSmall {
			return 0, errTooMany
		}
	}
	n, err := r.Conn.Read(p[:min(len(p), r.left+readAhead)])
	r.see(p[:n])
	return n, err //nolint:wrapcheck // it is the connection's
}

// see counts the records that begin in what was read.
func (r *records) see(read []byte) {
	for len(read) > 0 {
		if skipped := min(r.left, len(read)); skipped > 0 {
			r.left, read = r.left-skipped, read[skipped:]
			continue
		}
		r.length = r.length<<8 | uint16(read[0])
		read = read[1:]
		if r.seen++; r.seen == headerSize {
			r.count++
			r.seen, r.left = 0, int(r.length)
		}
	}
}
