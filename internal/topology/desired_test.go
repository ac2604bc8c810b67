package topology_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/topology"
)

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (UPDATE_GOLDEN=1 writes it again); got:\n%s", path, got)
	}
}

func TestPlan_LeadsFromTheWayOutToTheWayIn(t *testing.T) {
	difference := topology.Diff(desired(t, async()), emptyBroker().Observed, nil)
	golden(t, "async.plan", strings.Join(lines(topology.Plan(difference)), "\n")+"\n")
}

func TestDesired_HasWhatEachSettingAsksFor(t *testing.T) {
	cases := []struct {
		name   string
		change func(*v1alpha1.Transport)
		lines  []string // that the plan of an empty vhost has
		absent string   // that no line of it holds
	}{
		{
			name: "a classic queue has no owner mark and cannot be at-least-once",
			change: func(tr *v1alpha1.Transport) {
				tr.Spec.Queues[1].Type = new(v1alpha1.QueueClassic)
				tr.Spec.Queues[1].SingleActiveConsumer = new(true)
			},
			lines: []string{
				"+ queue test  x-dead-letter-exchange=async.failed, x-queue-type=classic, x-single-active-consumer=true",
			},
			absent: "policy redrive.async:queue:test ",
		},
		{
			name: "limits and the delivery limit stand in one policy with an exact pattern",
			change: func(tr *v1alpha1.Transport) {
				tr.Spec.Queues[1].Name = "a.b+c"
				tr.Spec.Queues[1].Limits = &v1alpha1.Limits{
					MessageTTL: v1alpha1.NewDuration(24 * time.Hour), DropOldestAfter: new(int64(1000)),
				}
			},
			lines: []string{`+ policy redrive.async:queue:a.b+c  pattern=^a\.b\+c$, priority=100, delivery-limit=20, ` +
				"max-length=1000, message-ttl=86400000, overflow=drop-head"},
		},
		{
			name: "limits of a classic queue stand in a policy without a delivery limit",
			change: func(tr *v1alpha1.Transport) {
				tr.Spec.Queues[1].Type = new(v1alpha1.QueueClassic)
				tr.Spec.Queues[1].Limits = &v1alpha1.Limits{DropOldestAfter: new(int64(5))}
			},
			lines: []string{"+ policy redrive.async:queue:test  pattern=^test$, priority=100, max-length=5, overflow=drop-head"},
		},
		{
			name: "a bound on the failure queue drops the oldest",
			change: func(tr *v1alpha1.Transport) {
				tr.Spec.Failure = &v1alpha1.Failure{Queue: new("graveyard"), DropOldestAfter: new(int64(7))}
			},
			lines: []string{
				"+ policy redrive.async:failure:graveyard  pattern=^graveyard$, priority=1000, delivery-limit=2147483647, max-length=7, " +
					"overflow=drop-head",
				"+ queue graveyard  x-queue-type=quorum",
				`+ binding async.failed -> graveyard ""`,
			},
		},
		{
			name: "without an exchange of its own there is no stand-in",
			change: func(tr *v1alpha1.Transport) {
				tr.Spec.Exchange = nil
				tr.Spec.Queues[0].BindingKeys, tr.Spec.Queues[1].BindingKeys = nil, nil
				tr.Spec.Queues[1].Bindings = []v1alpha1.Binding{{Exchange: "shop.events", Keys: []string{"order.#", "item.*"}}}
			},
			absent: "async.alternate",
		},
		{
			name: "a fanout exchange binds every queue once",
			change: func(tr *v1alpha1.Transport) {
				tr.Spec.Exchange.Type = v1alpha1.ExchangeFanout
				tr.Spec.Queues[0].BindingKeys, tr.Spec.Queues[1].BindingKeys = nil, nil
			},
			lines: []string{`+ binding async -> lost ""`, `+ binding async -> test ""`, "+ exchange async  type=fanout"},
		},
		{
			name:   "a prefix names what only we use",
			change: func(tr *v1alpha1.Transport) { tr.Spec.Prefix = new("a:b%") },
			lines: []string{
				"+ queue a:b%.fallback.5s  x-dead-letter-exchange=a:b%.return, x-dead-letter-strategy=at-least-once, " +
					"x-message-ttl=5000, x-overflow=reject-publish, x-queue-type=quorum",
				"+ policy redrive.a%3Ab%25:exchange  pattern=^async$, priority=100, alternate-exchange=a:b%.alternate",
			},
		},
		{
			name:   "without unroutedTo nothing is bound to the unrouted exchange",
			change: func(tr *v1alpha1.Transport) { tr.Spec.Exchange.UnroutedTo = nil },
			lines:  []string{"+ exchange async.unrouted  type=fanout"},
			absent: "async.unrouted -> ",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			steps := lines(topology.Plan(topology.Diff(desired(t, async(c.change)), emptyBroker().Observed, nil)))
			all := strings.Join(steps, "\n") + "\n"
			for _, line := range c.lines {
				if !strings.Contains(all, line+"\n") {
					t.Errorf("no line %q in:\n%s", line, all)
				}
			}
			if c.absent != "" && strings.Contains(all, c.absent) {
				t.Errorf("%q is in:\n%s", c.absent, all)
			}
		})
	}
}

