package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/testtransport"
)

// depot is a Transport under redrive run whose partner refuses each message until it is told to take them.
type depot struct {
	*bench
	t      *testing.T
	dir    string
	broker *testtransport.Broker

	mu sync.Mutex
	// refuses tells of a message, by its number, whether the partner refuses it.
	refuses func(n int) bool
	handled map[string]int
}

func (d *depot) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := r.Header.Get("Redrive-Message-Id")
	var n int
	_, _ = fmt.Sscanf(id, "m-%d", &n)
	if d.refuses(n) {
		http.Error(w, "message "+id+" is unknown\x1b[31m", http.StatusUnprocessableEntity)
		return
	}
	d.handled[id]++
}

// newDepot has so many failed messages.
func newDepot(t *testing.T, failed int) *depot {
	t.Helper()
	d := &depot{bench: newBench(t), t: t, handled: map[string]int{}, refuses: func(int) bool { return true }}
	server := httptest.NewServer(d)
	t.Cleanup(server.Close)
	d.dir = folder(t, map[string]string{"transport.yaml": strings.ReplaceAll(transportYAML, "http://127.0.0.1:1", server.URL), "policy.yaml": policyYAML})
	run := d.start(t, "run", "-f", d.dir, "--listen", "")
	t.Cleanup(func() {
		run.signals <- nil
		<-run.code
	})
	testtransport.Eventually(t, "the topology", func() bool { return strings.Contains(run.log.String(), "as it should be") })
	d.broker = testtransport.Connect(t, d.direct)
	publish(d.broker, "test", 1, failed)
	testtransport.Eventually(t, "all to fail", func() bool { return d.broker.Ready("async.failed") == failed })
	testtransport.Eventually(t, "the policy to apply", func() bool {
		code, _, _ := d.command(t, "", "failed", "ls", "-f", d.dir)
		return code == exitOK
	})
	return d
}

// accept lets the partner take messages but those.
func (d *depot) accept(refuses func(n int) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuses = refuses
}

func none(int) bool { return false }

// does runs a command, which has to end with that code, and returns all that it prints.
func (d *depot) does(want int, args ...string) string {
	d.t.Helper()
	code, out, errs := d.command(d.t, "", append(args, "-f", d.dir)...)
	if code != want {
		d.t.Errorf("%q: exit code %d, want %d\n%s%s", args, code, want, out, errs)
	}
	if strings.ContainsRune(out+errs, '\x1b') {
		d.t.Errorf("%q: what a partner wrote reaches the terminal:\n%q", args, out+errs)
	}
	return out + errs
}

// has fails the test unless a text has all the parts.
func (d *depot) has(text string, parts ...string) {
	d.t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			d.t.Errorf("there is no %q in\n%s", part, text)
		}
	}
}

// handles fails the test unless so many messages were handled, each once, and so many have failed.
func (d *depot) handles(handled, failed int) {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, n := range d.handled {
		if n != 1 {
			d.t.Errorf("%s was handled %d times", id, n)
		}
	}
	if got := d.broker.Ready("async.failed"); len(d.handled) != handled || got != failed {
		d.t.Errorf("%d were handled and %d have failed, want %d and %d", len(d.handled), got, handled, failed)
	}
}

// id is that of the replay that a command has begun.
func (d *depot) id(out string) string {
	d.t.Helper()
	id := regexp.MustCompile(`r-[0-9a-f]{8}`).FindString(out)
	if id == "" {
		d.t.Fatalf("there is no ID in\n%s", out)
	}
	return id
}

// interrupted begins a slow replay, and presses Ctrl-C once some messages were handled.
func (d *depot) interrupted() (id string) {
	d.t.Helper()
	run := d.start(d.t, "failed", "replay", "-f", d.dir, "--yes", "--rate", "10")
	testtransport.Eventually(d.t, "some to be handled", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.handled) >= 3
	})
	run.signals <- nil
	if code := <-run.code; code != exitUnfinished {
		d.t.Fatalf("exit code %d\n%s%s", code, run.out.String(), run.log.String())
	}
	id = d.id(run.out.String())
	d.has(run.out.String(), "interrupted  ", " staged", "  go on:", "redrive replay resume async "+id+" -f "+d.dir+"\n", "  take the rest back:", "redrive replay cancel async "+id)
	return id
}

func TestFailedReplay_SendsBackWhatAWorkerHandles(t *testing.T) {
	t.Parallel()
	d := newDepot(t, 20)
	out := d.does(exitChanges, "failed", "replay", "--plan")
	d.has(out, "Plan: replay 20 of 20 messages in async.failed, as of ", "\ntest         20", "422", "\nAt most 1,000 in flight.\n")
	d.accept(func(n int) bool { return n%10 == 0 })
	out = d.does(exitUnfinished, "failed", "replay", "--yes", "--rate", "100")
	d.has(out, "At most 100 a second, 1,000 in flight.\n", "\nreplay r-", "\ncompleted 20 messages in ", ": 18 handled, 2 failed again\n", "  2 failed again with cause ", ": redrive failed ls async -f "+d.dir+" --cause ")
	d.handles(18, 2)
	d.accept(none)
	d.has(d.does(exitOK, "failed", "replay", "--yes", "--id", "m-20"), "completed 1 message in ", ": 1 handled\n")
	d.handles(19, 1)
	d.has(d.does(exitOK, "failed", "replay", "--yes", "--queue", "other"), "Plan: replay 0 of 1 message", "Nothing to do.")
	d.has(d.does(exitOK, "replay", "ls"), "There is no replay of Transport async that has not ended.\n")
}

