package replayer

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"redrive.dev/redrive/internal/replay"
	"redrive.dev/redrive/internal/testbroker"
)

func TestList_ShowsWhatNobodyCarriesOutAndTakesNothing(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	const messages = 200
	r.fill(messages)
	r.work()
	options := r.options()
	if all, err := List(t.Context(), options.Transport); err != nil || len(all) > 0 {
		t.Fatalf("%+v, %v", all, err)
	}
	options.Settings.Rate = 50
	ctx, leave := context.WithCancel(t.Context())
	options.Progress = func(_ replay.Phase, c replay.Counts) {
		if c.Handled > 20 {
			leave()
		}
	}
	if _, err := Run(ctx, options); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	for range 2 {
		all, err := List(t.Context(), options.Transport)
		if err != nil || len(all) != 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		got, c := all[0], all[0].Counts
		if got.ID != id || got.Running || got.Phase != replay.Releasing || c.Handled < 20 || c.Staged != got.Staged || got.Staged < 20 ||
			!got.Order.Is(options.Order) || got.Settings != *options.Settings || time.Since(got.Began) > time.Minute {
			t.Fatalf("%+v", got)
		}
	}
	options = r.options()
	options.Order = nil
	r.completes(messages, options)
	if _, err := Show(t.Context(), options.Transport, id); !errors.Is(err, ErrNoReplay) {
		t.Errorf("it has ended: %v", err)
	}
}

func TestShow_SaysThatAReplayRunsAndLetsItBe(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	const messages = 100
	r.fill(messages)
	r.work()
	options := r.options()
	options.Settings.Rate = 20
	shown := make(chan Unfinished, 1)
	options.Progress = func(_ replay.Phase, c replay.Counts) {
		if c.Handled < 5 || len(shown) > 0 {
			return
		}
		found, err := Show(t.Context(), options.Transport, id)
		if err != nil {
			t.Error(err)
		}
		shown <- found
	}
	r.completes(messages, options)
	if found := <-shown; !found.Running || found.Phase != "" {
		t.Errorf("%+v", found)
	}
}

func TestRun_BeginsNoMoreReplaysThanMayBeUnfinished(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	r.fill(2)
	for n := range mostUnfinished {
		options := r.discards(time.Hour)
		options.ID = fmt.Sprintf("r-0000000%d", n)
		options.Order.Selection.Where = "" // the first one takes all
		if n > 0 {
			r.fill(2)
		}
		if result, err := Run(t.Context(), options); err != nil || result.Phase != replay.Held {
			t.Fatalf("%d: %+v, %v", n, result, err)
		}
	}
	all, err := List(t.Context(), r.options().Transport)
	if err != nil || len(all) != mostUnfinished || all[0].ID != "r-00000000" || all[7].ID != "r-00000007" {
		t.Fatalf("%+v, %v", all, err)
	}
	r.fill(2)
	if _, err := Run(t.Context(), r.options()); !errors.Is(err, ErrTooMany) {
		t.Errorf("a ninth one: %v", err)
	}
	if left := r.left(); len(left) != 2 {
		t.Errorf("it took messages: %v", left)
	}
	options := r.discards(time.Hour)
	options.ID, options.Order, options.Final = "r-00000003", nil, true
	if result, err := Run(t.Context(), options); err != nil || result.Phase != replay.Completed {
		t.Errorf("one of the eight goes on: %+v, %v", result, err)
	}
}
