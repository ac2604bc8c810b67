package failurequeue

import (
	"slices"
	"strconv"
	"testing"
)

// Settled messages must not let the consumer of their block take those of the next one.
func TestHold_TakesSomeOutAndGivesTheRestBackInOrder(t *testing.T) {
	r := newRig(t)
	const messages = 1500
	r.fill(0, messages, 20_000) // blocks of some 200
	var kept []string
	for n := 2; n < messages; n += 3 {
		kept = append(kept, strconv.Itoa(n))
	}
	shown, err := r.keepThird(t)
	if err != nil || !slices.Equal(shown, want(0, messages)) {
		t.Fatalf("%d messages, %v, out of order at %v", len(shown), err, breaks(shown))
	}
	for range 10 { // RabbitMQ forgets acks that it has not passed on to the queue when their channel ends
		if shown, err = r.keepThird(t); err != nil {
			t.Fatal(err)
		}
		if slices.Equal(shown, kept) {
			return
		}
	}
	t.Errorf("%d messages are left, out of order at %v; want %d", len(shown), breaks(shown), len(kept))
}

// keepThird takes out two of three messages, one when it is shown and one at the end, and returns the IDs of all that were there.
func (r *rig) keepThird(t *testing.T) (shown []string, err error) {
	var later []*Held
	_, err = Hold(t.Context(), r.options, func(h *Held) error {
		shown = append(shown, h.MessageID)
		switch n, _ := strconv.Atoi(h.MessageID); n % 3 {
		case 0:
			return h.Settle()
		case 1:
			later = append(later, h)
		}
		return nil
	}, func() error {
		for _, h := range later {
			if err := h.Settle(); err != nil {
				return err
			}
		}
		return nil
	})
	return shown, err
}
