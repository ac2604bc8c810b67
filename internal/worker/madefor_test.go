package worker_test

import (
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/quarantine"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/worker"
)

// While pods for another handler roll out, those from before see its configuration: its command may not be in their image, its URL may be that of a container
// that they do not have, and every message would fail.
func TestMadeFor_AConfigurationForAnotherPodKeepsTheHandler(t *testing.T) {
	exec := func(image string) v1alpha1.Handler {
		return v1alpha1.Handler{Image: &image, Exec: &v1alpha1.ExecHandler{Command: []string{"handle"}}}
	}
	http := func(url string) v1alpha1.Handler { return v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: url}} }
	image, headers, secure, socket := http("http://localhost/"), http("http://b/"), http("https://b/"), exec("shop:v1")
	image.Image = new("shop:v1")
	headers.HTTP.HeadersSecretRef = &v1alpha1.LocalReference{Name: "partner"}
	secure.HTTP.TLS = &v1alpha1.HTTPTLS{CASecretRef: v1alpha1.SecretKeyReference{Name: "ca"}}
	socket.Exec, socket.HTTP = nil, &v1alpha1.HTTPHandler{URL: "http://localhost/", UnixSocket: new("/run/handler/socket")}
	for name, tt := range map[string]struct {
		pod, next v1alpha1.Handler
		keeps     bool
	}{
		"the same image":                   {exec("shop:v1"), exec("shop:v1"), false},
		"another image":                    {exec("shop:v1"), exec("shop:v2"), true},
		"another URL":                      {http("http://a/"), http("http://b/"), false},
		"a URL beside an image":            {http("http://a/"), image, true},
		"another kind, in the same image":  {exec("shop:v1"), image, true},
		"a Secret with headers":            {http("http://a/"), headers, true},
		"a Secret with a CA":               {http("http://a/"), secure, true},
		"a socket beside the same image":   {image, socket, true},
		"no image any more, another place": {image, http("http://a/"), true},
	} {
		for _, known := range []bool{true, false} {
			transport := testtransport.New("http://127.0.0.1:1/")
			config := func(handler v1alpha1.Handler, delay time.Duration) compile.Config {
				transport.Spec.Workers[0].Handler = handler
				return testtransport.Compile(t, transport, testtransport.Explicit(delay)).Workers[0]
			}
			options := worker.Options{
				Config: config(tt.pod, time.Second),
				Source: func() (amqp.Target, error) { return amqp.Target{}, errors.New("no broker is needed") },
				Now:    time.Now, Rand: worker.Random{}, Metrics: worker.NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
			}
			made := v1alpha1.Handler{}
			options.Handlers = func(spec v1alpha1.Handler, _ int) (handler.Handler, error) {
				made = spec
				return newProgram(), nil
			}
			if known {
				options.MadeFor = compile.MadeFor(&tt.pod, "")
			}
			w, err := worker.New(options)
			if err != nil {
				t.Fatal(err)
			}
			next := config(tt.next, 2*time.Second)
			if err := w.Reload(next); err != nil {
				t.Fatal(err)
			}
			if data, err := compile.Encode(next); err != nil || w.ConfigHash() != compile.Hash(data) {
				t.Errorf("%s: the rest of the configuration is not in force: %v", name, err)
			}
			want := tt.next
			if tt.keeps && known {
				want = tt.pod
			}
			if !reflect.DeepEqual(made, want) {
				t.Errorf("%s: the handler is %+v, want %+v", name, made, want)
			}
			if err := w.Reload(options.Config); err != nil || !reflect.DeepEqual(made, tt.pod) {
				t.Errorf("%s: taken back, the handler is %+v: %v", name, made, err)
			}
		}
	}
}

// A pod from before that restarts while the next handler rolls out has no handler to keep: the next one's URL would get the headers of the former Secret, which
// is what is mounted in it.
func TestMadeFor_WaitsWhereItBeginsWithAnotherPodsConfiguration(t *testing.T) {
	http := func(url, secret string) v1alpha1.Handler {
		return v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: url, HeadersSecretRef: &v1alpha1.LocalReference{Name: secret}}}
	}
	former, next := http("http://a/", "a"), http("http://b/", "b")
	transport := testtransport.New("http://127.0.0.1:1/")
	config := func(handler v1alpha1.Handler, concurrency int32) compile.Config {
		transport.Spec.Workers[0].Handler, transport.Spec.Workers[0].Concurrency = handler, &concurrency
		return testtransport.Compile(t, transport, testtransport.Explicit(time.Second)).Workers[0]
	}
	var made []v1alpha1.Handler
	w := workerMadeFor(t, &former, config(next, 1), &made)
	waits := func(when string) {
		t.Helper()
		why := w.HandlerReady()
		if why == nil || !strings.Contains(why.Error(), `"http, headersSecretRef a"`) || !strings.Contains(why.Error(), `"http, headersSecretRef b"`) {
			t.Errorf("%s, the handler is not ready because of %v, want both handlers named", when, why)
		}
		if len(made) > 0 {
			t.Errorf("%s, the worker made the handler %+v", when, made[0])
		}
	}
	waits("from the start")
	if err := w.Reload(config(next, 5)); err != nil {
		t.Fatal(err)
	}
	waits("with another configuration for other pods")
	if err := w.Reload(config(former, 5)); err != nil {
		t.Fatal(err)
	}
	if len(made) != 1 || !reflect.DeepEqual(made[0], former) || w.HandlerReady() != nil {
		t.Errorf("the worker made %+v with the configuration for its own pod, and is not ready because of %v", made, w.HandlerReady())
	}
}

