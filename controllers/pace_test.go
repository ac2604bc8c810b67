package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// clock drives paces by hand.
type clock struct {
	t    *testing.T
	all  *paces
	now  time.Time
	left map[string][]func()
}

func newClock(t *testing.T, workers int) *clock {
	return &clock{t, newPaces(workers), time.Now(), map[string][]func(){}}
}

// enter lets one in at a broker, if it may.
func (c *clock) enter(url string) bool {
	c.t.Helper()
	leave, err := c.all.of(url).enter(c.now)
	if err != nil && !errors.Is(err, errBusy) {
		c.t.Fatal(err)
	}
	if err == nil {
		c.left[url] = append(c.left[url], leave)
	}
	return err == nil
}

func (c *clock) leave(url string) {
	c.left[url][0]()
	c.left[url] = c.left[url][1:]
}

// ask begins a request at a broker. end is its answer, or that it got none.
func (c *clock) ask(url string) (r *http.Request, end func(answered bool)) {
	r = (&http.Request{}).WithContext(context.WithValue(c.t.Context(), toldBusy{}, &atomic.Bool{}))
	c.all.of(url).begin(r, c.now)
	return r, func(answered bool) { c.all.of(url).end(r, answered, c.now) }
}

// relieved tells whether a request ends because too many wait.
func (c *clock) relieved(url string, r *http.Request) bool {
	_, cancel := context.WithCancelCause(c.t.Context())
	defer cancel(nil)
	c.all.of(url).relieve(r, cancel, c.now)
	told, _ := r.Context().Value(toldBusy{}).(*atomic.Bool)
	return told.Load()
}

func (c *clock) crowded(url string) bool { return errors.Is(c.all.of(url).crowded(c.now), errBusy) }

func TestFewAreBusyWithASlowManagementAPI(t *testing.T) {
	c := newClock(t, 8)
	for range 5 {
		if !c.enter("slow") {
			t.Fatal("nothing is slow yet")
		}
	}
	_, first := c.ask("slow")
	if c.now = c.now.Add(slowRequest / 2); c.crowded("slow") {
		t.Error("a request that has just begun makes nothing slow")
	}
	if c.now = c.now.Add(slowRequest); !c.crowded("slow") || c.enter("slow") {
		t.Error("a request that waits makes the API slow, and five are too many for it")
	}
	first(true)
	_, second := c.ask("slow")
	c.now = c.now.Add(slowRequest)
	second(true)
	for range 2 {
		c.leave("slow")
	}
	if c.crowded("slow") || c.enter("slow") {
		t.Error("those that have seats keep them, and nobody else gets one, while the last requests were slow")
	}
	if c.leave("slow"); !c.enter("slow") {
		t.Error("a seat is free")
	}
	if c.now = c.now.Add(slowFor); !c.enter("slow") {
		t.Error("it was slow long ago")
	}
}

func TestASingleSlowAnswerKeepsNobodyOut(t *testing.T) {
	c := newClock(t, 8)
	for range 3 {
		c.enter("big")
		_, end := c.ask("big")
		c.now = c.now.Add(2 * slowRequest)
		end(true)
		_, quick := c.ask("big")
		quick(true)
		for range 7 {
			if !c.enter("big") {
				t.Fatal("one slow answer, long after the last, and the API counts as slow")
			}
		}
		for range 8 {
			c.leave("big")
		}
		c.now = c.now.Add(slowFor)
	}
}

