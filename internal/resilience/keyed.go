package resilience

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	// maxKeys is how many keys have a state of their own.
	maxKeys = 10_000
	// longestKey bounds the memory of a key, in bytes.
	longestKey = 128
	// looks is how many keys are asked whether they are idle when a new one needs a place. With it every place is looked at
	// in turn, at a cost that does not grow with their number.
	looks = 16
)

// The places that are always there.
const (
	noKey = iota
	overflow
	ownPlaces
)

// keyed is a state for each key, of a bounded number of keys. When all places are taken, that of an idle key is given to the
// next one (the hand goes round, as in the clock algorithm of page caches). Where none of those that it looks at is idle, the
// key shares one place with all others that find none, so that the bound on the keys is also a bound on what gets through.
type keyed[S any] struct {
	index  map[string]int
	places []place[S]
	hand   int
	// idle says whether a state is no different from a new one, so that it may be forgotten. It is asked of the state
	// that is given up last.
	idle func(*S) bool
}

type place[S any] struct {
	key   string
	state S
}

func newKeyed[S any](idle func(*S) bool) keyed[S] {
	return keyed[S]{index: map[string]int{}, places: make([]place[S], ownPlaces), idle: idle}
}

// find is the number of the place of a key. A place that changes hands has the zero state.
func (k *keyed[S]) find(key string) int {
	if key == "" {
		return noKey
	}
	if len(key) > longestKey {
		key = shorten(key)
	}
	if i, ok := k.index[key]; ok {
		return i
	}
	if len(k.places) < ownPlaces+maxKeys {
		k.places = append(k.places, place[S]{})
		return k.take(len(k.places)-1, key)
	}
	for range looks {
		i := ownPlaces + k.hand
		k.hand = (k.hand + 1) % maxKeys
		if k.idle(&k.places[i].state) {
			delete(k.index, k.places[i].key)
			return k.take(i, key)
		}
	}
	return overflow
}

// take gives a place to a key. The key is copied, for it may be a part of a much longer text.
func (k *keyed[S]) take(i int, key string) int {
	key = strings.Clone(key)
	k.places[i] = place[S]{key: key}
	k.index[key] = i
	return i
}

// shorten makes a long key short, and keeps it apart from others that begin like it.
func shorten(key string) string {
	sum := sha256.Sum256([]byte(key))
	digest := hex.EncodeToString(sum[:8])
	return strings.ToValidUTF8(key[:longestKey-len(digest)-1], "") + "#" + digest
}
