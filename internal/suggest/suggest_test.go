package suggest_test

import (
	"testing"

	"redrive.dev/redrive/internal/suggest"
)

func TestNearest_FindsTheNameThatWasMeant(t *testing.T) {
	known := []string{"delay", "delays", "maxDelay", "multiplier", "type"}
	for written, want := range map[string]string{
		"delays": "delays", "Delay": "delay", "maxdelay": "maxDelay", "multipler": "multiplier", "tpye": "", "typ": "type", "jitter": "", "": "",
	} {
		if got, found := suggest.Nearest(written, known); got != want || found != (want != "") {
			t.Errorf("for %q: %q, %v, want %q", written, got, found, want)
		}
	}
}
