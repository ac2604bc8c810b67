package retry

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// anyLanes draws lanes that are not empty.
func anyLanes() *rapid.Generator[Lanes] {
	return rapid.Custom(func(t *rapid.T) Lanes {
		var exact []time.Duration
		for range rapid.IntRange(1, 64).Draw(t, "lanes") {
			exact = append(exact, time.Duration(rapid.Int64Range(100, (2*time.Hour).Milliseconds()).Draw(t, "ms"))*time.Millisecond)
		}
		w := newWanted(len(exact))
		for _, d := range exact {
			w.addWindow(window{min: d, max: d})
		}
		return w.lanes(0)
	})
}

func TestLanes_PickTakesALaneWithinATenthOrHops(t *testing.T) {
	lanes := Lanes{time.Second, 2 * time.Second, 10 * time.Second, 110 * time.Second}
	tests := []struct {
		name      string
		remaining time.Duration
		want      time.Duration
	}{
		{"a lane that fits exactly", 2 * time.Second, 2 * time.Second},
		{"a lane within a tenth", 9100 * time.Millisecond, 10 * time.Second},
		{"no lane within a tenth: hop", 9 * time.Second, 2 * time.Second},
		{"a lane longer by just a tenth", 100 * time.Second, 110 * time.Second},
		{"longer than all lanes: hop", time.Hour, 110 * time.Second},
		{"shorter than all lanes: the smallest", 300 * time.Millisecond, time.Second},
		{"nothing left: the smallest", 0, time.Second},
		{"overdue: the smallest", -time.Hour, time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, ok := lanes.Pick(tt.remaining); got != tt.want || !ok {
				t.Errorf("Pick(%s) = %s, %v; want %s", tt.remaining, got, ok, tt.want)
			}
		})
	}
	if _, ok := (Lanes{}).Pick(time.Second); ok {
		t.Error("picked from no lanes")
	}
}

// A retry of 10 minutes whose lane had no leader for some seconds came after 12 hours.
func TestLanes_NextIsAMinuteLongerAtMost(t *testing.T) {
	lanes := Lanes{time.Second, 2 * time.Second, time.Minute, 10 * time.Minute, 12 * time.Hour}
	tests := []struct {
		name  string
		gone  time.Duration
		want  time.Duration
		found bool
	}{
		{"of a lane that is there", time.Second, 2 * time.Second, true},
		{"of a lane that is gone", 1500 * time.Millisecond, 2 * time.Second, true},
		{"near enough", 2 * time.Second, time.Minute, true},
		{"just near enough", 9 * time.Minute, 10 * time.Minute, true},
		{"too long", time.Minute, 0, false},
		{"far too long", 10 * time.Minute, 0, false},
		{"of the largest", 12 * time.Hour, 0, false},
		{"of a larger one", 24 * time.Hour, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, ok := lanes.Next(tt.gone); got != tt.want || ok != tt.found {
				t.Errorf("Next(%s) = %s, %v", tt.gone, got, ok)
			}
		})
	}
}

func TestLanes_HopsAreNeitherEarlyNorMoreThanATenthLate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lanes := anyLanes().Draw(t, "lanes")
		delay := time.Duration(rapid.Int64Range(1, int64(6*time.Hour)).Draw(t, "delay"))
		var waited time.Duration
		for waited < delay {
			lane, ok := lanes.Pick(delay - waited)
			if !ok || lane <= 0 {
				t.Fatalf("no lane for %s", delay-waited)
			}
			if lane > delay-waited && lane != lanes[0] && lane > delay-waited+(delay-waited)/10 {
				t.Fatalf("lane %s for %s", lane, delay-waited)
			}
			waited += lane
		}
		if late := waited - delay; late > delay/10+lanes[0] {
			t.Fatalf("%s late for %s", late, delay)
		}
	})
}

func TestDue_AllowsForALittleEarly(t *testing.T) {
	tests := []struct {
		name         string
		early, asked time.Duration
		want         bool
	}{
		{"on time", 0, time.Second, true},
		{"late", -time.Hour, time.Second, true},
		{"early by 250ms", 250 * time.Millisecond, time.Second, true},
		{"early by more", 251 * time.Millisecond, time.Second, false},
		{"early by 2 % of a long delay", 72 * time.Second, time.Hour, true},
		{"early by more than 2 %", 73 * time.Second, time.Hour, false},
		{"early where nothing was asked for", 200 * time.Millisecond, 0, true},
		{"early where the delay is garbage", time.Second, -time.Hour, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Due(start().Add(tt.early), start(), tt.asked); got != tt.want {
				t.Errorf("due = %v", got)
			}
		})
	}
}

