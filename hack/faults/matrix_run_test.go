package faults

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

const (
	// matrixConcurrency makes more messages wait for an object than RabbitMQ lets one channel have unconfirmed in one queue before it
	// slows the channel down: 32.
	matrixConcurrency = 40
	// handlerTakes and usualPace leave the worker some room, and the machine a lot: what is measured is not how busy it is.
	handlerTakes = 200 * time.Millisecond
	usualPace    = 10
	// some of what needs the object come in queue free, too.
	some = 3

	// A rate is the median of windows.
	windows      = 3
	windowBefore = 3 * time.Second
	windowDuring = 4 * time.Second
	// enough is the share of their rate that the others have to reach.
	enough = 0.8

	// arriving is how many messages may have come since the workers were looked at.
	arriving = 10

	// namedWithin bounds the time until the worker names the object.
	namedWithin = testtransport.Patience
)

// matrix is one cell at work.
type matrix struct {
	*scene
	cell    cell
	traffic *traffic
	needing []flow
	// blind is true while the failure queue cannot be looked at.
	blind bool
	// inFlight is what the workers had when the fault came, and whenever connections were cut; faults counts these.
	inFlight, faults int
}

func newMatrix(t *testing.T, node *testbroker.Broker, c cell) *matrix {
	t.Helper()
	r := &traffic{t: t, takes: handlerTakes}
	m := &matrix{cell: c, traffic: r, scene: newScene(t, node, plan{
		policy: byStatus(), answer: r.answer, more: []string{free}, concurrency: matrixConcurrency, serving: true,
	})}
	for _, k := range c.needs {
		m.needing = append(m.needing, flow{testtransport.Queue, k})
	}
	return m
}

func (m *matrix) run() {
	m.traffic.start(m.node.URL(m.vhost), cmp.Or(m.cell.pace, usualPace), map[string][]kind{testtransport.Queue: m.cell.needs, free: m.cell.others})
	m.warm()
	before := m.rates(windowBefore)

	struck := time.Now()
	m.isHit()
	lift := m.cell.strike(m)
	m.blind = m.cell.object == "failure queue"
	if m.cell.anew != nil {
		m.isHit()
		m.cell.anew(m)
	}
	struckAt := m.traffic.published() // what came until the connections were cut may have been at a handler
	m.alsoFree()
	during := m.rates(windowDuring)
	m.compare(before, during)
	if strings.HasPrefix(m.cell.fault, "not confirming") {
		m.inFlight += m.group.onLoan() // what was published before anybody could know
	}
	m.othersEnd(struckAt)
	m.isNamed(struck)

	lift()
	m.blind = false
	lifted := time.Now()
	m.published = m.traffic.stop()
	m.t.Logf("what waited for it ended within %s", m.allEnd().Sub(lifted).Round(100*time.Millisecond))
	m.settle(bounds{faults: m.faults, duplicates: m.inFlight, refused: m.cell.by == theQuarantine})
	for id, times := range m.ends() {
		if times > 1+m.faults {
			m.t.Errorf("message %d of %s ended %d times", id, m.traffic.flows[id], times)
		}
	}
}

// warm waits until every object has been used: the lanes, the queues, and those of the quarantine.
func (m *matrix) warm() {
	m.t.Helper()
	m.await(atOnceWithin, "messages of each flow to end", func() bool {
		return len(m.ended()) == len(m.cell.needs)+len(m.cell.others)
	})
	m.isHit()
	consumers(m)
	m.await(atOnceWithin, "what was cut off to be quarantined", func() bool { return m.quarantined() > 0 })
	published := m.traffic.published()
	m.await(atOnceWithin, "all flows to be steady", func() bool { return m.missingOf(0, published, nil) == "" })
}

// results are the ends so far. The failure queue is not looked at while nobody could.
func (m *matrix) results() map[int]int {
	if m.blind {
		return m.partner.successes()
	}
	return m.ends()
}

func (m *matrix) ended() map[flow]int {
	counts, _ := m.traffic.ended(m.results(), 0, m.traffic.published())
	return counts
}

