package testbroker

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"testing"
)

// ChangePassword gives a user another password and returns it. Connections that stand go on.
func (b *Broker) ChangePassword(t testing.TB, name, tags string) string {
	t.Helper()
	password := rand.Text()
	b.must(t, http.MethodPut, "/api/users/"+url.PathEscape(name), map[string]string{"password": password, "tags": tags})
	return password
}

// DeleteUser deletes a user. The broker ends its connections.
func (b *Broker) DeleteUser(t testing.TB, name string) {
	t.Helper()
	b.must(t, http.MethodDelete, "/api/users/"+url.PathEscape(name), nil)
}

// SetPolicy makes or replaces a RabbitMQ policy.
func (b *Broker) SetPolicy(t testing.TB, vhost, name, pattern, applyTo string, priority int, definition map[string]any) {
	t.Helper()
	b.must(t, http.MethodPut, "/api/policies/"+url.PathEscape(vhost)+"/"+url.PathEscape(name), map[string]any{
		"pattern": pattern, "apply-to": applyTo, "priority": priority, "definition": definition,
	})
}

// SetOperatorPolicy makes or replaces an operator policy of RabbitMQ, which only some keys are allowed in.
func (b *Broker) SetOperatorPolicy(t testing.TB, vhost, name, pattern, applyTo string, definition map[string]any) {
	t.Helper()
	b.must(t, http.MethodPut, "/api/operator-policies/"+url.PathEscape(vhost)+"/"+url.PathEscape(name), map[string]any{
		"pattern": pattern, "apply-to": applyTo, "definition": definition,
	})
}

// SetDefaultQueueType says of what type queues are in a vhost that are declared without one. RabbitMQ 3.10 takes no notice.
func (b *Broker) SetDefaultQueueType(t testing.TB, vhost, kind string) {
	t.Helper()
	b.must(t, http.MethodPut, "/api/vhosts/"+url.PathEscape(vhost), map[string]string{"default_queue_type": kind})
}

// Forget deletes a user, if there is one.
func (b *Broker) Forget(name string) {
	_ = b.manage(context.Background(), http.MethodDelete, "/api/users/"+url.PathEscape(name), nil)
}

// LimitChannels bounds how many channels a user may have, over all its connections.
func (b *Broker) LimitChannels(t testing.TB, name string, channels int) {
	t.Helper()
	b.limit(t, name, "max-channels", channels)
}

// LimitConnections bounds how many connections a user may have.
func (b *Broker) LimitConnections(t testing.TB, name string, connections int) {
	t.Helper()
	b.limit(t, name, "max-connections", connections)
}

func (b *Broker) limit(t testing.TB, name, what string, most int) {
	t.Helper()
	b.must(t, http.MethodPut, "/api/user-limits/"+url.PathEscape(name)+"/"+what, map[string]int{"value": most})
}
