package controllers_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testcert"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
)

// liar stands before the management API and misbehaves as told.
type liar struct {
	*httptest.Server
	// behave takes the place of the broker; nil where it answers itself.
	behave           atomic.Pointer[http.HandlerFunc]
	requests, writes atomic.Int64
}

func newLiar(t *testing.T, managementURL string) *liar {
	t.Helper()
	l := &liar{}
	forward := forwarder(t, managementURL)
	l.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/whoami" { // whether it answers, as the operator asks all the time
			l.requests.Add(1)
		}
		if r.Method != http.MethodGet {
			l.writes.Add(1)
		}
		if behave := l.behave.Load(); behave != nil {
			(*behave)(rw, r)
			return
		}
		forward.ServeHTTP(rw, r)
	}))
	t.Cleanup(func() { closeServer(l.Server) })
	return l
}

func (l *liar) be(behave http.HandlerFunc) {
	if behave == nil {
		l.behave.Store(nil)
		return
	}
	l.behave.Store(&behave)
}

func forwarder(t *testing.T, managementURL string) http.Handler {
	t.Helper()
	target, err := url.Parse(managementURL)
	must(t, err)
	target.User = nil
	return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
}

// secureProxy shows the management API with a certificate of an authority that nobody knows.
type secureProxy struct {
	*httptest.Server
	authority []byte
}

func newSecureProxy(t *testing.T, managementURL string) *secureProxy {
	t.Helper()
	authority := testcert.NewAuthority(t, "shop")
	pair := authority.Issue(t, "127.0.0.1")
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	must(t, err)
	server := httptest.NewUnstartedServer(forwarder(t, managementURL))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	t.Cleanup(server.Close)
	return &secureProxy{Server: server, authority: authority.PEM}
}

func answers(status int, contentType, body string) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", contentType)
		rw.Header().Set("Location", "https://login.example/")
		rw.WriteHeader(status)
		_, _ = io.WriteString(rw, body)
	}
}

func resets(rw http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		return
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

// emptyLists knows of nothing, as a broker that is half up.
func emptyLists(rw http.ResponseWriter, r *http.Request) {
	rw.Header().Set("Content-Type", "application/json")
	if strings.HasSuffix(r.URL.Path, "cluster-name") {
		_, _ = io.WriteString(rw, `{"name":"rabbit@elsewhere"}`)
		return
	}
	_, _ = io.WriteString(rw, "[]")
}

func TestTransport_NamesAMisbehavingBrokerAndWritesNothing(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		behave       http.HandlerFunc
		reason, part string
	}{
		"errors":                {answers(500, "text/plain", "oops"), v1alpha1.ReasonBrokerUnreachable, "(500)"},
		"pages":                 {answers(200, "text/html", "<html>"), v1alpha1.ReasonBrokerUnreachable, `it is "text/html" and not JSON`},
		"half answers":          {answers(200, "application/json", `{"name":"ra`), v1alpha1.ReasonBrokerUnreachable, "is not what the management API gives (200)"},
		"empty lists":           {emptyLists, v1alpha1.ReasonBrokerUnreachable, "it lacks the exchange amq.direct"},
		"redirects":             {answers(302, "text/html", ""), v1alpha1.ReasonBrokerUnreachable, `it redirects to "login.example"`},
		"refused logins":        {answers(401, "text/html", "<html>"), v1alpha1.ReasonBrokerRefused, "refuses the login (401)"},
		"connections cut short": {resets, v1alpha1.ReasonBrokerUnreachable, "reset"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			l := newLiar(t, testbroker.Shared(t).ManagementURL)
			edit(w, w.secret(), func(s *corev1.Secret) { s.StringData = map[string]string{"management_uri": l.URL} })
			transport := w.ready()
			before := w.observed()
			l.be(tt.behave)
			w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, tt.reason)
			w.awaitMessage(transport, v1alpha1.ReadyCondition, tt.part) // a look that had begun may say something else
			// Nothing is written on the strength of it, and it is not asked more often than the poll would.
			writes, requests, start := l.writes.Load(), l.requests.Load(), time.Now()
			testtransport.Eventually(t, "some more polls", func() bool {
				return time.Since(start) > 4*pollInterval && l.requests.Load() > requests
			})
			if l.writes.Load() > writes {
				t.Errorf("%d writes to a broker that lies", l.writes.Load()-writes)
			}
			// A look is at most seven requests.
			if asked, most := l.requests.Load()-requests, int64(7*mostPolls(start)); asked > most {
				t.Errorf("%d requests within %s, more than %d", asked, time.Since(start), most)
			}
			l.be(nil)
			w.awaitReady(transport)
			if after := w.observed(); len(after.Queues) != len(before.Queues) || len(after.Bindings) != len(before.Bindings) || len(after.Policies) != len(before.Policies) {
				t.Errorf("%d queues, %d bindings and %d policies became %d, %d and %d", len(before.Queues), len(before.Bindings),
					len(before.Policies), len(after.Queues), len(after.Bindings), len(after.Policies))
			}
		})
	}
}

