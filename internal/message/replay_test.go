package message

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/retry"
)

// place is one in a replay.
var place = Replay{ID: "r-0a1b2c3d", Seq: 7}

func TestReplayOf_TakesWhatAReplayWritesAndNothingElse(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		headers map[string]any
		want    Replay
	}{
		"what is written is read":          {map[string]any{HeaderReplay: place.ID, HeaderReplaySeq: place.Seq}, place},
		"a client may have another type":   {map[string]any{HeaderReplay: []byte(place.ID), HeaderReplaySeq: int32(7)}, place},
		"no headers":                       {nil, Replay{}},
		"a number alone":                   {map[string]any{HeaderReplaySeq: int64(7)}, Replay{}},
		"an ID alone":                      {map[string]any{HeaderReplay: place.ID}, Replay{}},
		"no number is 0":                   {map[string]any{HeaderReplay: place.ID, HeaderReplaySeq: int64(0)}, Replay{}},
		"nor negative":                     {map[string]any{HeaderReplay: place.ID, HeaderReplaySeq: int64(-7)}, Replay{}},
		"nor text":                         {map[string]any{HeaderReplay: place.ID, HeaderReplaySeq: "7"}, Replay{}},
		"an ID has 8 digits, not 7":        {map[string]any{HeaderReplay: "r-0a1b2c3", HeaderReplaySeq: int64(7)}, Replay{}},
		"nor 9":                            {map[string]any{HeaderReplay: "r-0a1b2c3d4", HeaderReplaySeq: int64(7)}, Replay{}},
		"they are hexadecimal":             {map[string]any{HeaderReplay: "r-0a1b2c3g", HeaderReplaySeq: int64(7)}, Replay{}},
		"and of small letters":             {map[string]any{HeaderReplay: "r-0A1B2C3D", HeaderReplaySeq: int64(7)}, Replay{}},
		"an ID has its prefix":             {map[string]any{HeaderReplay: "0a1b2c3d", HeaderReplaySeq: int64(7)}, Replay{}},
		"a table is no ID":                 {map[string]any{HeaderReplay: map[string]any{}, HeaderReplaySeq: int64(7)}, Replay{}},
		"an event's place is no message's": {map[string]any{HeaderOutcome: place.ID, HeaderOutcomeSeq: int64(7)}, Replay{}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := ReplayOf(c.headers); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
			s := Decode(Message{Headers: c.headers}, "", noon)
			if _, said := c.headers[HeaderReplay]; slices.Contains(s.Garbage, HeaderReplay) != (said && c.want.ID == "") || s.Replay != c.want {
				t.Errorf("got %v, garbage %v", s.Replay, s.Garbage)
			}
		})
	}
}

// TestReplay_StaysOnEachCopyOfItsMessage has copies for a lane, for the queue and for the failure queue.
func TestReplay_StaysOnEachCopyOfItsMessage(t *testing.T) {
	t.Parallel()
	lives := EncodeLives([]Life{{Reason: "MaxRetries", Attempts: 3}})
	m := Message{Headers: map[string]any{HeaderReplay: place.ID, HeaderReplaySeq: place.Seq, HeaderLives: lives, "tenant": "acme"}}
	s := Decode(m, "", noon)
	Strip(m.Headers, s)
	if got := slices.Sorted(maps.Keys(m.Headers)); !slices.Equal(got, []string{"tenant"}) {
		t.Fatalf("the handler sees %v", got)
	}
	copies := map[string]func() (Message, error){
		"parked":   func() (Message, error) { return Parked(m, s, "work", "1s", noon) },
		"returned": func() (Message, error) { return Returned(m, s, "work", noon) },
		"failed":   func() (Message, error) { return Failed(m, s, "work", Final{Reason: retry.ReasonMaxRetries, At: noon}) },
	}
	for name, republish := range copies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := republish()
			if err != nil {
				t.Fatal(err)
			}
			if ReplayOf(got.Headers) != place || got.Headers[HeaderLives] != lives {
				t.Errorf("headers %v", got.Headers)
			}
		})
	}
}

func TestReplay_PutsNothingIntoOtherMessages(t *testing.T) {
	t.Parallel()
	m := Message{Headers: map[string]any{HeaderReplaySeq: int64(7), HeaderOutcome: place.ID, HeaderOutcomeKind: "Handled"}}
	got, err := Parked(m, Decode(m, "", noon), "work", "1s", noon)
	if err != nil {
		t.Fatal(err)
	}
	for name := range got.Headers {
		if strings.HasPrefix(name, HeaderReplay) || strings.HasPrefix(name, HeaderOutcome) {
			t.Errorf("header %s is there", name)
		}
	}
}

func TestReplayOutcome_IsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	for _, want := range []ReplayOutcome{
		{Replay: place, Kind: OutcomeRetried, Queue: "work"},
		{Replay: place, Kind: OutcomeHandled, Queue: "work"},
		{Replay: place, Kind: OutcomeDropped, Queue: strings.Repeat("q", maxShort)},
		{Replay: place, Kind: OutcomeFailedAgain, Queue: "work", Cause: "01234567"},
		{Replay: place, Kind: OutcomeRecalled},
	} {
		m := want.Message()
		if got, ok := DecodeOutcome(m); !ok || got != want {
			t.Errorf("got %+v, %t, want %+v", got, ok, want)
		}
		if m.DeliveryMode != persistent || m.Body != nil || m.Exchange != "" {
			t.Errorf("event %+v", m)
		}
	}
}

