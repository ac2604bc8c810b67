package main_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// For each failure a strategy makes three texts of 1 MiB and then looks at the clocks of the world, within its steps. That took the 10 ms after which Go
// lets another goroutine go on, so that 200 messages that failed together had their texts at the same time: the worker was killed within 5 s.
func TestWorker_KeepsExpressionsWithinItsMemory(t *testing.T) {
	testtransport.Long(t)
	text, clocks := strings.Repeat("a", 100), strings.TrimSuffix(strings.Repeat("0,", 100), ",")
	checkWithinMemory(t, fmt.Sprintf(
		`[[0, 1, 2].map(i, '%s'.replace('', '%s').replace('', '%s'))].exists(texts, [%s].exists(i, now.getHours('Europe/Paris') > 24 || `+
			`now.getHours('America/Lima') > 24 || now.getHours('Asia/Tokyo') > 24) || texts.size() > 5)`, text, text, text, clocks))
}

// A hundred thousand maps in each other, 65 MiB, were within the steps of one decision, and as many decisions were at it as there are processors: a worker
// with 16 of them was killed within 4 s, one with two within a second.
func TestWorker_KeepsMapsOfExpressionsWithinItsMemory(t *testing.T) {
	testtransport.Long(t)
	t.Setenv("GOMAXPROCS", "16")
	const ten = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
	maps := strings.Repeat("{d: ", 50) + "d" + strings.Repeat("}", 50)
	checkWithinMemory(t, fmt.Sprintf(`%[1]s.map(a, %[1]s.map(b, %[1]s.map(c, %[1]s.map(d, %[2]s)))).size() > 100`, ten, maps))
}

// checkWithinMemory has many messages fail together, each of which is asked about.
func checkWithinMemory(t *testing.T, when string) {
	t.Helper()
	const atATime, all = 200, 600
	s := newSceneWith(t, testbroker.Shared(t), atATime, v1alpha1.Strategy{Name: "costly", Action: v1alpha1.ActionFail, When: when})
	s.Publish("async", testtransport.Queue, numbered(1, 1+all)...)
	inGroup := newGroup(t, podMemory)
	s.process.confine(inGroup)
	s.process.start()
	pid := s.process.command.Process.Pid
	failed := 0
	testtransport.Eventually(t, "every message handled or failed", func() bool {
		if _, err := s.process.most(); err != nil {
			t.Fatalf("the worker ended after %d requests; in a group: %t: %s", s.partner.requests.Load(), inGroup != nil, s.process.log)
		}
		failed += len(s.TakeAll("async.failed"))
		s.partner.mu.Lock()
		defer s.partner.mu.Unlock()
		return failed+len(s.partner.handled) == all
	})
	most, err := s.process.most()
	must(t, err)
	t.Logf("in a group: %t; the worker had %d MiB at most", inGroup != nil, most>>20)
	if most > podMemory {
		t.Errorf("the worker had %d bytes, and may have %d", most, podMemory)
	}
	if syscall.Kill(pid, 0) != nil || s.process.end(syscall.SIGTERM) != nil {
		t.Errorf("the worker ended: %s", s.process.log)
	}
}
