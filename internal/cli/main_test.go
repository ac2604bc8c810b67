package cli

import (
	"bytes"
	"context"
	"flag"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"redrive.dev/redrive/handler"
	program "redrive.dev/redrive/handler/run"
	"redrive.dev/redrive/internal/local"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == local.QuarantineArgument {
		os.Exit(Main(context.Background(), Environment{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, os.Args[1:]))
	}
	if len(os.Args) > 1 && os.Args[1] == "run" {
		os.Exit(Main(context.Background(), Environment{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv}, os.Args[1:]))
	}
	if os.Getenv(partnerVariable) != "" {
		program.Main(handler.Func(callPartner))
	}
	// The tests wait for workers and lanes, and not for a processor. The command line still decides.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	testbroker.Main(running(func() int { return testcluster.Run(m) }))
}

// running is a function that runs tests.
type running func() int

// Run implements what testbroker.Main takes.
func (r running) Run() int { return r() }

const policyYAML = `apiVersion: redrive.dev/v1alpha1
kind: RetryPolicy
metadata: {name: partner}
spec:
  maxRetries: 2
  backoff: {type: Constant, delay: 200ms}
  strategies:
  - {name: rejected, when: error.status == 422, action: Fail}
`

const transportYAML = `apiVersion: redrive.dev/v1alpha1
kind: Transport
metadata: {name: async}
spec:
  broker: {secretRef: {name: rabbitmq}}
  exchange: {name: async, type: Direct, unroutedTo: test}
  retryPolicyRef: {name: partner}
  queues: [{name: test, bindingKeys: [test]}]
  workers:
  - {name: default, timeout: 5s, handler: {http: {url: "http://127.0.0.1:1/messages"}}}
`

// bench is a vhost on the shared broker, reached through proxies that can refuse; that of the management API counts writes.
type bench struct {
	// direct is the AMQP URL past the proxy.
	direct     string
	amqpURL    string
	management string
	writes     atomic.Int64
	refuses    atomic.Bool
	proxy      *testtransport.Proxy
}

// refuse lets the broker seem to be down, or up again.
func (b *bench) refuse(refuse bool) {
	b.refuses.Store(refuse)
	b.proxy.Refuse(refuse)
	if refuse {
		b.proxy.Cut()
	}
}

func newBench(t *testing.T) *bench {
	t.Helper()
	broker := testbroker.Shared(t)
	b := &bench{direct: broker.URL(broker.Vhost(t))}
	b.proxy = testtransport.NewProxy(t, testtransport.Address(t, b.direct))
	b.amqpURL = strings.Replace(b.direct, testtransport.Address(t, b.direct), b.proxy.Address, 1)
	target, err := url.Parse(broker.ManagementURL)
	if err != nil {
		t.Fatal("the management URL is no URL")
	}
	user := target.User
	target.User = nil
	proxy := httputil.NewSingleHostReverseProxy(target)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.refuses.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if r.Method != http.MethodGet {
			b.writes.Add(1)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	end, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	end.User = user
	b.management = end.String()
	return b
}

func (b *bench) getenv(name string) string {
	return map[string]string{local.EnvAMQP: b.amqpURL, local.EnvManagement: b.management}[name]
}

// command runs a command line to its end.
func (b *bench) command(t *testing.T, stdin string, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = Main(t.Context(), Environment{In: strings.NewReader(stdin), Out: &stdout, Err: &stderr, Getenv: b.getenv}, args)
	return code, stdout.String(), stderr.String()
}

// start runs a command line in the background.
func (b *bench) start(t *testing.T, args ...string) *started {
	t.Helper()
	s := &started{signals: make(chan os.Signal, 2), code: make(chan int, 1)}
	go func() {
		s.code <- Main(context.Background(), Environment{
			In: strings.NewReader(""), Out: &s.out, Err: &s.log, Getenv: b.getenv, Signals: s.signals,
		}, args)
	}()
	return s
}

type started struct {
	signals  chan os.Signal
	code     chan int
	out, log shared
}

// shared is a buffer for two goroutines.
type shared struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *shared) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		put(t, dir, name, content)
	}
	return dir
}

// put replaces a file at once, as editors do.
func put(t *testing.T, dir, name, content string) {
	t.Helper()
	draft := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(draft, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(draft, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}
