package message

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"redrive.dev/redrive/internal/retry"
)

func failedMessage() Message {
	return Message{
		MessageID: "o-1187", ContentType: "application/json", Priority: 3, Exchange: "async.failed", RoutingKey: "test", Body: []byte("{}"), DeliveryMode: 2,
		Headers: map[string]any{
			"partner": "acme", "x-death": []any{map[string]any{"queue": "test"}},
			HeaderReason: "MaxRetries", HeaderQueue: "test", HeaderAttempts: int64(4), HeaderRetries: int64(3), HeaderDeadline: int64(1),
			HeaderExchange: "async", HeaderRoutingKey: "order.paid", HeaderFailedAt: int64(1_000), HeaderErrorSource: "Handler",
		},
	}
}

func TestStaged_ComesBackAsItWas(t *testing.T) {
	m := failedMessage()
	m.Headers["CC"] = []any{"elsewhere"}
	before := failedMessage()
	before.Headers["CC"] = []any{"elsewhere"}
	staged, err := Staged(m, 7, 0)
	if err != nil {
		t.Fatal(err)
	}
	staged.Exchange, staged.RoutingKey = "async.return", "async.replay.r-0123abcd"
	staged.Headers["x-delivery-count"] = int64(2)
	if staged.Headers["CC"] != nil {
		t.Error("its copy would be multiplied")
	}
	again, seq, ok := Unstaged(staged)
	if !ok || seq != 7 || !reflect.DeepEqual(again, before) || !reflect.DeepEqual(m, before) {
		t.Errorf("%t, %d: got\n%+v, want\n%+v", ok, seq, again, before)
	}
	if _, _, ok := Unstaged(before); ok {
		t.Error("a message that was not staged is taken for one")
	}
}

func TestStaged_NeitherExpiresNorNamesItsLogin(t *testing.T) {
	m := failedMessage()
	m.Expiration, m.UserID = "1000", "guest"
	staged, err := Staged(m, 1, 0)
	if err != nil || staged.Expiration != "" || staged.UserID != "" {
		t.Fatalf("%q, %q, %v", staged.Expiration, staged.UserID, err)
	}
	again, _, _ := Unstaged(staged)
	if again.Headers[HeaderExpiration] != "1000" || again.Headers[HeaderUserID] != "guest" {
		t.Errorf("got %v", again.Headers)
	}
}

func TestReleased_BeginsItsPolicyAnew(t *testing.T) {
	now := time.UnixMilli(50_000)
	m := failedMessage()
	for life := range 7 {
		state := Decode(m, "async", now)
		place := Replay{ID: "r-0123abcd", Seq: int64(life) + 1}
		released, err := Released(m, state, "test", place, Life{Reason: "MaxRetries", Attempts: 4}, now)
		if err != nil {
			t.Fatal(err)
		}
		released.Exchange = "async.return"
		again := Decode(released, "async", now)
		if again.History != (retry.History{}) || !again.Deadline.IsZero() || again.ID != "o-1187" || again.Replay != place || again.Exchange != "async" ||
			again.RoutingKey != "order.paid" || released.RoutingKey != "test" {
			t.Fatalf("got %+v\n%+v", again, released)
		}
		if lives := DecodeLives(released.Headers); len(lives) != min(life+1, keepLives) {
			t.Fatalf("life %d: it knows %d", life, len(lives))
		}
		if released.Headers[HeaderReason] != nil || released.Headers["partner"] != "acme" {
			t.Fatalf("headers %v", released.Headers)
		}
		if m, err = Failed(released, again, "test", Final{Reason: "MaxRetries", At: now}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReleased_GoesToQuarantineWhereItBroughtDownWorkers(t *testing.T) {
	m := failedMessage()
	released, err := Released(m, Decode(m, "async", time.Now()), "test", Replay{ID: "r-0123abcd", Seq: 1}, Life{Reason: "PoisonCrash"}, time.Now())
	if err != nil || released.Headers[HeaderQuarantine] != true {
		t.Errorf("got %v, %v", released.Headers, err)
	}
}

// Its headers are not in it: a copy would lose them.
func TestStaged_LeavesAMessageWithUnreadableHeadersWhereItIs(t *testing.T) {
	if _, err := Staged(Message{MessageID: "a", Unreadable: true}, 1, 0); !errors.Is(err, ErrHeadersTooLarge) {
		t.Errorf("got %v", err)
	}
}
