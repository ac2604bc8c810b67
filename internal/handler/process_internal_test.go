package handler

import (
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
)

// TestProcess_LeavesAMessageUntouchedAfterItsEnd is about a goroutine that is late to run: it got a process, which has
// ended and was taken leave of since.
func TestProcess_LeavesAMessageUntouchedAfterItsEnd(t *testing.T) {
	t.Parallel()
	p, err := NewProcess(v1alpha1.ProcessHandler{
		Command: []string{"sh", "-c", `echo '{"type":"hello","protocol":1}'; exec cat >/dev/null`},
	}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	for why, changed := p.Ready(); why != nil; why, changed = p.Ready() {
		<-changed
	}
	c := newCall(t.Context(), "m-1")
	p.mu.Lock()
	q := p.pool.choose(false)
	p.give(q, c)
	p.mu.Unlock()
	q.child.Kill()
	c.ended <- <-c.ended // it has been taken leave of
	if end := p.exchange(c, &Request{}); end.kind != endUntouched {
		t.Errorf("got %+v", end)
	}
}