func TestDesired_BindsARepeatedKeyOnce(t *testing.T) {
	want := desired(t, async(func(tr *v1alpha1.Transport) {
		tr.Spec.Queues[1].BindingKeys = []string{"b", "a"}
		tr.Spec.Queues[1].Bindings = []v1alpha1.Binding{{Exchange: "shop.events", Keys: []string{"d", "c"}}}
	}))
	twice := desired(t, async(func(tr *v1alpha1.Transport) {
		tr.Spec.Queues[1].BindingKeys = []string{"b", "a", "b", "a"}
		tr.Spec.Queues[1].Bindings = []v1alpha1.Binding{{Exchange: "shop.events", Keys: []string{"d", "d", "c"}}}
	}))
	if !reflect.DeepEqual(twice, want) {
		t.Errorf("the bindings are\n%v, want\n%v", twice.Bindings, want.Bindings)
	}
}

func TestDesired_RefusesWhatRabbitMQWouldAndNamesTheField(t *testing.T) {
	long := strings.Repeat("ü", 121) // 242 bytes
	cases := []struct {
		name   string
		change func(*v1alpha1.Transport)
		want   []string
	}{
		{
			"unroutedTo names no queue", func(tr *v1alpha1.Transport) { tr.Spec.Exchange.UnroutedTo = new("nowhere") },
			[]string{`spec.exchange.unroutedTo: "nowhere" is not in spec.queues`},
		},
		{"a worker names no queue", func(tr *v1alpha1.Transport) {
			tr.Spec.Workers = []v1alpha1.Worker{{Name: "w", Queues: []string{"test", "gone"}}}
		}, []string{`spec.workers[0].queues[1]: "gone" is not in spec.queues`}},
		{
			"two queues have one name", func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Name = "lost" },
			[]string{`spec.queues[1].name: "lost" is also the name of spec.queues[0]`},
		},
		{
			"a work queue is named like the failure queue", func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Name = "async.failed" },
			[]string{"spec.queues[1].name: \"async.failed\" is the failure queue"},
		},
		{
			"a work queue is named like a lane", func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Name = "async.fallback.5s" },
			[]string{"spec.queues[1].name: \"async.fallback.5s\": names that begin with"},
		},
		{
			"a work queue is named like the lock of the failure queue", func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Name = "async.failed.lock" },
			[]string{"spec.queues[1].name: \"async.failed.lock\" is the queue of whoever looks at the failure queue: choose another name"},
		},
		{
			"the failure queue is named like its lock", func(tr *v1alpha1.Transport) { tr.Spec.Failure = &v1alpha1.Failure{Queue: new("async.failed.lock")} },
			[]string{"spec.failure.queue: \"async.failed.lock\" is the queue of whoever looks at the failure queue: choose another name"},
		},
		{
			"a work queue is named like that of a replay", func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Name = "async.replay.orders" },
			[]string{"spec.queues[1].name: \"async.replay.orders\": names that begin with \"async.replay.\" belong to the queues of replays"},
		},
		{"the failure queue is named like a lane", func(tr *v1alpha1.Transport) {
			tr.Spec.Failure = &v1alpha1.Failure{Queue: new("async.fallback.x")}
		}, []string{"spec.failure.queue: "}},
		{"the exchange is named like a private one", func(tr *v1alpha1.Transport) {
			tr.Spec.Exchange.Name, tr.Spec.Prefix = "async.return", new("async")
		}, []string{"spec.prefix: two exchanges would have the name \"async.return\""}},
		{
			"names of RabbitMQ", func(tr *v1alpha1.Transport) { tr.Spec.Exchange.Name = "amq.direct" },
			[]string{`spec.exchange.name: "amq.direct": names that begin with "amq."`},
		},
		{
			"composed names are too long", func(tr *v1alpha1.Transport) { tr.Spec.Exchange.Name = long },
			[]string{"spec.exchange.name: the name \"" + long + ".return.alternate\" made from it has 259 bytes"},
		},
		{
			"routing keys are too long", func(tr *v1alpha1.Transport) { tr.Spec.Queues[0].BindingKeys = []string{"a", long + long} },
			[]string{"spec.queues[0].bindingKeys[1]: has 484 bytes; RabbitMQ allows 255"},
		},
		{
			"keys without an exchange", func(tr *v1alpha1.Transport) { tr.Spec.Exchange = nil },
			[]string{"spec.queues[0].bindingKeys: the Transport has no exchange", "spec.queues[1].bindingKeys: "},
		},
		{
			"keys on a fanout exchange", func(tr *v1alpha1.Transport) { tr.Spec.Exchange.Type = v1alpha1.ExchangeFanout },
			[]string{"spec.queues[0].bindingKeys: a Fanout exchange", "spec.queues[1].bindingKeys: "},
		},
		{
			"control characters", func(tr *v1alpha1.Transport) { tr.Spec.Queues[0].BindingKeys = []string{"a\nb"} },
			[]string{`spec.queues[0].bindingKeys[0]: "a\nb" holds a control character`},
		},
		{
			"keys and names that RabbitMQ cannot list", func(tr *v1alpha1.Transport) {
				tr.Spec.Queues[0].BindingKeys, tr.Spec.Queues[0].PreviousNames, tr.Spec.Queues[1].Name = []string{"~", "a~b"}, []string{"~c"}, "d~"
				tr.Spec.Queues[1].Bindings = []v1alpha1.Binding{{Exchange: "theirs", Keys: []string{"~", "~~"}}}
			},
			[]string{
				"spec.queues[0].previousNames[0]: \"~c\": RabbitMQ cannot list", "spec.queues[0].bindingKeys[1]: \"a~b\": RabbitMQ cannot list",
				"spec.queues[1].name: \"d~\": RabbitMQ cannot list", "spec.queues[1].bindings[0].keys[1]: \"~~\": RabbitMQ cannot list",
			},
		},
		{
			"bytes that are no text", func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Name = "a\xff" },
			[]string{"spec.queues[1].name: is not valid UTF-8"},
		},
		{
			"names that are steps of a path", func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Name = ".." },
			[]string{`spec.queues[1].name: "..": the management API cannot address this name`},
		},
		{"a foreign binding to the own exchange", func(tr *v1alpha1.Transport) {
			tr.Spec.Queues[1].Bindings = []v1alpha1.Binding{{Exchange: "async", Keys: []string{"x"}}}
		}, []string{"spec.queues[1].bindings[0].exchange: \"async\" is the Transport's own exchange"}},
		{"a foreign binding to a private exchange", func(tr *v1alpha1.Transport) {
			tr.Spec.Queues[1].Bindings = []v1alpha1.Binding{{Exchange: "async.fallback", Keys: []string{"x"}}}
		}, []string{"spec.queues[1].bindings[0].exchange: "}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := topology.Desired(async(c.change), compile.Needs{Lanes: lanes()}, owner)
			var invalid *topology.InvalidError
			if !errors.As(err, &invalid) {
				t.Fatalf("want an InvalidError, got %v", err)
			}
			if len(invalid.Problems) < len(c.want) {
				t.Fatalf("want %d problems, got %v", len(c.want), err)
			}
			for i, want := range c.want {
				if got := invalid.Problems[i].Field + ": " + invalid.Problems[i].Message; !strings.HasPrefix(got, want) {
					t.Errorf("problem %d: want %q, got %q", i, want, got)
				}
			}
		})
	}
}

