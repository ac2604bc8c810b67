package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
)

// execute compares with a program that starts the command for each message, with the body as its standard input, for it has to get the
// message somehow. It takes no notice of what the command writes.
func execute(ctx context.Context, b *bench) ([]result, error) {
	const command, concurrency = "/bin/true", 4
	scene := play{concurrency: concurrency, handler: v1alpha1.Handler{Exec: &v1alpha1.ExecHandler{Command: []string{command}}}}
	handle := func(d *amqp091.Delivery) error {
		run := exec.Command(command) //nolint:noctx // as simple as it gets
		run.Stdin = bytes.NewReader(d.Body)
		if err := run.Run(); err != nil {
			return fmt.Errorf("run: %w", err)
		}
		return nil
	}
	return versus(ctx, b, &contest{
		name: "exec: /bin/true, concurrency 4", messages: b.messages / 20,
		bare: side{play: scene, run: bare(2*concurrency, concurrency, alike(handle))},
		ours: side{play: scene, run: ours(nil)},
	}, 0.90)
}
