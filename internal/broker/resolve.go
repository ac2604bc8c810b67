package broker

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"
)

const (
	// maxAddresses is how many addresses a name may have. An answer of DNS has room for thousands, and Go opens a socket for each to find the best.
	maxAddresses = 64
	// maxDials is at how many of them a connection is tried.
	maxDials = 8
	// otherFamilyAfter is when those of the other family of addresses are tried as well, as Go does it.
	otherFamilyAfter = 300 * time.Millisecond
	// dialTimeout bounds how long a name is looked up and its addresses are tried.
	dialTimeout = requestTimeout / 3
)

var errAddresses = fmt.Errorf("the name has more than %d addresses", maxAddresses)

// named connects to a few of the addresses that a name has. dns connects to a server of DNS.
func named(connect, dns dial) dial {
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dns(ctx, network, address)
		if _, small := conn.(net.PacketConn); small || err != nil {
			return conn, err
		}
		return &answer{Conn: conn}, nil
	}}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		if _, notIP := netip.ParseAddr(host); err != nil || host == "" || notIP == nil {
			return connect(ctx, network, address)
		}
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		found, err := resolver.LookupNetIP(ctx, "ip", host)
		if err == nil && len(found) > maxAddresses {
			err = &net.DNSError{Err: errAddresses.Error(), Name: host}
		}
		if err != nil {
			return nil, &net.OpError{Op: "dial", Net: network, Err: err}
		}
		return race(ctx, families(found), func(ctx context.Context, to netip.Addr) (net.Conn, error) {
			return connect(ctx, network, net.JoinHostPort(to.String(), port))
		})
	}
}

// answer is a connection for one answer of a server of DNS, which is refused by the number of records in its head: two bytes of length, and eight
// more, are before that. What comes by UDP is small.
type answer struct {
	net.Conn
	read, records int
}

// Read implements net.Conn.
func (a *answer) Read(p []byte) (int, error) {
	n, err := a.Conn.Read(p)
	for _, b := range p[:n] {
		if a.read == 8 || a.read == 9 {
			a.records = a.records<<8 | int(b)
		}
		a.read++
	}
	if a.records > maxAddresses {
		return 0, errAddresses
	}
	return n, err //nolint:wrapcheck // it is the connection's
}

// families are the addresses to try: those of the family of the first, which the resolver thinks best, and those of the other.
func families(all []netip.Addr) [][]netip.Addr {
	var best, other []netip.Addr
	for _, address := range all {
		if address = address.Unmap(); address.Is4() == all[0].Unmap().Is4() {
			best = append(best, address)
		} else {
			other = append(other, address)
		}
	}
	if len(other) == 0 {
		return [][]netip.Addr{best[:min(len(best), maxDials)]}
	}
	other = other[:min(len(other), maxDials/2)]
	return [][]netip.Addr{best[:min(len(best), maxDials-len(other))], other}
}

type dialAddress func(ctx context.Context, to netip.Addr) (net.Conn, error)

// race connects to an address of the first family; to one of the next as well when that has failed or takes long, and the first that answers is taken.
func race(ctx context.Context, families [][]netip.Addr, connect dialAddress) (net.Conn, error) {
	type outcome struct {
		family int
		conn   net.Conn
		err    error
	}
	ctx, cancel := context.WithCancel(ctx)
	outcomes, over := make(chan outcome), make(chan struct{})
	defer close(over)
	defer cancel()
	try := func(family int) {
		conn, err := inTurn(ctx, families[family], connect)
		select {
		case outcomes <- outcome{family, conn, err}:
		case <-over:
			if err == nil {
				_ = conn.Close()
			}
		}
	}
	long := time.NewTimer(otherFamilyAfter)
	defer long.Stop()
	errs := make([]error, len(families))
	begun, failed := 1, 0
	go try(0)
	for failed < len(families) {
		select {
		case <-long.C:
		case one := <-outcomes:
			if one.err == nil {
				return one.conn, nil
			}
			errs[one.family] = one.err
			failed++
		}
		if begun < len(families) {
			go try(begun)
			begun++
		}
	}
	return nil, errs[0]
}

// inTurn connects to one address after the other, each in its part of the time that is left. Where none answers it says why the first did not.
func inTurn(ctx context.Context, addresses []netip.Addr, connect dialAddress) (conn net.Conn, first error) {
	end, _ := ctx.Deadline()
	for i, address := range addresses {
		part, cancel := context.WithTimeout(ctx, time.Until(end)/time.Duration(len(addresses)-i))
		conn, err := connect(part, address)
		cancel()
		if err == nil {
			return conn, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}
