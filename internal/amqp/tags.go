package amqp

import (
	"math"
	"slices"
)

// maxOpen bounds the tags that are open at once: twice the largest prefetch. A broker counts tags one by one, so there are
// more only where something is not as it should be.
const maxOpen = 2 << 16

// openTags are the delivery tags of one channel that no acknowledgement may settle in passing: what it settles together
// with others is everything up to a tag.
type openTags struct {
	highest uint64
	// open are, ascending, the tags up to the highest that are not settled, or were not even seen: they may be on their way.
	open []uint64
	// lost is true where that is not known any more. Each delivery is then settled by itself.
	lost bool
}

// taken notes a delivery.
func (t *openTags) taken(tag uint64) {
	if t.lost || tag <= t.highest { // one that was missing is among the open ones already
		return
	}
	if tag-t.highest > uint64(maxOpen-len(t.open)) { //nolint:gosec // there are never more
		t.lost, t.open = true, nil
		return
	}
	for missing := t.highest + 1; missing <= tag; missing++ {
		t.open = append(t.open, missing)
	}
	t.highest = tag
}

// settled notes one that was settled by itself.
func (t *openTags) settled(tag uint64) {
	if i, found := slices.BinarySearch(t.open, tag); found {
		t.open = slices.Delete(t.open, i, i+1)
	}
}

// acknowledge notes that tags are settled, and says how: all up to one of them, if upTo is not 0, and the rest one by one. Of
// what is settled in passing, every single one is among the tags or was settled before.
func (t *openTags) acknowledge(tags []uint64) (upTo uint64, rest []uint64) {
	if t.lost || len(tags) == 1 {
		for _, tag := range tags {
			t.settled(tag)
		}
		return 0, tags
	}
	slices.Sort(tags)
	known := t.remove(tags)
	first := uint64(math.MaxUint64)
	if len(t.open) > 0 {
		first = t.open[0]
	}
	before, _ := slices.BinarySearch(tags, first)
	if !known || before < 2 {
		return 0, tags
	}
	return tags[before-1], tags[before:]
}

// remove takes sorted tags out of the open ones. It is false where one of them was not among these.
func (t *openTags) remove(tags []uint64) (known bool) {
	known = true
	kept := t.open[:0]
	for _, tag := range t.open {
		for len(tags) > 0 && tags[0] < tag {
			known, tags = false, tags[1:]
		}
		if len(tags) > 0 && tags[0] == tag {
			tags = tags[1:]
			continue
		}
		kept = append(kept, tag)
	}
	t.open = kept
	return known && len(tags) == 0
}
