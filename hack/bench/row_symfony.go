package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	public "redrive.dev/redrive/handler"
)

// symfony compares with one consumer process of Symfony Messenger, on the queue type that it is faster on: first with a handler that does
// nothing, then with one that fails once.
func symfony(ctx context.Context, b *bench) ([]result, error) {
	packages := []string{"php-cli", "php-amqp", "php-symfony-messenger", "php-symfony-amqp-messenger", "php-symfony-event-dispatcher"}
	if err := exec.CommandContext(ctx, "dpkg", append([]string{"--status"}, packages...)...).Run(); err != nil { //nolint:gosec // ours
		if err := install(ctx, packages...); err != nil {
			return nil, err
		}
	}
	process := v1alpha1.Handler{Process: &v1alpha1.ProcessHandler{Command: echoing("PHP", "php"), Processes: new(int32(1))}}
	var results []result
	for _, c := range []struct {
		name    string
		retries int
		scene   play
		run     public.Func
		atLeast float64
	}{
		{"no-op", 0, play{concurrency: 128, handler: inProcess()}, nothing, 4},
		{"no-op, ours with one PHP process too", 0, play{concurrency: 1, handler: process}, nil, 0},
		{"one retry after 1 s", 1, play{concurrency: 128, handler: inProcess(), delays: []time.Duration{laneDelay}}, failOnce, 5},
	} {
		queueType, err := b.better(ctx, c.retries)
		if err != nil {
			return nil, err
		}
		compared, err := versus(ctx, b, &contest{
			name: fmt.Sprintf("Symfony Messenger, one consumer process, %s queue: %s", queueType, c.name),
			bare: side{messages: b.messages / (8 + 8*c.retries), play: c.scene, unfilled: true, run: messenger(queueType, c.retries)},
			ours: side{messages: b.messages / 2, play: c.scene, run: ours(c.run)},
		}, c.atLeast)
		if err != nil {
			return nil, err
		}
		results = append(results, compared...)
	}
	return results, nil
}

// better is the type of queue that Symfony Messenger is faster on.
func (b *bench) better(ctx context.Context, retries int) (queueType string, err error) {
	best := 0.0
	for _, candidate := range []string{"quorum", "classic"} {
		m, err := b.alone(ctx, &side{
			play: play{concurrency: 1, handler: inProcess()}, unfilled: true, messages: b.messages / 20, run: messenger(candidate, retries),
		})
		if err != nil {
			return "", err
		}
		b.tellf("Symfony Messenger on a %s queue: %.0f/s", candidate, m.rate)
		if m.rate > best {
			best, queueType = m.rate, candidate
		}
	}
	return queueType, nil
}

// messenger is one consumer process on queues of a type.
func messenger(queueType string, retries int) runner {
	return func(ctx context.Context, s *stage, m *meter) error {
		url := s.url() + "/messages"                                                         // the part after the vhost is the exchange, which the program names anew
		php := exec.CommandContext(ctx, "php", "hack/bench/php/symfony.php", url, queueType, //nolint:gosec // ours
			strconv.FormatInt(m.total, 10), strconv.Itoa(retries))
		output, err := php.CombinedOutput()
		if err != nil {
			return fmt.Errorf("symfony: %w: %s", err, output)
		}
		var told struct {
			Rate float64 `json:"rate"`
		}
		if err := json.Unmarshal(output, &told); err != nil || told.Rate <= 0 {
			return errors.Join(fmt.Errorf("symfony: %q", output), err)
		}
		m.tell(told.Rate)
		return nil
	}
}
