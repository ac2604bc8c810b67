package portforward_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clientforward "k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"redrive.dev/redrive/internal/portforward"
)

// apiServer forwards to one address, as an API server and its kubelet do to a pod. It speaks SPDY alone, as old ones do.
type apiServer struct {
	t       *testing.T
	backend string

	mu       sync.Mutex
	upgrades int
	failures map[string]httpstream.Stream
}

func (a *apiServer) start() *rest.Config {
	a.failures = map[string]httpstream.Stream{}
	server := httptest.NewServer(a)
	a.t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL + "/prefix"}
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/prefix/api/v1/namespaces/shop/pods/rabbitmq-1/portforward" {
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodPost {
		http.Error(w, "no WebSocket here", http.StatusBadRequest)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{clientforward.PortForwardProtocolV1Name}); err != nil {
		a.t.Error(err)
		return
	}
	streams := make(chan httpstream.Stream)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
		streams <- stream
		return nil
	})
	if conn == nil {
		return
	}
	a.mu.Lock()
	a.upgrades++
	a.mu.Unlock()
	for {
		select {
		case stream := <-streams:
			a.take(stream)
		case <-conn.CloseChan():
			return
		}
	}
}

func (a *apiServer) take(stream httpstream.Stream) {
	headers := stream.Headers()
	if port := headers.Get(corev1.PortHeader); port != "15672" {
		a.t.Errorf("port %q", port)
	}
	request := headers.Get(corev1.PortForwardRequestIDHeader)
	if headers.Get(corev1.StreamType) == corev1.StreamTypeError {
		a.failures[request] = stream
		return
	}
	go serveStreams(a.backend, a.failures[request], stream)
}

func serveStreams(backend string, failures, data httpstream.Stream) {
	defer func() { _ = data.Close() }()
	defer func() { _ = failures.Close() }()
	conn, err := net.Dial("tcp", backend)
	if err != nil {
		_, _ = io.WriteString(failures, "an error occurred forwarding: connection refused")
		return
	}
	defer func() { _ = conn.Close() }()
	go func() {
		_, _ = io.Copy(conn, data)
		_ = conn.Close()
	}()
	_, _ = io.Copy(data, conn)
}

func route() portforward.Route {
	return portforward.Route{Pod: types.NamespacedName{Namespace: "shop", Name: "rabbitmq-1"}, Port: 15672}
}

func open(t *testing.T, config *rest.Config, route portforward.Route) *http.Client {
	t.Helper()
	dial, closer, err := portforward.Open(config, route)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DialContext: dial}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := closer.Close(); err != nil {
			t.Error(err)
		}
	})
	return &http.Client{Transport: transport}
}

func get(ctx context.Context, client *http.Client) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://rabbitmq.shop.svc:15672/api", nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func TestForwarding_CarriesManyConnections(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Host+strings.Repeat(".", 100_000))
	}))
	defer backend.Close()
	api := &apiServer{t: t, backend: backend.Listener.Addr().String()}
	client := open(t, api.start(), route())
	var requests sync.WaitGroup
	for range 5 {
		requests.Go(func() {
			body, err := get(t.Context(), client)
			if err != nil || !strings.HasPrefix(body, "rabbitmq.shop.svc:15672") || len(body) < 100_000 {
				t.Errorf("%d bytes, %v", len(body), err)
			}
		})
	}
	requests.Wait()
	if api.upgrades != 1 {
		t.Errorf("%d connections to the API server, want 1", api.upgrades)
	}
}

func TestForwarding_PassesThePodsErrorOn(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	api := &apiServer{t: t, backend: nobody}
	_, err = get(t.Context(), open(t, api.start(), route()))
	if err == nil || !strings.Contains(err.Error(), "an error occurred forwarding: connection refused") {
		t.Errorf("got %v", err)
	}
}

func TestForwarding_FailsForAPodThatDoesNotExist(t *testing.T) {
	api := &apiServer{t: t}
	gone := route()
	gone.Pod.Name = "rabbitmq-9"
	_, err := get(t.Context(), open(t, api.start(), gone))
	if err == nil || !strings.Contains(err.Error(), "forward to pod shop/rabbitmq-9, port 15672") {
		t.Errorf("got %v", err)
	}
}

func TestForwarding_EndsTheConnectionOfARequestGivenUp(t *testing.T) {
	ended := make(chan struct{})
	backend, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = backend.Close() }()
	ctx, giveUp := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		conn, err := backend.Accept()
		if err != nil {
			return
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			return
		}
		giveUp() // the request is here, and gets no answer
		_, _ = io.Copy(io.Discard, conn)
	}()
	api := &apiServer{t: t, backend: backend.Addr().String()}
	if _, err := get(ctx, open(t, api.start(), route())); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	<-ended
}

func TestOpen_DialsAnAddressAsItIs(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Host) }))
	defer backend.Close()
	address := backend.Listener.Addr().(*net.TCPAddr)
	client := open(t, &rest.Config{Host: "http://127.0.0.1:1"}, portforward.Route{Address: "127.0.0.1", Port: address.Port})
	if body, err := get(t.Context(), client); err != nil || body != "rabbitmq.shop.svc:15672" {
		t.Errorf("got %q, %v", body, err)
	}
}
