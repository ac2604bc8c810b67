package failurequeue

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

func TestElsewhere_BelievesNoCountThatIsTooOld(t *testing.T) {
	state := func(messages *int64, unacked, tick int64) topology.QueueState {
		return topology.QueueState{
			Queue: topology.Queue{Name: "q"}, Evidence: topology.Evidence{Messages: messages, Tick: tick}, Unacked: unacked,
		}
	}
	for name, tt := range map[string]struct {
		ready      int64
		first, now topology.QueueState
		late       bool
		want       string
	}{
		"all are there":                          {300, state(new(int64(300)), 0, 1), state(new(int64(300)), 0, 1), false, ""},
		"all are back":                           {300, state(new(int64(300)), 50, 1), state(new(int64(300)), 50, 1), false, ""},
		"others have some":                       {250, state(new(int64(300)), 50, 1), state(new(int64(300)), 50, 2), true, "250 of the 300 messages"},
		"others have some that were not counted": {250, state(new(int64(300)), 0, 1), state(new(int64(300)), 0, 1), true, "250 of the 300 messages"},
		"more have come":                         {310, state(new(int64(300)), 0, 1), state(new(int64(300)), 0, 1), false, "since RabbitMQ counted them"},
		"more have come, and were counted":       {310, state(new(int64(300)), 0, 1), state(new(int64(305)), 0, 2), false, ""},
		"more have come than others have":        {310, state(new(int64(300)), 0, 1), state(new(int64(305)), 50, 2), false, "others have 50 messages"},
		"RabbitMQ counts seldom":                 {310, state(new(int64(300)), 0, 1), state(new(int64(300)), 0, 1), true, ""},
		"RabbitMQ does not count":                {310, state(nil, 0, 0), state(nil, 0, 0), true, "does not tell how many"},
	} {
		if got := elsewhere(tt.ready, &tt.first, &tt.now, tt.late); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// asks has the scan ask the management API.
func (r *rig) asks() {
	r.t.Helper()
	login, err := credentials.FromURLs(r.url, r.broker.ManagementURL)
	if err != nil {
		r.t.Fatal(err)
	}
	end, err := login.Management()
	if err != nil {
		r.t.Fatal(err)
	}
	port, err := broker.New(broker.Config{ManagementURL: end.URL, Username: end.Username, Password: end.Password(), VHost: r.options.Target.VHost})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(port.Close)
	r.options.State = func(ctx context.Context) (topology.QueueState, error) { return port.Queue(ctx, failed) }
}

func TestScan_SaysThatOthersHaveMessages(t *testing.T) {
	r := newRig(t)
	r.asks()
	r.fill(0, 300, 10)
	var told []string
	r.options.Tell = func(text string) { told = append(told, text) }
	if ids, err := r.scan(t.Context()); err != nil || len(ids) != 300 {
		t.Fatalf("%d messages, %v", len(ids), err)
	}
	for range 50 {
		if _, ok, err := r.amqp.Channel().Get(failed, false); !ok || err != nil {
			t.Fatalf("%t, %v", ok, err)
		}
	}
	told = nil
	ids, err := r.scan(t.Context())
	if !errors.Is(err, ErrNotWhole) || !strings.Contains(err.Error(), "250 of the 300 messages") || !slices.Equal(ids, want(50, 300)) {
		t.Errorf("%d messages, %v", len(ids), err)
	}
	if len(told) != 1 || !strings.Contains(told[0], "waiting up to 20s") {
		t.Errorf("told %q", told)
	}
}

func TestScan_WaitsForWhatComesBackAfterAKill(t *testing.T) {
	own := testbroker.Private(t)
	r := newRigOn(t, own)
	r.asks()
	const messages = 5000
	r.fill(0, messages, 2000)
	if ids, err := r.scan(t.Context()); err != nil || len(ids) != messages {
		t.Fatalf("%d messages, %v", len(ids), err)
	}
	n := 0
	_, err := Scan(t.Context(), r.options, func(message.Message) error {
		if n++; n != 1500 {
			return nil
		}
		return errors.Join(own.Kill(t.Context()), own.Resume(t.Context()))
	})
	if err == nil {
		t.Error("the first look has not noticed that the broker was killed")
	}
	testtransport.Eventually(t, "the broker to answer", func() bool {
		var ids []string
		ids, err = r.scan(t.Context())
		if err == nil && len(ids) != messages {
			t.Fatalf("%d messages are told to be all of %d", len(ids), messages)
		}
		return err == nil
	})
}

// A look that is killed leaves what it had, and what was on its way.
func TestScan_WaitsForWhatAKilledLookHad(t *testing.T) {
	r := newRig(t)
	r.asks()
	const messages = 20_000
	r.fill(0, messages, 500)
	for range 3 {
		proxy := testtransport.NewProxy(t, r.options.Target.Address)
		first := r.options
		first.Target.Address = proxy.Address
		n := 0
		_, err := Scan(t.Context(), first, func(message.Message) error {
			if n++; n == 15_000 {
				proxy.Cut()
			}
			return nil
		})
		if err == nil {
			t.Error("the look has not noticed that its connection is gone")
		}
		for {
			ids, err := r.scan(t.Context())
			if errors.Is(err, ErrLocked) {
				time.Sleep(time.Millisecond)
				continue
			}
			if err != nil || len(ids) != messages {
				t.Errorf("%d messages, %v", len(ids), err)
			}
			break
		}
	}
}
