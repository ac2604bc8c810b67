package faults

import (
	"os"
	"testing"
	"time"

	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// Objects of the scene's Transport. Queue test is the one whose messages need the object that a fault hits; those of queue free go
// on beside it.
const (
	free       = "free"
	quarantine = testtransport.Queue + ".quarantine"
	failures   = "async.failed"
	fallback   = "async.fallback"
	returning  = "async.return"
	shortLane  = "async.fallback.1s"
)

// cell of the matrix: a fault in one object.
type cell struct {
	object, fault string
	// strike puts the fault in.
	strike func(m *matrix) (lift func())
	// needs are the kinds of messages in queue test, which need the object. Three of each come in queue free too.
	needs []kind
	// others are the kinds in queue free, which do not need it.
	others []kind
	// anew is the sessions that have to begin while the fault is there; nil for none.
	anew func(m *matrix)
	// names is the subject of the trouble, or the first word of it, that the worker has to tell of while the fault is there; empty
	// where it does without the object. by tells which process has to.
	names string
	by    member
	// pace of each flow, in messages a second; 0 for the usual one.
	pace int
	// soon is a part of `make test`.
	soon bool
}

// member of the group of processes.
type member int

const (
	aWorker member = iota
	theQuarantine
)

// cells of the matrix {lane, work queue, quarantine queue, failure queue, exchange, right} x {missing, without leader, not
// confirming, slow}.
//
//   - Without leader is a quorum queue that has none when a session begins: its Raft member is stopped, and the connections are cut.
//   - Not confirming is the same while the sessions stand which have used it.
//   - Slow is a quorum queue that stands still for nine tenths of the time.
//   - An exchange or a right is there or missing: neither has a leader, confirms anything or takes time. An exchange is a row of a table
//     that the publisher's channel reads, a right one that it reads when it uses a name for the first time. That is why the rights are
//     taken away before the sessions begin.
//   - A worker whose consumer stands learns nothing of a work queue that loses its leader, but that no message comes.
//   - The exchange of the producers is not used by workers.
func cells() []cell {
	exceptFailing := []kind{plain, short}
	exceptShort := []kind{plain, long, failing}
	exceptRetried := []kind{plain, failing}
	all := []kind{plain, short, failing}
	return []cell{
		{object: "lane", fault: "missing", strike: deleted(shortLane), needs: []kind{short}, others: exceptShort},
		{object: "lane", fault: "without leader", strike: stopped(shortLane), anew: publishers, needs: []kind{short}, others: exceptShort, names: fallback + " 1s"},
		{object: "lane", fault: "not confirming", strike: stopped(shortLane), needs: []kind{short}, others: exceptShort, names: fallback + " 1s", soon: true},
		{object: "lane", fault: "not confirming, much beside it", strike: stopped(shortLane), needs: []kind{short}, others: exceptShort, names: fallback + " 1s", pace: 25},
		{object: "lane", fault: "slow", strike: slow(shortLane), needs: []kind{short}, others: exceptShort},

		{object: "work queue", fault: "missing", strike: deleted(testtransport.Queue), needs: all, others: all, names: testtransport.Queue},
		{object: "work queue", fault: "without leader", strike: stopped(testtransport.Queue), anew: consumers, needs: all, others: all, names: testtransport.Queue, soon: true},
		{object: "work queue", fault: "not confirming", strike: stopped(testtransport.Queue), needs: all, others: all},
		{object: "work queue", fault: "slow", strike: slow(testtransport.Queue), needs: all, others: all},

		{object: "quarantine queue", fault: "missing", strike: deleted(quarantine), anew: consumers, needs: all, others: all, names: quarantine, by: theQuarantine},
		{object: "quarantine queue", fault: "without leader", strike: stopped(quarantine), anew: everybody, needs: all, others: all, names: quarantine, by: theQuarantine},
		{object: "quarantine queue", fault: "not confirming", strike: stopped(quarantine), anew: consumers, needs: all, others: all, names: returning + " " + quarantine},
		{object: "quarantine queue", fault: "slow", strike: slow(quarantine), anew: consumers, needs: all, others: all},

		{object: "failure queue", fault: "missing", strike: deleted(failures), needs: []kind{failing}, others: exceptFailing, names: failures},
		{object: "failure queue", fault: "without leader", strike: stopped(failures), anew: publishers, needs: []kind{failing}, others: exceptFailing, names: failures},
		{object: "failure queue", fault: "not confirming", strike: stopped(failures), needs: []kind{failing}, others: exceptFailing, names: failures},
		{object: "failure queue", fault: "slow", strike: slow(failures), needs: []kind{failing}, others: exceptFailing},

		{object: "exchange fallback", fault: "missing", strike: unbound(fallback), needs: []kind{short}, others: exceptRetried, names: fallback},
		{object: "exchange return", fault: "missing", strike: unbound(returning), anew: consumers, needs: []kind{short}, others: exceptRetried, names: returning},
		{object: "exchange failed", fault: "missing", strike: unbound(failures), needs: []kind{failing}, others: exceptFailing, names: failures, soon: true},

		{object: "right to publish to fallback", fault: "missing", strike: unpermitted(fallback), anew: publishers, needs: []kind{short}, others: exceptRetried, names: fallback},
		{object: "right to publish to return", fault: "missing", strike: unpermitted(returning), anew: everybody, needs: []kind{plain}, others: exceptRetried, names: returning},
		{object: "right to publish to failed", fault: "missing", strike: unpermitted(failures), anew: publishers, needs: []kind{failing}, others: exceptFailing, names: failures, soon: true},
		{object: "right to consume the work queue", fault: "missing", strike: unpermitted(testtransport.Queue), anew: consumers, needs: all, others: all, names: testtransport.Queue},
		{object: "right to consume the quarantine queue", fault: "missing", strike: unpermitted(quarantine), anew: everybody, needs: all, others: all, names: quarantine, by: theQuarantine},
	}
}

// matrixAtOnce is how many cells run beside each other. They mostly wait, but what they measure is a rate.
const matrixAtOnce = 8

// A fault of one lane, queue, exchange or right stays with it: what does not need it goes on beside it.
func TestMatrix_KeepsAFaultWithItsObject(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	node := testbroker.Private(t)
	// Else a lane whose messages found no way stands for three minutes after there is one again.
	node.SetEnvironment(t, "dead_letter_worker_publisher_confirm_timeout", int((5 * time.Second).Milliseconds()))
	turns := make(chan struct{}, matrixAtOnce)
	for _, c := range cells() {
		if !c.soon && os.Getenv(roundsVariable) == "" {
			continue
		}
		t.Run(c.object+"/"+c.fault, func(t *testing.T) {
			t.Parallel()
			turns <- struct{}{}
			defer func() { <-turns }()
			newMatrix(t, node, c).run()
		})
	}
}
