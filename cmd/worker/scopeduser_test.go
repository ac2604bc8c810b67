package main_test

import (
	"crypto/rand"
	"net/url"
	"testing"

	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

// As the operator does it: the next user, the Secret, and, when nobody is logged in as the former one any more, its end.
func TestRotation_LosesAndRepeatsNothingWithScopedUsers(t *testing.T) {
	testtransport.Long(t)
	server := testbroker.Shared(t)
	u, err := url.Parse(server.AMQPURL)
	must(t, err)
	r := newRotating(t, server, map[string]string{"host": u.Hostname(), "port": u.Port()})
	management, err := url.Parse(server.ManagementURL)
	must(t, err)
	password, _ := management.User.Password()
	client, err := broker.New(broker.Config{
		ManagementURL: "http://" + management.Host, Username: management.User.Username(), Password: password, VHost: r.vhost,
	})
	must(t, err)
	rights := topology.WorkerRights(compile.Names{Prefix: "async"}, []string{testtransport.Queue, testtransport.Queue + compile.QuarantineSuffix})
	names := topology.UserNames(testtransport.New(""), r.vhost)
	t.Cleanup(func() {
		for _, name := range names {
			server.Forget(name)
		}
	})
	hand := func(name string) {
		t.Helper()
		password := rand.Text()
		seen, err := apply.LookAtUser(t.Context(), client, r.vhost, name, password)
		must(t, err)
		_, err = apply.PutUserRight(t.Context(), client, r.vhost, name, password, seen, rights)
		must(t, err)
		r.mount.update(map[string]string{"username": name, "password": password})
	}
	hand(names[0])
	r.process.start()
	stream := newStream(t, r.url)
	r.awaitConnections(t, names[0], 2)
	for turn := range 4 {
		stream.more(t, 200)
		former, next := names[turn%2], names[(turn+1)%2]
		hand(next)
		testtransport.Eventually(t, "nobody to be logged in as "+former, func() bool {
			sessions, err := client.Sessions(t.Context(), former)
			must(t, err)
			return sessions == 0
		})
		must(t, client.DeleteUser(t.Context(), former))
		r.awaitConnections(t, next, 2)
	}
	stream.more(t, 200)
	r.account(t, stream.stop())
}
