package apply_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/topology"
)

// scopedUser is a user with a worker's rights on the Transport of a stage, whose names hold what a pattern may take for its own.
type scopedUser struct {
	*stage

	name, password, vhost string
	server                *testbroker.Broker
}

// oddQueue is a work queue whose name is a pattern too, which aXb and aabbc match.
const oddQueue = "a.b+c"

func newScopedUser(t *testing.T) *scopedUser {
	t.Helper()
	s := newStage(t)
	identity, err := s.client.Identity(t.Context())
	must(t, err)
	u := &scopedUser{stage: s, name: "worker-" + identity.VHost, password: "as-good-as-any-other-password", vhost: identity.VHost, server: testbroker.Shared(t)}
	t.Cleanup(func() { _ = s.client.DeleteUser(context.Background(), u.name) })
	s.spec.Spec.Queues[1].Name = oddQueue
	s.once()
	for _, other := range []string{"aXb+c", "a.bbc", oddQueue + ".more", "others"} {
		_, err := s.amqp.QueueDeclare(other, true, false, false, false, nil)
		must(t, err)
	}
	rights := topology.WorkerRights(compile.NamesOf(s.spec), []string{"lost", oddQueue, oddQueue + compile.QuarantineSuffix})
	seen, err := apply.LookAtUser(t.Context(), s.client, u.vhost, u.name, u.password)
	must(t, err)
	_, err = apply.PutUserRight(t.Context(), s.client, u.vhost, u.name, u.password, seen, rights)
	must(t, err)
	return u
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// channel of a connection of its own: the broker closes a channel on which it refuses something.
func (u *scopedUser) channel(t *testing.T, vhost string) (*amqp091.Channel, error) {
	t.Helper()
	to, err := url.Parse(u.server.URL(vhost))
	must(t, err)
	to.User = url.UserPassword(u.name, u.password)
	conn, err := amqp091.Dial(to.String())
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	must(t, err)
	must(t, channel.Confirm(false))
	return channel, nil
}

// publish waits for the confirm, or for the broker's refusal.
func publish(ch *amqp091.Channel, exchange, key string, headers amqp091.Table) error {
	closed := ch.NotifyClose(make(chan *amqp091.Error, 1))
	confirm, err := ch.PublishWithDeferredConfirm(exchange, key, true, false, amqp091.Publishing{Headers: headers})
	if err != nil {
		return err
	}
	select {
	case err := <-closed:
		return err
	case <-confirm.Done():
		return nil
	}
}

func TestWorkerRights_AllowsWhatWorkersNeedAndNothingElse(t *testing.T) {
	u := newScopedUser(t)
	other := u.server.Vhost(t)
	consume := func(queue string) func(*amqp091.Channel) error {
		return func(ch *amqp091.Channel) error {
			_, err := ch.Consume(queue, "", false, false, false, false, nil)
			return err
		}
	}
	get := func(queue string) func(*amqp091.Channel) error {
		return func(ch *amqp091.Channel) error { _, _, err := ch.Get(queue, false); return err }
	}
	to := func(exchange, key string) func(*amqp091.Channel) error {
		return func(ch *amqp091.Channel) error {
			return publish(ch, exchange, key, amqp091.Table{message.HeaderLane: "1s"})
		}
	}
	declare := func(queue string) func(*amqp091.Channel) error {
		return func(ch *amqp091.Channel) error {
			_, err := ch.QueueDeclare(queue, true, false, false, false, nil)
			return err
		}
	}
	bind := func(queue, exchange string) func(*amqp091.Channel) error {
		return func(ch *amqp091.Channel) error { return ch.QueueBind(queue, "key", exchange, false, nil) }
	}
	tests := []struct {
		what    string
		do      func(*amqp091.Channel) error
		allowed bool
	}{
		{"consume a work queue", consume(oddQueue), true},
		{"consume another work queue", consume("lost"), true},
		{"consume a quarantine queue", consume(oddQueue + ".quarantine"), true},
		{"park a retry", to("async.fallback", oddQueue), true},
		{"return a message", to("async.return", oddQueue), true},
		{"give up a message", to("async.failed", oddQueue), true},
		// RabbitMQ has no right to consume that is not one to purge.
		{"purge a work queue", func(ch *amqp091.Channel) error { _, err := ch.QueuePurge("lost", false); return err }, true},

		{"consume the failure queue", consume("async.failed"), false},
		{"consume a lane", consume("async.fallback.1s"), false},
		{"consume the queue of others", consume("others"), false},
		{"consume a queue that the name matches as a pattern", consume("aXb+c"), false},
		{"consume another one", consume("a.bbc"), false},
		{"consume a queue that begins like ours", consume(oddQueue + ".more"), false},
		{"get from a queue of others", get("others"), false},
		{"get from the failure queue", get("async.failed"), false},
		{"purge the failure queue", func(ch *amqp091.Channel) error { _, err := ch.QueuePurge("async.failed", false); return err }, false},
		{"publish to the default exchange", to("", oddQueue), false},
		{"publish to the producers' exchange", to("async", oddQueue), false},
		{"publish to an exchange of the broker", to("amq.direct", oddQueue), false},
		{"publish to a stand-in", to("async.return.alternate", oddQueue), false},
		{"declare a queue", declare("mine"), false},
		{"declare a queue that it reads", declare("lost"), false},
		{"declare a queue with a name from the broker", declare(""), false},
		{"declare an exchange", func(ch *amqp091.Channel) error {
			return ch.ExchangeDeclare("mine", "fanout", true, false, false, false, nil)
		}, false},
		{"declare the exchange that it publishes to", func(ch *amqp091.Channel) error {
			return ch.ExchangeDeclare("async.failed", "fanout", true, false, false, false, nil)
		}, false},
		{"bind a work queue", bind(oddQueue, "async.return"), false},
		{"bind the failure queue, which has the name of an exchange", bind("async.failed", "async"), false},
		{"unbind a work queue", func(ch *amqp091.Channel) error { return ch.QueueUnbind(oddQueue, oddQueue, "async.return", nil) }, false},
		{"bind an exchange", func(ch *amqp091.Channel) error { return ch.ExchangeBind("async.return", "key", "async", false, nil) }, false},
		{"delete a work queue", func(ch *amqp091.Channel) error { _, err := ch.QueueDelete("lost", false, false, false); return err }, false},
		{"delete a queue of others", func(ch *amqp091.Channel) error { _, err := ch.QueueDelete("others", false, false, false); return err }, false},
		{"delete an exchange", func(ch *amqp091.Channel) error { return ch.ExchangeDelete("async.fallback", false, false) }, false},
	}
	for _, tt := range tests {
		t.Run(tt.what, func(t *testing.T) {
			ch, err := u.channel(t, u.vhost)
			must(t, err)
			refused := new(amqp091.Error)
			switch err := tt.do(ch); {
			case tt.allowed && err != nil:
				t.Error(err)
			case !tt.allowed && (!errors.As(err, &refused) || refused.Code != amqp091.AccessRefused):
				t.Errorf("not refused: %v", err)
			}
		})
	}
	if _, err := u.channel(t, other); err == nil {
		t.Error("it reaches another vhost")
	}
	for _, path := range []string{"whoami", "overview", "users", "queues/" + url.PathEscape(u.vhost), "definitions"} {
		if status := u.manage(t, path); status != http.StatusUnauthorized && status != http.StatusForbidden {
			t.Errorf("GET /api/%s: %d", path, status)
		}
	}
}

// manage asks the management API as the user.
func (u *scopedUser) manage(t *testing.T, path string) (status int) {
	t.Helper()
	to, err := url.Parse(u.server.ManagementURL + "/api/" + path)
	must(t, err)
	to.User = url.UserPassword(u.name, u.password)
	response, err := http.Get(to.String())
	must(t, err)
	_ = response.Body.Close()
	return response.StatusCode
}

func TestPutUserRight_RepairsAUserThatOthersChanged(t *testing.T) {
	u := newScopedUser(t)
	ctx := t.Context()
	look := func(password string) apply.UserState {
		t.Helper()
		state, err := apply.LookAtUser(ctx, u.client, u.vhost, u.name, password)
		must(t, err)
		return state
	}
	if state := look(u.password); !state.Exists || !state.Knows || state.Tagged || len(state.Elsewhere) > 0 {
		t.Fatalf("%+v", state)
	}
	if look(u.password+"x").Knows || look("").Knows {
		t.Error("another password passes")
	}
	rights := *look(u.password).Rights
	other := u.server.Vhost(t)
	u.server.Permit(t, u.name, other, "", "", ".*")
	u.server.Permit(t, u.name, u.vhost, ".*", ".*", ".*")
	u.server.ChangePassword(t, u.name, "monitoring")
	seen := look(u.password)
	if seen.Knows || !seen.Tagged || !slices.Equal(seen.Elsewhere, []string{other}) || seen.Rights.Configure != ".*" {
		t.Errorf("%+v", seen)
	}
	if _, err := apply.PutUserRight(ctx, u.client, u.vhost, u.name, u.password, seen, rights); err != nil {
		t.Fatal(err)
	}
	if state := look(u.password); !state.Knows || state.Tagged || len(state.Elsewhere) > 0 || *state.Rights != rights {
		t.Errorf("%+v", state)
	}

	ch, err := u.channel(t, u.vhost)
	must(t, err)
	if n, err := u.client.Sessions(ctx, u.name); err != nil || n != 1 {
		t.Errorf("%d sessions, %v", n, err)
	}
	closed := ch.NotifyClose(make(chan *amqp091.Error, 1))
	for range 2 {
		must(t, u.client.DeleteUser(ctx, u.name))
	}
	if err := <-closed; err == nil {
		t.Error("the session of a deleted user goes on")
	}
	if state := look(u.password); state.Exists {
		t.Errorf("%+v", state)
	}
}

// As many queues as a Transport can have, with names as long as they can be.
func TestWorkerRights_WorksForTheLongestNames(t *testing.T) {
	u := newScopedUser(t)
	var queues []string
	for i := range 64 {
		name := fmt.Sprintf("%02d", i) + strings.Repeat(".", 238)
		queues = append(queues, name, name+compile.QuarantineSuffix, name+".migrating")
	}
	rights := topology.WorkerRights(compile.NamesOf(u.spec), queues)
	seen, err := apply.LookAtUser(t.Context(), u.client, u.vhost, u.name, u.password)
	must(t, err)
	_, err = apply.PutUserRight(t.Context(), u.client, u.vhost, u.name, u.password, seen, rights)
	must(t, err)
	_, err = u.amqp.QueueDeclare(queues[len(queues)-3], true, false, false, false, nil)
	must(t, err)
	ch, err := u.channel(t, u.vhost)
	must(t, err)
	if _, err := ch.Consume(queues[len(queues)-3], "", false, false, false, false, nil); err != nil {
		t.Error(err)
	}
}

func TestLookAtUser_NeedsAnAdministrator(t *testing.T) {
	s := newStage(t)
	identity, err := s.client.Identity(t.Context())
	must(t, err)
	server := testbroker.Shared(t)
	name := "policymaker-" + identity.VHost
	password := server.User(t, name, "policymaker", identity.VHost, ".*", ".*", ".*")
	management, err := url.Parse(server.ManagementURL)
	must(t, err)
	management.User = nil
	client, err := broker.New(broker.Config{ManagementURL: management.String(), Username: name, Password: password, VHost: identity.VHost})
	must(t, err)
	if _, err := apply.LookAtUser(t.Context(), client, identity.VHost, "worker", ""); !errors.Is(err, broker.ErrForbidden) {
		t.Errorf("%v", err)
	}
	if err := client.PutUser(t.Context(), "worker", password); !errors.Is(err, broker.ErrForbidden) || strings.Contains(err.Error(), password) {
		t.Errorf("%v", err)
	}
}
