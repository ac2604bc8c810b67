package handler_test

import (
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/handler/handlertest"
)

// BenchmarkExec hands over messages to /bin/true, four at a time.
func BenchmarkExec(b *testing.B) {
	h := execute(b, "/bin/true")
	request := handlertest.Message(handlertest.Succeed, string(make([]byte, 1000)))
	b.ReportAllocs()
	atATime(b, b.N, func() { handle(b, h, request) })
}

// BenchmarkExecBare starts /bin/true, four at a time, as briefly as Go does it.
func BenchmarkExecBare(b *testing.B) {
	b.ReportAllocs()
	atATime(b, b.N, func() { bare(b) })
}

// BenchmarkExecAgainstBare is both in turn: the median of how many times as fast the handler is.
func BenchmarkExecAgainstBare(b *testing.B) {
	h := execute(b, "/bin/true")
	request := handlertest.Message(handlertest.Succeed, string(make([]byte, 1000)))
	const slice = 100
	took := func(f func()) time.Duration {
		began := time.Now()
		atATime(b, slice, f)
		return time.Since(began)
	}
	var ratios []float64
	for b.Loop() {
		before := took(func() { bare(b) })
		ours := took(func() { handle(b, h, request) })
		after := took(func() { bare(b) })
		ratios = append(ratios, (before+after).Seconds()/2/ours.Seconds())
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "times-as-fast")
	b.ReportMetric(0, "ns/op") // it says nothing
}

func handle(b *testing.B, h handler.Handler, request handler.Request) {
	b.Helper()
	if failure := h.Handle(b.Context(), request); failure != nil {
		b.Errorf("got %+v", failure)
	}
}

func bare(b *testing.B) {
	b.Helper()
	if err := exec.Command("/bin/true").Run(); err != nil {
		b.Error(err)
	}
}

// atATime calls a function n times, four at a time.
func atATime(b *testing.B, n int, f func()) {
	b.Helper()
	var calls sync.WaitGroup
	for i := range 4 {
		calls.Go(func() {
			for range (n + i) / 4 {
				f()
			}
		})
	}
	calls.Wait()
}
