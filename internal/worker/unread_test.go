package worker

import (
	"testing"
	"testing/synctest"
	"time"
)

// With slow handlers those that were given back at once come again over minutes, as places are free: after ten seconds they were taken for what a crash had
// left, and handled one by one.
func TestUnread_KnowsThemForAsLongAsOneOfThemComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const given, call = 133, 9 * time.Second
		u := &unread{all: map[string]returns{}}
		for range given {
			u.add("orders", call)
		}
		for i := range given {
			if time.Sleep(call); !u.take("orders", call) {
				t.Fatalf("number %d is not known any more", i)
			}
		}
		if u.take("orders", call) {
			t.Error("one more than were given back is known")
		}
		u.add("orders", call)
		if time.Sleep(call + unreadTime); u.take("orders", call) {
			t.Error("one that came long after is taken for one that was given back")
		}
	})
}