func TestManySilentBrokersLeaveHalfOfTheWorkersToTheOthers(t *testing.T) {
	const workers = 8
	c := newClock(t, workers)
	requests, ends := map[string]*http.Request{}, map[string]func(bool){}
	for i := range workers {
		url := fmt.Sprint("hangs-", i)
		c.enter(url)
		requests[url], ends[url] = c.ask(url)
	}
	c.now = c.now.Add(slowRequest)
	for url, r := range requests {
		if c.relieved(url, r) {
			ends[url](false)
			c.leave(url)
			delete(requests, url)
		}
	}
	if len(requests) != workers/2 {
		t.Errorf("%d of %d workers wait for brokers that do not answer", len(requests), workers)
	}
	t.Log("after their deadline all are known to be silent, and a quarter of the workers tries them")
	c.now = c.now.Add(30 * time.Second)
	for url := range requests {
		ends[url](false)
		c.leave(url)
	}
	in := map[string]*http.Request{}
	for i := range workers {
		url := fmt.Sprint("hangs-", i)
		if c.enter(url) {
			in[url], _ = c.ask(url)
		}
	}
	if len(in) != workers/4 {
		t.Errorf("%d of %d workers try them", len(in), workers)
	}
	t.Log("one that answers slowly does not wait for them, and is not told to go because of them")
	for range 2 {
		c.enter("slow")
		r, end := c.ask("slow")
		c.now = c.now.Add(slowRequest)
		if c.relieved("slow", r) {
			t.Error("its request ends because others hang")
		}
		end(true)
		c.leave("slow")
	}
	for url, r := range in {
		if c.relieved(url, r) {
			t.Errorf("%s has a seat by right", url)
		}
	}
	for range workers/2 - 1 {
		if !c.enter("slow") {
			t.Error("a slow broker has all seats of the slow ones but one")
		}
	}
	if c.enter("slow") {
		t.Error("a slow broker has the last seat too")
	}
	if !c.enter("small") {
		t.Error("another one is kept waiting")
	}
	for range workers {
		if !c.enter("well") {
			t.Error("a broker that is well is kept waiting")
		}
	}
}

func TestASlowAnswerIsWaitedForWhereTheBrokerAnswersOthers(t *testing.T) {
	c := newClock(t, 8)
	var requests []*http.Request
	for range 4 {
		c.enter("loaded")
		r, _ := c.ask("loaded")
		requests = append(requests, r)
	}
	c.now = c.now.Add(slowRequest / 2)
	c.enter("loaded")
	_, end := c.ask("loaded")
	end(true)
	c.now = c.now.Add(slowRequest)
	for _, r := range requests {
		if c.relieved("loaded", r) {
			t.Error("it would only be asked the same again")
		}
	}
}

func TestTwoWaitingForEachOfManySilentBrokersGoWhenTheyAreTooMany(t *testing.T) {
	c := newClock(t, 8)
	for i := range 4 {
		url := fmt.Sprint("hangs-", i)
		c.enter(url) // asks
		c.enter(url) // waits for the same snapshot
		_, _ = c.ask(url)
	}
	c.now = c.now.Add(slowRequest)
	gone := 0
	for i := range 4 {
		if url := fmt.Sprint("hangs-", i); c.crowded(url) {
			c.leave(url)
			gone++
		}
	}
	if gone != 4 {
		t.Errorf("%d of 8 workers stay", 8-gone)
	}
}

func TestASilentBrokerThatAnswersAgainCountsAsAnyOther(t *testing.T) {
	c := newClock(t, 8)
	c.enter("back")
	_, end := c.ask("back")
	c.now = c.now.Add(30 * time.Second)
	end(false)
	if !c.enter("back") {
		t.Error("two may wait for one that is silent")
	}
	if c.enter("back") {
		t.Error("three wait for one that is silent")
	}
	_, end = c.ask("back")
	end(true)
	if !c.enter("back") {
		t.Error("it answers again, and one has to go")
	}
}

func TestWhoWaitsForASnapshotOfASlowManagementAPIGoesWhenTooManyDo(t *testing.T) {
	m, b := newManagement(t), newBrokers(0, 8)
	port := m.port(t, b, "password")
	m.gate.Lock()
	const places = 3
	const reconciles = places + 3
	results := make(chan error)
	for range reconciles {
		go func() {
			leave, err := port.enter()
			if err == nil {
				_, err = port.of("shop/async", 0).Observe(t.Context())
				leave()
			}
			results <- err
		}()
	}
	for range reconciles - places {
		if err := <-results; !errors.Is(err, errBusy) {
			t.Errorf("got %v before the broker answered", err)
		}
	}
	m.gate.Unlock()
	for range places {
		if err := <-results; err != nil {
			t.Errorf("one who has a seat: %v", err)
		}
	}
}
