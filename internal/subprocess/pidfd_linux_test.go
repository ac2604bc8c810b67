package subprocess

import (
	"bytes"
	"context"
	"io"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRun_WorksWithoutPidfd takes them away, as an old kernel or a sandbox does.
func TestRun_WorksWithoutPidfd(t *testing.T) {
	t.Parallel()
	for range 20 {
		var output bytes.Buffer
		r := run{input: []byte("hello"), writers: [2]io.Writer{&output, io.Discard}}
		if err := r.start("/bin/sh", Command{Args: []string{"sh", "-c", "cat; exit 3"}}); err != nil {
			t.Fatal(err)
		}
		if err := unix.Close(r.process.system.pidfd); err != nil {
			t.Fatal(err)
		}
		r.process.system.pidfd = -1
		if err := r.end(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.close()
		if r.exit != (Exit{Code: 3}) || output.String() != "hello" {
			t.Errorf("got %+v and %q", r.exit, &output)
		}
	}
}

func TestProcess_IsWaitedForWithoutPidfd(t *testing.T) {
	t.Parallel()
	r := run{}
	defer r.close()
	if err := r.start("/bin/sh", Command{Args: []string{"sh", "-c", "exit 4"}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(r.process.system.pidfd); err != nil {
		t.Fatal(err)
	}
	r.process.system.pidfd = -1
	<-r.process.Done()
	if exit := r.process.Exit(); exit != (Exit{Code: 4}) {
		t.Errorf("got %+v", exit)
	}
}

// TestRun_DoesNotWaitForeverForAProgramThatIsKept has one whose end is never told.
func TestRun_DoesNotWaitForeverForAProgramThatIsKept(t *testing.T) {
	t.Parallel()
	r := run{writers: [2]io.Writer{io.Discard, io.Discard}}
	defer r.close()
	if err := r.start("/bin/sh", Command{Args: []string{"sh", "-c", "exit 0"}}); err != nil {
		t.Fatal(err)
	}
	defer r.process.Wait()
	var never [2]int
	if err := unix.Pipe2(never[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(never[0]) }()
	defer func() { _ = unix.Close(never[1]) }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r.converse(ctx, never[0]) {
		t.Error("it has ended")
	}
}
