package worker

import (
	"cmp"
	"math"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

const (
	// loanShare is the part of the memory that messages on loan may have, and unlimitedLoans what they may have where nothing limits it.
	loanShare      = 4
	unlimitedLoans = 256 << 20
	// quarantineShare is the part of that which messages of the quarantine worker may have. A larger one has it alone.
	quarantineShare = 8
	// bodyShare is the part of the memory that the bodies may have which expressions read at the same time, but for an eighth more of small
	// ones. Decoded they take 32 times as much, a little more than a quarter of the memory.
	bodyShare = 128
	// keptShare is the part of the memory that a handler may keep beside the messages: calls which go on after their time is over, or long lines of
	// processes that are not read whole yet.
	keptShare = 8
	// leastTurns is how many expressions are evaluated at a time where there is one processor: one that takes long stops nobody else's then.
	leastTurns = 2
	// turnShare is the part of the memory that what expressions make may have: with as much again that is not collected yet, an eighth.
	turnShare = 16
)

// mostAlone is how many bytes one message may take, with what the handler writes it into, where so many may be on loan: three eighths of the
// memory, for what the one before took may not be free again. The largest body that is read takes a little more than two in base64, and
// seven where each byte of it is escaped.
func mostAlone(loans int64) int64 { return loans + loans/2 }

// MemoryLimit is how many bytes this process may use: what GOMEMLIMIT or the control group says, the smaller of both, or 0
// where neither says anything.
func MemoryLimit() int64 {
	limit := int64(math.MaxInt64)
	if os.Getenv("GOMEMLIMIT") != "" { // else the runtime's limit is a part of the group's
		limit = debug.SetMemoryLimit(-1) // which only asks
	}
	if group, err := memlimit.FromCgroup(); err == nil && group > 0 && group < math.MaxInt64 {
		limit = min(limit, int64(group))
	}
	if limit == math.MaxInt64 {
		return 0
	}
	return limit
}

// Memory is what workers take memory from for their messages. Those of one process share one: together they have what one alone would have.
type Memory struct {
	// loans is how many bytes may be on loan, and room the account of it.
	loans int64
	room  *amqp.Room
	// bodies is the memory for those that expressions read, and turns are those of their evaluations.
	bodies *retry.Bodies
	turns  *retry.Turns
	// lines is the memory for long lines of the handlers' processes.
	lines *handler.LineRoom
}

// NewMemory divides up the memory of a process that may use so many bytes; 0 stands for the limit that MemoryLimit finds.
func NewMemory(bytes int64) *Memory {
	processors := max(leastTurns, runtime.GOMAXPROCS(0))
	loans := loanBytes(bytes)
	return &Memory{
		loans: loans, room: amqp.NewRoom(loans), bodies: retry.NewBodies(bodyBytes(bytes), processors),
		turns: retry.NewTurns(turnsWithin(bytes, processors) - 1), // and one for queues that need little
		lines: handler.NewLineRoom(cmp.Or(bytes, MemoryLimit()) / keptShare),
	}
}

// Lines is the memory for long lines of the handlers' processes.
func (m *Memory) Lines() *handler.LineRoom { return m.lines }

// KeptMemory is how many bytes of this process's memory a handler may keep beside the messages that it has; 0 where the memory has no limit.
func KeptMemory() int64 { return MemoryLimit() / keptShare }

// loanBytes is how many bytes may be on loan within a memory limit; 0 stands for the process's own.
func loanBytes(memory int64) int64 {
	if memory == 0 {
		memory = MemoryLimit()
	}
	if memory == 0 {
		return unlimitedLoans
	}
	return memory / loanShare
}

// bodyBytes is how many bytes of bodies are decoded at a time for expressions within a memory limit; 0 is no limit.
func bodyBytes(memory int64) int64 {
	if memory == 0 {
		memory = MemoryLimit()
	}
	return memory / bodyShare
}

// turnsWithin is how many expressions that may cost much are evaluated at a time within a memory limit: as many as there are processors, as far as
// what they make has room.
func turnsWithin(memory int64, processors int) int {
	if memory == 0 {
		memory = MemoryLimit()
	}
	if memory > 0 {
		processors = int(min(int64(processors), memory/turnShare/retry.DecisionBytes))
	}
	return max(leastTurns, processors)
}

// largestBody is the size of the largest body that is read where so many bytes may be on loan: an eighth of the memory, since the handler is
// given a copy, and what the message before took may not be free again.
func largestBody(loans int64) int64 { return loans / 2 }