func TestDesired_ListsEveryProblem(t *testing.T) {
	_, err := topology.Desired(async(func(tr *v1alpha1.Transport) {
		tr.Spec.Exchange.UnroutedTo = new("nowhere")
		tr.Spec.Queues[0].Name = "amq.x"
		tr.Spec.Queues[1].Name = "async.failed"
	}), compile.Needs{}, owner)
	var invalid *topology.InvalidError
	if !errors.As(err, &invalid) || len(invalid.Problems) != 3 {
		t.Fatalf("want three problems, got %v", err)
	}
}

func TestAdvice_NamesWhatAQueueLacks(t *testing.T) {
	cases := []struct {
		name   string
		change func(*v1alpha1.Transport)
		want   string
	}{
		{"the queue for unroutable messages needs no keys", func(tr *v1alpha1.Transport) { tr.Spec.Queues[0].BindingKeys = nil }, ""},
		{
			"a queue that nothing leads to", func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].BindingKeys = nil },
			"spec.queues[1] has neither bindingKeys nor bindings",
		},
		{"a classic queue", func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Type = new(v1alpha1.QueueClassic) }, "at most once"},
		{
			"a queue in no worker group", func(tr *v1alpha1.Transport) {
				tr.Spec.Workers = []v1alpha1.Worker{{Name: "one", Queues: []string{tr.Spec.Queues[0].Name}}}
			}, "no worker group consumes",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			advice := topology.Advice(async(c.change))
			if c.want == "" && len(advice) > 0 {
				t.Fatalf("want no advice, got %v", advice)
			}
			if c.want != "" && (len(advice) != 1 || !strings.Contains(advice[0].String(), c.want)) {
				t.Fatalf("want %q, got %v", c.want, advice)
			}
		})
	}
}

