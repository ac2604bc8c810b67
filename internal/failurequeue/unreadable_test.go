package failurequeue

import (
	"slices"
	"strings"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/testtransport"
)

// Workers reject messages whose headers the client library cannot read: they are all in the failure queue.
func TestScan_ShowsWhatIsBesideAMessageWithUnreadableHeaders(t *testing.T) {
	var deep any = "x"
	for range 33 {
		deep = []any{deep}
	}
	for name, headers := range map[string]amqp091.Table{
		"nested": {"h": deep}, "many": {"h": make([]any, 8193)}, "longer than a frame": {"h": strings.Repeat("x", 130_900)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if _, err := r.amqp.Channel().QueueDeclare("expiring", true, false, false, false, amqp091.Table{
				"x-message-ttl": int32(0), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": failed,
			}); err != nil {
				t.Fatal(err)
			}
			r.fill(0, 1000, 1000)
			r.amqp.Publish("", "expiring", amqp091.Publishing{MessageId: "poison", DeliveryMode: amqp091.Persistent, Headers: headers, Body: []byte("body")})
			testtransport.Eventually(t, "the message to expire", func() bool { return r.amqp.Ready(failed) == 1001 })
			r.fill(1000, 2000, 1000)
			all := slices.Concat(want(0, 1000), []string{"poison"}, want(1000, 2000))
			for range 3 {
				var shown []string
				_, err := Scan(t.Context(), r.options, func(m message.Message) error {
					shown = append(shown, m.MessageID)
					if m.Unreadable != (m.MessageID == "poison") || m.Unreadable && (string(m.Body) != "body" || len(m.Headers) > 0 || m.RoutingKey != failed) {
						t.Errorf("%s: unreadable %t, %d headers, %d bytes", m.MessageID, m.Unreadable, len(m.Headers), len(m.Body))
					}
					return nil
				})
				if err != nil || !slices.Equal(shown, all) {
					t.Fatalf("%d messages, %v", len(shown), err)
				}
			}
		})
	}
}