// missingOf tells, of messages with a number from first and below `before`, how many have not ended; empty where none. excused are flows
// that may not.
func (m *matrix) missingOf(first, before int, excused []flow) string {
	_, missing := m.traffic.ended(m.results(), first, before)
	var lines []string
	for f, ids := range missing {
		if !slices.Contains(excused, f) && (f.kind != failing || !m.blind) {
			lines = append(lines, fmt.Sprintf("%d of %s", len(ids), f))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

// rates of the flows, in messages that end in a second.
func (m *matrix) rates(window time.Duration) map[flow]float64 {
	m.t.Helper()
	found := map[flow][]float64{}
	for range windows {
		counts, began := m.ended(), time.Now()
		time.Sleep(window)
		now, took := m.ended(), time.Since(began).Seconds()
		for f := range now {
			found[f] = append(found[f], float64(now[f]-counts[f])/took)
		}
	}
	medians := map[flow]float64{}
	for f, all := range found {
		slices.Sort(all)
		medians[f] = all[len(all)/2]
	}
	return medians
}

// isHit is called before each fault. What was in flight then may end twice; a few more arrive until the fault is there.
func (m *matrix) isHit() {
	m.inFlight += m.group.onLoan() + arriving
	m.faults++
}

// compare what the others reach beside the fault with what they reached without it.
func (m *matrix) compare(before, during map[flow]float64) {
	m.t.Helper()
	for _, k := range m.cell.others {
		f := flow{free, k}
		share := during[f] / before[f]
		m.t.Logf("%s: %.1f/s, beside the fault %.1f/s: %.2f", f, before[f], during[f], share)
		if share < enough {
			m.t.Errorf("%s reaches %.2f of its rate, want %.1f", f, share, enough)
		}
	}
}

// alsoFree publishes some messages that need the object to the queue that the others are in.
func (m *matrix) alsoFree() {
	for _, k := range m.cell.needs {
		if slices.Contains(m.cell.others, k) {
			continue
		}
		for range some {
			id, _ := m.traffic.next(flow{free, k})
			m.send(free, id)
		}
	}
}

// othersEnd waits until everything has ended that was published so far and does not need the object, though the fault lasts. What was
// at a handler when connections were cut needs the exchange of returns.
func (m *matrix) othersEnd(struckAt int) {
	m.t.Helper()
	published, first := m.traffic.published(), 0
	if m.cell.names == returning {
		first = struckAt
	}
	excused := slices.Clone(m.needing)
	for _, k := range m.cell.needs {
		if !slices.Contains(m.cell.others, k) {
			excused = append(excused, flow{free, k})
		}
	}
	for end := time.Now().Add(atOnceWithin); ; time.Sleep(100 * time.Millisecond) {
		missing := m.missingOf(first, published, excused)
		if missing == "" {
			return
		}
		if time.Now().After(end) {
			m.t.Errorf("beside the fault do not end: %s", missing)
			return
		}
	}
}

// allEnd waits until everything has ended.
func (m *matrix) allEnd() time.Time {
	m.t.Helper()
	for end := time.Now().Add(settlesWithin); ; time.Sleep(200 * time.Millisecond) {
		missing := m.missingOf(0, m.published, nil)
		if missing == "" {
			return time.Now()
		}
		if time.Now().After(end) {
			m.t.Errorf("after the fault do not end: %s", missing)
			return time.Now()
		}
	}
}

// send publishes a numbered message.
func (m *matrix) send(queue string, id int) {
	m.t.Helper()
	m.Publish("async", queue, numbered(id))
}

// isNamed waits until the worker says which object it is.
func (m *matrix) isNamed(struck time.Time) {
	m.t.Helper()
	if m.cell.names == "" {
		return
	}
	p := m.group.workers[0]
	if m.cell.by == theQuarantine {
		p = m.group.quarantine
	}
	for {
		told := m.troubles(p)
		i := slices.IndexFunc(told, func(t compile.Trouble) bool {
			return t.Subject == m.cell.names || strings.HasPrefix(t.Subject, m.cell.names+" ")
		})
		if i >= 0 {
			m.t.Logf("named after %s: %s: %s", time.Since(struck).Round(time.Second), told[i].Reason, told[i].Message)
			m.isMeasured(p, strings.Fields(told[i].Subject))
			return
		}
		if time.Since(struck) > namedWithin {
			m.t.Errorf("%s does not name %q: its troubles are %v", p.name, m.cell.names, told)
			return
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// isMeasured looks for a metric of what a worker cannot publish to or consume, with these values of labels.
func (m *matrix) isMeasured(p *process, labels []string) {
	m.t.Helper()
	text := string(m.ask(p, "/metrics"))
	for line := range strings.Lines(text) {
		of := strings.HasPrefix(line, "redrive_publish_failing{") || strings.HasPrefix(line, "redrive_queue_unavailable{")
		if of && strings.HasSuffix(line, " 1\n") && !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(line, `"`+l+`"`) }) {
			return
		}
	}
	m.t.Errorf("%s has no metric of %q", p.name, labels)
}

// troubles that a process tells of.
func (m *matrix) troubles(p *process) []compile.Trouble {
	m.t.Helper()
	var status compile.WorkerStatus
	if err := json.Unmarshal(m.ask(p, "/status"), &status); err != nil {
		m.t.Fatal(err)
	}
	return status.Troubles
}

// ask an endpoint of a process.
func (m *matrix) ask(p *process, path string) []byte {
	m.t.Helper()
	response, err := http.Get("http://" + p.address + path)
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		m.t.Fatal(err)
	}
	return text
}

// freeAddress is one that nobody listens at, below the ports that systems give to outgoing connections.
func freeAddress(t testing.TB) string {
	t.Helper()
	for range 1000 {
		listener, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", 30_000+rand.IntN(2_000)))
		if err == nil {
			_ = listener.Close()
			return listener.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}
