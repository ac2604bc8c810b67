package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"

	"redrive.dev/redrive/internal/topology"
)

// queueColumns are all that is read of queues: without them the answer is four times as large and slow.
const queueColumns = "name,type,durable,auto_delete,exclusive,arguments,policy,operator_policy,effective_policy_definition,state,leader,members,online," +
	"reductions,messages,messages_ready,messages_unacknowledged,messages_dlx,consumers,message_stats.publish,message_stats.ack," +
	"message_stats.get_no_ack,message_stats.deliver_no_ack"

const exchangeColumns = "name,type,durable,auto_delete,internal,arguments,policy"

// Observe reads the whole vhost. Where it does not exist the error is ErrNotFound.
func (c *Client) Observe(ctx context.Context) (topology.Observed, error) {
	began := time.Now()
	identity, err := c.Identity(ctx)
	if err != nil {
		return topology.Observed{}, err
	}
	nodes, err := c.nodes(ctx)
	if err != nil {
		return topology.Observed{}, err
	}
	observed := topology.Observed{
		Identity:  identity,
		Began:     began,
		Nodes:     nodes,
		Exchanges: map[string]topology.ExchangeState{},
		Queues:    map[string]topology.QueueState{},
		Policies:  map[string]topology.Policy{},
	}
	for _, read := range []func(context.Context, *topology.Observed) error{
		c.observeExchanges, c.observePolicies, c.observeQueues,
	} {
		if err := read(ctx, &observed); err != nil {
			return topology.Observed{}, err
		}
	}
	return observed, nil
}

// errLong is why a name is not believed. What is kept of a Transport between looks, and told of it, is named by such.
const errLong = "it has a name of more than 255 bytes, and RabbitMQ has none"

// implausible is the error of an answer that is well formed and cannot be true. A broker that is only half up, or a stand-in
// of it, may give an empty list for what it does not know, and on an empty list everything would be made anew, or nothing be
// left to empty before a deletion goes on.
func implausible(what, why string) error {
	return &Error{Operation: what, Status: http.StatusOK, Reason: why, kind: ErrGarbled}
}

func (c *Client) observeExchanges(ctx context.Context, observed *topology.Observed) error {
	var rows []exchangeRow
	path := "exchanges/" + url.PathEscape(c.config.VHost) + "?columns=" + exchangeColumns
	what := fmt.Sprintf("read the exchanges of vhost %q", c.config.VHost)
	if err := c.get(ctx, what, path, &rows); err != nil {
		return err
	}
	clear(observed.Exchanges)
	for _, row := range rows {
		observed.Exchanges[row.Name] = row.state()
	}
	if observed.Exchanges["amq.direct"].Type != "direct" {
		return implausible(what, "it lacks the exchange amq.direct, which is in every vhost")
	}
	return nil
}

// observePolicies reads the policies. While an exchange names its policy an empty list is a lie, or the last policy has gone
// since the exchanges were read.
func (c *Client) observePolicies(ctx context.Context, observed *topology.Observed) error {
	for try := 1; ; try++ {
		var rows []policyRow
		path := "policies/" + url.PathEscape(c.config.VHost)
		what := fmt.Sprintf("read the policies of vhost %q", c.config.VHost)
		if err := c.get(ctx, what, path, &rows); err != nil {
			return err
		}
		if under := exchangeWithPolicy(observed.Exchanges); len(rows) == 0 && under != "" {
			if try > 1 {
				return implausible(what, "it is empty, and exchange "+under+" has a policy")
			}
			if err := c.observeExchanges(ctx, observed); err != nil {
				return err
			}
			continue
		}
		for _, row := range rows {
			if row.Name == "" {
				return implausible(what, errShape.Error())
			}
			observed.Policies[row.Name] = topology.Policy{
				Name: row.Name, Pattern: row.Pattern, ApplyTo: row.ApplyTo, Priority: row.Priority,
				Definition: topology.Arguments(row.Definition),
			}
		}
		return nil
	}
}

// exchangeWithPolicy names an exchange to which a policy applies; empty where there is none.
func exchangeWithPolicy(exchanges map[string]topology.ExchangeState) string {
	for _, name := range slices.Sorted(maps.Keys(exchanges)) {
		if exchanges[name].Policy != "" {
			return name
		}
	}
	return ""
}