func TestDecodeOutcome_RefusesWhatIsNoneAndCutsTheRest(t *testing.T) {
	t.Parallel()
	whole := ReplayOutcome{Replay: place, Kind: OutcomeFailedAgain, Queue: "work", Cause: "01234567"}
	with := func(name string, value any) Message {
		m := whole.Message()
		m.Headers[name] = value
		return m
	}
	for name, m := range map[string]Message{
		"no headers":        {},
		"no replay":         with(HeaderOutcome, nil),
		"no ID":             with(HeaderOutcome, "r-1"),
		"no number":         with(HeaderOutcomeSeq, "7"),
		"number 0":          with(HeaderOutcomeSeq, int64(0)),
		"no kind":           with(HeaderOutcomeKind, nil),
		"an unknown kind":   with(HeaderOutcomeKind, "Lost"),
		"a kind of its own": with(HeaderOutcomeKind, int64(1)),
	} {
		if got, ok := DecodeOutcome(m); ok {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	for _, cause := range []any{"0123456", "0123456g", "012345678", int64(1), nil} {
		if got, ok := DecodeOutcome(with(HeaderOutcomeCause, cause)); !ok || got.Cause != "" || got.Queue != "work" {
			t.Errorf("cause %v: got %+v, %t", cause, got, ok)
		}
	}
	if got, ok := DecodeOutcome(with(HeaderOutcomeQueue, strings.Repeat("q", maxShort+1))); !ok || got.Queue != "" || got.Cause != whole.Cause {
		t.Errorf("got %+v, %t", got, ok)
	}
}

func TestLives_KeepTheNewestThatFit(t *testing.T) {
	t.Parallel()
	life := func(at int64, text string) Life {
		return Life{
			Replay: place.ID, Cause: "01234567", Reason: "MaxRetries", Attempts: 3, Strategy: "busy", Source: "Handler", Status: 503, Class: "Busy",
			Message: text, FailedAt: at,
		}
	}
	var brief, long []Life
	for at := range int64(7) {
		brief = append(brief, life(at+1, "it is busy"))
		long = append(long, life(at+1, strings.Repeat(`"`, MaxText)))
	}
	cases := map[string]struct{ lives, want []Life }{
		"none are none":                      {nil, nil},
		"a few stay":                         {brief[:2], brief[:2]},
		"of many the newest five stay":       {brief, brief[2:]},
		"texts that are long leave no 5":     {long, long[1:]},
		"what is out of bounds is cut to it": {[]Life{{Replay: "x", Cause: "y", Attempts: -1, Status: -1, FailedAt: -1}}, []Life{{}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := EncodeLives(c.lives)
			if len(text) > maxLivesSize {
				t.Errorf("%d bytes", len(text))
			}
			got := DecodeLives(map[string]any{HeaderLives: text})
			if len(c.want) > 0 && name == "texts that are long leave no 5" {
				c.want = c.want[len(c.want)-len(got):]
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
	for _, text := range []string{"[", "{}", "null", `[1]`, "[" + strings.Repeat(" ", maxLivesSize) + "]"} {
		if got := DecodeLives(map[string]any{HeaderLives: text}); len(got) > 0 {
			t.Errorf("%.20s: got %v", text, got)
		}
	}
}

func FuzzReplay(f *testing.F) {
	f.Add(place.ID, int64(7), "Handled", "01234567", "work", `[{"reason":"MaxRetries","attempts":3}]`)
	f.Add("r-", int64(-1), "", "\xff", "", `[null,{"message":"\u0000\"<"}]`)
	f.Fuzz(func(t *testing.T, id string, seq int64, kind, cause, queue, lives string) {
		m := Message{Headers: map[string]any{
			HeaderReplay: id, HeaderReplaySeq: seq, HeaderLives: lives,
			HeaderOutcome: id, HeaderOutcomeSeq: seq, HeaderOutcomeKind: kind, HeaderOutcomeCause: cause, HeaderOutcomeQueue: queue,
		}}
		if r := ReplayOf(m.Headers); r != (Replay{}) && (!IsReplayID(r.ID) || r.Seq < 1) {
			t.Errorf("replay %+v", r)
		}
		if o, ok := DecodeOutcome(m); ok {
			if again, still := DecodeOutcome(o.Message()); !still || again != o {
				t.Errorf("got %+v, want %+v", again, o)
			}
		}
		known := DecodeLives(m.Headers)
		text := EncodeLives(known)
		if len(known) > keepLives || len(text) > maxLivesSize {
			t.Errorf("%d lives, %d bytes", len(known), len(text))
		}
		if again := DecodeLives(map[string]any{HeaderLives: text}); len(again) > 0 && !reflect.DeepEqual(again, known[len(known)-len(again):]) {
			t.Errorf("got %+v, want %+v", again, known)
		}
	})
}
