package main

import (
	"testing"
	"time"
)

func TestMeter_LeavesTheFirstFifthUntimed(t *testing.T) {
	m := newMeter(10)
	m.tick()
	m.tick()
	m.tick() // the first that counts begins
	began := m.began.Load()
	for range 7 {
		m.tick()
	}
	if err := m.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.ended.Store(began + time.Second.Nanoseconds())
	if rate := m.rate(); rate != 7 {
		t.Errorf("%v messages a second, want the 7 after the third", rate)
	}
}

func TestMeter_TimesAWholeRunThatSaysWhenItBegins(t *testing.T) {
	m := newMeter(10)
	m.begin()
	began := m.began.Load()
	for range 10 {
		m.tick()
		m.begin() // only the first call counts
	}
	if err := m.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.ended.Store(began + 2*time.Second.Nanoseconds())
	if rate := m.rate(); rate != 5 || m.began.Load() != began {
		t.Errorf("%v messages a second, want 5", rate)
	}
}
