package worker

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"redrive.dev/redrive/internal/amqp"
)

// A message that a silent lane may have is published to one more at most, and one for which there is no larger lane waits for its own: without a
// lane it would be tried again at once.
func TestDetour_MakesNoMoreThanTwoCopiesAndEndsAtTheLargestLane(t *testing.T) {
	refused, silent := fmt.Errorf("%w: %w", amqp.ErrUnconfirmed, amqp.ErrRefused), fmt.Errorf("%w: %w", amqp.ErrUnconfirmed, amqp.ErrSilent)
	ended := fmt.Errorf("%w: %w", amqp.ErrUnconfirmed, errors.New("the channel ended"))
	const lane = time.Minute
	for name, tt := range map[string]struct {
		err    error // nil where the lane was known to be stalled
		larger bool
		// again is true where another lane is tried at once, the one after gone. allows is true where it may be one that has a larger one then.
		again  bool
		gone   time.Duration
		allows bool
	}{
		"it is known to confirm nothing":           {nil, true, true, lane, true},
		"it is, and there is no larger one":        {nil, false, true, 0, false},
		"it refuses the message":                   {refused, true, true, lane, true},
		"it does, and there is no larger one":      {refused, false, false, 0, true},
		"it has the message, and is silent":        {silent, true, true, lane, false},
		"it is, and there is no larger one to try": {silent, false, false, 0, false},
		"nobody knows, for the channel has ended":  {ended, true, false, 0, true},
		"nobody knows, and there is no larger one": {ended, false, false, 0, true},
	} {
		way, again := detour{}, true
		if tt.err == nil {
			way.stalled(lane, tt.larger)
		} else {
			again = way.unconfirmed(tt.err, lane, tt.larger)
		}
		if again != tt.again || way.gone != tt.gone || way.allows(true) != tt.allows {
			t.Errorf("%s: again %v, after the lane %s, and allows another %v", name, again, way.gone, way.allows(true))
		}
	}
}
