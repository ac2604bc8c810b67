package testbroker

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TLS is what a broker shows to its clients and asks of them, in PEM.
type TLS struct {
	Cert, Key []byte
	// ClientCA signs the certificates that clients need to show. Left empty, they need none.
	ClientCA []byte
}

// names of the files in the folder of the certificates.
const (
	certFile = "tls.crt"
	keyFile  = "tls.key"
	caFile   = "ca.crt"
)

// certificates are in a folder, as this process sees it.
type certificates struct {
	folder  string
	clients bool
}

// PrivateTLS is Private with TLS on two more ports, SecureAMQP and SecureManagement; the ports without it are there too.
func PrivateTLS(t testing.TB, show TLS) *Broker {
	t.Helper()
	folder, err := os.MkdirTemp(systemOfEnvironment().temporary(), "redrive-tls-") //nolint:usetesting // where the node can read it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	tls := &certificates{folder: folder, clients: len(show.ClientCA) > 0}
	if err := tls.write(show); err != nil {
		t.Fatal(err)
	}
	b, err := start(context.Background(), t.Output(), settings{tls: tls}, reservePorts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// Login are the user and the password of URLs.
func (b *Broker) Login(t testing.TB) (username, password string) {
	t.Helper()
	u, err := url.Parse(b.AMQPURL)
	if err != nil {
		t.Fatal("the AMQP URL is not a URL")
	}
	password, _ = u.User.Password()
	return u.User.Username(), password
}

// ShowCertificate lets the broker show another certificate to whoever connects from now on.
func (b *Broker) ShowCertificate(t testing.TB, show TLS) {
	t.Helper()
	if err := b.settings.tls.write(show); err != nil {
		t.Fatal(err)
	}
	// Else the node goes on for two minutes with what it has read.
	if err := b.runner.control(t.Context(), "eval", "ssl:clear_pem_cache()."); err != nil {
		t.Fatal(err)
	}
}

func (c *certificates) write(show TLS) error {
	if err := os.Chmod(c.folder, 0o755); err != nil { //nolint:gosec // a node in a container is another user
		return fmt.Errorf("the folder of the certificates: %w", err)
	}
	for name, content := range map[string][]byte{certFile: show.Cert, keyFile: show.Key, caFile: append(show.ClientCA, '\n')} {
		if err := os.WriteFile(filepath.Join(c.folder, name), content, 0o644); err != nil { //nolint:gosec // as above
			return fmt.Errorf("the certificates of the broker: %w", err)
		}
	}
	return nil
}

// configuration of a node that finds its certificates in a folder and listens at addresses.
func (c *certificates) configuration(folder, amqp string, ip string, management int) string {
	lines := []string{
		"listeners.ssl.default = " + amqp,
		"management.ssl.ip = " + ip,
		"management.ssl.port = " + strconv.Itoa(management),
	}
	for _, prefix := range []string{"ssl_options.", "management.ssl."} {
		lines = append(lines, prefix+"certfile = "+folder+"/"+certFile, prefix+"keyfile = "+folder+"/"+keyFile)
		if c.clients {
			lines = append(lines, prefix+"cacertfile = "+folder+"/"+caFile, prefix+"verify = verify_peer", prefix+"fail_if_no_peer_cert = true")
		}
	}
	return strings.Join(append(lines, ""), "\n")
}