func TestMermaid_DrawsTheWholeTopology(t *testing.T) {
	transport := async(func(tr *v1alpha1.Transport) {
		tr.Spec.Queues[1].Bindings = []v1alpha1.Binding{{Exchange: `shop "events"`, Keys: []string{"order.#"}}}
	})
	golden(t, "async.mmd", topology.Mermaid(desired(t, transport)))
}

func TestStep_MarshalsToJSON(t *testing.T) {
	step := topology.Plan(topology.Diff(desired(t, async()), emptyBroker().Observed, nil))[0]
	text, err := json.Marshal(step)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"action":"create","policy":{"name":"redrive.async:failure:async.failed","pattern":"^async\\.failed$","applyTo":"queues",` +
		`"priority":1000,"definition":{"delivery-limit":2147483647}}}`
	if string(text) != want {
		t.Errorf("want %s, got %s", want, text)
	}
}

func TestDesired_MakesOneQueueForEachLane(t *testing.T) {
	objects, err := topology.Desired(async(), compile.Needs{Lanes: retry.Lanes{100 * time.Millisecond, 90 * time.Second, time.Hour}}, owner)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(objects.QueuesOf(topology.RoleLane), " ")
	if got != "async.fallback.100ms async.fallback.90s async.fallback.1h" {
		t.Errorf("got %s", got)
	}
}

func TestDesired_MakesLanesForHighPriority(t *testing.T) {
	objects, err := topology.Desired(async(), compile.Needs{Lanes: retry.Lanes{time.Second, time.Minute}, HighLanes: retry.Lanes{time.Second, time.Minute}}, owner)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"async.fallback.1s", "async.fallback.1s.high", "async.fallback.1m", "async.fallback.1m.high"}
	if got := objects.QueuesOf(topology.RoleLane); !slices.Equal(got, want) {
		t.Errorf("lanes %v, want %v", got, want)
	}
	text := strings.Join(lines(topology.Plan(topology.Diff(objects, emptyBroker().Observed, nil))), "\n")
	for _, part := range []string{"+ binding async.fallback -> async.fallback.1m.high redrive-lane=1m.high", "+ queue async.fallback.1m.high"} {
		if !strings.Contains(text, part) {
			t.Errorf("the plan has no %q:\n%s", part, text)
		}
	}
	pin := regexp.MustCompile(objects.Policies[slices.IndexFunc(objects.Policies, func(p topology.Policy) bool {
		return strings.HasSuffix(p.Name, ":lanes")
	})].Pattern)
	for _, lane := range append(want, "async.fallback.250ms") {
		if !pin.MatchString(lane) {
			t.Errorf("nothing keeps others' policies from %s", lane)
		}
	}
}
