package testbroker

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// StopMember ends the Raft member of a quorum queue on this node, so that the queue has no leader: nothing that is published to
// it is confirmed, nothing of it is delivered, and other queues go on. StartMember starts it again; both return when that is
// done. They take a broker that this process started: a Private one.
func (b *Broker) StopMember(t testing.TB, vhost, queue string) {
	t.Helper()
	b.member(t, "stop_server", vhost, queue)
}

// StartMember undoes StopMember.
func (b *Broker) StartMember(t testing.TB, vhost, queue string) {
	t.Helper()
	b.member(t, "restart_server", vhost, queue)
}

func (b *Broker) member(t testing.TB, call, vhost, queue string) {
	t.Helper()
	if b.runner == nil {
		t.Fatal("only a broker that this process started can stop a queue's member: take testbroker.Private")
	}
	err := b.Control(context.Background(), "eval", fmt.Sprintf(
		`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(%s, queue, %s)), {Name, _} = amqqueue:get_pid(Q), ok = ra:%s(quorum_queues, {Name, node()}).`,
		binary(vhost), binary(queue), call))
	if err != nil {
		t.Fatalf("%s of queue %q: %v", call, queue, err)
	}
}

// binary is a text as Erlang writes it.
func binary(text string) string {
	bytes := make([]string, len(text))
	for i := range len(text) {
		bytes[i] = strconv.Itoa(int(text[i]))
	}
	return "<<" + strings.Join(bytes, ",") + ">>"
}
