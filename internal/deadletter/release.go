package deadletter

import (
	"time"

	"redrive.dev/redrive/internal/message"
)

// Released is the message as a replay sends it back to its work queue; frame is as in message.HeaderLimit.
func (l *Letter) Released(place message.Replay, frame int, now time.Time) (message.Message, error) {
	state := l.state
	state.FrameSize = frame
	last := message.Life{
		Replay: state.Replay.ID, Cause: l.Given.Cause, Reason: l.Given.Reason, Attempts: l.History.Attempts, Strategy: l.Given.Strategy,
		Source: string(l.Last.Source), Status: l.Last.Status, Class: l.Last.Class, Message: l.Last.Message,
	}
	if !l.Given.At.IsZero() {
		last.FailedAt = l.Given.At.UnixMilli()
	}
	return message.Released(l.Properties, state, l.Message.Queue, place, last, now)
}
