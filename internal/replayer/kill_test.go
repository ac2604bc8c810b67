package replayer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"redrive.dev/redrive/internal/replay"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// child runs a replayer of its own. deadly is where it kills itself, at the given time that it comes there; empty where it does not.
func (r *rig) child(deadly point, times int, more ...string) (result Result, killed bool) {
	r.t.Helper()
	command := exec.CommandContext(r.t.Context(), os.Args[0])
	command.Env = append(os.Environ(), urlVariable+"="+r.url, managementVariable+"="+r.management, pointVariable+"="+string(deadly))
	command.Env = append(command.Env, fmt.Sprintf("%s=%d", timesVariable, times), fmt.Sprintf("%s=%d", rateVariable, r.rate))
	command.Env = append(command.Env, more...)
	var out, problems bytes.Buffer
	command.Stdout, command.Stderr = &out, &problems
	err := command.Run()
	if exit, is := errors.AsType[*exec.ExitError](err); is {
		if status, _ := exit.Sys().(syscall.WaitStatus); status.Signal() == syscall.SIGKILL {
			return Result{}, true
		}
	}
	if err != nil {
		r.t.Fatalf("a replayer that is not killed: %v\n%s", err, problems.Bytes())
	}
	if err := json.Unmarshal(out.Bytes(), &result); err != nil {
		r.t.Fatalf("%v: %s", err, out.Bytes())
	}
	return result, false
}

// kill is a kill at a point, the n-th time that a replayer comes there.
type kill struct {
	at    point
	times int
}

func (r *rig) survive(messages int, kills ...kill) {
	r.t.Helper()
	r.fill(messages)
	r.work()
	result, killed := r.child(kills[0].at, kills[0].times)
	if !killed {
		r.t.Fatalf("it ended before it came to %s: %+v", kills[0].at, result)
	}
	for i := 1; killed && i < len(kills); i++ {
		result, killed = r.child(kills[i].at, kills[i].times) // it may end before, where the others had all that far
	}
	if killed {
		result, _ = r.child("", 0)
	}
	if result.Phase != replay.Completed {
		r.t.Fatalf("it ended with %+v", result)
	}
	again := r.judge(messages, result)
	r.t.Logf("%d calls of the handler beyond one for each message", again)
	if most := len(kills) * stagingWindow; again > most {
		r.t.Errorf("%d calls beyond one for each message, and at most %d may be", again, most)
	}
	r.noQueues()
}

func TestReplay_SurvivesAKill(t *testing.T) {
	for name, kills := range map[string][]kill{
		"while it selects":  {{pointConfirmed, 20}},
		"while it releases": {{pointArrived, 20}},
		"at a checkpoint":   {{pointSaved, 3}},
	} {
		t.Run(name, func(t *testing.T) { newRig(t, testbroker.Shared(t)).survive(200, kills...) })
	}
}

// Each is killed while it takes messages back; one that comes after the other two does so as well.
func TestCancel_SurvivesAKill(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	const messages = 1000 // a replayer that is killed may have had a whole window of them under way
	r.fill(messages)
	r.rate = 1
	if _, killed := r.child(pointGone, 2); !killed {
		t.Fatal("it has ended")
	}
	before := r.broker.Ready("async.replay." + id)
	for _, deadly := range []point{pointTakeBack, pointTakenBack, pointTakeBackOut} {
		if _, killed := r.child(deadly, 20, cancelVariable+"=1"); !killed {
			t.Fatalf("it ended before it came to %s", deadly)
		}
	}
	r.work() // what was released is handled
	result, _ := r.child("", 0, cancelVariable+"=1")
	c := result.Counts
	if result.Phase != replay.Cancelled || c.Recalled+c.Handled+c.FailedAgain != messages/2 || c.Recalled < int64(before)-10 || c.InFlight+c.Staged != 0 {
		t.Fatalf("%s, %+v", result.Phase, c)
	}
	left := r.left()
	for n := range messages {
		if name := strconv.Itoa(n); left[name] == 0 && r.runs[name] == 0 {
			t.Errorf("message %d is lost", n)
		}
	}
}

