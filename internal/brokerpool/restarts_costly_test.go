package brokerpool

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/testtransport"
)

// portAt is that of a Transport whose management API is at a URL.
func portAt(t *testing.T, b *Pool, transport types.NamespacedName, url string) *Port {
	t.Helper()
	login, err := credentials.FromSecret(map[string][]byte{
		"host": []byte("127.0.0.1"), "username": []byte("user"), "password": []byte("password"), "management_uri": []byte(url),
	})
	if err != nil {
		t.Fatal(err)
	}
	port, err := b.Port(transport, login, "vhost")
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// Each path of a server counts as another API: a namespace that names many has the operator busy with one of them at a time, and another does not
// wait for it.
func TestRestartWatch_AsksTheAPIsOfANamespaceOneByOne(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	inHand, most, asked := map[string]int{}, map[string]int{}, map[string]int{}
	leave := make(chan struct{})
	serve := func(rw http.ResponseWriter, r *http.Request) {
		namespace, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		mu.Lock()
		inHand[namespace]++
		most[namespace], asked[namespace] = max(most[namespace], inHand[namespace]), asked[namespace]+1
		mu.Unlock()
		select {
		case <-leave:
		case <-r.Context().Done():
		}
		mu.Lock()
		defer mu.Unlock()
		inHand[namespace]--
		rw.WriteHeader(http.StatusUnauthorized)
	}
	seen := func(namespace string) int { mu.Lock(); defer mu.Unlock(); return asked[namespace] }
	b, r := NewPool(0, 8, nil), NewRestartWatch(time.Minute, tenancy.NewProcessors())
	for i := range 4 { // each at a port of its own
		for _, namespace := range []string{"hostile", "shop"}[:1+i/3] {
			server := httptest.NewServer(http.HandlerFunc(serve))
			t.Cleanup(server.Close)
			name := types.NamespacedName{Namespace: namespace, Name: strconv.Itoa(i)}
			r.Of(name, portAt(t, b, name, fmt.Sprintf("%s/%s/%d", server.URL, namespace, i)))
		}
	}
	r.tick(t.Context(), time.Now().Add(askEvery))
	testtransport.Eventually(t, "both namespaces to ask", func() bool { return seen("hostile") > 0 && seen("shop") > 0 })
	r.tick(t.Context(), time.Now().Add(askEvery))
	time.Sleep(100 * time.Millisecond)
	close(leave)
	testtransport.Eventually(t, "all to be asked", func() bool { return seen("hostile") == 4 })
	mu.Lock()
	defer mu.Unlock()
	if most["hostile"] != 1 {
		t.Errorf("%d are asked at a time", most["hostile"])
	}
}

// A host and port may have many paths, and be that of many namespaces.
func TestRestartWatch_AsksAHostForOneNamespaceAtATime(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{}, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	b, r := NewPool(0, 8, nil), NewRestartWatch(time.Minute, tenancy.NewProcessors())
	for i := range 4 {
		name := types.NamespacedName{Namespace: fmt.Sprint("hostile-", i), Name: "it"}
		r.Of(name, portAt(t, b, name, fmt.Sprint(server.URL, "/", i)))
	}
	r.tick(t.Context(), time.Now().Add(askEvery))
	<-entered
	select {
	case <-entered:
		t.Error("two are asked at a time")
	case <-time.After(200 * time.Millisecond):
	}
}

func TestRestartWatch_AsksASilentAPILessAndLessOften(t *testing.T) {
	t.Parallel()
	m, b, r := newManagement(t), NewPool(0, 8, nil), NewRestartWatch(10*time.Second, tenancy.NewProcessors())
	name := types.NamespacedName{Namespace: "shop", Name: "one"}
	port := portAt(t, b, name, m.URL)
	r.Of(name, port)
	api := r.all[port.api]
	ask := func(answers bool) time.Duration {
		m.down.Store(!answers)
		r.ask(t.Context(), "shop", api, port)
		return api.pause
	}
	var pauses []time.Duration
	for _, answers := range []bool{true, false, false, false, false, false, false, true, false} {
		pauses = append(pauses, ask(answers))
	}
	seconds := []float64{2, 2, 3, 4.5, 6.75, 8, 8, 2, 2}
	if !slices.EqualFunc(pauses, seconds, func(pause time.Duration, s float64) bool { return pause.Round(time.Second/4).Seconds() == s }) {
		t.Errorf("the pauses are %v", pauses)
	}
}

// Whoever names an API of others with certificates that do not fit has no part in what is known of it.
func TestAPIOf_TellsAPIsApartByTheirCertificates(t *testing.T) {
	t.Parallel()
	end := credentials.Management{URL: "https://rabbitmq:15671"}
	if apiOf(credentials.Credentials{}, end) == apiOf(credentials.Credentials{CA: []byte("x")}, end) {
		t.Error("it is the same API")
	}
}

// A handshake may take long to compute. One that finds no processor of its namespace says nothing about the API, which is asked again later.
func TestRestartWatch_AsksOnTheProcessorsOfTheNamespace(t *testing.T) {
	t.Parallel()
	m, b, processors := newManagement(t), NewPool(0, 8, nil), tenancy.NewProcessors()
	r, name := NewRestartWatch(time.Minute, processors), types.NamespacedName{Namespace: "hostile", Name: "one"}
	port := portAt(t, b, name, m.URL)
	r.Of(name, port)
	var held []*tenancy.Processor
	for one := processors.TryAcquire("hostile"); one != nil; one = processors.TryAcquire("hostile") {
		held = append(held, one)
	}
	m.down.Store(true)
	within, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	api, _ := r.next("hostile", time.Now().Add(askEvery))
	r.ask(within, "hostile", api, port)
	if api.silent || api.asking || api.pause != askEvery {
		t.Errorf("without a processor it was asked: %+v", api)
	}
	for _, one := range held {
		one.Release()
	}
	if r.ask(t.Context(), "hostile", api, port); !api.silent {
		t.Error("it is not asked where there is one")
	}
	if again := processors.TryAcquire("hostile"); again == nil {
		t.Error("the processor is not given back")
	}
}
