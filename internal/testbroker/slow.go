package testbroker

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// SlowMember lets the Raft member of a quorum queue on this node stand still for `away`, then work for `back`, and so on, until the
// function that it returns is called. Other queues go on. It takes a broker that this process started: a Private one.
func (b *Broker) SlowMember(t testing.TB, vhost, queue string, away, back time.Duration) (end func()) {
	t.Helper()
	b.evaluate(t, fmt.Sprintf(`
		{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(%s, queue, %s)), {Name, _} = amqqueue:get_pid(Q),
		Turns = fun Turn() ->
			catch sys:suspend(Name, 60000),
			Over = receive stop -> true after %d -> false end,
			catch sys:resume(Name, 60000),
			Over orelse receive stop -> ok after %d -> Turn() end
		end,
		true = register(list_to_atom(atom_to_list(Name) ++ "_slow"), spawn(Turns)).`,
		binary(vhost), binary(queue), away.Milliseconds(), back.Milliseconds()))
	return func() {
		t.Helper()
		b.evaluate(t, fmt.Sprintf(`
			{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(%s, queue, %s)), {Name, _} = amqqueue:get_pid(Q),
			Pid = whereis(list_to_atom(atom_to_list(Name) ++ "_slow")), Watch = monitor(process, Pid),
			Pid ! stop, receive {'DOWN', Watch, _, _, _} -> ok end.`, binary(vhost), binary(queue)))
	}
}

// SetEnvironment sets a number in the environment of the broker's application rabbit, which what starts from then on finds there.
func (b *Broker) SetEnvironment(t testing.TB, name string, value int) {
	t.Helper()
	b.evaluate(t, fmt.Sprintf("application:set_env(rabbit, %s, %d).", name, value))
}

func (b *Broker) evaluate(t testing.TB, expression string) {
	t.Helper()
	if b.runner == nil {
		t.Fatal("only a broker that this process started evaluates: take testbroker.Private")
	}
	if err := b.Control(context.Background(), "eval", expression); err != nil {
		t.Fatal(err)
	}
}
