package message

import (
	"testing"
	"time"

	"redrive.dev/redrive/internal/retry"
)

// A worker whose clock is an hour behind gets messages that failed by the right one, and sends them back to their lane.
func TestDecode_KeepsTheFirstFailureOverAClockThatIsBehind(t *testing.T) {
	t.Parallel()
	const delay = 5 * time.Second
	m := Message{MessageID: "1", Exchange: "orders", RoutingKey: "placed"}
	for retries, name := range map[int64]string{1: "after its only failure", 2: "after its second failure"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := Decode(m, "orders", noon)
			for i := range retries {
				s = Record(s, Attempt{Number: i + 1, At: noon, Source: retry.SourceHandler, Status: 500, Delay: delay})
			}
			s.History = retry.History{Attempts: retries, Retries: retries, FirstFailure: noon, LastDelay: delay}
			s.NotBefore = noon.Add(delay)
			copied, err := Parked(m, s, "work", "5s", noon)
			for hop := range 2 {
				if err != nil {
					t.Fatal(err)
				}
				behind := noon.Add(time.Duration(hop+1)*delay - time.Hour)
				copied, err = Parked(copied, Decode(copied, "orders", behind), "work", "5s", behind)
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := Decode(copied, "orders", noon.Add(3*delay)).History; !got.FirstFailure.Equal(noon) || got.Attempts != retries {
				t.Errorf("first failure at %s after %d attempts, want %s and %d", got.FirstFailure, got.Attempts, noon, retries)
			}
		})
	}
}