func TestFailedReplay_LeavesMessagesWhoseQueueIsGone(t *testing.T) {
	t.Parallel()
	d := newDepot(t, 5)
	d.accept(none)
	d.broker.Publish("async.return", "gone", amqp091.Publishing{MessageId: "m-6"})
	d.handles(0, 6)
	d.has(d.does(exitOK, "failed", "replay", "--yes"), "Plan: replay 5 of 6 messages", "no queue of the Transport: they stay where they are", "completed 5 messages", ": 5 handled\n")
	d.handles(5, 1)
}

func TestFailedReplay_StopsAtACanaryAndGoesOnWhenAskedTo(t *testing.T) {
	t.Parallel()
	d := newDepot(t, 20)
	d.accept(func(n int) bool { return n < 3 })
	out := d.does(exitUnfinished, "failed", "replay", "--yes", "--canary", "5", "--max-failed", "1", "--max-in-flight", "5")
	id := d.id(out)
	d.has(out, "First 5, and the others when these have an outcome within 10m and at most 1 of them have failed again.", "stopped: 2 of the first 5 messages have failed again",
		"15 staged", "redrive replay resume async "+id+" -f "+d.dir+" --accept-failures\n")
	d.has(d.does(exitUnfinished, "replay", "resume", id), "stopped: 2 of the first 5")
	d.has(d.does(exitOK, "replay", "show", id), "Phase           Stopped\n", "Canary          5, of which 1 may fail again, within 10m\n", "Staged          15\n")
	out = d.does(exitUnfinished, "replay", "resume", id, "--accept-failures")
	d.has(out, "completed 20 messages", ": 18 handled, 2 failed again")
	d.handles(18, 2)
}

func TestFailedReplay_StopsWhereTooManyFail(t *testing.T) {
	t.Parallel()
	d := newDepot(t, 30)
	out := d.does(exitUnfinished, "failed", "replay", "--yes", "--stop-when", "50%:5", "--max-in-flight", "5")
	d.has(out, "It stops if 50 % fail, after 5 outcomes.", "stopped: ")
	d.accept(none)
	d.has(d.does(exitUnfinished, "replay", "resume", d.id(out), "--accept-failures"), "completed 30 messages")
}

func TestFailedReplay_IsKeptAtCtrlCAndResumed(t *testing.T) {
	t.Parallel()
	d := newDepot(t, 60)
	d.accept(none)
	id := d.interrupted()
	out := d.does(exitOK, "replay", "ls")
	if !regexp.MustCompile(id + ` +Replay +Releasing +60 +\d+ +\d+ +\d+ +0 +\d+s\n`).MatchString(out) {
		t.Errorf("ls:\n%s", out)
	}
	d.has(d.does(exitOK, "replay", "ls", "-o", "json"), `"id": "`+id+`"`, `"action": "Replay"`, `"selected": 60`)
	d.has(d.does(exitOK, "replay", "show", id), "Rate            10 a second\n", "redrive replay cancel async "+id)
	d.has(d.does(exitOK, "replay", "resume", id, "--rate", "0"), "completed 60 messages in ", ": 60 handled\n")
	d.handles(60, 0)
	d.has(d.does(exitStatusError, "replay", "resume", id), "there is no replay "+id+" of Transport async that has not ended")
}

func TestReplayCancel_TakesBackWhatIsStaged(t *testing.T) {
	t.Parallel()
	d := newDepot(t, 60)
	d.accept(none)
	id := d.interrupted()
	out := d.does(exitOK, "replay", "cancel", "async", id)
	d.has(out, "cancelled 60 messages in ", " taken back")
	d.mu.Lock()
	handled := len(d.handled)
	d.mu.Unlock()
	d.handles(handled, 60-handled)
	d.has(d.does(exitOK, "failed", "groups"), fmt.Sprintf("%d failed messages in async.failed", 60-handled), "422")
}

func TestReplay_IsCarriedOutByOneProcess(t *testing.T) {
	t.Parallel()
	d := newDepot(t, 60)
	d.accept(none)
	run := d.start(t, "failed", "replay", "-f", d.dir, "--yes", "--rate", "0.1")
	testtransport.Eventually(t, "it to begin", func() bool { return strings.Contains(run.out.String(), "releasing") })
	id := d.id(run.out.String())
	d.has(d.does(exitStatusError, "replay", "cancel", id), "another process carries "+id+" out now: end that one first")
	d.has(d.does(exitOK, "replay", "show", id), "another process carries it out now")
	d.has(d.does(exitOK, "replay", "ls"), id, "Running")
	run.signals <- nil
	<-run.code
	d.does(exitOK, "replay", "cancel", id)
}

