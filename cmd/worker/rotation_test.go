package main_test

import (
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testcert"
	"redrive.dev/redrive/internal/testtransport"
)

// mount is a Secret's folder as the kubelet writes it: the files are links into a folder that is itself a link, and an update
// swaps the latter.
type mount struct {
	t      *testing.T
	folder string
	data   map[string]string
	swaps  int
}

func newMount(t *testing.T, data map[string]string) *mount {
	t.Helper()
	m := &mount{t: t, folder: t.TempDir(), data: map[string]string{}}
	m.update(data)
	return m
}

// update changes some keys; an empty value takes one away.
func (m *mount) update(changes map[string]string) {
	m.t.Helper()
	maps.Copy(m.data, changes)
	m.swaps++
	version := "..v" + strconv.Itoa(m.swaps)
	for key, value := range m.data {
		if value != "" {
			write(m.t, filepath.Join(m.folder, version, key), value)
		}
		link := filepath.Join(m.folder, key)
		if _, err := os.Lstat(link); os.IsNotExist(err) {
			must(m.t, os.Symlink(filepath.Join("..data", key), link))
		}
	}
	next := filepath.Join(m.folder, "..next")
	must(m.t, os.Symlink(version, next))
	must(m.t, os.Rename(next, filepath.Join(m.folder, "..data")))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// stream publishes one message after the other, each confirmed, until it is stopped.
type stream struct {
	done chan struct{}
	wait sync.WaitGroup

	mu        sync.Mutex
	published int
}

func newStream(t *testing.T, to string) *stream {
	t.Helper()
	conn, err := amqp091.Dial(to)
	must(t, err)
	channel, err := conn.Channel()
	must(t, err)
	must(t, channel.Confirm(false))
	s := &stream{done: make(chan struct{})}
	s.wait.Go(func() {
		defer func() { _ = conn.Close() }()
		for {
			select {
			case <-s.done:
				return
			default:
			}
			confirm, err := channel.PublishWithDeferredConfirm("async", testtransport.Queue, true, false,
				amqp091.Publishing{MessageId: strconv.Itoa(s.count()), DeliveryMode: amqp091.Persistent})
			if err != nil || !confirm.Wait() {
				t.Errorf("publish: %v", err)
				return
			}
			s.mu.Lock()
			s.published++
			s.mu.Unlock()
		}
	})
	return s
}

func (s *stream) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.published
}

func (s *stream) stop() int {
	close(s.done)
	s.wait.Wait()
	return s.count()
}

// more waits until so many messages more were published.
func (s *stream) more(t *testing.T, n int) {
	t.Helper()
	at := s.count() + n
	testtransport.Eventually(t, "more messages", func() bool { return s.count() >= at })
}

// rotating is a scene whose worker reads its login from a mount.
type rotating struct {
	*scene

	broker *testbroker.Broker
	vhost  string
	mount  *mount
}

func newRotating(t *testing.T, broker *testbroker.Broker, login map[string]string) *rotating {
	t.Helper()
	s := newScene(t, broker)
	u, err := url.Parse(s.url)
	must(t, err)
	r := &rotating{scene: s, broker: broker, vhost: strings.TrimPrefix(u.Path, "/")}
	login["vhost"] = r.vhost
	r.mount = newMount(t, login)
	for i, arg := range s.process.args {
		if arg == "--credentials" {
			s.process.args[i+1] = r.mount.folder
		}
	}
	return r
}

// user makes a user with exactly the rights that a worker needs.
func (r *rotating) user(t *testing.T, name string) (username, password string) {
	t.Helper()
	username = name + "-" + r.vhost
	return username, r.broker.User(t, username, "", r.vhost, "^$", `^async\.(fallback|return|failed)$`, "^test$")
}

// connections of a user, or of any user, to the vhost.
func (r *rotating) connections(t *testing.T, user string) int {
	t.Helper()
	response, err := http.Get(r.broker.ManagementURL + "/api/vhosts/" + url.PathEscape(r.vhost) + "/connections?columns=user,client_properties")
	must(t, err)
	defer func() { _ = response.Body.Close() }()
	var rows []struct {
		User       string `json:"user"`
		Properties struct {
			Name string `json:"connection_name"` //nolint:tagliatelle // the broker's name
		} `json:"client_properties"` //nolint:tagliatelle // the broker's name
	}
	must(t, json.NewDecoder(response.Body).Decode(&rows))
	n := 0
	for _, row := range rows {
		if row.User == user && strings.HasPrefix(row.Properties.Name, "redrive ") {
			n++
		}
	}
	return n
}

// awaitConnections waits until the worker has so many sessions as a user.
func (r *rotating) awaitConnections(t *testing.T, user string, n int) {
	t.Helper()
	testtransport.Eventually(t, "connections of "+user, func() bool { return r.connections(t, user) == n })
}

