package handler

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/net/http/httpproxy"
	"golang.org/x/net/proxy"
)

// proxyPorts are those of proxies whose URL has none.
var proxyPorts = map[string]string{"http": "80", schemeTLS: "443", "socks5": "1080", "socks5h": "1080"} //nolint:gochecknoglobals // a table

// reach makes a connection to an address, by way of the proxy if there is one. net/http could do that, too, but makes the TLS handshake behind a proxy by
// itself, without the bounds that this package has for what a server sends.
func (d *dialer) reach(ctx context.Context, network, address string) (net.Conn, error) {
	if d.tunnel == nil {
		return d.dial(ctx, network, address)
	}
	conn, err := d.through(ctx, address)
	if err != nil {
		return nil, &net.OpError{Op: "proxyconnect", Net: network, Err: err} // as net/http names it
	}
	return conn, nil
}

func (d *dialer) through(ctx context.Context, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	host := net.JoinHostPort(d.tunnel.Hostname(), cmp.Or(d.tunnel.Port(), proxyPorts[d.tunnel.Scheme]))
	if d.tunnel.Scheme == "socks5" || d.tunnel.Scheme == "socks5h" {
		return d.socks(ctx, host, address)
	}
	conn, err := d.dial(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	if d.tunnel.Scheme == schemeTLS {
		config := &tls.Config{RootCAs: d.proxyRoots, MinVersion: tls.VersionTLS12, ServerName: d.tunnel.Hostname()}
		if conn, err = shake(ctx, conn, config); err != nil {
			return nil, err
		}
	}
	if err := askForTunnel(ctx, conn, d.tunnel.User, address); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// socks makes a connection by way of a proxy of SOCKS 5, which also resolves the name.
func (d *dialer) socks(ctx context.Context, host, address string) (net.Conn, error) {
	var login *proxy.Auth
	if user := d.tunnel.User; user != nil {
		password, _ := user.Password()
		login = &proxy.Auth{User: user.Username(), Password: password}
	}
	dialer, err := proxy.SOCKS5("tcp", host, login, forward{d})
	if err != nil {
		return nil, err //nolint:wrapcheck // its caller does
	}
	return dialer.(proxy.ContextDialer).DialContext(ctx, "tcp", address) //nolint:wrapcheck,forcetypeassert // its caller does; it is documented to be one
}

// forward reaches the proxy itself.
type forward struct{ d *dialer }

// Dial implements proxy.Dialer, and is not called where there is DialContext.
func (f forward) Dial(network, address string) (net.Conn, error) {
	return f.d.dial(context.Background(), network, address)
}

// DialContext implements proxy.ContextDialer.
func (f forward) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return f.d.dial(ctx, network, address)
}

// askForTunnel asks a proxy of HTTP to pass on what is sent from now on (RFC 9110, 9.3.6). Of its words none is kept: the status says enough.
func askForTunnel(ctx context.Context, conn net.Conn, login *url.Userinfo, address string) error {
	release := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer release()
	request := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{}}
	if login != nil {
		password, _ := login.Password()
		request.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(login.Username()+":"+password)))
	}
	if err := request.Write(conn); err != nil {
		return err //nolint:wrapcheck // its caller does
	}
	// What is buffered behind the answer is nothing: over TLS a server says nothing before it was spoken to.
	response, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, maxAnswerHeaders)), request)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("await the proxy's answer: %w", context.Cause(ctx))
		}
		return badAnswerOfProxy(err)
	}
	_ = response.Body.Close() // of an answer to CONNECT there is none
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the proxy answers %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	}
	return nil
}

// badAnswerOfProxy quotes errors of the connection only: net/http quotes what it could not parse, in which a proxy may repeat its login.
func badAnswerOfProxy(err error) error {
	if _, ok := errors.AsType[net.Error](err); ok || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the proxy gives no answer of HTTP: %w", err)
	}
	return errors.New("the proxy gives no answer of HTTP")
}

// proxyFor is the proxy that the environment names for a URL; nil for none. Package httpproxy leaves out one whose URL is wrong, and requests would go
// without it.
func proxyFor(target *url.URL) (*url.URL, error) {
	config := httpproxy.FromEnvironment()
	proxy, err := config.ProxyFunc()(target)
	if proxy != nil || err != nil {
		return proxy, err // which says that the environment is one of CGI
	}
	named, variable := config.HTTPProxy, "HTTP_PROXY"
	if target.Scheme == schemeTLS {
		named, variable = config.HTTPSProxy, "HTTPS_PROXY"
	}
	if named == "" {
		return nil, nil //nolint:nilnil // There is none, and nothing is wrong.
	}
	config.HTTPProxy, config.HTTPSProxy = "http://any.test", "http://any.test"
	if proxy, _ := config.ProxyFunc()(target); proxy == nil {
		return nil, nil //nolint:nilnil // NO_PROXY has the host.
	}
	// The cause would show the proxy's password.
	return nil, fmt.Errorf("the value of %s is not a valid URL: encode special characters of its user and password, such as %%25 for %%", variable)
}
