package local

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/worker"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == QuarantineArgument {
		if err := QuarantineWorker(context.Background(), os.Stdin, os.Stdout, os.Stderr); err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	testbroker.Main(m)
}

const secret = "p@ss/w:rd"

// nowhere is a broker that nobody runs.
func nowhere() Broker {
	return Broker{VHost: "/", Credentials: credentials.Credentials{Host: "127.0.0.1", Port: 1, Username: "user", Password: secret}}
}

func configOf(t *testing.T, delays ...time.Duration) compile.Config {
	t.Helper()
	return testtransport.Compile(t, testtransport.New("http://127.0.0.1:1"), testtransport.Explicit(delays...)).Workers[0]
}

// kept is a keeper of the quarantine process, and what both log.
type kept struct {
	*keeper

	child *quarantineChild
	// temporary is the system's temporary folder.
	temporary string

	mu  sync.Mutex
	log bytes.Buffer
}

// Write takes the log.
func (k *kept) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.log.Write(p)
}

func (k *kept) logged(text string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return strings.Count(k.log.String(), text)
}

func (k *kept) awaitLogged(t *testing.T, text string, times int) {
	t.Helper()
	testtransport.Eventually(t, text, func() bool { return k.logged(text) >= times })
}

func keep(t *testing.T) *kept {
	t.Helper()
	k := &kept{}
	k.temporary = t.TempDir()
	t.Setenv("TMPDIR", k.temporary)
	options := &Options{QuarantineStay: time.Minute, LogTo: k, LogLevel: slog.LevelInfo}
	k.child = newQuarantineChild(options, slog.New(slog.NewTextHandler(k, nil)))
	k.keeper = newKeeper(options.QuarantineStay, k.child.run)
	k.take(t, configOf(t, time.Second))
	t.Cleanup(func() {
		k.drain()
		k.wait()
		k.child.forget()
	})
	return k
}

// take gives a configuration to both.
func (k *kept) take(t *testing.T, config compile.Config) {
	t.Helper()
	k.keeper.take(&config)
	if err := k.child.take(config, nowhere(), ""); err != nil {
		t.Fatal(err)
	}
}

// runs is true while there is a process.
func (k *kept) runs() bool {
	k.keeper.mu.Lock()
	defer k.keeper.mu.Unlock()
	select {
	case <-k.ended:
		return false
	default:
		return true
	}
}

func TestKeeper_RunsAProcessOnlyWhileAMessageIsInQuarantine(t *testing.T) {
	const (
		starts = "the quarantine worker starts"
	)
	queue := testtransport.Queue + compile.QuarantineSuffix
	k := keep(t)
	now := time.Unix(0, 0)
	for _, step := range []struct {
		after   time.Duration
		counted counts
		runs    bool
	}{
		{0, nil, false},
		{0, counts{queue: 0}, false},
		{0, counts{queue: 1}, true},
		{time.Hour, nil, true}, // a broker that does not answer says nothing
		{0, counts{queue: 7}, true},
		{time.Minute - 1, counts{queue: 0}, true},
		{1, counts{queue: 0}, false},
		{0, counts{testtransport.Queue: 9}, true}, // it was asked for and not told
		{time.Minute, counts{queue: 0}, false},
	} {
		now = now.Add(step.after)
		k.look(step.counted, now)
		testtransport.Eventually(t, "the process to be as it should", func() bool { return k.runs() == step.runs })
	}
	if n := k.logged(starts); n != 2 {
		t.Errorf("%d processes were started, want 2", n)
	}
	k.drain()
	if k.look(counts{queue: 1}, now); k.runs() {
		t.Error("it runs after the end")
	}
}

func TestQuarantineWorker_LearnsOfChangesAndShowsNoSecret(t *testing.T) {
	k := keep(t)
	k.look(counts{}, time.Unix(0, 0))
	k.awaitLogged(t, "process=quarantine", 1)
	k.take(t, configOf(t, time.Minute))
	k.take(t, configOf(t, time.Minute))
	k.awaitLogged(t, "configuration taken over", 1)
	k.drain()
	k.wait()
	k.child.forget()
	if n := k.logged("configuration taken over"); n != 1 {
		t.Errorf("one change was told %d times", n)
	}
	if k.logged(secret) > 0 {
		t.Errorf("the log shows the password: %s", &k.log)
	}
	if left, err := os.ReadDir(k.temporary); err != nil || len(left) > 0 {
		t.Errorf("journals are left: %v, %v", left, err)
	}
}

