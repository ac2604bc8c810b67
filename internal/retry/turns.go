package retry

import "time"

// Turns bound how many expressions are evaluated at a time, but for those that cannot cost much. An evaluation may hold some MiB of texts
// that it made, and is told by nobody to wait: where hundreds of messages failed together, each had begun with its own before the first
// was done. They need the processor and nothing else, so that more at a time than there are processors would end no sooner. Turns are safe for
// concurrent use.
type Turns struct{ line *line }

// savedTurns is the time in turns by which a queue goes before others that had more of it: some of the longest evaluations.
const savedTurns = 200 * time.Millisecond

// NewTurns makes so many of them, and one more for queues that need little: where others need much, it is at hand at once.
func NewTurns(atATime int) *Turns { return &Turns{newLine(int64(atATime)+1, 1, int64(savedTurns))} }

// take waits for a turn. Nobody who has one waits for anything but the processor, so that the wait ends.
func (t *Turns) take(queue string) {
	if t != nil {
		t.line.take(queue, 1)
	}
}

func (t *Turns) give(queue string, took time.Duration) {
	if t != nil {
		t.line.give(queue, 1, int64(took))
	}
}
