package faults

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// namesVariable makes this binary the worker as it is shipped, but that it looks up names at the server that stands there.
const namesVariable = "REDRIVE_FAULTS_NAMES"

// What a scene's broker and partner are called.
const (
	brokerName  = "broker.test"
	partnerName = "partner.test"
)

// askFor lets this process look up all names at one server.
func askFor(server string) {
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", server)
	}}
}

// nameserver is a DNS server.
type nameserver struct {
	conn net.PacketConn

	mu sync.Mutex
	// known are addresses, and refused how it fails for a name; one that is neither does not exist.
	known   map[string]netip.Addr
	refused map[string]lookup
	asked   map[string]int
}

// lookup is how one fails.
type lookup string

const (
	noSuchName  lookup = "no such host"
	serverFails lookup = "server misbehaving"
	noAnswer    lookup = "i/o timeout"
)

// newNameserver starts one that knows both names.
func newNameserver(t testing.TB) *nameserver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	here := netip.MustParseAddr("127.0.0.1")
	n := &nameserver{
		conn: conn, known: map[string]netip.Addr{brokerName: here, partnerName: here}, refused: map[string]lookup{}, asked: map[string]int{},
	}
	var serving sync.WaitGroup
	serving.Go(n.serve)
	t.Cleanup(func() {
		_ = conn.Close()
		serving.Wait()
	})
	return n
}

// lead lets a name lead to an address from now on.
func (n *nameserver) lead(name string, to netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known[name] = to
	delete(n.refused, name)
}

// refuse lets all lookups of a name fail.
func (n *nameserver) refuse(name string, how lookup) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refused[name] = how
}

// count how often a name was looked up.
func (n *nameserver) count(name string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[name]
}

// named is a URL or an address with a name in place of 127.0.0.1, where there are names.
func (n *nameserver) named(address, name string) string {
	if n == nil {
		return address
	}
	return strings.Replace(address, "127.0.0.1", name, 1)
}

// command runs a worker that looks up names here.
func (n *nameserver) command(arguments []string) *exec.Cmd {
	command := exec.CommandContext(context.Background(), os.Args[0], arguments...)
	command.Env = append(os.Environ(), namesVariable+"="+n.conn.LocalAddr().String(), "NO_PROXY=*", "no_proxy=*")
	return command
}

func (n *nameserver) serve() {
	buffer := make([]byte, 1500)
	for {
		size, from, err := n.conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		if answer := n.answer(buffer[:size]); answer != nil {
			_, _ = n.conn.WriteTo(answer, from)
		}
	}
}

// answer a question; nil is none.
func (n *nameserver) answer(question []byte) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil || len(m.Questions) != 1 {
		return nil
	}
	asked := m.Questions[0]
	name := strings.TrimSuffix(asked.Name.String(), ".")
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked[name]++
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	address, known := n.known[name]
	switch how := n.refused[name]; {
	case how == noAnswer:
		return nil
	case how == serverFails:
		m.RCode = dnsmessage.RCodeServerFailure
	case how == noSuchName, !known:
		m.RCode = dnsmessage.RCodeNameError
	case asked.Type == dnsmessage.TypeA:
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: asked.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET},
			Body:   &dnsmessage.AResource{A: address.As4()},
		}}
	}
	answer, err := m.Pack()
	if err != nil {
		return nil
	}
	return answer
}
