package message

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/retry"
)

// full is a message with every property, with headers of every sort, that has been through dead-lettering.
func full() Message {
	return Message{
		ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: 1, Priority: 5, CorrelationID: "c",
		ReplyTo: "r", Expiration: "60000", MessageID: "id", Timestamp: noon.Add(-10 * time.Second), Type: "t",
		UserID: "guest", AppID: "app", Body: []byte("body"), Exchange: "async.return", RoutingKey: "test", Redelivered: true,
		Headers: map[string]any{
			"int": int32(1), "nested": table{"list": []any{int16(1), nil, table{"x": "y"}}}, "at": noon, "none": nil,
			"bytes": []byte{1, 2}, "x-opt-a": "kept", "x-delay": int32(5), "x-match": "all", "redrive-foreign": "kept",
			"x-death": []any{table{"count": int64(1)}}, "x-first-death-queue": "q", "x-last-death-reason": "expired",
			"x-delivery-count": int64(2), "x-acquired-count": int64(3), "CC": []any{"a"}, "BCC": []any{"b"},
			HeaderLane: "5s", HeaderNotBefore: int64(1), HeaderPublishID: "7", HeaderReason: "MaxRetries",
			HeaderErrorMessage: "old", HeaderExchange: "async",
		},
	}
}

// keptHeaders of full.
func keptHeaders() map[string]any {
	return map[string]any{
		"int": int32(1), "nested": table{"list": []any{int16(1), nil, table{"x": "y"}}}, "at": noon, "none": nil,
		"bytes": []byte{1, 2}, "x-opt-a": "kept", "x-delay": int32(5), "x-match": "all", "redrive-foreign": "kept",
		HeaderExpiration: "60000", HeaderUserID: "guest",
		HeaderExchange: "async", HeaderRoutingKey: "test", HeaderDeadline: noon.Add(51 * time.Second).UnixMilli(),
	}
}

func TestRepublished_KeepsWhatIsTheUsersAndDropsWhatHarms(t *testing.T) {
	t.Parallel()
	failure := retry.Failure{Source: retry.SourceHandler, Status: 422, Class: "Invalid", Message: "no name"}
	cases := map[string]struct {
		publish func(Message, State) (Message, error)
		more    map[string]any
	}{
		"a retry waits in its lane": {
			func(m Message, s State) (Message, error) {
				s.NotBefore = noon.Add(5 * time.Second)
				s.History = retry.History{
					Attempts: 2, Retries: 1, Strategy: "busy", Streak: 1, FirstFailure: noon.Add(-time.Minute), LastDelay: 5 * time.Second,
				}
				return Parked(m, s, "work", "10s", noon)
			},
			map[string]any{
				HeaderLane: "10s", HeaderNotBefore: noon.Add(5 * time.Second).UnixMilli(), HeaderAttempts: int64(2),
				HeaderRetries: int64(1), HeaderStrategy: "busy", HeaderStreak: int64(1), HeaderDelay: int64(5000),
				HeaderFirstFailure: noon.Add(-time.Minute).UnixMilli(),
			},
		},
		"a released message has no lane": {
			func(m Message, s State) (Message, error) { return Returned(m, s, "work", noon) }, nil,
		},
		"a failed message says why": {
			func(m Message, s State) (Message, error) {
				return Failed(m, s, "work", Final{
					Reason: retry.ReasonStrategy, Explanation: "strategy rejected says Fail", Strategy: "rejected", Failure: failure, At: noon,
				})
			},
			map[string]any{
				HeaderReason: "Strategy", HeaderExplanation: "strategy rejected says Fail", HeaderStrategy: "rejected",
				HeaderFailedAt: noon.UnixMilli(), HeaderQueue: "work", HeaderErrorSource: "Handler",
				HeaderErrorStatus: int64(422), HeaderErrorClass: "Invalid", HeaderErrorMessage: "no name",
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := full()
			got, err := c.publish(m, Decode(m, "", noon))
			if err != nil {
				t.Fatal(err)
			}
			want := full()
			want.Headers = keptHeaders()
			maps.Copy(want.Headers, c.more)
			want.DeliveryMode, want.Expiration, want.UserID = 2, "", ""
			want.Exchange, want.RoutingKey, want.Redelivered = "", "work", false
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			if !reflect.DeepEqual(m, full()) {
				t.Errorf("the input was altered: %+v", m)
			}
		})
	}
}

