package tlsconn_test

import (
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/testcert"
	"redrive.dev/redrive/internal/testtls"
	"redrive.dev/redrive/internal/tlsconn"
)

func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	issued := testcert.NewAuthority(t, "ours").Issue(t, "127.0.0.1")
	pair, err := tls.X509KeyPair(issued.Cert, issued.Key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// counted knows how much was read of it.
type counted struct {
	net.Conn

	read int
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read += n
	return n, err
}

// ends are a connection, and the end beyond it. Our end is a client of that, or its server.
func ends(t *testing.T, client bool) (ours net.Conn, from *counted, theirs *testtls.Peer) {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	from = &counted{Conn: near}
	shown := certificate(t)
	made := make(chan error)
	go func() {
		var err error
		if client {
			theirs, err = testtls.Server(t.Context(), far, shown, false)
		} else {
			theirs, err = testtls.Client(t.Context(), far)
		}
		made <- err
	}()
	var err error
	if client {
		ours, err = tlsconn.Client(t.Context(), from, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
	} else {
		ours, err = tlsconn.Server(t.Context(), from, &tls.Config{Certificates: []tls.Certificate{shown}, MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true})
	}
	if theirErr := <-made; err != nil || theirErr != nil {
		t.Fatal(err, theirErr)
	}
	from.read = 0
	return ours, from, theirs
}

func TestConn_EndsWhereRecordsAreMoreThanTheirData(t *testing.T) {
	for _, client := range []bool{true, false} {
		for _, updates := range []int{16, 1, 0} {
			ours, from, theirs := ends(t, client)
			flooded := make(chan int)
			go func() {
				answered, err := theirs.Flood("text", updates)
				if err != nil {
					t.Error(err)
				}
				flooded <- answered
			}()
			_ = ours.SetReadDeadline(time.Now().Add(10 * time.Second))
			n, err := io.Copy(io.Discard, io.LimitReader(ours, 1<<20))
			_ = ours.Close()
			answered := <-flooded
			if err == nil || !strings.Contains(err.Error(), "more TLS records than its data needs") || answered > 100 || from.read > 16<<10 {
				t.Errorf("client %t, %d KeyUpdates before each byte: %d bytes of data in %d, and %d answers: %v", client, updates, n, from.read, answered, err)
			}
		}
	}
}

func TestConn_TakesWhatPeersSend(t *testing.T) {
	type peer = *testtls.Peer
	each := func(n int, send func(peer, int)) func(peer) {
		return func(p peer) {
			for i := range n {
				send(p, i)
			}
		}
	}
	small := func(p peer, _ int) { p.Data([]byte("1\r\n \r\n")) }
	for name, send := range map[string]func(peer){
		"chunks of one byte":              each(2000, small),
		"an empty list after each header": each(5000, func(p peer, _ int) { p.Data(make([]byte, 150)); p.Data([]byte("[]")) }),
		"records of a full size":          each(300, func(p peer, _ int) { p.Data(make([]byte, 16<<10)) }),
		"new keys now and then": each(50_000, func(p peer, i int) {
			if p.Data(make([]byte, 200)); i%100 == 0 {
				if err := p.Update(); err != nil {
					t.Error(err)
				}
			}
		}),
		"tickets": each(4, func(p peer, _ int) { each(15, func(p peer, _ int) { p.Ticket(2000) })(p); small(p, 0) }),
	} {
		ours, _, theirs := ends(t, true)
		go func() { _, _ = io.Copy(io.Discard, theirs) }() // the answers to KeyUpdates
		go func() {
			send(theirs)
			theirs.Data([]byte("end"))
			if err := theirs.Flush(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}()
		_ = ours.SetReadDeadline(time.Now().Add(10 * time.Second))
		var last []byte
		p := make([]byte, 4096)
		for string(last) != "end" {
			n, err := ours.Read(p)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				break
			}
			last = p[:n]
		}
	}
}
