package brokerpool

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/testcert"
	"redrive.dev/redrive/internal/topology"
)

// management is a management API with nothing in it.
type management struct {
	*httptest.Server
	// snapshots that were begun, each told in entered.
	snapshots atomic.Int64
	entered   chan struct{}
	// gate keeps whoever wants a snapshot waiting while it is locked.
	gate sync.RWMutex
	// down answers as a proxy before a broker that is down does.
	down atomic.Bool
}

func newManagement(t *testing.T) *management {
	t.Helper()
	m := &management{entered: make(chan struct{}, 100)}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodGet:
			w.WriteHeader(http.StatusCreated)
		case r.URL.Path == "/api/whoami":
			if m.down.Load() {
				w.WriteHeader(http.StatusBadGateway)
			}
		case strings.HasPrefix(r.URL.Path, "/api/exchanges/"):
			_, _ = w.Write([]byte(`[{"name":"amq.direct","type":"direct"}]`))
		case r.URL.Path != "/api/cluster-name":
			_, _ = w.Write([]byte("[]"))
		default:
			m.snapshots.Add(1)
			m.entered <- struct{}{}
			m.gate.RLock()
			defer m.gate.RUnlock()
			if m.down.Load() {
				w.WriteHeader(http.StatusBadGateway)
			}
			_, _ = w.Write([]byte(`{"name":"rabbit@test"}`))
		}
	}))
	t.Cleanup(m.Close)
	return m
}

