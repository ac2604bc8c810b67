package status

import "testing"

func TestShorten_CutsBetweenCharacters(t *testing.T) {
	if got := Shorten("äöü", 5); got != "ä…" {
		t.Errorf("got %q", got)
	}
	if got := Shorten("short", 5); got != "short" {
		t.Errorf("got %q", got)
	}
}