func TestRepublished_OmitsHeadersThatTheHistoryTells(t *testing.T) {
	t.Parallel()
	counted := []string{HeaderAttempts, HeaderRetries, HeaderFirstFailure, HeaderDelay, HeaderNotBefore}
	final := Final{Reason: retry.ReasonMaxAge, At: noon}
	cases := map[string]struct {
		change  func(s *State)
		publish func(s State) (Message, error)
		want    []string // beside the history
	}{
		"in a lane": {publish: func(s State) (Message, error) { return Parked(Message{}, s, "work", "5s", noon) }, want: []string{HeaderLane}},
		"from another exchange than most": {
			func(s *State) { s.Exchange = "" },
			func(s State) (Message, error) { return Parked(Message{}, s, "work", "5s", noon) },
			[]string{HeaderLane, HeaderExchange},
		},
		"on its way back":  {publish: func(s State) (Message, error) { return Returned(Message{}, s, "work", noon) }, want: []string{HeaderExchange}},
		"in another queue": {publish: func(s State) (Message, error) { return Returned(Message{}, s, "work.quarantine", noon) }, want: []string{HeaderExchange, HeaderRoutingKey}},
		"after a retry that does not count": {
			func(s *State) { s.History.Retries = 0 },
			func(s State) (Message, error) { return Returned(Message{}, s, "work", noon) },
			[]string{HeaderExchange, HeaderAttempts, HeaderFirstFailure, HeaderDelay, HeaderNotBefore},
		},
		"after two failures": {
			func(s *State) { s.History.Attempts, s.History.Retries = 2, 2 },
			func(s State) (Message, error) { return Parked(Message{}, s, "work", "5s", noon) },
			append([]string{HeaderLane}, counted...),
		},
		"given up": {
			publish: func(s State) (Message, error) { return Failed(Message{}, s, "work", final) },
			want: []string{
				HeaderExchange, HeaderRoutingKey, HeaderAttempts, HeaderRetries, HeaderFirstFailure, HeaderDelay,
				HeaderReason, HeaderQueue, HeaderFailedAt, HeaderErrorSource,
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := waiting(noon, noon)
			s.Exchange, s.RoutingKey, s.usual = "async", "work", "async"
			if c.change != nil {
				c.change(&s)
			}
			published, err := c.publish(s)
			if err != nil {
				t.Fatal(err)
			}
			got, want := slices.Sorted(maps.Keys(published.Headers)), slices.Concat(c.want, []string{HeaderHistory})
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
}

func TestParked_WritesAllHeadersWithoutRoomForTheHistory(t *testing.T) {
	t.Parallel()
	s := waiting(noon, noon)
	s.failures[0].Message = strings.Repeat("long ", 100)
	m := Message{Headers: map[string]any{"a": strings.Repeat("x", MaxHeaderSize-300)}}
	parked, err := Parked(m, s, "work", "5s", noon)
	if err != nil {
		t.Fatal(err)
	}
	if _, told := parked.Headers[HeaderHistory]; told {
		t.Fatal("there was room for the history")
	}
	if got := Decode(parked, "", noon); got.History != s.History || !got.NotBefore.Equal(s.NotBefore) {
		t.Errorf("got  %+v\nwant %+v", got, s)
	}
}

func TestReturned_LeavesTheHeadersOfItsInputAlone(t *testing.T) {
	t.Parallel()
	m := full()
	got, err := Returned(m, Decode(m, "", noon), "work", noon)
	if err != nil {
		t.Fatal(err)
	}
	clear(got.Headers)
	if !reflect.DeepEqual(m, full()) {
		t.Errorf("the input was altered: %+v", m.Headers)
	}
}

func TestReturned_KeepsOurIDForAMessageWithoutOne(t *testing.T) {
	t.Parallel()
	s := Decode(Message{}, "", noon)
	s.ID = "ours"
	got, err := Returned(Message{}, s, "work", noon)
	if err != nil {
		t.Fatal(err)
	}
	if again := Decode(got, "", noon); again.ID != "ours" || got.MessageID != "" {
		t.Errorf("id %q, message-id %q", again.ID, got.MessageID)
	}
}

func TestFailed_TellsOfTheLastFailureWithoutOneOfItsOwn(t *testing.T) {
	t.Parallel()
	s := Record(State{}, Attempt{Number: 1, At: noon, Source: retry.SourceTimeout, Class: "Timeout", Message: "too slow"})
	got, err := Failed(Message{}, s, "work", Final{Reason: "Expired", At: noon})
	if err != nil {
		t.Fatal(err)
	}
	if got.Headers[HeaderErrorSource] != "Timeout" || got.Headers[HeaderErrorMessage] != "too slow" {
		t.Errorf("got %v", got.Headers)
	}
}

func TestReturned_TurnsAnExpirationIntoADeadline(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		expiration string
		timestamp  time.Time
		deadline   time.Time
		want       time.Time
	}{
		"none gives none":                              {"", time.Time{}, time.Time{}, time.Time{}},
		"zero is now":                                  {"0", time.Time{}, time.Time{}, noon},
		"without a timestamp it counts from now":       {"5000", time.Time{}, time.Time{}, noon.Add(5 * time.Second)},
		"with a timestamp it counts from its second":   {"5000", noon.Add(-2 * time.Second), time.Time{}, noon.Add(4 * time.Second)},
		"a timestamp in the future is not that of now": {"5000", noon.Add(time.Hour), time.Time{}, noon.Add(5 * time.Second)},
		"a timestamp by which it had expired before delivery is something else": {
			"5000", noon.Add(-time.Hour), time.Time{}, noon.Add(5 * time.Second),
		},
		"an earlier deadline stays":         {"5000", time.Time{}, noon.Add(time.Second), noon.Add(time.Second)},
		"a later deadline gives way":        {"5000", time.Time{}, noon.Add(time.Hour), noon.Add(5 * time.Second)},
		"a deadline alone stays":            {"", time.Time{}, noon.Add(time.Hour), noon.Add(time.Hour)},
		"a negative one is ignored":         {"-1", time.Time{}, time.Time{}, time.Time{}},
		"one that is no number is ignored":  {"5s", time.Time{}, time.Time{}, time.Time{}},
		"one of a thousand years is none":   {"31536000000000", time.Time{}, time.Time{}, time.Time{}},
		"one that no integer holds is none": {"99999999999999999999", time.Time{}, time.Time{}, time.Time{}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := Message{Expiration: c.expiration, Timestamp: c.timestamp}
			got, err := Returned(m, State{Deadline: c.deadline, History: retry.History{Attempts: 1}}, "work", noon)
			if err != nil {
				t.Fatal(err)
			}
			if deadline := Decode(got, "", noon).Deadline; !deadline.Equal(c.want) || got.Expiration != "" {
				t.Errorf("got deadline %v and expiration %q, want %v", deadline, got.Expiration, c.want)
			}
		})
	}
}

// It asks for a consumer that is free, and had one: a limit, a shutdown or a handler that is not ready sent it back.
func TestReturned_IgnoresAnExpirationOfZeroBeforeAnAttempt(t *testing.T) {
	t.Parallel()
	for _, deadline := range []time.Time{{}, noon.Add(time.Hour)} {
		got, err := Returned(Message{Expiration: "0"}, State{Deadline: deadline}, "work", noon)
		if err != nil {
			t.Fatal(err)
		}
		if its := Decode(got, "", noon).Deadline; !its.Equal(deadline) {
			t.Errorf("got deadline %v, want %v", its, deadline)
		}
	}
}

// crowded returns a message whose own headers take size bytes, and a state with as much of ours as there can be.
func crowded(size int) (Message, State) {
	m := Message{Headers: map[string]any{"a": ""}}
	m.Headers["a"] = strings.Repeat("x", size-HeaderSize(m.Headers))
	s := State{ID: strings.Repeat("i", 32), Exchange: "async", RoutingKey: "test"}
	for i := range int64(20) {
		s = Record(s, Attempt{Number: i + 1, At: noon, Message: strings.Repeat("m", 1000)})
	}
	s.History.Attempts = 20
	return m, s
}

func TestFailed_DropsItsOwnHeadersThatWouldNotFitAFrame(t *testing.T) {
	t.Parallel()
	final := Final{
		Reason: retry.ReasonMaxRetries, Explanation: strings.Repeat("e", 300), At: noon,
		Failure: retry.Failure{Source: retry.SourceHandler, Status: 500, Class: "Broken", Message: strings.Repeat("m", 500)},
	}
	everything := []string{HeaderReason, HeaderErrorSource, HeaderErrorStatus, HeaderErrorClass, HeaderErrorMessage, HeaderExplanation, HeaderHistory}
	cases := map[string]struct {
		size    int
		keeps   []string
		entries int
	}{
		"a message with 100 KiB of headers keeps everything": {100 << 10, everything, 8},
		"a fuller one keeps the last of the history":         {MaxHeaderSize - 3000, everything, 1},
		"then none of it":                {MaxHeaderSize - 1600, everything[:6], 0},
		"then the error's message goes":  {MaxHeaderSize - 700, append(slices.Clone(everything[:4]), HeaderExplanation), 0},
		"then the explanation":           {MaxHeaderSize - 500, everything[:4], 0},
		"then all but the indispensable": {MaxHeaderSize - 220, everything[:1], 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, s := crowded(c.size)
			got, err := Failed(m, s, "work", final)
			if err != nil {
				t.Fatal(err)
			}
			for _, header := range everything {
				if _, there := got.Headers[header]; there != slices.Contains(c.keeps, header) {
					t.Errorf("%s is there: %t", header, there)
				}
			}
			again := Decode(got, "", noon)
			if size := HeaderSize(got.Headers); size > MaxHeaderSize || len(again.Failures()) != c.entries {
				t.Errorf("%d bytes, %d entries", size, len(again.Failures()))
			}
			if got.Headers["a"] != m.Headers["a"] || again.History.Attempts != 20 {
				t.Error("the user's header or the counts were touched")
			}
		})
	}
}

