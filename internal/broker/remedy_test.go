package broker_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/broker"
)

// It said neither what was too large nor what to do, and one queue of somebody else makes the whole vhost unreadable.
func TestObserve_SaysHowToFindWhatMakesAListUnreadable(t *testing.T) {
	large, many := strings.Repeat("x", 70_000), strings.Repeat(",", 60_000)
	for path, command := range map[string]string{
		"/api/queues":    "rabbitmqctl list_queues -p 'a/b c' name arguments",
		"/api/exchanges": "rabbitmqctl list_exchanges -p 'a/b c' name arguments",
		"/api/bindings":  "rabbitmqctl list_bindings -p 'a/b c' source_name destination_name arguments",
	} {
		row := `{"arguments":{"x-note":%q},"name":"evil","source":"evil","destination":"evil"}`
		for name, list := range map[string]string{
			"a row":        "[" + fmt.Sprintf(row, large) + "]",
			"all together": "[" + strings.Repeat(fmt.Sprintf(row, many)+",", 30) + "{}]",
		} {
			t.Run(path+" "+name, func(t *testing.T) {
				client, _ := against(t, "", body(path, "application/json", list))
				_, err := client.Observe(t.Context())
				if !errors.Is(err, broker.ErrGarbled) || !strings.Contains(fmt.Sprint(err), command+", and ") {
					t.Errorf("want it to say %q, got %v", command, err)
				}
			})
		}
	}
}
