package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

var errRefusedHere = errors.New("refused")

// dnsOf is a connection to a server of DNS that knows so many addresses of each name and family.
func dnsOf(t *testing.T, each int) dial {
	t.Helper()
	return func(context.Context, string, string) (net.Conn, error) {
		ours, server := net.Pipe()
		go func() {
			defer func() { _ = server.Close() }()
			size := make([]byte, 2)
			_, _ = io.ReadFull(server, size)
			query := make([]byte, binary.BigEndian.Uint16(size))
			_, _ = io.ReadFull(server, query)
			var message dnsmessage.Message
			if err := message.Unpack(query); err != nil {
				t.Error(err)
			}
			message.Response, message.Additionals = true, nil
			if each == 0 {
				message.RCode = dnsmessage.RCodeNameError
			}
			question := message.Questions[0]
			for i := range each {
				head := dnsmessage.ResourceHeader{Name: question.Name, Type: question.Type, Class: question.Class}
				var body dnsmessage.ResourceBody = &dnsmessage.AResource{A: [4]byte{127, 0, byte(i >> 8), byte(i)}}
				if question.Type == dnsmessage.TypeAAAA {
					body = &dnsmessage.AAAAResource{AAAA: [16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)}}
				}
				message.Answers = append(message.Answers, dnsmessage.Resource{Header: head, Body: body})
			}
			packed, err := message.Pack()
			if err != nil {
				t.Error(err)
			}
			_, _ = server.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...))
		}()
		return ours, nil
	}
}

// A name with thousands of addresses took a fifth of a second of a processor at each connection, and as long as there were addresses to try.
func TestNamed_TriesAFewAddressesOfAName(t *testing.T) {
	for _, c := range []struct {
		each, dials int
		says        string
	}{
		{1, 2, "refused"},
		{3, 6, "refused"},
		{32, maxDials, "refused"},
		{33, 0, "the name has more than 64 addresses"},
		{2000, 0, "dial tcp: lookup many.test. on "},
		{2000, 0, "the name has more than 64 addresses"},
		{0, 0, "no such host"},
	} {
		var dials atomic.Int32
		refused := func(context.Context, string, string) (net.Conn, error) {
			dials.Add(1)
			return nil, errRefusedHere
		}
		_, err := named(refused, dnsOf(t, c.each))(t.Context(), "tcp", "many.test.:15672")
		if err == nil || !strings.Contains(err.Error(), c.says) || int(dials.Load()) != c.dials {
			t.Errorf("%d addresses of each family: %d dials: %v", c.each, dials.Load(), err)
		}
	}
}

func TestNamed_LooksUpNoAddress(t *testing.T) {
	for _, address := range []string{"127.0.0.1:1", "[::1]:1", "[fe80::1%eth0]:1", ":1"} {
		connect := func(_ context.Context, _, to string) (net.Conn, error) { return nil, errors.New("asked " + to) }
		if _, err := named(connect, nil)(t.Context(), "tcp", address); err == nil || err.Error() != "asked "+address {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// reached is a connection to an address.
type reached struct {
	net.Conn
	at string
}

// Where addresses of one family lead nowhere, as where there is no route for IPv6, those of the other are tried soon.
func TestRace_FallsBackToOtherAddresses(t *testing.T) {
	addresses := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	for name, c := range map[string]struct {
		of            []netip.Addr
		open, refused string
		want          string
		after         time.Duration
	}{
		"the first":             {of: addresses("::1", "::2", "10.0.0.1"), open: "::1 10.0.0.1", want: "::1"},
		"the next":              {of: addresses("::1", "::2", "10.0.0.1"), refused: "::1", open: "::2", want: "::2"},
		"the next in its time":  {of: addresses("10.0.0.1", "10.0.0.2"), open: "10.0.0.2", want: "10.0.0.2", after: dialTimeout / 2},
		"the other family":      {of: addresses("::1", "::2", "10.0.0.1"), open: "10.0.0.1", want: "10.0.0.1", after: otherFamilyAfter},
		"the other at once":     {of: addresses("::1", "10.0.0.1"), refused: "::1", open: "10.0.0.1", want: "10.0.0.1"},
		"none, as the first is": {of: addresses("::1", "10.0.0.1"), refused: "::1 10.0.0.1"},
		"none in time":          {of: addresses("::1", "::2", "10.0.0.1", "10.0.0.2"), after: dialTimeout + otherFamilyAfter},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), dialTimeout)
			defer cancel()
			begun := time.Now()
			conn, err := race(ctx, families(c.of), func(ctx context.Context, to netip.Addr) (net.Conn, error) {
				switch {
				case slices.Contains(strings.Fields(c.open), to.String()):
					return reached{at: to.String()}, nil
				case slices.Contains(strings.Fields(c.refused), to.String()):
					return nil, errors.New(to.String() + " refuses")
				}
				<-ctx.Done()
				return nil, errors.New(to.String() + " is silent")
			})
			if time.Since(begun) > c.after {
				t.Errorf("%s: after %v", name, time.Since(begun))
			}
			if c.want == "" && (err == nil || !strings.HasPrefix(err.Error(), c.of[0].String())) || c.want != "" && conn != (reached{at: c.want}) {
				t.Errorf("%s: %v, %v", name, conn, err)
			}
			synctest.Wait()
		})
	}
}
