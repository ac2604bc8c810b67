package controllers

import (
	"errors"
	"net/http"
	"testing"
	"time"
)

func TestFewAreBusyWithASlowManagementAPI(t *testing.T) {
	now := time.Now()
	request := &http.Request{}
	p := &pace{}
	leaves := make([]func(), 0, 5)
	enter := func(at time.Time) error {
		leave, err := p.enter(at)
		if err == nil {
			leaves = append(leaves, leave)
		}
		return err
	}
	for range 5 {
		if err := enter(now); err != nil {
			t.Fatalf("nothing is slow yet: %v", err)
		}
	}
	p.begin(request, now)
	if p.crowded(now.Add(slowRequest / 2)) {
		t.Error("a request that has just begun makes nothing slow")
	}
	if late := now.Add(slowRequest); !p.crowded(late) || !errors.Is(enter(late), errBusy) {
		t.Error("a request that waits makes the API slow, and five are too many for it")
	}
	for range 3 {
		leaves[len(leaves)-1]()
		leaves = leaves[:len(leaves)-1]
	}
	end := now.Add(2 * slowRequest)
	p.end(request, end)
	if p.crowded(end) || !errors.Is(enter(end), errBusy) {
		t.Error("those that have seats keep them, and nobody else gets one, while the last request was slow")
	}
	leaves[0]()
	if err := enter(end); err != nil {
		t.Errorf("a seat is free: %v", err)
	}
	if err := enter(end.Add(slowFor)); err != nil {
		t.Errorf("it was slow long ago: %v", err)
	}
}

func TestWhoWaitsForASnapshotOfASlowManagementAPIGoesWhenTooManyDo(t *testing.T) {
	m, b := newManagement(t), newBrokers(0)
	port := m.port(t, b, "password")
	m.gate.Lock()
	const reconciles = slowSeats + 3
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
	for range reconciles - slowSeats {
		if err := <-results; !errors.Is(err, errBusy) {
			t.Errorf("got %v before the broker answered", err)
		}
	}
	m.gate.Unlock()
	for range slowSeats {
		if err := <-results; err != nil {
			t.Errorf("one who has a seat: %v", err)
		}
	}
}
