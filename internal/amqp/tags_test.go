package amqp

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// ledger is a channel as the broker has it.
type ledger struct {
	t *rapid.T
	// sent are the tags that it awaits a settlement of.
	sent map[uint64]bool
}

func (l *ledger) acknowledge(tag uint64, multiple bool) {
	if !l.sent[tag] {
		l.t.Fatalf("tag %d is acknowledged, which the broker does not know: it would end the channel", tag)
	}
	for other := range l.sent {
		if other == tag || multiple && other < tag {
			delete(l.sent, other)
		}
	}
}

func TestOpenTags_SettlesNothingElseByAcknowledgingMany(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tags, broker := &openTags{}, &ledger{t: t, sent: map[uint64]bool{}}
		var next uint64
		var underway, loans []uint64 // sent and not taken yet; taken and not settled yet
		pick := func(from *[]uint64, label string) uint64 {
			i := rapid.IntRange(0, min(len(*from), 8)-1).Draw(t, label)
			tag := (*from)[i]
			*from = slices.Delete(*from, i, i+1)
			return tag
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch step := rapid.IntRange(0, 4).Draw(t, "step"); {
			case step == 0: // two consumers of a channel are read one after the other, so tags are taken out of order
				for range rapid.IntRange(1, 10).Draw(t, "sent") {
					next++
					broker.sent[next] = true
					underway = append(underway, next)
				}
			case step == 1 && len(underway) > 0:
				for range rapid.IntRange(1, len(underway)).Draw(t, "taken") {
					tag := pick(&underway, "take")
					tags.taken(tag)
					loans = append(loans, tag)
				}
			case step == 2 && len(loans) > 0:
				tag := pick(&loans, "reject")
				tags.settled(tag)
				delete(broker.sent, tag)
			case step >= 3 && len(loans) > 0:
				var done []uint64
				for range rapid.IntRange(1, len(loans)).Draw(t, "done") {
					done = append(done, pick(&loans, "acknowledge"))
				}
				upTo, rest := tags.acknowledge(done)
				if upTo != 0 {
					broker.acknowledge(upTo, true)
				}
				for _, tag := range rest {
					broker.acknowledge(tag, false)
				}
			}
			want := slices.Sorted(slices.Values(slices.Concat(underway, loans)))
			if got := slices.Sorted(maps.Keys(broker.sent)); !slices.Equal(got, want) {
				t.Fatalf("the broker awaits settlements of %v, want %v", got, want)
			}
		}
	})
}

func TestOpenTags_AcknowledgesDeliveriesInOrderTogether(t *testing.T) {
	tags := &openTags{}
	for tag := range uint64(6) {
		tags.taken(tag + 1)
	}
	if upTo, rest := tags.acknowledge([]uint64{2, 1, 3, 5}); upTo != 3 || !slices.Equal(rest, []uint64{5}) {
		t.Errorf("all up to %d and %v, want all up to 3 and [5]", upTo, rest)
	}
	if upTo, rest := tags.acknowledge([]uint64{4, 6}); upTo != 6 || len(rest) > 0 {
		t.Errorf("all up to %d and %v, want all up to 6", upTo, rest)
	}
}

func TestOpenTags_AcknowledgesNoGroupUpToATagNotOnLoan(t *testing.T) {
	tags := &openTags{}
	tags.taken(1)
	tags.taken(2)
	tags.taken(3)
	tags.settled(2)
	if upTo, rest := tags.acknowledge([]uint64{1, 2}); upTo != 0 || !slices.Equal(rest, []uint64{1, 2}) {
		t.Errorf("all up to %d and %v, want each by itself", upTo, rest)
	}
}

func TestOpenTags_SettlesTagsWithGapsOneByOne(t *testing.T) {
	tags := &openTags{}
	tags.taken(1)
	tags.taken(1 << 40)
	tags.taken(1<<40 + 1)
	if upTo, rest := tags.acknowledge([]uint64{1, 1 << 40, 1<<40 + 1}); upTo != 0 || len(rest) != 3 {
		t.Errorf("all up to %d and %v, want each by itself", upTo, rest)
	}
}
