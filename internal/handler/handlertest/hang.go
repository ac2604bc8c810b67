package handlertest

import (
	"io"
	"net"
	"testing"
	"time"
)

// Hang reports that the program hangs, and returns when done is closed: never, if done is nil. The report is a connection that
// stands as long as the program hangs, so that the suite sees it end even where the program is killed.
func (a Answer) Hang(done <-chan struct{}) {
	if a.report != "" {
		report, err := net.DialTimeout("tcp", a.report, patience) //nolint:noctx // what done stands for is another matter
		if err != nil {
			return // the suite is over, or waits in vain and says so
		}
		defer func() { _ = report.Close() }()
	}
	<-done
}

// witness hears of programs that hang.
type witness struct {
	address string
	// hanging gets a value when a program begins to hang, and ended when it does so no more.
	hanging, ended chan struct{}
}

func newWitness(t *testing.T) *witness {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not block
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	w := &witness{address: listener.Addr().String(), hanging: make(chan struct{}, 16), ended: make(chan struct{}, 16)}
	go func() {
		for {
			report, err := listener.Accept()
			if err != nil {
				return
			}
			go w.watch(report)
		}
	}()
	return w
}

func (w *witness) watch(report net.Conn) {
	defer func() { _ = report.Close() }()
	w.hanging <- struct{}{}
	_, _ = io.Copy(io.Discard, report) // until the program closes it, or dies
	w.ended <- struct{}{}
}

// await fails the test if nothing comes in time.
func await(t *testing.T, what string, happened <-chan struct{}) {
	t.Helper()
	select {
	case <-happened:
	case <-time.After(patience):
		t.Fatalf("%s: not within %s", what, patience)
	}
}
