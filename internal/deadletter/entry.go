package deadletter

import "time"

// Entry is what a list shows of a message: nothing of its body, and of its headers only what Redrive wrote.
type Entry struct {
	Key         string `json:"key"`
	ID          string `json:"id,omitempty"`
	Type        string `json:"type,omitempty"`
	Queue       string `json:"queue"`
	Cause       string `json:"cause"`
	Reason      string `json:"reason"`
	Explanation string `json:"explanation,omitempty"`
	Strategy    string `json:"strategy,omitempty"`
	// Source is Worker or Broker: who gave it up.
	Source       string     `json:"source"`
	FailedAt     *time.Time `json:"failedAt,omitempty"`
	FirstFailure *time.Time `json:"firstFailure,omitempty"`
	Attempts     int64      `json:"attempts"`
	Error        *LastError `json:"error,omitempty"`
	ContentType  string     `json:"contentType,omitempty"`
	// Size of the body in bytes.
	Size  int    `json:"size"`
	Trace string `json:"trace,omitempty"`
}

// LastError is the error of the last attempt.
type LastError struct {
	Source  string `json:"source"`
	Status  int    `json:"status,omitempty"`
	Class   string `json:"class,omitempty"`
	Message string `json:"message,omitempty"`
}

// Entry is the message as a list shows it.
func (l *Letter) Entry() Entry {
	entry := Entry{
		Key: l.Key, ID: l.Message.ID, Type: l.Message.Type, Queue: l.Message.Queue, Cause: l.Given.Cause, Reason: l.Given.Reason,
		Explanation: l.Given.Explanation, Strategy: l.Given.Strategy, Source: l.Given.Source, FailedAt: timeOf(l.Given.At),
		FirstFailure: timeOf(l.History.FirstFailure), Attempts: l.History.Attempts, ContentType: l.Message.ContentType,
		Size: len(l.Message.Body), Trace: l.Trace,
	}
	if l.Last.Source != "" {
		entry.Error = &LastError{Source: string(l.Last.Source), Status: l.Last.Status, Class: l.Last.Class, Message: l.Last.Message}
	}
	return entry
}

// timeOf is nil where nothing tells a time, and where JSON has no date for it: many producers write milliseconds where seconds belong.
func timeOf(at time.Time) *time.Time {
	at = at.UTC()
	if at.IsZero() || at.Year() < 0 || at.Year() > 9999 {
		return nil
	}
	return &at
}
