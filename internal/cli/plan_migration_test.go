package cli

import (
	"strings"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/local"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

func TestPlanText_ShowsStepsOfAMigrationAndWhatMayBeDoubled(t *testing.T) {
	t.Parallel()
	text := planText([]local.Plan{{Transport: "shop/async", Broker: "rabbit:5672", Summary: local.Summary{Change: 1}, Migrations: []topology.Migration{{
		Queue: "test", Standin: "test.migrating", Step: v1alpha1.MigrationDrain,
		Fields:   []topology.FieldChange{{Field: "type", From: "classic", To: "quorum"}},
		Doubling: []topology.Binding{{Source: "shop.events", Destination: "test", RoutingKey: "order.#"}},
	}}}})
	for _, want := range []string{
		"~ queue test  type: classic -> quorum; it is migrated online, and no message that comes by an exchange is lost:\n      Drain: workers empty test, and it is deleted\n      Recreate:",
		"Cleanup: workers empty test.migrating, and it is deleted\n      messages that come by shop.events -> test \"order.#\" may be doubled while it moves",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if strings.Contains(text, "Prepare") {
		t.Error("it shows steps that are done")
	}
}

// What comes by an exchange of others may be doubled while a queue is migrated; what comes by the Transport's own is not.
func TestPlan_TellsThatBindingsOfOthersMayDoubleMessages(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if err := testtransport.Connect(t, b.direct).Channel().ExchangeDeclare("shop.events", "topic", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(
		", unroutedTo: test", "", "bindingKeys: [test]", "bindingKeys: [test], bindings: [{exchange: shop.events, keys: ['order.#']}]",
	).Replace(transportYAML)
	dir := folder(t, map[string]string{"transport.yaml": text, "policy.yaml": policyYAML})
	b.converge(t, dir)
	put(t, dir, "transport.yaml", strings.Replace(text, "{name: test, ", "{name: test, type: Classic, ", 1))
	var out string
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(out)
		}
	})
	// The broker shows a while later that the policy of the Transport's exchange applies.
	testtransport.Eventually(t, "the plan to tell of the one binding", func() bool {
		var code int
		var errs string
		code, out, errs = b.command(t, "", "plan", "-f", dir)
		if code != exitChanges || !strings.Contains(out, "~ queue test  type: quorum -> classic; it is migrated online, and no message that comes by an exchange is lost:") {
			t.Fatalf("exit code %d, stderr %q", code, errs)
		}
		const told = "messages that come by shop.events -> test \"order.#\" may be doubled while it moves"
		return strings.Contains(out, told) && strings.Count(out, "may be doubled") == 1
	})
}