func TestLaneKey_IsReadBack(t *testing.T) {
	tests := []struct {
		lane time.Duration
		key  string
	}{
		{100 * time.Millisecond, "100ms"},
		{1500 * time.Millisecond, "1500ms"},
		{time.Second, "1s"},
		{90 * time.Second, "90s"},
		{2 * time.Minute, "2m"},
		{time.Hour, "1h"},
		{90 * time.Minute, "90m"},
		{720 * time.Hour, "720h"},
	}
	for _, tt := range tests {
		t.Run(tt.key, func(t *testing.T) {
			if got := LaneKey(tt.lane); got != tt.key {
				t.Errorf("LaneKey(%s) = %q", tt.lane, got)
			}
			if got, err := ParseLaneKey(tt.key); got != tt.lane || err != nil {
				t.Errorf("ParseLaneKey(%q) = %s, %v", tt.key, got, err)
			}
		})
	}
	if got := LaneKey(1500 * time.Microsecond); got != "2ms" {
		t.Errorf("a part of a millisecond becomes %q", got)
	}
}

func TestParseLaneKey_RefusesWhatLaneKeyDoesNotWrite(t *testing.T) {
	for _, key := range []string{"", "s", "0s", "-1s", "+1s", "01s", "1.5s", "1", "60s ", "60s", "60m", "1000ms", "1d", "1us", "1h30m", "99999999999999h", "９s"} {
		if got, err := ParseLaneKey(key); err == nil {
			t.Errorf("ParseLaneKey(%q) = %s", key, got)
		}
	}
}

func TestLanes_GoThroughJSON(t *testing.T) {
	data, err := json.Marshal(struct {
		Lanes Lanes `json:"lanes"`
	}{Lanes{100 * time.Millisecond, 1500 * time.Millisecond, time.Hour}})
	if want := `{"lanes":["100ms","1500ms","1h"]}`; string(data) != want || err != nil {
		t.Errorf("JSON = %s, %v; want %s", data, err, want)
	}
	if data, err := json.Marshal(Lanes(nil)); string(data) != "[]" || err != nil {
		t.Errorf("JSON of no lanes = %s, %v", data, err)
	}
	rapid.Check(t, func(t *rapid.T) {
		lanes := anyLanes().Draw(t, "lanes")
		data, err := json.Marshal(lanes)
		if err != nil {
			t.Fatal(err)
		}
		var got Lanes
		if err := json.Unmarshal(data, &got); err != nil || !slices.Equal(got, lanes) {
			t.Fatalf("%s became %v, %v", data, got, err)
		}
	})
}

func TestLanes_RefuseWrongOnesInJSON(t *testing.T) {
	for _, data := range []string{`"1s"`, `[1]`, `["1x"]`, `["2s","1s"]`, `["1s","1s"]`, `["99ms"]`, `["721h"]`, `["1s","60s"]`, `{}`} {
		lanes := Lanes{time.Second}
		if err := json.Unmarshal([]byte(data), &lanes); err == nil {
			t.Errorf("%s became %v", data, lanes)
		}
		if !slices.Equal(lanes, Lanes{time.Second}) {
			t.Errorf("%s left %v behind", data, lanes)
		}
	}
	for _, lanes := range []Lanes{{0}, {2 * time.Second, time.Second}, {time.Second + 1}} {
		if data, err := json.Marshal(lanes); err == nil {
			t.Errorf("%v became %s", lanes, data)
		}
	}
}

func TestLanes_WithAreAscendingAndEachOnce(t *testing.T) {
	few, more := Lanes{time.Second, time.Minute}, Lanes{500 * time.Millisecond, time.Second, time.Hour}
	want := Lanes{500 * time.Millisecond, time.Second, time.Minute, time.Hour}
	if got := few.With(more); !slices.Equal(got, want) || !slices.Equal(few, Lanes{time.Second, time.Minute}) {
		t.Errorf("got %v, and what was there is %v", got, few)
	}
}

func TestLaneDelay_UndoesLaneKey(t *testing.T) {
	for _, delay := range []time.Duration{MinLane, 1500 * time.Millisecond, time.Second, 90 * time.Second, time.Hour, 36 * time.Hour, MaxLane} {
		if got, high := LaneDelay(LaneKey(delay)), LaneDelay(HighLaneKey(delay)); got != delay || high != delay {
			t.Errorf("%s: %s and %s", LaneKey(delay), got, high)
		}
	}
	for _, key := range []string{"", "h", "-1h", "1d", "9223372036854775807h", "99999h", "gone"} {
		if got := LaneDelay(key); got != 0 {
			t.Errorf("%q: %s", key, got)
		}
	}
}
