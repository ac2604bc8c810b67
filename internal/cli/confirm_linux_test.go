package cli

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"redrive.dev/redrive/internal/testtransport"
)

// newTerminal is a terminal and its keyboard.
func newTerminal(t *testing.T) (in, keyboard *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("there are no terminals here: %v", err)
	}
	t.Cleanup(func() { _ = keyboard.Close() })
	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if in, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close() })
	return in, keyboard
}

func TestFailedReplay_AsksOnATerminal(t *testing.T) {
	t.Parallel()
	d := newDepot(t, 3)
	d.accept(none)
	for _, answer := range []struct {
		typed         string
		code, handled int
	}{{"\n", exitUnfinished, 0}, {"no\n", exitUnfinished, 0}, {"", exitUnfinished, 0}, {"Y\n", exitOK, 3}} {
		in, keyboard := newTerminal(t)
		var out bytes.Buffer
		var errs shared
		signals := make(chan os.Signal, 1)
		code := make(chan int)
		go func() {
			code <- Main(t.Context(), Environment{In: in, Out: &out, Err: &errs, Getenv: d.getenv, Signals: signals}, []string{"failed", "replay", "-f", d.dir})
		}()
		testtransport.Eventually(t, "the question", func() bool { return strings.Contains(errs.String(), "Replay 3 messages? [y/N] ") })
		if answer.typed == "" {
			signals <- os.Interrupt
		} else if _, err := keyboard.WriteString(answer.typed); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-code:
			if got != answer.code || got != exitOK && !strings.HasSuffix(errs.String(), "Nothing was done.\n") {
				t.Errorf("%q: exit code %d\n%s%s", answer.typed, got, out.String(), errs.String())
			}
		case <-time.After(time.Minute):
			t.Fatalf("%q: it does not end", answer.typed)
		}
		d.handles(answer.handled, 3-answer.handled)
	}
}