func TestFailed_CarryGoesAfterTheHistoryWhereHeadersWouldNotFit(t *testing.T) {
	t.Parallel()
	for size, kept := range map[int]bool{100 << 10: true, MaxHeaderSize - 5000: true, MaxHeaderSize - 4000: false} {
		m, s := crowded(size)
		s.Carry = strings.Repeat("c", MaxCarry)
		got, err := Failed(m, s, "work", Final{Reason: retry.ReasonMaxRetries, At: noon})
		if err != nil {
			t.Fatal(err)
		}
		if carried := Decode(got, "", noon).Carry; (carried == s.Carry) != kept {
			t.Errorf("%d bytes of other headers: %d bytes are carried", size, len(carried))
		}
	}
}

func TestDecode_CarryOfAnotherTypeOrLengthIsGarbage(t *testing.T) {
	t.Parallel()
	for _, value := range []any{int64(1), strings.Repeat("c", MaxCarry+1), []any{"a"}} {
		if s := Decode(Message{Headers: map[string]any{HeaderCarry: value}}, "", noon); s.Carry != "" || !slices.Equal(s.Garbage, []string{HeaderCarry}) {
			t.Errorf("%T: %q, garbage %v", value, s.Carry, s.Garbage)
		}
	}
}

func TestParked_RefusesAMessageWhoseHeadersFillTheFrame(t *testing.T) {
	t.Parallel()
	m, s := crowded(MaxHeaderSize - 50)
	if _, err := Parked(m, s, "work", "5s", noon); !errors.Is(err, ErrHeadersTooLarge) {
		t.Errorf("got %v", err)
	}
}