func TestFailedDiscard_CanBeTakenBackUntilItIsFinal(t *testing.T) {
	t.Parallel()
	d := newDepot(t, 10)
	d.has(d.does(exitChanges, "failed", "discard", "--limit", "4", "--plan"), "Plan: discard 4 of 10 messages", "They can be taken back for 24h.\n")
	out := d.does(exitOK, "failed", "discard", "--limit", "4", "--yes")
	id := d.id(out)
	d.has(out, "discarded 4 messages; until ", "they can be taken back\n", "redrive replay cancel async "+id, "redrive replay resume async "+id+" -f "+d.dir+" --final\n")
	d.handles(0, 6)
	d.has(d.does(exitOK, "replay", "ls"), "Discard", "Held")
	d.does(exitOK, "replay", "cancel", id)
	d.handles(0, 10)

	id = d.id(d.does(exitOK, "failed", "discard", "--limit", "4", "--yes"))
	d.has(d.does(exitStatusError, "replay", "resume", id, "--final"), "there is no terminal to ask on")
	d.has(d.does(exitStatusError, "replay", "resume", id, "--rate", "5"), "--rate changes nothing: "+id+" is a discard")
	d.has(d.does(exitOK, "replay", "resume", id), "discarded 4 messages; until ")
	d.has(d.does(exitOK, "replay", "resume", id, "--final", "--yes"), "completed 4 messages", "4 deleted")
	d.has(d.does(exitOK, "failed", "discard", "--limit", "1", "--undo-for", "0", "--yes"), "They are deleted at once", "completed 1 message", "1 deleted")
	d.handles(0, 5)
}

func TestFailedReplay_PlansAroundQueuesThatAreGone(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.pin()
	s.giveUp()
	code, out, errs := s.failed("replay", "async", "--plan")
	if code != exitChanges || errs != "" || strings.Contains(out, "hidden") {
		t.Errorf("exit code %d, %s\n%s", code, errs, out)
	}
	for _, line := range []string{
		`Plan: replay 5 of 6 messages in async.failed, `, `test +3 +0  no worker consumes it now: they wait there until one does`, `lost +2 +0  no worker`,
		`gone +1 +-  no queue of the Transport: they stay where they are`, `[0-9a-f]{8} +2  test +MaxRetries`,
	} {
		if !regexp.MustCompile(`(?m)^` + line).MatchString(out) {
			t.Errorf("there is no %s in\n%s", line, out)
		}
	}
	if code, out, errs := s.failed("replay", "async", "--cause", "00000000", "--plan"); code != exitOK || !strings.Contains(out, "Nothing to do.") {
		t.Errorf("exit code %d, %s\n%s", code, errs, out)
	}
	if code, _, errs := s.failed("replay", "asink", "--plan"); code != exitError || !strings.Contains(errs, `there is no Transport "asink"`) {
		t.Errorf("exit code %d, %s", code, errs)
	}
	if got := s.amqp.Ready("async.failed"); got != 6 || s.writes.Load() != 0 {
		t.Errorf("a plan leaves %d messages, and writes %d times", got, s.writes.Load())
	}
}

func TestFailedReplay_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for want, args := range map[string][]string{
		"there is no terminal to ask on: --yes goes on without asking":            {"replay", "async"},
		"a rate of -1 messages a second: at least 0":                              {"replay", "--yes", "--rate", "-1"},
		"0 messages in flight: 1 to 10000":                                        {"replay", "--yes", "--max-in-flight", "0"},
		"--max-failed needs --canary":                                             {"replay", "--yes", "--max-failed", "1"},
		"a limit of -1 messages: at least 0":                                      {"replay", "--yes", "--limit", "-1"},
		`invalid argument "120%" for "--stop-when" flag: a share from 1% to 100%`: {"replay", "--stop-when", "120%"},
		"after at least 1 outcome":                                                {"replay", "--stop-when", "20%:0"},
		"an undo for -1s: at least 0":                                             {"discard", "--yes", "--undo-for", "-1s"},
		"--where, 1:8: there is no field nothing":                                 {"discard", "--yes", "--where", "failure.nothing == ''"},
		"name one Transport":                                                      {"discard", "a", "b"},
	} {
		if code, out, errs := s.failed(args...); code != exitStatusError || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%v: exit code %d, %s%s", args, code, out, errs)
		}
	}
	for want, args := range map[string][]string{
		`"r-1" is no ID of a replay, such as r-7f3a91c0`:                      {"show", "async", "r-1"},
		"there is no replay r-0123abcd of Transport async that has not ended": {"cancel", "async", "r-0123abcd"},
		"-o xml: the formats are table and json":                              {"ls", "async", "-o", "xml"},
		"-o wide: the formats are text and json":                              {"show", "async", "r-0123abcd", "-o", "wide"},
	} {
		if code, out, errs := s.command(t, "", append([]string{"replay", args[0], "--kubeconfig", s.kubeconfig}, args[1:]...)...); code != exitStatusError || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%v: exit code %d, %s%s", args, code, out, errs)
		}
	}
}
