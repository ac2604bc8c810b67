package terminal

import (
	"bytes"
	"strings"
	"testing"
)

func TestAlign_PutsNumbersRightAndTextLeft(t *testing.T) {
	got := strings.Join(Align([][]string{
		{"QUEUE", "READY", "NOTE"},
		{"größer", "7", "a"},
		{"x", "1000000", "bc"},
		{"short"},
	}, 2), "\n")
	want := "QUEUE     READY  NOTE\n" +
		"größer        7  a\n" +
		"x       1000000  bc\n" +
		"short"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestScreen_KeepsItsBlockBelowEverythingElse(t *testing.T) {
	var out bytes.Buffer
	s := &Screen{out: &out, size: func() (int, int) { return 80, 24 }}
	s.Show([]string{"one", "two"})
	if _, err := s.Write([]byte("log\n")); err != nil {
		t.Fatal(err)
	}
	s.Show([]string{"three"})
	want := "one\ntwo\n" + "\x1b[2F\x1b[J" + "log\n" + "one\ntwo\n" + "\x1b[2F\x1b[J" + "three\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestScreen_CutsItsBlockToTheTerminal(t *testing.T) {
	var out bytes.Buffer
	s := &Screen{out: &out, size: func() (int, int) { return 5, 3 }}
	s.Show([]string{"abcdefgh", "2", "3", "4"})
	if want := "abcd\n2\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestNewScreen_TakesNoBufferForATerminal(t *testing.T) {
	if NewScreen(&bytes.Buffer{}) != nil {
		t.Error("a buffer was taken for a terminal")
	}
}