// A pod from before that starts while the next handler rolls out, such as after a node was drained, goes on with the handler that it was made for.
func TestMadeFor_BeginsWithTheFormerHandlerOfItsPod(t *testing.T) {
	exec := func(image string) v1alpha1.Handler {
		return v1alpha1.Handler{Image: &image, Exec: &v1alpha1.ExecHandler{Command: []string{"handle"}}}
	}
	former, next := exec("shop:v1"), exec("shop:v2")
	transport := testtransport.New("http://127.0.0.1:1/")
	transport.Spec.Workers[0].Handler = next
	config := testtransport.Compile(t, transport, testtransport.Explicit(time.Second)).Workers[0]
	config.FormerHandlers = []compile.FormerHandler{{Handler: exec("shop:v0"), MadeFor: "exec, image shop:v0"}, {Handler: former, MadeFor: compile.MadeFor(&former, "")}}
	var made []v1alpha1.Handler
	w := workerMadeFor(t, &former, config, &made)
	config.FormerHandlers = nil
	if err := w.Reload(config); err != nil { // all pods are new: this one is about to end
		t.Fatal(err)
	}
	if len(made) != 1 || !reflect.DeepEqual(made[0], former) || w.HandlerReady() != nil {
		t.Errorf("the worker made the handlers %+v, want %+v alone; not ready: %v", made, former, w.HandlerReady())
	}
}

// A pod of before has the memory for as many messages as it was made for, and time to end calls of its timeout when it is told to stop: with those of the next
// pods it was killed with up to all of its prefetch, which was quarantined.
func TestWorker_KeepsWhatItsPodWasMadeFor(t *testing.T) {
	exec := func(image string) v1alpha1.Handler {
		return v1alpha1.Handler{Image: &image, Exec: &v1alpha1.ExecHandler{Command: []string{"handle"}}}
	}
	pod := exec("shop:v1")
	transport := testtransport.New("http://127.0.0.1:1/")
	config := func(image string, concurrency int32, timeout time.Duration) compile.Config {
		worker := &transport.Spec.Workers[0]
		worker.Handler, worker.Concurrency, worker.Timeout = exec(image), &concurrency, v1alpha1.NewDuration(timeout)
		return testtransport.Compile(t, transport, testtransport.Explicit(time.Second)).Workers[0]
	}
	var made []v1alpha1.Handler
	before := config("shop:v1", 10, 30*time.Second)
	w := workerMadeFor(t, &pod, before, &made)
	next := config("shop:v2", 100, time.Minute)
	former := next.WithFormerHandlers(&before)
	for name, tt := range map[string]struct {
		config      compile.Config
		concurrency int
		timeout     time.Duration
	}{
		"its own":                            {before, 10, 30 * time.Second},
		"that of other pods, with its own":   {former, 10, 30 * time.Second},
		"that of other pods":                 {next, 10, 30 * time.Second},
		"a shorter timeout":                  {config("shop:v1", 10, 20*time.Second), 10, 20 * time.Second},
		"another concurrency for these pods": {config("shop:v1", 5, time.Minute), 5, 30 * time.Second},
	} {
		if err := errors.Join(w.Reload(before), w.Reload(tt.config)); err != nil {
			t.Fatal(err)
		}
		if concurrency, timeout, _ := w.InForce(); concurrency != tt.concurrency || timeout != tt.timeout {
			t.Errorf("%s: %d messages at a time for %s, want %d for %s", name, concurrency, timeout, tt.concurrency, tt.timeout)
		}
	}
}

// Neither the queue nor its quarantine queue is consumed by a pod that is not to have it.
func TestWorker_LeavesAloneWhatIsNewToItsPods(t *testing.T) {
	transport := testtransport.New("http://127.0.0.1:1/")
	config := testtransport.Compile(t, transport, testtransport.Explicit(time.Second)).Workers[0]
	held, _ := config.Holding(map[string]string{config.Queues[0].Name: compile.HoldNewToPods})
	journal, err := quarantine.Open(t.TempDir(), time.Now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for name, journal := range map[string]worker.Journal{"a worker": nil, "a quarantine worker": journal} {
		w, err := worker.New(worker.Options{
			Config: held, Journal: journal,
			Source: func() (amqp.Target, error) { return amqp.Target{}, errors.New("no broker is needed") },
			Now:    time.Now, Rand: worker.Random{}, Metrics: worker.NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
			Handlers: func(v1alpha1.Handler, int) (handler.Handler, error) { return newProgram(), nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, queues := w.InForce(); len(queues) != 0 {
			t.Errorf("%s consumes %v", name, queues)
		}
		if err := w.Reload(config); err != nil {
			t.Fatal(err)
		}
		if _, _, queues := w.InForce(); len(queues) != 1 {
			t.Errorf("%s consumes %v once no other pods are left", name, queues)
		}
	}
}

// workerMadeFor begins with a configuration in a pod that was made for a handler. It notes the handlers that it makes.
func workerMadeFor(t *testing.T, pod *v1alpha1.Handler, config compile.Config, made *[]v1alpha1.Handler) *worker.Worker {
	t.Helper()
	w, err := worker.New(worker.Options{
		Config: config, MadeFor: compile.MadeFor(pod, ""), MaxTimeout: 30 * time.Second,
		Source: func() (amqp.Target, error) { return amqp.Target{}, errors.New("no broker is needed") },
		Now:    time.Now, Rand: worker.Random{}, Metrics: worker.NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
		Handlers: func(spec v1alpha1.Handler, _ int) (handler.Handler, error) {
			*made = append(*made, spec)
			return newProgram(), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}