func TestQuarantineWorker_GetsNoConfigurationThatWasRefused(t *testing.T) {
	k := keep(t)
	options := k.child.options
	options.memory = worker.NewMemory(0)
	g, err := startInside(configOf(t, time.Second), nowhere(), nil, options, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.drain()
		<-g.drained()
	})
	config := g.quarantine.orders.Config
	expect := func(change string, want json.RawMessage, password string) {
		t.Helper()
		got := g.quarantine.orders
		if !bytes.Equal(got.Config, want) {
			t.Errorf("%s: configuration %s, want %s", change, got.Config, want)
		}
		if !strings.Contains(string(got.Broker[credentials.KeyURI]), password) {
			t.Errorf("%s: the password is not %s", change, password)
		}
	}

	second, third := nowhere(), nowhere()
	second.Credentials.Password, third.Credentials.Password = "second", "third"
	refused := configOf(t, time.Minute)
	refused.Handler = v1alpha1.Handler{}
	if err := g.take(refused, second, nil); err == nil {
		t.Fatal("a configuration without a handler was taken over")
	}
	expect("refused", config, "second")

	taken := configOf(t, time.Minute)
	config, err = compile.Encode(taken)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.take(taken, third, nil); err != nil {
		t.Fatal(err)
	}
	expect("taken", config, "third")
}

func TestOrders_ArriveAsTheyWereGiven(t *testing.T) {
	ca := []byte("no certificate")
	on := nowhere()
	on.Credentials.Host, on.VHost = "::1", "a/b %2f"
	config := configOf(t, time.Second)
	encoded, err := compile.Encode(config)
	if err != nil {
		t.Fatal(err)
	}
	give := func(on Broker) (settings, error) {
		data, err := json.Marshal(orders{Config: encoded, Broker: secretOf(on), Journal: "/j", LogLevel: slog.LevelWarn})
		if err != nil {
			t.Fatal(err)
		}
		return receive(json.NewDecoder(bytes.NewReader(data)))
	}
	got, err := give(on)
	if err != nil {
		t.Fatal(err)
	}
	want, err := on.target()
	if err != nil {
		t.Fatal(err)
	}
	if target, err := got.broker.target(); err != nil || !reflect.DeepEqual(target, want) {
		t.Errorf("target %s %s %q, %v", target.Address, target.Username, target.VHost, err)
	}
	if again, err := compile.Encode(got.config); err != nil || !bytes.Equal(again, encoded) || got.Journal != "/j" || got.LogLevel != slog.LevelWarn {
		t.Errorf("got %+v, %v", got.orders, err)
	}
	on.Credentials.Secure, on.Credentials.CA = true, ca
	if _, err := give(on); err == nil || !strings.Contains(err.Error(), credentials.KeyCA) || strings.Contains(err.Error(), string(ca)) {
		t.Errorf("error %v, want the key and not its value", err)
	}
}

func TestOrders_ShowNothingOfThemselvesInErrors(t *testing.T) {
	for text, want := range map[string]string{"": io.EOF.Error(), `{"broker": {"uri": "c2Vj`: io.EOF.Error(), `{"broker": "s3cret"}`: "not a JSON document as expected"} {
		_, err := receive(json.NewDecoder(strings.NewReader(text)))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: error %v, want %s", text, err, want)
		}
	}
}

func TestReportTo_OfProcessesThatFollowOneAnotherAddsUp(t *testing.T) {
	registry := prometheus.NewRegistry()
	handled := prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricHandled}, []string{"queue", "outcome"})
	inFlight := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: metricInFlight}, []string{"queue"})
	registry.MustRegister(handled, inFlight)
	inFlight.WithLabelValues("test").Set(1)
	child := newQuarantineChild(&Options{}, slog.New(slog.DiscardHandler))
	reader := &reportReader{tell: child.tell}
	report := func(n float64) {
		handled.WithLabelValues("test", "succeeded").Add(n)
		handled.WithLabelValues("test", "failed").Add(1)
		ended, end := context.WithCancel(t.Context())
		end()
		var out bytes.Buffer
		reportTo(ended, &out, func() compile.WorkerStatus { return compile.WorkerStatus{ConfigHash: "abc"} }, registry)
		for _, b := range out.Bytes() { // in pieces, as a pipe may give it
			if _, err := reader.Write([]byte{b}); err != nil {
				t.Fatal(err)
			}
		}
	}
	expect := func(want Tally, known bool) {
		t.Helper()
		all := tallies{}
		child.addTo(all)
		if got := *all.of("test"); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		m, is := child.member()
		if is != known || is && (m.status.Process != processQuarantine || m.status.ConfigHash != "abc") {
			t.Errorf("its member is %+v, %v, want it %v", m.status, is, known)
		}
	}
	if _, err := reader.Write([]byte("a line of something else\n")); err != nil {
		t.Fatal(err)
	}
	expect(Tally{}, false)
	report(3)
	expect(Tally{AtHandler: 1, Handled: 3, Failed: 1}, true)
	report(1)
	expect(Tally{AtHandler: 1, Handled: 4, Failed: 2}, true)
	child.ended()
	expect(Tally{Handled: 4, Failed: 2}, false)
	handled.Reset() // the next process begins anew
	report(4)
	expect(Tally{AtHandler: 1, Handled: 8, Failed: 3}, true)
}
