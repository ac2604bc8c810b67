package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"
)

// errDenied is why nobody is asked at an address. It does not say whether anybody would answer there.
var errDenied = errors.New("its address is in a network that the operator may not connect to (--deny-broker-networks)")

// networks are those in which no management API is asked: who writes the Secret must not reach by the operator what only the operator reaches.
type networks []netip.Prefix

// have is true for an address in one of them.
func (n networks) have(address netip.Addr) bool {
	address = embedded(address.Unmap().WithZone(""))
	for _, network := range n {
		if network.Contains(address) {
			return true
		}
	}
	return false
}

// embedded is the IPv4 address to which a translator on the way sends what goes to an address of IPv6, 64:ff9b::/96 of RFC 6052 or 2002::/16 of RFC
// 3056; or the address itself.
func embedded(address netip.Addr) netip.Addr {
	bytes := address.As16()
	switch {
	case address.Is6() && [12]byte(bytes[:12]) == [12]byte{1: 0x64, 2: 0xff, 3: 0x9b}:
		return netip.AddrFrom4([4]byte(bytes[12:]))
	case address.Is6() && [2]byte(bytes[:2]) == [2]byte{0x20, 0x02}:
		return netip.AddrFrom4([4]byte(bytes[2:6]))
	default:
		return address
	}
}

// dialer looks at each address that it is about to connect to, after the name was resolved: another answer of the resolver changes nothing.
func (n networks) dialer() func(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	dialer.Control = func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("an address that is none: %w", err)
		}
		if n.have(to.Addr()) {
			return errDenied
		}
		return nil
	}
	return dialer.DialContext
}

// proxy is the one of the environment. It resolves names itself, and what it lets through is for it to say; an address in the URL is known here.
func (n networks) proxy(request *http.Request) (*url.URL, error) {
	if address, err := netip.ParseAddr(request.URL.Hostname()); err == nil && n.have(address) {
		return nil, errDenied
	}
	return http.ProxyFromEnvironment(request) //nolint:wrapcheck // It says what is wrong with the variable.
}
