package handler

import (
	"bytes"
	"os"
	"slices"
	"sync"
	"time"

	"redrive.dev/redrive/internal/subprocess"
)

const (
	// quietGap is how long a process writes nothing to its standard error before the next that it writes is another record: a stack
	// trace comes in several pieces. longestRecord bounds that for one that never pauses.
	quietGap      = 100 * time.Millisecond
	longestRecord = time.Second
	// maxRecord is the longest record, in bytes.
	maxRecord = 8 << 10
	// stillOf is how long after an answer the standard error is taken for that message's, while there is no other.
	stillOf = time.Second
	// stderrBuffer is how much of a standard error is read at a time.
	stderrBuffer = 32 << 10
)

// stderrReader reads the standard error of a process and makes records of it, each with the messages that the process had in hand
// when it wrote it. That is told by how much it had written when a message was given to it or answered, as the text itself comes later.
type stderrReader struct {
	log *processLog
	pid int

	// emitting keeps the records in order.
	emitting sync.Mutex

	mu   sync.Mutex
	file *os.File
	// tail is the end of all that was read, and total how much that was.
	tail  subprocess.Tail
	total int64
	// hand are the ids of the messages in hand at that point, and changes what happens to it at a later one.
	hand    []string
	changes []handChange
	// last is the message that was answered last.
	last       string
	lastAnswer time.Time
	// record that is not complete, and the records that are.
	record   stderrRecord
	complete []stderrRecord
	// skipping is true up to the end of a line that is too long.
	skipping bool
	timer    *time.Timer
}

// handChange is a message that is given to a process, or answered by it.
type handChange struct {
	// at is how much the process had written to its standard error by then.
	at    int64
	id    string
	given bool
	when  time.Time
}

// stderrRecord is text that belongs together.
type stderrRecord struct {
	text  []byte
	ids   []string
	began time.Time
}

func newStderrReader(file *os.File, pid int, log *processLog) *stderrReader {
	return &stderrReader{log: log, pid: pid, file: file, tail: subprocess.Tail{Size: tailSize}}
}

// run reads to the end.
func (s *stderrReader) run() {
	buffer := make([]byte, stderrBuffer)
	for {
		err := readCounted(s.file, buffer, &s.mu, s.take)
		s.emit()
		if err != nil {
			break
		}
	}
	s.flush()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
}

// given notes that a message is in the process's hand from now on, and answered that it is not any more. What they return is how much
// the process has written so far, for textSince.
func (s *stderrReader) given(id string) int64    { return s.change(id, true) }
func (s *stderrReader) answered(id string) int64 { return s.change(id, false) }

func (s *stderrReader) change(id string, given bool) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := handChange{at: s.total + unreadBytes(s.file), id: id, given: given, when: time.Now()}
	if c.at == s.total && len(s.changes) == 0 && len(s.record.text) == 0 {
		s.apply(c)
	} else {
		s.changes = append(s.changes, c) // a record is completed by who may write it
	}
	return c.at
}

// apply brings hand up to date. What is written while a message is in hand and what was written before it are two records.
func (s *stderrReader) apply(c handChange) {
	if !c.given {
		if at := slices.Index(s.hand, c.id); at >= 0 {
			s.hand = slices.Delete(s.hand, at, at+1)
		}
		s.last, s.lastAnswer = c.id, c.when
		return
	}
	if len(s.hand) == 0 {
		s.finish()
	} else if len(s.record.text) > 0 && len(s.record.ids) < maxLoggedIDs && !slices.Contains(s.record.ids, c.id) {
		s.record.ids = append(s.record.ids, c.id)
	}
	s.hand = append(s.hand, c.id)
}

// applyDue applies the changes up to what was read.
func (s *stderrReader) applyDue() {
	due := 0
	for due < len(s.changes) && s.changes[due].at <= s.total {
		s.apply(s.changes[due])
		due++
	}
	s.changes = slices.Delete(s.changes, 0, due)
}

// take takes in what was read.
func (s *stderrReader) take(text []byte) {
	_, _ = s.tail.Write(text)
	for len(text) > 0 {
		s.applyDue()
		n := int64(len(text))
		if len(s.changes) > 0 {
			n = min(n, s.changes[0].at-s.total)
		}
		s.add(text[:n])
		s.total += n
		text = text[n:]
	}
	if len(s.record.text) == 0 {
		return
	}
	wait := max(0, min(quietGap, longestRecord-time.Since(s.record.began)))
	if s.timer == nil {
		s.timer = time.AfterFunc(wait, s.flush)
	} else {
		s.timer.Reset(wait)
	}
}

// add adds text to the record, and completes it with its last whole line when it is full. Of a line that fills a record there is no more.
func (s *stderrReader) add(text []byte) {
	if s.skipping {
		end := bytes.IndexByte(text, '\n')
		if end < 0 {
			return
		}
		s.skipping, text = false, text[end+1:]
	}
	for len(text) > 0 {
		if len(s.record.text) == 0 {
			s.begin()
		}
		n := min(len(text), maxRecord-len(s.record.text))
		s.record.text = append(s.record.text, text[:n]...)
		text = text[n:]
		if len(s.record.text) == maxRecord {
			s.split()
			if s.skipping {
				s.add(text)
				return
			}
		}
	}
}

// split completes a full record with its last whole line.
func (s *stderrReader) split() {
	end := bytes.LastIndexByte(s.record.text, '\n') + 1
	if end == 0 {
		s.skipping = true
		s.finish()
		return
	}
	rest := stderrRecord{text: bytes.Clone(s.record.text[end:]), ids: s.record.ids, began: s.record.began}
	s.record.text = s.record.text[:end]
	s.finish()
	if len(rest.text) > 0 {
		s.record = rest
	}
}

func (s *stderrReader) begin() {
	s.record.began = time.Now()
	s.record.ids = slices.Clone(s.hand[:min(len(s.hand), maxLoggedIDs)])
	if len(s.hand) == 0 && s.last != "" && time.Since(s.lastAnswer) < stillOf {
		s.record.ids = []string{s.last}
	}
}

// finish completes the record.
func (s *stderrReader) finish() {
	if len(s.record.text) > 0 {
		s.complete = append(s.complete, s.record)
	}
	s.record = stderrRecord{}
}

// flush completes the record and writes it.
func (s *stderrReader) flush() {
	s.mu.Lock()
	s.applyDue()
	s.finish()
	s.mu.Unlock()
	s.emit()
}

// emit writes what is complete.
func (s *stderrReader) emit() {
	s.emitting.Lock()
	defer s.emitting.Unlock()
	s.mu.Lock()
	records := s.complete
	s.complete = nil
	s.mu.Unlock()
	for _, r := range records {
		s.log.record(s.pid, r)
	}
}

// textSince is the end of what was written after a point that given or answered returned, at most tailSize bytes; cut says that there
// was more before.
func (s *stderrReader) textSince(point int64) (text []byte, cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, cut = s.tail.Bytes()
	if since := max(0, s.total-point); since <= int64(len(text)) {
		return text[int64(len(text))-since:], false
	}
	return text, cut
}
