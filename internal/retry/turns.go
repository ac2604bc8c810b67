package retry

// Turns bound how many expressions are evaluated at a time, but for those that cannot cost much. An evaluation may hold some MiB of texts
// that it made, and is told by nobody to wait: where hundreds of messages failed together, each had begun with its own before the first
// was done. They need the processor and nothing else, so that more at a time than there are processors would end no sooner. Turns are safe for
// concurrent use.
type Turns struct{ line *line }

// NewTurns makes so many of them.
func NewTurns(atATime int) *Turns { return &Turns{newLine(int64(atATime))} }

// take waits for a turn. Nobody who has one waits for anything but the processor, so that the wait ends.
func (t *Turns) take(queue string) {
	if t != nil {
		t.line.take(queue, 1)
	}
}

func (t *Turns) give() {
	if t != nil {
		t.line.give(1)
	}
}
