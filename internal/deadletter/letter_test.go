package deadletter

import (
	"encoding/json"
	"testing"
	"time"

	"redrive.dev/redrive/internal/message"
)

func TestExport_WritesAMessageWhoseTimestampNoCalendarHas(t *testing.T) {
	const millis = 1_795_238_328_020
	far := time.Unix(millis, 0)
	letter := Reader{Exchange: "async", Now: time.Now()}.Read(message.Message{MessageID: "a", Body: []byte("{}"), Timestamp: far, Headers: map[string]any{
		"x-death": []any{map[string]any{"queue": "test", "reason": "expired", "time": far}},
	}})
	text, err := letter.Export(nil)
	if err != nil {
		t.Fatal(err)
	}
	var line struct {
		FailedAt   *time.Time
		Properties struct {
			Timestamp        *time.Time
			TimestampSeconds int64
		}
	}
	if err := json.Unmarshal(text, &line); err != nil || line.FailedAt != nil || line.Properties.Timestamp != nil || line.Properties.TimestampSeconds != millis {
		t.Errorf("%v, %s", err, text)
	}
	var causes Causes
	causes.Add(letter.Entry())
	if _, err := json.Marshal(causes.List()); err != nil {
		t.Error(err)
	}
}

func TestRead_BelievesTheBrokersRecordOverAReasonFromBefore(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	letter := Reader{Exchange: "async", Now: now}.Read(message.Message{MessageID: "a", Exchange: "async.failed", RoutingKey: "test", Headers: map[string]any{
		message.HeaderReason: "MaxRetries", message.HeaderQueue: "test", message.HeaderFailedAt: now.Add(-24 * time.Hour).UnixMilli(),
		message.HeaderErrorSource: "Handler", message.HeaderErrorStatus: int64(503), message.HeaderErrorMessage: "down",
		"x-death": []any{map[string]any{"queue": "test", "reason": "expired", "time": now, "exchange": "async", "routing-keys": []any{"test"}}},
	}})
	if given := letter.Given; given.Reason != "expired" || given.Source != SourceBroker || !given.At.Equal(now) || letter.Last.Source != "" {
		t.Errorf("%+v, %+v", given, letter.Last)
	}
}

func TestRead_SaysOfAMessageWithUnreadableHeadersThatNobodyCanTell(t *testing.T) {
	letter := Reader{Exchange: "async", Now: time.Now()}.Read(message.Message{MessageID: "a", RoutingKey: "test", Body: []byte("four"), Unreadable: true})
	entry := letter.Entry()
	if entry.Reason != "unreadable" || entry.Source != SourceBroker || entry.Queue != "test" || entry.Size != 4 || entry.Key == "" || entry.Explanation == "" {
		t.Errorf("%+v", entry)
	}
}
