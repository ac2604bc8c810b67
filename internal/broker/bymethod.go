package broker

import (
	"context"
	"net"
	"net/http"
)

// byMethod sends deletions each on a connection of its own, whose end throws away what the kernel has not sent yet: else a deletion
// that was given up would go on its way when the other end reads again, also after the end of the process. All else shares connections.
type byMethod struct{ deletions, others *http.Transport }

func newByMethod(others *http.Transport) byMethod {
	deletions := others.Clone()
	deletions.DisableKeepAlives = true
	dial := others.DialContext
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	others.DialTLSContext = secured(dial, others.TLSClientConfig)
	deletions.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		connection, err := dial(ctx, network, address)
		if tcp, is := connection.(*net.TCPConn); err == nil && is {
			_ = tcp.SetLinger(0)
		}
		return connection, err
	}
	deletions.DialTLSContext = secured(deletions.DialContext, others.TLSClientConfig)
	return byMethod{deletions: deletions, others: others}
}

// RoundTrip implements http.RoundTripper.
func (b byMethod) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodDelete {
		return b.deletions.RoundTrip(request) //nolint:wrapcheck // the caller describes it
	}
	return b.others.RoundTrip(request) //nolint:wrapcheck // the caller describes it
}
