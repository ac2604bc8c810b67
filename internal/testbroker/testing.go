package testbroker

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
)

// Variables that name a broker that runs already. Both are needed.
const (
	AMQPVariable       = "AMQP_URL"
	ManagementVariable = "MANAGEMENT_URL"
)

// shared is the one broker of a test process.
var shared struct { //nolint:gochecknoglobals // the tests of a package share a process, and TestMain ends it
	once   sync.Once
	broker *Broker
	err    error
}

// FromEnvironment returns the broker that AMQP_URL and MANAGEMENT_URL name, nil where they name none.
func FromEnvironment() *Broker {
	amqp, management := os.Getenv(AMQPVariable), os.Getenv(ManagementVariable)
	if amqp == "" || management == "" {
		return nil
	}
	return &Broker{AMQPURL: amqp, ManagementURL: strings.TrimSuffix(management, "/"), log: io.Discard}
}

// Main runs the tests of a package and ends the broker that Shared started. m is the *testing.M, or wraps it.
func Main(m interface{ Run() int }) {
	code := m.Run()
	if shared.broker != nil && shared.broker.runner != nil {
		if err := shared.broker.Stop(context.Background()); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, "stop RabbitMQ:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Shared returns the broker that AMQP_URL and MANAGEMENT_URL name, or else one that the tests of the package share. The
// package's TestMain must call Main. Tests keep apart by vhosts.
func Shared(t testing.TB) *Broker {
	t.Helper()
	shared.once.Do(func() {
		if shared.broker = FromEnvironment(); shared.broker == nil {
			shared.broker, shared.err = Start(context.Background(), os.Stderr)
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.broker
}

// Private returns a broker for this test alone, which may stop and restart it. Lines are those of rabbitmq.conf; see Start.
func Private(t testing.TB, lines ...string) *Broker {
	t.Helper()
	b, err := Start(context.Background(), t.Output(), lines...)
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

// Vhost makes a vhost with a name of its own, which is deleted when the test ends.
func (b *Broker) Vhost(t testing.TB) string {
	t.Helper()
	name := strings.ToLower("t-" + rand.Text()[:12])
	b.MakeVhost(t, name)
	return name
}

// MakeVhost makes a vhost with a given name, which is deleted when the test ends.
func (b *Broker) MakeVhost(t testing.TB, name string) {
	t.Helper()
	if err := b.AddVhost(context.Background(), name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.RemoveVhost(context.Background(), name) })
}

// User makes a user with certain rights in a vhost, which is deleted when the test ends. tags are RabbitMQ's, such as
// "policymaker". It returns the password.
func (b *Broker) User(t testing.TB, name, tags, vhost, configure, write, read string) string {
	t.Helper()
	password := rand.Text()
	path := "/api/users/" + url.PathEscape(name)
	b.must(t, http.MethodPut, path, map[string]string{"password": password, "tags": tags})
	t.Cleanup(func() { _ = b.manage(context.Background(), http.MethodDelete, path, nil) })
	b.Permit(t, name, vhost, configure, write, read)
	return password
}

// Permit gives a user rights in a vhost, as patterns of names.
func (b *Broker) Permit(t testing.TB, name, vhost, configure, write, read string) {
	t.Helper()
	b.must(t, http.MethodPut, permissionsPath(vhost, name), map[string]string{"configure": configure, "write": write, "read": read})
}

func (b *Broker) must(t testing.TB, method, path string, body any) {
	t.Helper()
	if err := b.write(context.Background(), method, path, body); err != nil {
		t.Fatal(err)
	}
}
