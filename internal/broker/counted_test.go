package broker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

// queueOf answers as the management API of a vhost whose one queue is described like that, in its list and by itself.
func queueOf(description string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case strings.HasSuffix(path, "/q"):
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, description)
		case strings.HasPrefix(path, "/api/queues/"):
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, "[%s]", description)
		default:
			sane(w, r)
		}
	}
}

func TestCounted_BelievesOnlyACountThatCanBeTrue(t *testing.T) {
	const (
		three  = `"members":["a","b","c"],"reductions":7`
		quorum = `"name":"q","type":"quorum","durable":true,`
		other  = `"name":"q","type":"classic","durable":true,"reductions":7,`
	)
	cases := map[string]struct {
		description string
		believed    bool
	}{
		"a queue with all of its members":            {quorum + `"state":"running","messages":0,"leader":"a","online":["a","b","c"],` + three, true},
		"a member is down, and there is a majority":  {quorum + `"state":"running","messages":0,"leader":"a","online":["b","a"],` + three, true},
		"the only member of a queue":                 {quorum + `"state":"running","messages":0,"leader":"a","members":["a"],"online":["a"],"reductions":1`, true},
		"work that is no number":                     {quorum + `"state":"running","messages":0,"leader":"a","members":["a"],"online":["a"],"reductions":0.5`, false},
		"no count yet":                               {quorum + `"state":"running","leader":"a","online":["a","b","c"],` + three, false},
		"a count that is null":                       {quorum + `"state":"running","messages":null,"leader":"a","online":["a","b","c"],` + three, false},
		"a count below zero":                         {quorum + `"state":"running","messages":-1,"leader":"a","online":["a","b","c"],` + three, false},
		"the queue says that it is in a minority":    {quorum + `"state":"minority","messages":0,"leader":"a","online":["a"],` + three, false},
		"it says that it runs, without its majority": {quorum + `"state":"running","messages":0,"leader":"a","online":["a"],` + three, false},
		"half of the members are no majority":        {quorum + `"state":"running","messages":0,"leader":"a","members":["a","b"],"online":["a"],"reductions":7`, false},
		"online nodes that are no members":           {quorum + `"state":"running","messages":0,"leader":"a","online":["a","x","y"],` + three, false},
		"its leader is not among those online":       {quorum + `"state":"running","messages":0,"leader":"c","online":["a","b"],` + three, false},
		"it has no leader":                           {quorum + `"state":"running","messages":0,"leader":"","online":["a","b","c"],` + three, false},
		"its leader is no text":                      {quorum + `"state":"running","messages":0,"leader":null,"online":["a","b","c"],` + three, false},
		"nobody is online":                           {quorum + `"state":"running","messages":0,"leader":"a","online":[],` + three, false},
		"who is online is no list":                   {quorum + `"state":"running","messages":0,"leader":"a","online":"none",` + three, false},
		"members are not told of":                    {quorum + `"state":"running","messages":0,"reductions":7`, false},
		"the state is not told":                      {quorum + `"messages":0,"leader":"a","online":["a","b","c"],` + three, false},
		"the queue is down":                          {quorum + `"state":"down","messages":0,"leader":"a","online":["a","b","c"],` + three, false},
		"the queue is stopped":                       {quorum + `"state":"stopped","messages":0,"leader":"a","online":["a","b","c"],` + three, false},
		"the queue has crashed":                      {quorum + `"state":"crashed","messages":0,"leader":"a","online":["a","b","c"],` + three, false},
		"statistics are off, totals are on": {
			quorum + `"state":"running","messages":0,"leader":"a","online":["a","b","c"],"members":["a","b","c"]`, false,
		},
		"a classic queue": {other + `"state":"running","messages":0`, true},
		"a classic queue that slows its publishers":  {other + `"state":"flow","messages":0`, true},
		"a classic queue that is down":               {other + `"state":"down","messages":0`, false},
		"a classic queue that has crashed":           {other + `"state":"crashed","messages":0`, false},
		"a classic queue whose state is an object":   {other + `"state":{"syncing":3},"messages":0`, false},
		"a classic queue with statistics off":        {`"name":"q","type":"classic","durable":true,"state":"running","messages":0`, false},
		"a classic queue of which nothing is stated": {other + `"messages":0`, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			client, _ := against(t, "", queueOf("{"+c.description+"}"))
			single, err := client.Queue(context.Background(), "q")
			if err != nil {
				t.Fatal(err)
			}
			observed, err := client.Observe(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			for way, state := range map[string]topology.QueueState{"by itself": single, "in the list": observed.Queues["q"]} {
				if (state.Messages != nil) != c.believed {
					t.Errorf("%s: want it believed: %t, got %v", way, c.believed, state.Messages)
				}
			}
		})
	}
}

