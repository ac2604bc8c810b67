package cli

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/internal/local"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

func TestPlanText_ShowsStepsConflictsAndWarnings(t *testing.T) {
	t.Parallel()
	three := int64(3)
	plans := []local.Plan{
		{
			Transport: "default/async", Broker: "127.0.0.1:5672", Identity: topology.Identity{Cluster: "rabbit", VHost: "/"},
			Steps: []topology.Step{
				{
					Action: topology.ActionUpdate, Policy: &topology.Policy{Name: "redrive.async:queue:test"},
					Fields: []topology.FieldChange{{Field: "message-ttl", From: 1000, To: 2000}},
				},
				{Action: topology.ActionCreate, Exchange: &topology.Exchange{Name: "async", Type: "direct"}},
				{Action: topology.ActionDelete, Binding: &topology.Binding{Source: "async", Destination: "test", RoutingKey: "old"}},
			},
			RetiredQueues: []local.RetiredQueue{{Queue: "async.fallback.7s", Messages: &three}},
			Conflicts: []topology.Conflict{{
				Object: topology.Ref{Kind: topology.KindQueue, Name: "test"}, Remedy: "delete it once it is empty",
				Fields: []topology.FieldChange{{Field: "type", From: "classic", To: "quorum"}},
			}},
			Warnings: []topology.Finding{{Object: topology.Ref{Kind: topology.KindQueue, Name: "lost"}, Message: "receives nothing"}},
			Unmarked: []string{"exchange/async"},
			Summary:  local.Summary{Add: 1, Change: 1, Remove: 2},
		},
		{Transport: "default/mail", Broker: "127.0.0.1:5672", Identity: topology.Identity{VHost: "mail"}},
	}
	want := `Transport default/async on 127.0.0.1:5672, vhost /
  ~ policy redrive.async:queue:test  message-ttl: 1000 -> 2000
  + exchange async  type=direct
  - binding async -> test "old"
  - queue async.fallback.7s  unbound, and deleted once it is empty; messages in it: 3
  ! conflict: queue "test": type is classic, wanted is quorum; delete it once it is empty
  warning: queue lost: receives nothing
  exists without an owner mark, and is used unchanged: exchange/async
1 to add, 1 to change, 2 to remove.

Transport default/mail on 127.0.0.1:5672, vhost mail
Nothing to do.
`
	if got := planText(plans); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestPlan_ShowsWhatRunWouldDoAndWritesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	code, out, errs := b.command(t, transportYAML+"---\n"+policyYAML, "plan", "-f", "-")
	if code != exitChanges || errs != "" {
		t.Fatalf("exit code %d, stderr %q; want %d and nothing", code, errs, exitChanges)
	}
	for _, want := range []string{
		"+ queue async.fallback.200ms", "x-message-ttl=200", "+ exchange async  type=direct", `+ binding async -> test "test"`, " to add, 0 to change, 0 to remove.",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the plan lacks %q:\n%s", want, out)
		}
	}
	if n := b.writes.Load(); n != 0 {
		t.Errorf("plan made %d writes", n)
	}
}

func TestPlan_FindsNothingAfterRunAndThenTheDrift(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := folder(t, map[string]string{"all.yaml": transportYAML + "---\n" + policyYAML})
	run := b.start(t, "run", "-f", dir)
	testtransport.Eventually(t, "the topology", func() bool { return strings.Contains(run.log.String(), "as it should be") })
	run.signals <- nil
	if code := <-run.code; code != exitOK {
		t.Fatalf("run ended with %d: %s", code, run.log.String())
	}
	if code, out, errs := b.command(t, "", "plan", "-f", dir); code != exitOK || !strings.Contains(out, "Nothing to do.") {
		t.Errorf("exit code %d, want 0 and nothing to do:\n%s%s", code, out, errs)
	}

	channel := testtransport.Connect(t, b.direct).Channel()
	if err := channel.QueueUnbind("test", "test", "async", map[string]any{topology.OwnerArgument: "local/default/async"}); err != nil {
		t.Fatal(err)
	}
	b.writes.Store(0)
	code, out, _ := b.command(t, "", "plan", "-f", dir, "-o", "json")
	var document struct {
		Transports []local.Plan `json:"transports"`
	}
	if err := json.Unmarshal([]byte(out), &document); err != nil {
		t.Fatal(err)
	}
	if code != exitChanges || len(document.Transports) != 1 || len(document.Transports[0].Steps) != 1 {
		t.Fatalf("exit code %d, want 2 and the binding alone:\n%s", code, out)
	}
	if got, want := document.Transports[0].Steps[0].String(), `+ binding async -> test "test"`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	_, out, _ = b.command(t, "", "plan", "-f", dir, "-o", "yaml")
	if err := yaml.Unmarshal([]byte(out), &document); err != nil || document.Transports[0].Summary.Add != 1 {
		t.Errorf("as YAML: %v\n%s", err, out)
	}
	if n := b.writes.Load(); n != 0 {
		t.Errorf("plan made %d writes", n)
	}
}

