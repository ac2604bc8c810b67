// Command example runs an example of docs/examples from its folder, on the RabbitMQ of AMQP_URL and MANAGEMENT_URL:
//
//	go run ../../../hack/example [-serve "COMMAND" -port PORT] [PROGRAM ARGS…]
//
// It makes a vhost of its own, starts COMMAND, which listens on a free port in place of that of redrive.yaml, runs `redrive run -f
// redrive.yaml` (with PROGRAM as the worker, where one is given), publishes what messages.json holds, and waits until each message has
// ended as that file says. The vhost is removed at the end.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// patience is more than any example takes, the compiler included.
const patience = 5 * time.Minute

// script is the content of messages.json.
type script struct {
	Exchange string `json:"exchange"`
	// FailureQueue is where messages end that fail.
	FailureQueue string    `json:"failureQueue"`
	Messages     []message `json:"messages"`
}

type message struct {
	RoutingKey string            `json:"routingKey"`
	Type       string            `json:"type"`
	Headers    map[string]string `json:"headers"`
	// Body is published as JSON.
	Body json.RawMessage `json:"body"`
	// Fails is true for a message that is to end in the failure queue.
	Fails bool `json:"fails"`
}

// failing is how many messages are to fail.
func (s *script) failing() (n int) {
	for _, m := range s.Messages {
		if m.Fails {
			n++
		}
	}
	return n
}

func main() {
	serve := flag.String("serve", "", "command that runs beside, its words separated by blanks")
	port := flag.String("port", "", "port in redrive.yaml on which that command listens; it finds the one to take in PORT")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := play(ctx, strings.Fields(*serve), *port, flag.Args())
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "example:", err)
		os.Exit(1)
	}
}

func play(ctx context.Context, serve []string, port string, program []string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var all script
	data, err := os.ReadFile("messages.json")
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil {
		return fmt.Errorf("messages.json: %w", err)
	}
	place, err := newPlace(ctx, "redrive-example-"+strings.ToLower(rand.Text()[:6]))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, place.leave(context.WithoutCancel(ctx))) }()

	crew, err := newCrew(place)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, crew.stop(), os.RemoveAll(crew.folder)) }()
	if port != "" {
		if err := crew.move(port); err != nil {
			return err
		}
	}
	if len(serve) > 0 {
		if err := crew.start(serve, false); err != nil {
			return err
		}
	}
	if err := crew.redrive(ctx, program); err != nil {
		return err
	}
	if err := place.publish(ctx, &all, crew.trouble); err != nil {
		return err
	}
	if err := place.account(ctx, &all, crew.trouble); err != nil {
		return err
	}
	if err := crew.stop(); err != nil { // what follows is to be the last that is printed
		return err
	}
	return place.tell(&all)
}
