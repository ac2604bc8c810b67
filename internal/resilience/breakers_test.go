package resilience

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fail opens the breaker of a key.
func fail(b *Breakers, key string, now time.Time) {
	for range 10 {
		permit, _, _ := b.For(key, now).Admit(now, timeout)
		permit.Done(now, 0, Failure)
	}
}

func TestBreakers_HaveOneForEachKey(t *testing.T) {
	var told []string
	b := NewBreakers(aBreaker(), middle{}, func(key string, from, to State, _ string) {
		told = append(told, fmt.Sprintf("%q %s > %s", key, from, to))
	})
	long := strings.Repeat("x", 1000)
	for _, key := range []string{"acme", "", long} {
		fail(b, key, noon)
	}
	for key, want := range map[string]State{"acme": Open, "": Open, long: Open, "globex": Closed} {
		if got := b.For(key, noon).State(noon); got != want {
			t.Errorf("the breaker of %.10q is %s", key, got)
		}
	}
	short := shorten(long)
	if want := []string{`"acme" Closed > Open`, `"" Closed > Open`, `"` + short + `" Closed > Open`}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
	if got, want := b.notClosed(noon), (map[string]State{"acme": Open, "": Open, short: Open}); !maps.Equal(got, want) {
		t.Errorf("not closed: %v", got)
	}
	if got, want := b.notClosed(after(10)), (map[string]State{"acme": Probing, "": Probing, short: Probing}); !maps.Equal(got, want) {
		t.Errorf("not closed 10 s later: %v", got)
	}
}

// notClosed are the keys whose breaker is not closed, with its state.
func (b *Breakers) notClosed(now time.Time) map[string]State {
	states := map[string]State{}
	for _, breaker := range b.all() {
		if s := breaker.State(now); s != Closed {
			states[breaker.key] = s
		}
	}
	return states
}

