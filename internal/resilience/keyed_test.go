package resilience

import (
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// full is a keyed with all places taken, by keys that are busy.
func full() *keyed[bool] {
	k := newKeyed(func(busy *bool) bool { return !*busy })
	for i := range maxKeys {
		k.places[k.find(strconv.Itoa(i))].state = true
	}
	return &k
}

func TestKeyed_GivesEachKeyAPlaceOfItsOwn(t *testing.T) {
	k := full()
	seen := map[int]bool{k.find(""): true}
	for i := range maxKeys {
		place := k.find(strconv.Itoa(i))
		if seen[place] || place == overflow {
			t.Fatalf("key %d has place %d", i, place)
		}
		seen[place] = true
	}
}

func TestKeyed_FurtherKeysShareAPlaceWhereNoneIsIdle(t *testing.T) {
	k := full()
	for i := range 2 * maxKeys {
		if got := k.find("more" + strconv.Itoa(i)); got != overflow {
			t.Fatalf("further key %d has place %d", i, got)
		}
	}
	if len(k.places) != ownPlaces+maxKeys || len(k.index) != maxKeys {
		t.Errorf("%d places, %d keys", len(k.places), len(k.index))
	}
}

func TestKeyed_GivesThePlaceOfAnIdleKeyToAnother(t *testing.T) {
	for _, idle := range []int{0, 1, maxKeys / 2, maxKeys - 1} {
		k := full()
		place := k.find(strconv.Itoa(idle))
		k.places[place].state = false
		// The hand comes to each place within so many questions.
		got := overflow
		for range maxKeys/looks + 1 {
			if got = k.find("new"); got != overflow {
				break
			}
		}
		if got != place || k.places[got].key != "new" || k.places[got].state {
			t.Errorf("the new key has place %d, want %d of key %d", got, place, idle)
		}
		if again := k.find(strconv.Itoa(idle)); again == place {
			t.Errorf("key %d still has its place", idle)
		}
	}
}

func TestKeyed_ShortensALongKeyAndTellsItApart(t *testing.T) {
	long := strings.Repeat("ü", 10_000)
	k := newKeyed(func(*int) bool { return false })
	a, b := k.find(long+"a"), k.find(long+"b")
	if a == b || a != k.find(long+"a") || b != k.find(long+"b") {
		t.Errorf("two long keys have places %d and %d", a, b)
	}
	for _, i := range []int{a, b} {
		if key := k.places[i].key; len(key) > longestKey || !utf8.ValidString(key) || !strings.HasPrefix(key, "üü") {
			t.Errorf("kept as %q", key)
		}
	}
	exact := strings.Repeat("x", longestKey)
	if got := k.places[k.find(exact)].key; got != exact {
		t.Errorf("a key that is just short enough is kept as %q", got)
	}
}