func TestPlan_RefusesTwoTransportsThatWouldOwnOneQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	second := strings.Replace(transportYAML, "metadata: {name: async}", "metadata: {name: again}", 1)
	code, out, errs := b.command(t, transportYAML+"---\n"+second+"---\n"+policyYAML, "plan", "-f", "-", "-o", "short")
	if code != exitError || !strings.Contains(errs, "stand in the way") {
		t.Errorf("exit code %d, stderr %q, want 1 and why", code, errs)
	}
	for _, want := range []string{
		"default/again: ", " to add, 0 to change, 0 to remove, ",
		"! problem: queue test: Transport default/again makes it too, and only one of them can own it",
		"! problem: exchange async.fallback: Transport default/async makes it too",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the plan lacks %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "+ ") {
		t.Errorf("the short form lists steps:\n%s", out)
	}
}

func TestPlan_LetsTwoTransportsShareTheExchangeOfProducers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	second := strings.NewReplacer("metadata: {name: async}", "metadata: {name: again}", "type: Direct, unroutedTo: test}", "type: Direct}\n  prefix: again",
		"{name: test, bindingKeys: [test]}", "{name: more, bindingKeys: [more]}").Replace(transportYAML)
	code, out, errs := b.command(t, transportYAML+"---\n"+second+"---\n"+policyYAML, "plan", "-f", "-")
	if code != exitChanges || !strings.Contains(out, "warning: exchange async: Transport default/async has the same exchange") {
		t.Errorf("exit code %d, stderr %q, want 2 and a warning:\n%s", code, errs, out)
	}
}

func TestPlan_WarnsOfDelaysWithoutALaneOfTheirOwn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var delays []string
	for n := range 32 {
		delays = append(delays, strconv.Itoa(1+n*n)+"s")
	}
	policy := strings.NewReplacer("maxRetries: 2", "maxRetries: 40", "{type: Constant, delay: 200ms}", "{type: Explicit, delays: ["+strings.Join(delays, ", ")+"]}").
		Replace(policyYAML)
	_, out, _ := b.command(t, transportYAML+"---\n"+policy, "plan", "-f", "-")
	if !strings.Contains(out, "delays of the retry policies have no fallback queue of their own") {
		t.Errorf("the plan lacks the warning:\n%s", out)
	}
}

func TestPlan_PrintsAConflictAndFails(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	channel := testtransport.Connect(t, b.direct).Channel()
	if _, err := channel.QueueDeclare("test", true, false, false, false, map[string]any{"x-queue-type": "classic"}); err != nil {
		t.Fatal(err)
	}
	code, out, errs := b.command(t, transportYAML+"---\n"+policyYAML, "plan", "-f", "-")
	if code != exitError || !strings.Contains(out, `! conflict: queue "test": type is classic, wanted is quorum`) || errs == "" {
		t.Errorf("exit code %d, stderr %q, want 1 and the conflict:\n%s", code, errs, out)
	}
}

func TestPlan_KeepsTheQuarantineQueueOfAQueueInConflict(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.foreign(t, "test")
	dir := folder(t, map[string]string{"transport.yaml": transportYAML, "policy.yaml": policyYAML})
	b.converge(t, dir)
	put(t, dir, "transport.yaml", strings.Replace(transportYAML, "{name: test, ", "{name: test, ordering: {type: Strict}, ", 1))
	code, out, errs := b.command(t, "", "plan", "-f", dir)
	if code != exitError || !strings.Contains(out, `! conflict: queue "test": `) || !strings.Contains(out, "x-single-active-consumer is false") {
		t.Errorf("exit code %d, stderr %q, want 1 and the conflict:\n%s", code, errs, out)
	}
	if strings.Contains(out, "test.quarantine") || strings.Contains(out, "to remove") && !strings.Contains(out, " 0 to remove") {
		t.Errorf("something is to be removed:\n%s", out)
	}
	put(t, dir, "transport.yaml", strings.Replace(strings.Replace(transportYAML, "{name: test, ", "{name: other, ", 1), ", unroutedTo: test", "", 1))
	if _, out, errs := b.command(t, "", "plan", "-f", dir); !strings.Contains(out, "- queue test.quarantine") {
		t.Errorf("%s, want the quarantine queue to go with its work queue:\n%s", errs, out)
	}
}