func TestReplay_SurvivesAKillAtEachStep(t *testing.T) {
	testtransport.Long(t)
	const messages = 600
	for _, deadly := range []point{
		pointPublish, pointStaged, pointConfirmed, pointTaken, pointRelease, pointReleased, pointArrived, pointGone,
	} {
		t.Run(string(deadly), func(t *testing.T) {
			newRig(t, testbroker.Shared(t)).survive(messages, kill{deadly, 1}, kill{deadly, 100}, kill{deadly, 50}, kill{deadly, 2})
		})
	}
	for deadly, times := range map[point][]int{pointObserved: {1, 50, 2}, pointSaved: {1, 2, 2}, pointForgot: {1, 2, 2}} {
		t.Run(string(deadly), func(t *testing.T) {
			r := newRig(t, testbroker.Shared(t))
			r.rate = 100
			var kills []kill
			for _, n := range times {
				kills = append(kills, kill{deadly, n})
			}
			r.survive(messages, kills...)
		})
	}
	t.Run(string(pointSelected), func(t *testing.T) {
		newRig(t, testbroker.Shared(t)).survive(messages, kill{pointSelected, 1}, kill{pointSelected, 1})
	})
}

func TestReplay_SurvivesKillsAtRandom(t *testing.T) {
	testtransport.Long(t)
	selecting := []point{pointPublish, pointStaged, pointConfirmed, pointTaken}
	releasing := []point{pointRelease, pointReleased, pointArrived, pointGone}
	for round := range 4 {
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			r := newRig(t, testbroker.Shared(t))
			const messages = 4000
			r.fill(messages)
			r.work()
			for n := range 12 {
				points := selecting
				if n >= 6 { // 150 at a time, so that some are left
					points = releasing
				}
				if result, killed := r.child(points[rand.IntN(len(points))], 1+rand.IntN(150)); !killed {
					t.Fatalf("kill %d: it has ended: %+v", n, result)
				}
			}
			result, _ := r.child("", 0)
			t.Logf("%d calls of the handler beyond one for each message", r.judge(messages, result))
		})
	}
}

// The broker is killed in the middle of the release; replayer and worker connect again by themselves.
func TestReplay_SurvivesAKillOfTheBroker(t *testing.T) {
	testtransport.Long(t)
	broker := testbroker.Private(t)
	r := newRig(t, broker)
	r.rate = 50
	const messages = 400
	r.fill(messages)
	time.Sleep(2 * time.Second) // a younger quorum queue loses its messages with its only node
	done := make(chan Result)
	go func() {
		result, _ := r.child("", 0)
		done <- result
	}()
	testtransport.Eventually(t, "messages to be released", func() bool { return r.broker.Ready("test") > 20 })
	time.Sleep(2 * time.Second)
	if err := broker.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := broker.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.broker = r.broker.Reconnect(r.url)
	r.work()
	if again := r.judge(messages, <-done); again > stagingWindow {
		t.Errorf("%d calls of the handler beyond one for each message", again)
	}
}

// RabbitMQ loses what is in a quorum queue that is younger than about a second when its only node is killed.
func TestReplay_SurvivesAKillOfTheBrokerRightAfterItBegan(t *testing.T) {
	testtransport.Long(t)
	broker := testbroker.Private(t)
	r := newRig(t, broker)
	const messages = 400
	r.fill(messages)
	time.Sleep(2 * time.Second)
	options := r.options()
	var taken atomic.Int64
	killed := make(chan error, 1)
	options.at = func(p point) {
		if p == pointTaken && taken.Add(1) == 150 {
			killed <- broker.Kill(context.Background())
		}
	}
	done := make(chan Result)
	go func() {
		result, err := Run(t.Context(), options)
		if err != nil {
			t.Error(err)
		}
		done <- result
	}()
	if err := errors.Join(<-killed, broker.Resume(t.Context())); err != nil {
		t.Fatal(err)
	}
	r.broker = r.broker.Reconnect(r.url)
	r.work()
	if again := r.judge(messages, <-done); again > stagingWindow {
		t.Errorf("%d calls of the handler beyond one for each message", again)
	}
}