// observeQueues reads queues and bindings. The default exchange is bound to every queue, so an empty list of the one beside a
// full one of the other is a lie, or the first queue has come, or the last gone, in between. So is a list of queues without one
// to which Redrive has bound an exchange.
func (c *Client) observeQueues(ctx context.Context, observed *topology.Observed) error {
	for try := 1; ; try++ {
		bindings, bound, err := c.bindings(ctx, fmt.Sprintf("read the bindings of vhost %q", c.config.VHost),
			"bindings/"+url.PathEscape(c.config.VHost))
		if err != nil {
			return err
		}
		var rows []queueRow
		what := fmt.Sprintf("read the queues of vhost %q", c.config.VHost)
		if err := c.get(ctx, what, "queues/"+url.PathEscape(c.config.VHost)+"?columns="+queueColumns, &rows); err != nil {
			return err
		}
		if why := contradiction(rows, bindings, bound); why != "" {
			if try == 1 {
				continue
			}
			return implausible(what, why)
		}
		observed.Bindings = bindings
		for _, row := range rows {
			if row.Name == "" {
				return implausible(what, errShape.Error())
			}
			if len(row.Name) > maxName {
				return implausible(what, errLong)
			}
			observed.Queues[row.Name] = row.state()
		}
		return nil
	}
}

// contradiction says why a list of queues and one of bindings cannot both be true; empty where they can. bound is the number
// of bindings of the default exchange. Queues of others come and go at any time, so only Redrive's bindings are asked.
func contradiction(rows []queueRow, bindings []topology.Binding, bound int) string {
	if len(rows) == 0 && bound > 0 || bound == 0 && slices.ContainsFunc(rows, func(r queueRow) bool { return r.Durable }) {
		return fmt.Sprintf("it names %d queues, and the list of bindings names %d", len(rows), bound)
	}
	listed := make(map[string]bool, len(rows))
	for _, row := range rows {
		listed[row.Name] = true
	}
	for _, binding := range bindings {
		if !binding.ToExchange && !listed[binding.Destination] && topology.IsMarked(binding) {
			return fmt.Sprintf("it lacks queue %s, to which exchange %s is bound", binding.Destination, binding.Source)
		}
	}
	return ""
}

// Queue reads one queue. Its counts are those of the management API, which are some seconds late and are the only ones
// that hold unacknowledged and dead-lettering messages too. Where the queue does not exist the error is ErrNotFound.
func (c *Client) Queue(ctx context.Context, name string) (topology.QueueState, error) {
	var row queueRow
	path := "queues/" + url.PathEscape(c.config.VHost) + "/" + url.PathEscape(name) + "?columns=" + queueColumns
	what := "read queue " + name
	if err := c.get(ctx, what, path, &row); errors.Is(err, ErrNotFound) {
		return c.unserved(ctx, name, err)
	} else if err != nil {
		return topology.QueueState{}, err
	}
	if row.Name != name {
		return topology.QueueState{}, implausible(what, "it is about something else")
	}
	return row.state(), nil
}

// unserved tells a queue that does not exist, with the error that says so, from one whose node is down: RabbitMQ 3.10 says of a classic one that it is
// not found, and lists it all the same. Its messages are there when the node is back; how many there are nobody knows.
func (c *Client) unserved(ctx context.Context, name string, missing error) (topology.QueueState, error) {
	var page struct {
		Items []queueRow `json:"items"`
	}
	query := url.Values{"page": {"1"}, "page_size": {"10"}, "use_regex": {"true"}, "name": {"^" + regexp.QuoteMeta(name) + "$"}}
	err := c.get(ctx, "look for queue "+name, "queues/"+url.PathEscape(c.config.VHost)+"?"+query.Encode(), &page)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return topology.QueueState{}, err
	}
	for _, row := range page.Items {
		if row.Name == name {
			state := row.state()
			state.Evidence = topology.Evidence{}
			return state, nil
		}
	}
	return topology.QueueState{}, missing
}

// Bindings reads what leads into one queue, without the default exchange. A queue that does not exist has none. RabbitMQ
// lists the binding of the default exchange for every name, so a list without it is not believed.
func (c *Client) Bindings(ctx context.Context, queue string) ([]topology.Binding, error) {
	path := "queues/" + url.PathEscape(c.config.VHost) + "/" + url.PathEscape(queue) + "/bindings"
	what := "read the bindings of queue " + queue
	bindings, bound, err := c.bindings(ctx, what, path)
	if err == nil && bound == 0 {
		return nil, implausible(what, "it lacks the binding of the default exchange, which every queue has")
	}
	return bindings, err
}

