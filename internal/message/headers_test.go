package message

import (
	"maps"
	"slices"
	"testing"
)

func TestDisown_RemovesForgedHeadersAndNamesThem(t *testing.T) {
	headers := map[string]any{
		HeaderAttempts: int64(1), HeaderCrashes: int64(1), HeaderReason: "MaxRetries", HeaderPublishID: "1", HeaderID: "an identity",
		"tenant": "acme", "redrive-of-another": "theirs", "x-death": []any{},
	}
	forged := Disown(headers)
	if want := []string{HeaderAttempts, HeaderCrashes, HeaderPublishID, HeaderReason}; !slices.Equal(forged, want) {
		t.Errorf("forged %v, want %v", forged, want)
	}
	if left := slices.Sorted(maps.Keys(headers)); !slices.Equal(left, []string{HeaderID, "redrive-of-another", "tenant", "x-death"}) {
		t.Errorf("left %v", left)
	}
	if Disown(nil) != nil {
		t.Error("a message without headers has some")
	}
}
