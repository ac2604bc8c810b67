package replayer

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/replay"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// RabbitMQ ends a channel that keeps a message for 30 minutes, and a replay waits for an hour: here 5 seconds, and 20.
func TestReplay_EndsThoughItWaitsLongerThanRabbitMQ(t *testing.T) {
	testtransport.Long(t)
	own := testbroker.Private(t)
	own.SetEnvironment(t, "consumer_timeout", 5_000)
	own.SetEnvironment(t, "channel_tick_interval", 1_000)
	const messages, waits = 20, 20 * time.Second
	tests := map[string]struct {
		change func(*Options)
		phase  replay.Phase
	}{
		"outcomes, though its sessions end": {func(o *Options) { o.SettleWithin, o.renewEvery = waits, time.Hour }, replay.Completed},
		"outcomes":                          {func(o *Options) { o.SettleWithin, o.renewEvery = waits, time.Second }, replay.Completed},
		"a canary, though its sessions end": {func(o *Options) { o.Settings.Canary, o.Settings.CanaryWithin, o.renewEvery = 1, waits, time.Hour }, replay.Stopped},
		"a canary":                          {func(o *Options) { o.Settings.Canary, o.Settings.CanaryWithin, o.renewEvery = 1, waits, time.Second }, replay.Stopped},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, own)
			r.fill(messages)
			time.Sleep(youngFor)
			options := r.options()
			tt.change(&options)
			var log bytes.Buffer
			options.Log = slog.New(slog.NewTextHandler(&log, nil))
			ctx, cancel := context.WithTimeout(t.Context(), 10*waits)
			defer cancel()
			result, err := Run(ctx, options)
			if err != nil || result.Phase != tt.phase {
				t.Fatalf("%+v, %v", result, err)
			}
			if lost := strings.Count(log.String(), "with a new session"); (lost == 0) != (options.renewEvery < waits) {
				t.Errorf("%d of its sessions have ended", lost)
			}
		})
	}
}
