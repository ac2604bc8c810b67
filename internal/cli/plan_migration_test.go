package cli

import (
	"strings"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/local"
	"redrive.dev/redrive/internal/topology"
)

func TestThePlanShowsTheStepsOfAnExchangeAndWhereMessagesMayBeDoubled(t *testing.T) {
	text := planText([]local.Plan{{Transport: "shop/async", Broker: "rabbit:5672", Summary: local.Summary{Change: 1}, Migrations: []topology.Migration{{
		Queue: "test", Standin: "test.standin", Step: v1alpha1.MigrationDrain,
		Fields:   []topology.FieldChange{{Field: "type", From: "classic", To: "quorum"}},
		Doubling: []topology.Binding{{Source: "shop.events", Destination: "test", RoutingKey: "order.#"}},
	}}}})
	for _, want := range []string{
		"~ queue test  type: classic -> quorum; it is exchanged under way, and no message is lost:\n      Drain: workers empty test, and it is deleted\n      Remake:",
		"Clear: workers empty test.standin, and it is deleted\n      messages that come by shop.events -> test \"order.#\" may be doubled while it moves",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if strings.Contains(text, "Prepare") {
		t.Error("it shows steps that are done")
	}
}