// bindings reads a list of bindings, and counts those of the default exchange, which it leaves out.
func (c *Client) bindings(ctx context.Context, what, path string) (bindings []topology.Binding, bound int, err error) {
	var rows []bindingRow
	if err := c.get(ctx, what, path, &rows); err != nil {
		return nil, 0, explained(err)
	}
	bindings = make([]topology.Binding, 0, len(rows))
	for _, row := range rows {
		if row.Destination == "" {
			return nil, 0, implausible(what, errShape.Error())
		}
		if row.Source == "" {
			bound++
			continue
		}
		bindings = append(bindings, topology.Binding{
			Source: row.Source, Destination: row.Destination, ToExchange: row.DestinationType == "exchange",
			RoutingKey: row.RoutingKey, Arguments: topology.Arguments(row.Arguments), PropertiesKey: row.PropertiesKey,
		})
	}
	return bindings, bound, nil
}

// explained tells of the one binding on which RabbitMQ ends each list of bindings (docs/upstream/rabbitmq-tilde.md).
func explained(err error) error {
	failure, ok := errors.AsType[*Error](err)
	if !ok || failure.Status != http.StatusInternalServerError || failure.Reason != "" {
		return err
	}
	told := *failure
	told.Reason = "if all other requests are answered, there is a binding that has arguments and a ~ in its key, on which RabbitMQ ends each list " +
		"of bindings: find it with rabbitmqctl list_bindings, and unbind it by AMQP"
	return &told
}

// table is a JSON object for which Erlang may write an empty list.
type table map[string]any

// nested is a table or a list within a table, as JSON. Nothing of ours has such a value, and decoded it may take sixty times the memory of
// its text.
type nested string

// MarshalJSON implements json.Marshaler.
func (n nested) MarshalJSON() ([]byte, error) { return []byte(n), nil }

// maxInOrder is the longest nested value whose keys are put in order, in bytes: that takes such memory for a moment. Those of a longer one stay
// in the order in which they come.
const maxInOrder = 1 << 10

// UnmarshalJSON takes anything but an object as empty.
func (t *table) UnmarshalJSON(text []byte) error {
	*t = table{}
	text = bytes.TrimSpace(text)
	if !bytes.HasPrefix(text, []byte("{")) {
		return nil
	}
	if !bytes.ContainsAny(text[1:], "{[") { // as nearly all are
		if err := numbered(text, (*map[string]any)(t)); err != nil {
			return fmt.Errorf("a table: %w", err)
		}
		return nil
	}
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil {
		return fmt.Errorf("a table: %w", err)
	}
	for name, part := range parts {
		isNested := part[0] == '{' || part[0] == '['
		var value any
		if isNested && len(part) > maxInOrder {
			value = nested(part)
		} else if err := numbered(part, &value); err != nil {
			return fmt.Errorf("a table: %w", err)
		} else if isNested {
			ordered, err := json.Marshal(value)
			if err != nil {
				return fmt.Errorf("a table: %w", err)
			}
			value = nested(ordered)
		}
		(*t)[name] = value
	}
	return nil
}

// numbered decodes JSON with its numbers as they are.
func numbered(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return decoder.Decode(into) //nolint:wrapcheck // the caller says of what
}

type exchangeRow struct {
	Name       string                `json:"name"`
	Type       string                `json:"type"`
	Durable    bool                  `json:"durable"`
	AutoDelete rabbithole.AutoDelete `json:"auto_delete"`
	Internal   bool                  `json:"internal"`
	Arguments  table                 `json:"arguments"`
	Policy     string                `json:"policy"`
}

func (r exchangeRow) state() topology.ExchangeState {
	return topology.ExchangeState{
		Exchange: topology.Exchange{
			Name: r.Name, Type: r.Type, Durable: r.Durable, AutoDelete: bool(r.AutoDelete), Internal: r.Internal,
			Arguments: topology.Arguments(r.Arguments),
		},
		Policy: r.Policy,
	}
}

