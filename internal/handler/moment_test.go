package handler

import (
	"strings"
	"testing"
	"time"
)

// Many producers set the property to milliseconds. What became of that was no RFC 3339, and receivers of CloudEvents refused each such message.
func TestHandlers_LeaveOutATimestampOfNoCalendar(t *testing.T) {
	for at, want := range map[int64]string{1_795_238_328: "2026-11-21T05:18:48Z", 1_795_238_328_020: "", -99_999_999_999_999: ""} {
		h, r := &HTTP{cloudEvents: true, headers: headerRules{all: true}}, Request{ID: "a", Timestamp: time.Unix(at, 0)}
		var f fields
		h.describe(&f, r, secretHeaders{})
		got := map[string]string{}
		for _, one := range f.list {
			got[one.name] = one.value
		}
		for _, variable := range new(variables).of(t.Context(), &r, nil) {
			name, value, _ := strings.Cut(variable, "=")
			got[name] = value
		}
		for _, name := range []string{"Redrive-Timestamp", "Ce-Time", envTimestamp} {
			if got[name] != want {
				t.Errorf("%d: %s is %q, want %q", at, name, got[name], want)
			}
		}
	}
}
