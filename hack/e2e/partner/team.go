package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"

	"redrive.dev/redrive/hack/e2e/ledger"
	"redrive.dev/redrive/handler"
)

// Variables that tell a team's handler whom to report to.
const (
	ledgerVariable = "E2E_LEDGER"
	shopVariable   = "E2E_SHOP"
)

// atOnce is how many messages a process takes.
const atOnce = 4

// team is the partner as the handler of one shop, in an image of the shop's own.
type team struct {
	*partner

	shop string
}

func newTeam() team {
	return team{&partner{ledger: ledger.NewReporter(os.Getenv(ledgerVariable))}, os.Getenv(shopVariable)}
}

// Handle implements handler.Handler.
func (t team) Handle(ctx context.Context, m *handler.Message) error {
	header := http.Header{}
	for name, value := range m.Headers {
		if text, ok := value.(string); ok {
			header.Set(name, text)
		}
	}
	status, err := t.answer(ctx, t.shop, header, ledger.Entry{Message: m.ID, Attempt: int(m.Attempt), Queue: m.Queue})
	if err == nil && status != http.StatusOK {
		return refusal(status)
	}
	return err
}

// refusal is a status that is not success.
type refusal int

func (r refusal) Error() string { return "answered with " + strconv.Itoa(int(r)) }

// Class implements handler.ClassError.
func (r refusal) Class() string { return "Refusal" }

// Status implements handler.StatusError.
func (r refusal) Status() int { return int(r) }

// command handles the one message that the environment tells of.
func command(ctx context.Context, h handler.Handler) error {
	attempt, err := strconv.ParseInt(os.Getenv("REDRIVE_ATTEMPT"), 10, 64)
	if err != nil {
		return fmt.Errorf("REDRIVE_ATTEMPT: %w", err)
	}
	m := &handler.Message{ID: os.Getenv("REDRIVE_MESSAGE_ID"), Queue: os.Getenv("REDRIVE_QUEUE"), Attempt: attempt}
	if err := json.Unmarshal([]byte(os.Getenv("REDRIVE_HEADERS")), &m.Headers); err != nil {
		return fmt.Errorf("REDRIVE_HEADERS: %w", err)
	}
	if err = h.Handle(ctx, m); err == nil {
		return nil
	}
	failure := handler.FailureOf(err)
	result := map[string]any{"outcome": "failure", "class": failure.Class, "status": failure.Status}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return err
}