func TestTransport_GoesOnWhereALoginIsRefusedNowAndThen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newLiar(t, testbroker.Shared(t).ManagementURL)
	forward, refuse := forwarder(t, testbroker.Shared(t).ManagementURL), answers(401, "application/json", `{"error":"not_authorised","reason":"Login failed"}`)
	l.be(func(rw http.ResponseWriter, r *http.Request) {
		if l.requests.Load()%23 == 7 {
			refuse(rw, r)
			return
		}
		forward.ServeHTTP(rw, r)
	})
	edit(w, w.secret(), func(s *corev1.Secret) { s.StringData = map[string]string{"management_uri": l.URL} })
	transport := w.ready()
	edit(w, transport, func(tr *v1alpha1.Transport) {
		tr.Spec.Queues = append(tr.Spec.Queues, v1alpha1.Queue{Name: "more", BindingKeys: []string{"more"}})
	})
	w.awaitReady(transport)
	if !w.hasQueue("more") {
		t.Error("ready without the queue")
	}
}

// Ten Transports on a broker that takes ten seconds for each answer would keep all of the operator's workers for minutes.
func TestTransport_KeepsNoOtherWaitingForASlowBroker(t *testing.T) {
	t.Parallel()
	o := &operator{}
	slow, others := newUnattendedWorld(t, o), newBystanders(t, o)
	l := newLiar(t, testbroker.Shared(t).ManagementURL)
	forward := forwarder(t, testbroker.Shared(t).ManagementURL)
	l.be(func(rw http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(10 * time.Second):
			forward.ServeHTTP(rw, r)
		case <-r.Context().Done():
		}
	})
	edit(slow, slow.secret(), func(s *corev1.Secret) { s.StringData = map[string]string{"management_uri": l.URL} })
	slow.create(slow.policy("policy", time.Second))
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}
	for _, name := range names {
		slow.create(slow.named(name))
	}
	testtransport.Eventually(t, "those that wait for their turn to be told so", func() bool {
		waiting := 0
		for _, name := range names {
			transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: slow.namespace, Name: name}}
			slow.get(transport)
			ready := meta.FindStatusCondition(transport.Status.Conditions, v1alpha1.ReadyCondition)
			if ready != nil && ready.Reason == v1alpha1.ReasonProgressing && strings.Contains(ready.Message, "queued: waiting for a free slot") {
				waiting++
			}
		}
		return waiting == len(names)-4 // a namespace leaves as many of the eight slots free as it has
	})
	for range 3 {
		others.check()
	}
	others.judge()
	if busy := l.requests.Load(); busy == 0 {
		t.Error("nobody asked the slow broker")
	}
}

// bystanders are Transports on a broker that is well, beside others whose broker is not. How long they take is compared with what it takes
// at the same time under an operator that has no such brokers: the machine may be busy with other tests.
type bystanders struct {
	beside, apart *world
	// usual is what it took apart from them just before.
	usual time.Duration
	seen  int
	// slow are the times that it took much longer than that.
	slow []string
}

// newBystanders starts an operator, whose other worlds there are already.
func newBystanders(t *testing.T, o *operator) *bystanders {
	t.Helper()
	b := &bystanders{beside: newUnattendedWorld(t, o), apart: newPrivateWorld(t, &operator{})}
	for _, w := range []*world{b.beside, b.apart} {
		w.create(w.policy("policy", time.Second))
	}
	o.start(t, testcluster.Start(t))
	t.Cleanup(o.stop)
	b.apart.timeToReady("first") // whatever has to start first
	b.beside.timeToReady("first")
	b.usual = b.apart.timeToReady("usual")
	return b
}

// check tells where a Transport waits for others of another broker.
func (b *bystanders) check() {
	b.beside.Helper()
	b.seen++
	name := fmt.Sprint("seen-", b.seen)
	took := b.beside.timeToReady(name)
	after := b.apart.timeToReady(name)
	if usual := max(b.usual, after); took > 10*time.Second+3*usual {
		b.slow = append(b.slow, fmt.Sprintf("a Transport on another broker took %s, and %s where there are no others", took, usual))
	}
	b.usual = after
}

// judge is for the end: a machine that stands still for half a minute makes one of them slow, and one that has to wait makes all.
func (b *bystanders) judge() {
	b.beside.Helper()
	if 2*len(b.slow) > b.seen {
		b.beside.Errorf("%d of %d: %s", len(b.slow), b.seen, strings.Join(b.slow, "; "))
	}
}

// timeToReady is how long a new Transport takes to be ready, and ready again after a change.
func (w *world) timeToReady(name string) time.Duration {
	w.Helper()
	began := time.Now()
	transport := w.named(name)
	w.create(transport)
	w.awaitReady(transport)
	edit(w, transport, func(tr *v1alpha1.Transport) { tr.Spec.Workers[0].Concurrency = new(int32(7)) })
	w.awaitReady(transport)
	return time.Since(began)
}