func TestBreakers_ShareOneForKeysThatFindNoPlace(t *testing.T) {
	var told []string
	b := NewBreakers(aBreaker(), middle{}, func(key string, _, to State, _ string) { told = append(told, key+" "+to.String()) })
	for i := range maxKeys {
		permit, _, _ := b.For(strconv.Itoa(i), noon).Admit(noon, timeout)
		permit.Done(noon, 0, Success)
	}
	if b.For("more", noon) != b.For("others", noon) {
		t.Fatal("two further keys have two breakers")
	}
	fail(b, "more", noon)
	if want := []string{OverflowKey + " Open"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
	if b.For("0", noon).State(noon) != Closed {
		t.Error("it is the breaker of an earlier key too")
	}
	// Their windows are empty: there is place again.
	if b.For("more", after(40)) == b.For("others", after(40)) {
		t.Error("two further keys still share a breaker")
	}
}

// crowd takes all places with open breakers, and then probes none but those of busy.
func crowd(t *testing.T, onChange func(string, State, State, string)) *Breakers {
	c := aBreaker()
	c.MinimumCalls = 1
	b := NewBreakers(c, middle{}, onChange)
	for i := range maxKeys {
		permit, _, _ := b.For(strconv.Itoa(i), noon).Admit(noon, timeout)
		permit.Done(noon, 0, Failure)
	}
	if n := len(b.notClosed(noon)); n != maxKeys {
		t.Fatalf("%d are open", n)
	}
	return b
}

func TestBreakers_ForgetAnOpenOneOnlyAfterLongSilence(t *testing.T) {
	told := map[string]string{}
	b := crowd(t, func(key string, from, to State, why string) {
		told[key] = from.String() + " > " + to.String() + ": " + why
	})
	onChange := b.onChange
	b.For("0", noon).onChange = func(key string, from, to State, why string) {
		b.For("", noon) // The callback may use the breakers.
		onChange(key, from, to, why)
	}
	// It was open for 10 s, and MaxOpenFor is a minute.
	if _, _, ok := b.For("new", after(69.9)).Admit(after(69.9), timeout); !ok || b.breakers.index["new"] != 0 {
		t.Fatal("a breaker was forgotten too early")
	}
	b.breakers.hand = 0
	b.For("new", after(70))
	if b.breakers.index["new"] == 0 {
		t.Fatal("no breaker was forgotten")
	}
	if got, want := told["0"], "Open > Closed: idle for 1m10s"; got != want {
		t.Errorf("told %q of the one that is forgotten, want %q", got, want)
	}
	if got := told["1"]; got != "Closed > Open: 1 of 1 calls failed (100 %), limit 50 %" {
		t.Errorf("told %q of one that is kept", got)
	}
}

func TestBreakers_KeepOneWithACallInFlight(t *testing.T) {
	b := crowd(t, nil)
	at := after(10)
	for i := range maxKeys {
		if _, _, ok := b.For(strconv.Itoa(i), at).Admit(at, time.Hour); !ok {
			t.Fatal("the probe is denied")
		}
	}
	for range maxKeys {
		b.For("new", after(1000))
	}
	if b.breakers.index["new"] != 0 {
		t.Fatal("a breaker with a probe in flight was forgotten")
	}
	if b.For("new", after(10+3600)); b.breakers.index["new"] == 0 {
		t.Error("none was forgotten after the probes' deadline")
	}
}

func TestBreakers_ForgottenOneAdmitsAllAndCountsNothing(t *testing.T) {
	b := NewBreakers(aBreaker(), middle{}, func(key string, _, to State, _ string) { t.Errorf("%s of %s", to, key) })
	old := b.For("0", noon)
	permit, _, _ := old.Admit(noon, timeout)
	for i := range maxKeys + 1 {
		b.For(strconv.Itoa(i), noon)
	}
	if b.For("0", noon) == old {
		t.Fatal("it is not forgotten")
	}
	permit.Done(noon, 0, Failure)
	for range 100 {
		permit, _, ok := old.Admit(noon, timeout)
		if !ok {
			t.Fatal("denied")
		}
		permit.Done(noon, 0, Failure)
	}
}

func TestBreakers_ReconfigureAll(t *testing.T) {
	b := NewBreakers(aBreaker(), middle{}, nil)
	b.For("acme", noon)
	c := aBreaker()
	c.Concurrency = 3
	b.Reconfigure(c, noon)
	for _, key := range []string{"acme", "new"} {
		if got := b.For(key, noon).Allowed(noon); got != 3 {
			t.Errorf("%s: %d at a time, want 3", key, got)
		}
	}
}

func TestBreakers_MayBeUsedByManyAtOnce(*testing.T) {
	b := NewBreakers(aBreaker(), least{}, func(string, State, State, string) {})
	for i := range maxKeys {
		b.For("old"+strconv.Itoa(i), noon)
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 500 {
				now := after(float64(j))
				permit, _, _ := b.For(strconv.Itoa(j%50*(i%2)), now).Admit(now, timeout)
				permit.Done(now, 0, Outcome(j%3))
				if j%100 == 0 {
					b.notClosed(now)
					b.Reconfigure(aBreaker(), now)
				}
			}
		})
	}
	wg.Wait()
}

// The messages of a key are in the failure queue, or its partner is switched off: its breaker was open until the process ended.
func TestBreakers_RollClosesThoseOfWhichNobodyAsks(t *testing.T) {
	told := map[string]string{}
	b := crowd(t, func(key string, from, to State, why string) {
		told[key] = from.String() + " > " + to.String() + ": " + why
	})
	roll := func(at float64) {
		for range maxKeys/mostRolled + 1 {
			b.Roll(after(at))
		}
	}
	roll(10)
	if got, want := told["0"], "Open > Probing: it was open for 10s"; got != want {
		t.Errorf("told %q once it was open for its time, want %q", got, want)
	}
	busy := b.For("1", after(69))
	busy.Admit(after(69), time.Hour)
	roll(70)
	if got, want := b.notClosed(after(70)), (map[string]State{"1": Probing}); !maps.Equal(got, want) {
		t.Errorf("%d are not closed, want the one alone that is asked", len(got))
	}
	if got, want := told["9999"], "Probing > Closed: no call was asked for in 1m0s"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	fail(b, "0", after(71))
	if b.For("0", after(71)).State(after(71)) != Open {
		t.Error("one that has closed does not open any more")
	}
}
