package cli

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"redrive.dev/redrive/internal/deadletter"
)

func TestLatest_AreThoseThatWereGivenUpLast(t *testing.T) {
	begin := time.Date(2026, 11, 28, 10, 0, 0, 0, time.UTC)
	unknown := -1
	for name, tt := range map[string]struct {
		minutes []int // in the order in which they arrive
		want    []string
	}{
		"in order":                  {[]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, []string{"9", "8", "7"}},
		"by priority":               {[]int{8, 9, 7, 0, 1, 2, 3, 4, 5, 6}, []string{"1", "0", "2"}},
		"at once":                   {[]int{0, 0, 0, 0, 0, 0, 0}, []string{"6", "5", "4"}},
		"some do not tell":          {[]int{0, 1, 2, unknown, 3}, []string{"4", "3", "2"}},
		"some do not tell, by then": {[]int{9, unknown, 0, 1, unknown}, []string{"1", "0", "4"}},
		"none tells":                {[]int{unknown, unknown, unknown, unknown}, []string{"3", "2", "1"}},
		"few":                       {[]int{0, 1}, []string{"1", "0"}},
		"none":                      {nil, nil},
	} {
		l := latest{limit: 3}
		for i, minute := range tt.minutes {
			entry := deadletter.Entry{Key: strconv.Itoa(i)}
			if minute != unknown {
				entry.FailedAt = new(begin.Add(time.Duration(minute) * time.Minute))
			}
			l.add(entry)
		}
		var got []string
		for _, entry := range l.entries() {
			got = append(got, entry.Key)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// A list of many must be there before RabbitMQ takes the messages back.
func TestLatest_TakesNoLongerForManyThanForFew(t *testing.T) {
	l := latest{limit: 20_000}
	at, began := time.Now(), time.Now()
	for i := range 200_000 {
		at = at.Add(time.Millisecond)
		l.add(deadletter.Entry{Key: strconv.Itoa(i), FailedAt: new(at)})
	}
	if entries := l.entries(); len(entries) != 20_000 || entries[0].Key != "199999" || time.Since(began) > 20*time.Second {
		t.Errorf("%d of them in %v", len(entries), time.Since(began))
	}
}