func (m *management) port(t *testing.T, b *Pool, password string) *Port {
	t.Helper()
	login, err := credentials.FromSecret(map[string][]byte{
		"host": []byte("127.0.0.1"), "username": []byte("user"), "password": []byte(password), "management_uri": []byte(m.URL),
	})
	if err != nil {
		t.Fatal(err)
	}
	port, err := b.Port(types.NamespacedName{Namespace: "shop", Name: m.URL + password}, login, "vhost")
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestPort_SharesASnapshotAmongTransportsOfAVHost(t *testing.T) {
	m, b := newManagement(t), NewPool(time.Hour, 8, nil)
	var all sync.WaitGroup
	for range 8 {
		port := m.port(t, b, "password").View("shop/async", time.Hour)
		all.Go(func() {
			if observed, err := port.Observe(t.Context()); err != nil || observed.Cluster != "rabbit@test" {
				t.Errorf("observed %q, %v", observed.Cluster, err)
			}
		})
	}
	all.Wait()
	if got := m.snapshots.Load(); got != 1 {
		t.Errorf("%d snapshots for 8 Transports", got)
	}
}

// Each password that a Secret ever had kept a client for ten minutes, with certificates of a megabyte: 221 of them ended the operator.
func TestPool_KeepsOneClientForATransport(t *testing.T) {
	m, b := newManagement(t), NewPool(time.Hour, 8, nil)
	of := func(transport, password string) {
		t.Helper()
		login, err := credentials.FromSecret(map[string][]byte{
			"host": []byte("127.0.0.1"), "username": []byte("user"), "password": []byte(password), "management_uri": []byte(m.URL),
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Port(types.NamespacedName{Namespace: "shop", Name: transport}, login, "vhost"); err != nil {
			t.Fatal(err)
		}
	}
	of("other", "0")
	for i := range 10 {
		of("async", strconv.Itoa(i))
	}
	if len(b.ports) != 2 {
		t.Errorf("%d clients, want that of the other Transport, which has the first password yet, and the last one", len(b.ports))
	}
	of("other", "9")
	if len(b.ports) != 1 {
		t.Errorf("%d clients, want the one that both use", len(b.ports))
	}
	name := types.NamespacedName{Namespace: "shop", Name: "gone"}
	of(name.Name, "9")
	of(name.Name+"/admin", "admin")
	if b.Forget(name, types.NamespacedName{Namespace: "shop", Name: "gone/admin"}); len(b.ports) != 1 || len(b.used) != 2 {
		t.Errorf("%d clients and %d users, want the one that two others use", len(b.ports), len(b.used))
	}
	for _, port := range b.ports {
		port.asked = port.asked.Add(-2 * keepBroker)
	}
	if b.prune(time.Now()); len(b.ports) != 0 || len(b.used) != 0 || len(b.queues) != 0 {
		t.Errorf("%d clients, %d users and %d lines, want none of those that nobody asked for", len(b.ports), len(b.used), len(b.queues))
	}
}

// What counts is what certificates take when they are read, with clients of other namespaces too, and once where clients share them.
func TestPool_BoundsTheCertificatesThatClientsKeep(t *testing.T) {
	b, ours := NewPool(time.Hour, 8, nil), testcert.NewAuthority(t, "ours")
	port := func(namespace string, i int, ca []byte) {
		t.Helper()
		login := credentials.Credentials{Host: "127.0.0.1", Port: 1, Username: "user", Password: strconv.Itoa(i) + namespace, Secure: true, CA: ca}
		if _, err := b.Port(types.NamespacedName{Namespace: namespace, Name: strconv.Itoa(i)}, login, "vhost"); err != nil {
			t.Fatal(err)
		}
	}
	kept := func(namespace string) (count int) {
		for name := range b.used {
			if name.Namespace == namespace {
				count++
			}
		}
		return count
	}
	for i := range 20 {
		port("other", i, ours.PEM)
	}
	crowded := func() []byte { return ours.Crowded(t, 5000).PEM } // It takes 0.7 MiB.
	for i := range 10 {
		port("shop", i, crowded())
	}
	if kept("other") != 20 || kept("shop") != 6 || b.used[types.NamespacedName{Namespace: "shop", Name: "9"}] == (brokerKey{}) {
		t.Errorf("%d clients of the other namespace, and %d of one with large certificates, want 20 and 6", kept("other"), kept("shop"))
	}
	same := crowded()
	for i := range 20 {
		port("shared", i, same)
	}
	if kept("shared") != 20 {
		t.Errorf("%d clients that share a certificate, want 20", kept("shared"))
	}
	for i := range 40 {
		port(fmt.Sprint("crowd-", i%8), i, crowded())
	}
	all := 0
	for i := range 8 {
		all += kept(fmt.Sprint("crowd-", i))
	}
	if all += kept("shop"); all > 24 || kept("other") != 20 {
		t.Errorf("%d clients with large certificates are kept, and %d of the other namespace", all, kept("other"))
	}
}

func TestPool_BoundsTheCertificatesThatReconcilesUse(t *testing.T) {
	b, ours := NewPool(time.Hour, 8, nil), testcert.NewAuthority(t, "ours")
	use := func(namespace string, i int, ca []byte) (*tenancy.Reservation, error) {
		t.Helper()
		login := credentials.Credentials{Host: "127.0.0.1", Port: 1, Username: "user", Password: strconv.Itoa(i) + namespace, Secure: true, CA: ca}
		port, err := b.Port(types.NamespacedName{Namespace: namespace, Name: strconv.Itoa(i)}, login, "vhost")
		if err != nil {
			t.Fatal(err)
		}
		return b.Use(t.Context(), namespace, port)
	}
	crowded := ours.Crowded(t, 5000).PEM
	held := map[string][]*tenancy.Reservation{}
	for i := range 100 {
		namespace := fmt.Sprint("hostile-", i/50)
		if one, err := use(namespace, i, crowded); err == nil {
			held[namespace] = append(held[namespace], one)
		} else if !errors.Is(err, tenancy.ErrMemory) {
			t.Fatal(err)
		}
	}
	if first, second := len(held["hostile-0"]), len(held["hostile-1"]); first > 16 || second > 8 || second == 0 {
		t.Errorf("%d and %d clients with large certificates are used at a time, want at most 16 and 8", first, second)
	}
	for _, ca := range [][]byte{ours.PEM, crowded} {
		if _, err := use("shop", 1, ca); err != nil {
			t.Errorf("another namespace: %v", err)
		}
	}
	for _, one := range slices.Concat(held["hostile-0"], held["hostile-1"]) {
		one.Release()
	}
	if _, left := b.inUse.Used("hostile-0"); left > 0 {
		t.Errorf("%d bytes are counted when they are not used any more", left)
	}
}

func TestPool_KeepsOneLineForAllPathsOfAManagementAPI(t *testing.T) {
	m, b := newManagement(t), NewPool(time.Hour, 8, nil)
	for _, path := range []string{"", "/a", "/b"} {
		login, err := credentials.FromSecret(map[string][]byte{
			"host": []byte("127.0.0.1"), "username": []byte("user"), "password": []byte("password"), "management_uri": []byte(m.URL + path),
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Port(types.NamespacedName{Namespace: "shop", Name: "async" + path}, login, "vhost"); err != nil {
			t.Fatal(err)
		}
	}
	if len(b.ports) != 3 || len(b.queues) != 1 || b.queues[strings.TrimPrefix(m.URL, "http://")] == nil {
		t.Errorf("%d clients, and the lines %v", len(b.ports), b.queues)
	}
}

func TestView_RenewsItsSnapshotAfterItsWriteOrWhenOld(t *testing.T) {
	tests := map[string]struct {
		age   time.Duration
		then  func(*testing.T, *management, *Pool)
		total int64
	}{
		"the Transport has written": {
			age: time.Hour,
			then: func(t *testing.T, m *management, b *Pool) {
				write(t, m.port(t, b, "password").View("shop/async", time.Hour))
			},
			total: 2,
		},
		"another Transport has written, it is not": {
			age: time.Hour,
			then: func(t *testing.T, m *management, b *Pool) {
				write(t, m.port(t, b, "password").View("shop/other", time.Hour))
			},
			total: 1,
		},
		"it is too old":               {age: 0, total: 2},
		"nothing happened, it is not": {age: time.Hour, total: 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m, b := newManagement(t), NewPool(tt.age, 8, nil)
			observe(t, m.port(t, b, "password").View("shop/async", time.Hour))
			if tt.then != nil {
				tt.then(t, m, b)
			}
			observe(t, m.port(t, b, "password").View("shop/async", time.Hour))
			if got := m.snapshots.Load(); got != tt.total {
				t.Errorf("%d snapshots, want %d", got, tt.total)
			}
		})
	}
}

func TestPool_MakesAnotherClientForAnotherPassword(t *testing.T) {
	m, b := newManagement(t), NewPool(time.Hour, 8, nil)
	if m.port(t, b, "old") == m.port(t, b, "new") {
		t.Error("the client of the old password serves the new one")
	}
	b.prune(time.Now().Add(2 * keepBroker))
	if len(b.ports) > 0 {
		t.Error("clients that nobody asks for are kept")
	}
}

func TestPort_WaitsForNoBrokerThatIsKnownToBeSilent(t *testing.T) {
	m, b := newManagement(t), NewPool(0, 8, nil)
	m.down.Store(true)
	port := m.port(t, b, "password").View("shop/async", time.Hour)
	if _, err := port.Observe(t.Context()); !errors.Is(err, broker.ErrUnreachable) {
		t.Fatalf("a broker that is down was observed: %v", err)
	}
	<-m.entered

	m.gate.Lock()
	probe := make(chan error)
	go func() {
		_, err := port.Observe(t.Context())
		probe <- err
	}()
	<-m.entered
	if _, err := port.Observe(t.Context()); !errors.Is(err, broker.ErrUnreachable) {
		t.Errorf("got %v while another one tries", err)
	}
	m.down.Store(false)
	m.gate.Unlock()
	if err := <-probe; err != nil {
		t.Errorf("the broker answers again, and still: %v", err)
	}
	observe(t, port)
}

// Else a few hundred that wait for nothing would do so at all times.
func TestPort_LeavesABrokerAloneForAsLongAsItWasSilent(t *testing.T) {
	m, b := newManagement(t), NewPool(0, 8, nil)
	m.down.Store(true)
	port := m.port(t, b, "password").View("shop/async", 0)
	m.gate.Lock()
	time.AfterFunc(promptly+200*time.Millisecond, m.gate.Unlock)
	for range 10 {
		if _, err := port.Observe(t.Context()); !errors.Is(err, broker.ErrUnreachable) {
			t.Fatalf("a broker that does not answer was observed: %v", err)
		}
	}
	if got := m.snapshots.Load(); got != 1 {
		t.Errorf("it was asked %d times in a row", got)
	}
	m.down.Store(false)
	port.unreachableAt = time.Now().Add(-time.Hour)
	observe(t, port)
}

func TestPort_CallsNoBrokerSilentByTheDeadlineOfACaller(t *testing.T) {
	m, b := newManagement(t), NewPool(time.Hour, 8, nil)
	port := m.port(t, b, "password").View("shop/async", time.Hour)
	m.gate.Lock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := port.Observe(ctx); err == nil {
		t.Fatal("a broker that does not answer was observed")
	}
	m.gate.Unlock()
	observe(t, port)
}

func TestView_TakesAFreshSnapshotOnDemand(t *testing.T) {
	m, b := newManagement(t), NewPool(time.Hour, 8, nil)
	port := m.port(t, b, "password")
	for _, look := range []struct {
		age time.Duration
		own bool
	}{{time.Hour, true}, {0, true}, {time.Hour, false}} {
		view := port.View("shop/async", look.age)
		if observe(t, view); view.IsOwn() != look.own {
			t.Errorf("the snapshot was begun for a Transport that wants one of %s at most: %v", look.age, view.IsOwn())
		}
	}
	if got := m.snapshots.Load(); got != 2 {
		t.Errorf("%d snapshots, want the first one and the fresh one", got)
	}
}

// What a Transport does not see yet of what others wrote is told, so that it can look again.
func TestView_TellsThatItMayLackWhatOthersWrote(t *testing.T) {
	m, b := newManagement(t), NewPool(time.Hour, 8, nil)
	port := m.port(t, b, "password")
	own, other := port.View("shop/async", time.Hour), port.View("shop/other", time.Hour)
	observe(t, own)
	if own.behind {
		t.Error("a new snapshot is said to lack something")
	}
	write(t, other)
	observe(t, own)
	if !own.behind {
		t.Error("it is not said that another Transport has written since")
	}
	observe(t, other)
	observe(t, own)
	if own.behind {
		t.Error("the snapshot that the other one needed is not shared")
	}
	if len(port.wrote) > 0 {
		t.Errorf("writes that the snapshot holds are remembered: %v", port.wrote)
	}
}

func write(t *testing.T, port apply.Port) {
	t.Helper()
	step := topology.Step{Action: topology.ActionCreate, Exchange: &topology.Exchange{Name: "x", Type: "fanout"}}
	if _, err := port.Apply(t.Context(), step); err != nil {
		t.Fatal(err)
	}
}

func observe(t *testing.T, port apply.Port) {
	t.Helper()
	if _, err := port.Observe(t.Context()); err != nil {
		t.Fatal(err)
	}
}