type queueRow struct {
	Name                string                `json:"name"`
	Type                string                `json:"type"`
	Durable             bool                  `json:"durable"`
	AutoDelete          rabbithole.AutoDelete `json:"auto_delete"`
	Exclusive           bool                  `json:"exclusive"`
	Arguments           table                 `json:"arguments"`
	Policy              string                `json:"policy"`
	OperatorPolicy      string                `json:"operator_policy"`
	EffectiveDefinition table                 `json:"effective_policy_definition"`
	State               text                  `json:"state"`
	Leader              text                  `json:"leader"`
	Members             texts                 `json:"members"`
	Online              texts                 `json:"online"`
	// Reductions are the work of the queue's process; nil where the answer does not come from the statistics.
	Reductions      *json.Number `json:"reductions"`
	Messages        *int64       `json:"messages"`
	MessagesReady   int64        `json:"messages_ready"`
	MessagesUnacked int64        `json:"messages_unacknowledged"`
	MessagesDLX     int64        `json:"messages_dlx"`
	Consumers       int64        `json:"consumers"`
	MessageStats    messageStats `json:"message_stats"`
}

// messageStats are counters, for which Erlang may write an empty list too. Ack has what needs no acknowledgement, too.
type messageStats struct{ Publish, Ack int64 }

// UnmarshalJSON takes anything but an object as nothing counted.
func (s *messageStats) UnmarshalJSON(text []byte) error {
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return nil
	}
	var counters struct {
		Publish      int64 `json:"publish"`
		Ack          int64 `json:"ack"`
		GetNoAck     int64 `json:"get_no_ack"`
		DeliverNoAck int64 `json:"deliver_no_ack"`
	}
	if err := json.Unmarshal(text, &counters); err != nil {
		return fmt.Errorf("message_stats: %w", err)
	}
	s.Publish, s.Ack = counters.Publish, counters.Ack+counters.GetNoAck+counters.DeliverNoAck
	return nil
}

func (r queueRow) state() topology.QueueState {
	return topology.QueueState{
		Queue: topology.Queue{
			Name: r.Name, Type: r.Type, Durable: r.Durable, AutoDelete: bool(r.AutoDelete), Exclusive: r.Exclusive,
			Arguments: topology.Arguments(r.Arguments),
		},
		Evidence:    topology.Evidence{Messages: r.counted(), Leader: string(r.Leader), Tick: r.tick(), Published: r.MessageStats.Publish},
		MessagesDLX: r.MessagesDLX, Ready: r.MessagesReady, Unacked: r.MessagesUnacked,
		Consumers: r.Consumers, Acked: r.MessageStats.Ack, Policy: r.Policy,
		OperatorPolicy: r.OperatorPolicy, EffectiveDefinition: topology.Arguments(r.EffectiveDefinition),
	}
}

type bindingRow struct {
	Source          string `json:"source"`
	Destination     string `json:"destination"`
	DestinationType string `json:"destination_type"`
	RoutingKey      string `json:"routing_key"`
	Arguments       table  `json:"arguments"`
	PropertiesKey   string `json:"properties_key"`
}

type policyRow struct {
	Name       string `json:"name"`
	Pattern    string `json:"pattern"`
	ApplyTo    string `json:"apply-to"`
	Priority   int    `json:"priority"`
	Definition table  `json:"definition"`
}

// What goes to rabbit-hole is copied: it writes into the maps that it gets.

func exchangeSettings(exchange topology.Exchange) rabbithole.ExchangeSettings {
	return rabbithole.ExchangeSettings{
		Type: exchange.Type, Durable: exchange.Durable, AutoDelete: exchange.AutoDelete, Arguments: maps.Clone(exchange.Arguments),
	}
}

func queueSettings(queue topology.Queue) rabbithole.QueueSettings {
	return rabbithole.QueueSettings{
		Type: queue.Type, Durable: queue.Durable, AutoDelete: queue.AutoDelete, Arguments: maps.Clone(queue.Arguments),
	}
}

func bindingInfo(binding topology.Binding) rabbithole.BindingInfo {
	kind := "queue"
	if binding.ToExchange {
		kind = "exchange"
	}
	return rabbithole.BindingInfo{
		Source: binding.Source, Destination: binding.Destination, DestinationType: kind, RoutingKey: binding.RoutingKey,
		Arguments: maps.Clone(binding.Arguments), PropertiesKey: binding.PropertiesKey,
	}
}

func policyInfo(policy topology.Policy) rabbithole.Policy {
	return rabbithole.Policy{
		Pattern: policy.Pattern, ApplyTo: policy.ApplyTo, Priority: policy.Priority,
		Definition: rabbithole.PolicyDefinition(policy.Definition), Name: policy.Name,
	}
}