func TestBindings_RefusesAListWithoutTheDefaultExchange(t *testing.T) {
	lists := func(bindings string, queue http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/bindings") {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, bindings)
				return
			}
			queue(w, r)
		}
	}
	there := queueOf(`{"name":"q","type":"quorum","durable":true}`)
	const own, other = `{"source":"","destination":"q","destination_type":"queue"}`, `{"source":"e","destination":"q","destination_type":"queue"}`
	cases := map[string]struct {
		answer http.HandlerFunc
		want   error
		found  int
	}{
		"an empty list of a queue that is there":        {lists("[]", there), broker.ErrGarbled, 0},
		"a list that lacks the default exchange":        {lists("["+other+"]", there), broker.ErrGarbled, 0},
		"the default exchange's alone":                  {lists("["+own+"]", there), nil, 0},
		"one beside the default exchange's":             {lists("["+own+","+other+"]", there), nil, 1},
		"half of a list":                                {lists("["+own+",", there), broker.ErrGarbled, 0},
		"a page in place of the list, with good status": {body("/api/queues", "text/html", page), broker.ErrGarbled, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			client, _ := against(t, "", c.answer)
			found, err := client.Bindings(context.Background(), "q")
			if !errors.Is(err, c.want) || len(found) != c.found {
				t.Errorf("want %d bindings and %v, got %v and %v", c.found, c.want, found, err)
			}
		})
	}
}

// statistics switches the counting of a broker off or on, as management.disable_stats and management.enable_queue_totals do
// at its start.
func statistics(t *testing.T, b *testbroker.Broker, off, totals bool) {
	t.Helper()
	for key, value := range map[string]bool{"disable_management_stats": off, "enable_queue_totals": totals} {
		set := fmt.Sprintf("application:set_env(rabbitmq_management, %s, %t).", key, value)
		if err := b.Control(t.Context(), "eval", set); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCounted_BelievesNothingWhereStatisticsAreOff(t *testing.T) {
	testtransport.Long(t)
	b := testbroker.Private(t)
	vhost := b.Vhost(t)
	client := connect(t, config(t, b, vhost))
	create(t, client, topology.Step{Queue: quorum("q")})
	connection, err := amqp091.Dial(b.URL(vhost))
	if err != nil {
		t.Fatal("no AMQP connection")
	}
	t.Cleanup(func() { _ = connection.Close() })
	channel, err := connection.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := channel.PublishWithContext(t.Context(), "", "q", false, false, amqp091.Publishing{DeliveryMode: amqp091.Persistent}); err != nil {
		t.Fatal(err)
	}
	look := func() (single, listed *int64) {
		state, err := client.Queue(t.Context(), "q")
		if err != nil {
			t.Fatal(err)
		}
		observed, err := client.Observe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return state.Messages, observed.Queues["q"].Messages
	}
	counted := func() bool {
		single, listed := look()
		return single != nil && *single == 1 && listed != nil && *listed == 1
	}
	testtransport.Eventually(t, "the message to be counted", counted)
	for _, totals := range []bool{true, false} {
		statistics(t, b, true, totals)
		if single, listed := look(); single != nil || listed != nil {
			t.Errorf("with totals %t a count is believed: %v by itself, %v in the list", totals, single, listed)
		}
	}
	statistics(t, b, false, false)
	testtransport.Eventually(t, "the message to be counted again", counted)
}