func TestHeaderLimit_FollowsTheFramesOfTheConnection(t *testing.T) {
	t.Parallel()
	for frame, want := range map[int]int{0: MaxHeaderSize, 4 << 10: 2 << 10, 8 << 10: 4 << 10, 64 << 10: 60 << 10, 128 << 10: MaxHeaderSize, 1 << 20: MaxHeaderSize} {
		if got := HeaderLimit(frame); got != want {
			t.Errorf("frames of %d bytes: at most %d bytes of headers, want %d", frame, got, want)
		}
	}
	m, s := crowded(60<<10 - 1500)
	s.FrameSize = 64 << 10
	got, err := Parked(m, s, "work", "5s", noon)
	if size := HeaderSize(got.Headers); err != nil || size > 60<<10 {
		t.Errorf("%d bytes, %v", size, err)
	}
	m, s = crowded(60 << 10)
	s.FrameSize = 64 << 10
	if _, err := Parked(m, s, "work", "5s", noon); !errors.Is(err, ErrHeadersTooLarge) {
		t.Errorf("more than fits: %v", err)
	}
}

func TestHeaderSize_IsThatOfTheWire(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		value any
		want  int // with the byte for the type
	}{
		"nothing":              {nil, 1},
		"a boolean":            {true, 2},
		"a short":              {int16(1), 3},
		"an integer":           {int32(1), 5},
		"a long":               {int64(1), 9},
		"a float":              {float32(1), 5},
		"a double":             {1.0, 9},
		"a timestamp":          {noon, 9},
		"a text":               {"abc", 8},
		"bytes":                {[]byte("abc"), 8},
		"an array":             {[]any{int32(1), "a"}, 16},
		"a table":              {map[string]any{"k": int32(1)}, 12},
		"a client's own table": {table{"k": int32(1)}, 12},
		"a decimal":            {Decimal{Scale: 1, Value: 2}, 6},
		"an unknown type":      {struct{ Scale, Value int32 }{1, 2}, unknownSize},
		"a text of own type":   {retry.Source("abc"), 8},
		"a typed array":        {[]int32{1, 2}, 15},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := HeaderSize(map[string]any{"name": c.value}); got != 4+1+len("name")+c.want {
				t.Errorf("got %d, want %d", got-9, c.want)
			}
		})
	}
}

func TestDecode_CarryIsDroppedWhereNoAttemptAskedForIt(t *testing.T) {
	for name, c := range map[string]struct {
		headers map[string]any
		want    string
	}{
		"a producer's":               {map[string]any{}, ""},
		"a message that crashed":     {map[string]any{HeaderCrashes: int64(1)}, ""},
		"one that failed":            {map[string]any{HeaderAttempts: int64(1)}, "half"},
		"one that was only released": {map[string]any{HeaderFirstFailure: noon.UnixMilli()}, "half"},
	} {
		t.Run(name, func(t *testing.T) {
			c.headers[HeaderCarry] = "half"
			s := Decode(Message{Headers: c.headers}, "", noon)
			if s.Carry != c.want || slices.Contains(s.Garbage, HeaderCarry) != (c.want == "") {
				t.Errorf("carries %q, garbage %v", s.Carry, s.Garbage)
			}
		})
	}
}