func TestPlan_KeepsAQueueThatOneInConflictMayReplace(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := folder(t, map[string]string{"transport.yaml": transportYAML, "policy.yaml": policyYAML})
	b.converge(t, dir)
	channel := testtransport.Connect(t, b.direct).Channel()
	if _, err := channel.QueueDeclare("other", true, false, false, false, map[string]any{"x-queue-type": "classic"}); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "transport.yaml", strings.Replace(strings.Replace(transportYAML, "{name: test, ", "{name: other, ", 1), ", unroutedTo: test", "", 1))
	_, out, errs := b.command(t, "", "plan", "-f", dir)
	if !strings.Contains(out, "queue test: it is not wanted any more, and stays for now") || strings.Contains(out, "- queue test  ") || strings.Contains(out, "- binding async -> test") {
		t.Errorf("%s, want test to stay, and to be told so:\n%s", errs, out)
	}
	if _, err := channel.QueueDelete("other", false, false, false); err != nil {
		t.Fatal(err)
	}
	if _, out, errs := b.command(t, "", "plan", "-f", dir); !strings.Contains(out, "- queue test  ") {
		t.Errorf("%s, want test to go when the other one can take its place:\n%s", errs, out)
	}
}

// Nobody but a Transport's status knows what was adopted, and "run" has none: it takes nothing from others when it starts, and the plan says so.
func TestPlan_KeepsAQueueThatOthersHaveBound(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := folder(t, map[string]string{"transport.yaml": transportYAML, "policy.yaml": policyYAML})
	b.converge(t, dir)
	broker := testtransport.Connect(t, b.direct)
	channel := broker.Channel()
	if err := errors.Join(
		channel.ExchangeDeclare("theirs", "fanout", true, false, false, false, nil), channel.QueueBind("test", "", "theirs", false, nil),
	); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "transport.yaml", strings.Replace(strings.Replace(transportYAML, "{name: test, ", "{name: other, ", 1), ", unroutedTo: test", "", 1))
	const told = "queue test: it carries this Transport's mark, is not in spec.queues, and others have bound it"
	_, out, errs := b.command(t, "", "plan", "-f", dir)
	if !strings.Contains(out, "warning: "+told) || strings.Contains(out, "- queue test  ") || !strings.Contains(out, "- queue test.quarantine") {
		t.Errorf("%s, want test to stay, and to be told so:\n%s", errs, out)
	}
	run := b.start(t, "run", "-f", dir)
	testtransport.Eventually(t, "the topology", func() bool { return strings.Contains(run.log.String(), "as it should be") })
	broker.Publish("theirs", "", amqp091.Publishing{MessageId: "theirs"})
	if ready := broker.Ready("test"); ready != 1 || !strings.Contains(run.log.String(), "it carries this Transport's mark") {
		t.Errorf("%d messages in the queue, and the log says:\n%s", ready, run.log.String())
	}
	run.signals <- nil
	<-run.code
}

// converge runs what is in a folder until the broker has all of it.
func (b *bench) converge(t *testing.T, dir string) {
	t.Helper()
	run := b.start(t, "run", "-f", dir)
	testtransport.Eventually(t, "the topology", func() bool { return strings.Contains(run.log.String(), "as it should be") })
	run.signals <- nil
	if code := <-run.code; code != exitOK {
		t.Fatalf("run ended with %d: %s", code, run.log.String())
	}
}

// foreign makes a queue as somebody else would: it has what a work queue of ours has, but no owner mark.
func (b *bench) foreign(t *testing.T, queue string) {
	t.Helper()
	if _, err := testtransport.Connect(t, b.direct).Channel().QueueDeclare(queue, true, false, false, false, map[string]any{
		"x-queue-type": "quorum", "x-dead-letter-exchange": "async.failed", "x-dead-letter-strategy": "at-least-once",
		"x-overflow": "reject-publish",
	}); err != nil {
		t.Fatal(err)
	}
}