// account stops everything and compares what was published with what became of it: each message has exactly one end, and
// the process has not ended in between.
func (r *rotating) account(t *testing.T, published int) {
	t.Helper()
	ends := map[string]int{}
	testtransport.Eventually(t, "every message handled or failed", func() bool {
		for _, d := range r.TakeAll("async.failed") {
			ends[d.MessageId]++
		}
		r.partner.mu.Lock()
		defer r.partner.mu.Unlock()
		return len(ends)+len(r.partner.handled) >= published && r.Ready(testtransport.Queue) == 0 && r.Waiting() == 0
	})
	// It is the process that was started: nobody starts another.
	if err := r.process.end(syscall.SIGTERM); err != nil {
		t.Errorf("the worker did not stop cleanly: %v\n%s", err, r.process.log)
	}
	for id, times := range r.partner.handled {
		ends[id] += times
	}
	repeated := 0
	for _, times := range ends {
		if times > 1 {
			repeated++
		}
	}
	t.Logf("%d published, %d ended, %d of them more than once", published, len(ends), repeated)
	if len(ends) != published || repeated > 0 {
		t.Errorf("%d of %d ended, %d more than once", len(ends), published, repeated)
	}
	if log := r.process.log.String(); strings.Contains(log, "before its messages were settled") {
		t.Errorf("a session was cut: %s", log)
	}
}

func TestRotation_LosesAndRepeatsNothingWithNewUsers(t *testing.T) {
	t.Parallel()
	broker := testbroker.Shared(t)
	u, err := url.Parse(broker.AMQPURL)
	must(t, err)
	r := newRotating(t, broker, map[string]string{"host": u.Hostname(), "port": u.Port()})
	first, password := r.user(t, "first")
	r.mount.update(map[string]string{"username": first, "password": password})
	r.process.start()
	stream := newStream(t, r.url)
	r.awaitConnections(t, first, 2)
	stream.more(t, 300)

	// The new password is in the Secret before the broker knows it, and the worker goes on with the old session meanwhile.
	r.mount.update(map[string]string{"password": "not-yet"})
	stream.more(t, 300)
	r.awaitConnections(t, first, 2)
	r.mount.update(map[string]string{"password": broker.ChangePassword(t, first, "")})
	stream.more(t, 300)

	second, password := r.user(t, "second")
	r.mount.update(map[string]string{"username": second, "password": password})
	r.awaitConnections(t, second, 2)
	r.awaitConnections(t, first, 0)
	broker.DeleteUser(t, first)
	stream.more(t, 300)

	// A Secret that is emptied by accident takes nothing away.
	r.mount.update(map[string]string{"username": "", "password": ""})
	stream.more(t, 300)
	r.mount.update(map[string]string{"username": second, "password": password})
	stream.more(t, 100)
	r.account(t, stream.stop())
	if log := r.process.log.String(); strings.Contains(log, password) || !strings.Contains(log, "failed to switch to the new credentials") ||
		!strings.Contains(log, "the broker's credentials cannot be used") {
		t.Errorf("want the refusals in the log and no password: %s", log)
	}
}

func TestRotation_LosesAndRepeatsNothingWithNewCertificates(t *testing.T) {
	t.Parallel()
	before, after := testcert.NewAuthority(t, "before"), testcert.NewAuthority(t, "after")
	show := func(server, clients *testcert.Authority) testbroker.TLS {
		pair := server.Issue(t, "127.0.0.1")
		return testbroker.TLS{Cert: pair.Cert, Key: pair.Key, ClientCA: append(clients.PEM, before.PEM...)}
	}
	broker := testbroker.PrivateTLS(t, show(before, before))
	host, port, err := net.SplitHostPort(broker.SecureAMQP)
	must(t, err)
	client := before.Issue(t, "worker")
	r := newRotating(t, broker, map[string]string{
		"host": host, "port": port, "ca.crt": string(before.PEM), "tls.crt": string(client.Cert), "tls.key": string(client.Key),
	})
	username, password := r.user(t, "worker")
	r.mount.update(map[string]string{"username": username, "password": password})
	r.process.start()
	stream := newStream(t, r.url)
	r.awaitConnections(t, username, 2)
	stream.more(t, 300)

	// First both authorities are trusted, on both sides; then the broker's certificate changes, and the worker's.
	r.mount.update(map[string]string{"ca.crt": string(before.PEM) + string(after.PEM)})
	stream.more(t, 300)
	broker.ShowCertificate(t, show(after, after))
	client = after.Issue(t, "worker")
	r.mount.update(map[string]string{"tls.crt": string(client.Cert), "tls.key": string(client.Key)})
	stream.more(t, 300)
	r.mount.update(map[string]string{"ca.crt": string(after.PEM)})
	stream.more(t, 300)
	testtransport.Eventually(t, "one session each", func() bool { return r.connections(t, username) == 2 })
	r.account(t, stream.stop())
	if log := r.process.log.String(); strings.Contains(log, "failed to switch") {
		t.Errorf("a rotation was refused: %s", log)
	}
}
