package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
)

// processes is how many of them handle messages, on either side: one for each core of a small machine.
const processes = 2

// echo compares with a program that writes the same frames to the same processes and reads their answers, one process for each of its
// goroutines.
func echo(language, interpreter string) func(ctx context.Context, b *bench) ([]result, error) {
	return func(ctx context.Context, b *bench) ([]result, error) {
		if err := need(ctx, interpreter, interpreter+"-cli"); err != nil {
			return nil, err
		}
		command := echoing(language, interpreter)
		scene := play{concurrency: processes, handler: v1alpha1.Handler{Process: &v1alpha1.ProcessHandler{Command: command}}}
		return versus(ctx, b, &contest{
			name: fmt.Sprintf("process: echo in %s, %d processes", language, processes), messages: b.messages / 4,
			bare: side{play: scene, run: bare(2*processes, processes, bareProcess(command))},
			ours: side{play: scene, run: ours(nil)},
		}, 0.85)
	}
}

// echoing is the command of a process that does nothing, on the client of its language.
func echoing(language, interpreter string) []string {
	extension := map[string]string{"Python": "py", "PHP": "php"}[language]
	return []string{interpreter, "internal/handler/testdata/clients/echo." + extension, "docs/examples/clients/" + strings.ToLower(language)}
}

// need makes sure of a program. Where it is missing and this is Debian's root, it is installed.
func need(ctx context.Context, program string, packages ...string) error {
	if _, err := exec.LookPath(program); err == nil {
		return nil
	}
	return install(ctx, packages...)
}

func install(ctx context.Context, packages ...string) error {
	arguments := append([]string{"install", "--quiet", "--yes", "--no-install-recommends"}, packages...)
	if output, err := exec.CommandContext(ctx, "apt-get", arguments...).CombinedOutput(); err != nil { //nolint:gosec // ours
		return fmt.Errorf("install these packages first: %v (apt-get: %w: %s)", packages, err, output)
	}
	return nil
}

// frame is what the process protocol has of a message.
type frame struct {
	Type     string    `json:"type"`
	ID       string    `json:"id"`
	Deadline time.Time `json:"deadline"`
	Message  about     `json:"message"`
	Body     string    `json:"body"`
}

type about struct {
	ID          string         `json:"id"`
	Attempt     int            `json:"attempt"`
	Queue       string         `json:"queue"`
	Exchange    string         `json:"exchange"`
	RoutingKey  string         `json:"routingKey"`
	Type        string         `json:"type"`
	ContentType string         `json:"contentType"`
	Timestamp   time.Time      `json:"timestamp"`
	Headers     map[string]any `json:"headers"`
}

// bareProcess starts a process for each goroutine, which hands it one message after the other.
func bareProcess(command []string) func() (bareHandler, error) {
	return func() (h bareHandler, err error) {
		process := exec.Command(command[0], command[1:]...) //nolint:gosec,noctx // ours; it ends with its standard input
		stdin, err := process.StdinPipe()
		if err != nil {
			return h, fmt.Errorf("stdin: %w", err)
		}
		stdout, err := process.StdoutPipe()
		if err != nil {
			return h, fmt.Errorf("stdout: %w", err)
		}
		if err := process.Start(); err != nil {
			return h, fmt.Errorf("start: %w", err)
		}
		h.end = func() error { return errors.Join(stdin.Close(), process.Wait()) }
		lines := bufio.NewReader(stdout)
		if _, err := lines.ReadBytes('\n'); err != nil {
			return h, errors.Join(fmt.Errorf("hello: %w", err), h.end())
		}
		next := 0
		h.handle = func(d *amqp091.Delivery) error {
			next++
			return exchangeFrames(stdin, lines, strconv.Itoa(next), d)
		}
		return h, nil
	}
}

func exchangeFrames(stdin io.Writer, lines *bufio.Reader, id string, d *amqp091.Delivery) error {
	line, err := json.Marshal(frame{
		Type: "message", ID: id, Deadline: time.Now().Add(30 * time.Second), Body: string(d.Body),
		Message: about{
			ID: d.MessageId, Attempt: 1, Queue: key, Exchange: d.Exchange, RoutingKey: d.RoutingKey, Type: d.Type,
			ContentType: d.ContentType, Timestamp: d.Timestamp, Headers: d.Headers,
		},
	})
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if _, err := stdin.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if line, err = lines.ReadBytes('\n'); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	var answer struct {
		ID      string `json:"id"`
		Outcome string `json:"outcome"`
	}
	if err := json.Unmarshal(line, &answer); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	if answer.ID != id || answer.Outcome != "ack" {
		return fmt.Errorf("answer %q", line)
	}
	return nil
}