func TestPlan_ShowsTheStepsOfARenaming(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	text := transportYAML
	dir := folder(t, map[string]string{"transport.yaml": text, "policy.yaml": policyYAML})
	run := b.start(t, "run", "-f", dir)
	testtransport.Eventually(t, "the topology", func() bool { return strings.Contains(run.log.String(), "as it should be") })
	run.signals <- nil
	<-run.code
	renamed := strings.Replace(strings.Replace(text, "{name: test, ", "{name: orders, previousNames: [test], ", 1), "unroutedTo: test", "unroutedTo: orders", 1)
	put(t, dir, "transport.yaml", renamed)
	code, out, errs := b.command(t, "", "plan", "-f", dir)
	if code != exitChanges || !strings.Contains(out, "~ queue orders; it takes over from test, and no message that comes by an exchange is lost:\n      Recreate: ") ||
		!strings.Contains(out, "Cleanup: workers empty test, and it is deleted") {
		t.Errorf("exit code %d, stderr %q:\n%s", code, errs, out)
	}
}

func TestPlan_IsMadeAsTheClusterThatOwnsTheObjects(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	transport := testtransport.New("http://127.0.0.1:1/messages")
	explicit := testtransport.Explicit(200000000)
	explicit.HandlerAdvice = "" // as below
	testtransport.Declare(t, b.direct, transport, testtransport.Compile(t, transport, explicit))
	text := strings.ReplaceAll(transportYAML, ", unroutedTo: test", "")
	policy := strings.ReplaceAll(policyYAML, "{type: Constant, delay: 200ms}", "{type: Explicit, delays: [200ms]}")
	code, out, errs := b.command(t, text+"---\n"+policy, "plan", "-f", "-")
	if code != exitChanges || strings.Contains(out, "!") || strings.Contains(out, "+ queue") {
		t.Errorf("exit code %d, want 2 and only the policies missing:\n%s%s", code, out, errs)
	}
}

func TestPlan_DrawsThePictureWithoutABroker(t *testing.T) {
	t.Parallel()
	nowhere := &bench{}
	code, out, errs := nowhere.command(t, transportYAML+"---\n"+policyYAML, "plan", "-f", "-", "-o", "mermaid")
	if code != exitOK || !strings.HasPrefix(out, "%% Transport default/async\nflowchart LR\n") || !strings.Contains(out, "async.fallback.200ms") {
		t.Errorf("exit code %d, %s\n%s", code, errs, out)
	}
}

func TestCommands_SayWhatIsWrong(t *testing.T) {
	t.Parallel()
	nowhere := &bench{amqpURL: "amqp://u:s3cret@127.0.0.1:1", management: "http://127.0.0.1:1"}
	good := transportYAML + "---\n" + policyYAML
	tests := map[string]struct {
		stdin string
		args  []string
		want  []string
	}{
		"no file": {"", []string{"plan"}, []string{`required flag(s) "filename" not set`}},
		"a folder that does not exist": {
			"", []string{"run", "-f", "/nowhere/at/all"}, []string{"/nowhere/at/all", "no such file or directory"},
		},
		"a field that does not exist": {
			strings.Replace(good, "type: Direct", "typ: Direct", 1),
			[]string{"plan", "-f", "-"},
			[]string{"stdin:", ": Transport default/async: spec.exchange.typ: unknown field; did you mean type?"},
		},
		"a value that the schema refuses, in the words of the cluster": {
			good + "---\n" + strings.Replace(strings.Replace(policyYAML, "name: partner", "name: other", 1), "200ms", "20ms", 1),
			[]string{"run", "-f", "-"},
			[]string{"stdin:", ": RetryPolicy default/other: ", "spec.backoff.delay", "a delay is between 100ms and 720h"},
		},
		"no Transport": {policyYAML, []string{"plan", "-f", "-"}, []string{"stdin: there is no Transport in it"}},
		"a Transport of another group": {
			strings.Replace(transportYAML, "redrive.dev/v1alpha1", "example.com/v1", 1),
			[]string{"plan", "-f", "-"},
			[]string{"stdin:1: there is no Transport of redrive.dev in it", "write apiVersion: redrive.dev/v1alpha1"},
		},
		"an unknown format": {
			good, []string{"plan", "-f", "-", "-o", "xml"}, []string{"-o xml", "text, short, json, yaml and mermaid"},
		},
		"a broker that does not answer": {
			good,
			[]string{"plan", "-f", "-"},
			[]string{"stdin:1: Transport default/async", "management API at http://127.0.0.1:1", "MANAGEMENT_URL"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			code, out, errs := nowhere.command(t, tt.stdin, tt.args...)
			if code != exitError || strings.Contains(errs+out, "s3cret") {
				t.Errorf("exit code %d, want 1 and no password: %s", code, errs)
			}
			for _, want := range tt.want {
				if !strings.Contains(errs, want) {
					t.Errorf("stderr %q lacks %q", errs, want)
				}
			}
		})
	}
}
