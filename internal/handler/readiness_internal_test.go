package handler

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// A server with one process for messages and questions answers when it has handled its message.
func TestReadiness_BearsAnAnswerThatIsLateOnceOrTwice(t *testing.T) {
	t.Parallel()
	late, down := fmt.Errorf("%w within 2s", errNoAnswer), errors.New("HTTP 503")
	answers := map[rune]error{'+': nil, 'L': late, '-': down}
	for name, c := range map[string]struct{ heard, ready string }{
		"a busy one":                       {"+L+LL+LL+", "+++++++++"},
		"one that hangs":                   {"+LLLL+", "+++--+"},
		"one that says no":                 {"+-+", "+-+"},
		"one that says no and then hangs":  {"+-L+", "+--+"},
		"one that hangs before it says no": {"+LL-L", "+++--"},
		"one that has never been ready":    {"L+L", "-++"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &HTTP{gate: gate{changed: make(chan struct{}), answer: errNotAsked}}
			silences := maxSilences
			var ready strings.Builder
			for _, answer := range c.heard {
				silences = h.heed(answers[answer], silences)
				if why, _ := h.Ready(); why == nil {
					ready.WriteByte('+')
				} else {
					ready.WriteByte('-')
				}
			}
			if ready.String() != c.ready {
				t.Errorf("heard %s: ready %s, want %s", c.heard, &ready, c.ready)
			}
		})
	}
}
