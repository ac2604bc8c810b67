package amqp_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testcert"
	"redrive.dev/redrive/internal/testtransport"
)

func TestTLS_WorksWithAPrivateAuthority(t *testing.T) {
	ours, theirs := testcert.NewAuthority(t, "ours"), testcert.NewAuthority(t, "theirs")
	client := ours.Issue(t, "client")
	good := ours.Issue(t, "127.0.0.1", "localhost")
	b := testbroker.PrivateTLS(t, testbroker.TLS{Cert: good.Cert, Key: good.Key, ClientCA: ours.PEM})
	cases := []struct {
		name   string
		server testcert.Pair
		ca     []byte
		client testcert.Pair
		text   string // empty where it works
	}{
		{"both know each other", good, ours.PEM, client, ""},
		{"the wrong authority is given", good, theirs.PEM, client, "is signed by an unknown authority (CN=ours): key ca.crt must hold"},
		{"no client certificate", good, ours.PEM, testcert.Pair{}, "refuses the client certificate (certificate required): the keys tls.crt and tls.key"},
		{"an expired client certificate", good, ours.PEM, ours.IssueExpired(t, "client"), "refuses the client certificate (expired certificate)"},
		{"an expired certificate", ours.IssueExpired(t, "127.0.0.1"), ours.PEM, client, "only: the broker needs a new one, or key ca.crt"},
		{"a certificate for another host", ours.Issue(t, "rabbitmq.shop.svc"), ours.PEM, client, "is for rabbitmq.shop.svc and not for 127.0.0.1: the keys host"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b.ShowCertificate(t, testbroker.TLS{Cert: c.server.Cert, Key: c.server.Key, ClientCA: ours.PEM})
			username, password := b.Login(t)
			login, err := credentials.FromSecret(map[string][]byte{
				"uri": []byte("amqps://" + b.SecureAMQP), "username": []byte(username), "password": []byte(password),
				"ca.crt": c.ca, "tls.crt": c.client.Cert, "tls.key": c.client.Key,
			})
			if err != nil {
				t.Fatal(err)
			}
			if c.text == "" {
				session(t, login)
				return
			}
			if log := failure(t, login, c.text); !strings.Contains(log, "the certificate of "+b.SecureAMQP) && !strings.Contains(log, b.SecureAMQP+" refuses") ||
				!strings.Contains(log, c.text) || strings.Contains(log, password) {
				t.Errorf("want %q, got %s", c.text, log)
			}
		})
	}
}

// session fails the test unless a session comes about.
func session(t *testing.T, login credentials.Credentials) {
	t.Helper()
	publisher := amqp.NewPublisher(amqp.Options{
		Source: func() (amqp.Target, error) { return amqp.TargetOf(login, "/") }, Name: t.Name(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	run(t, publisher.Run)
	testtransport.Eventually(t, "the session", func() bool { ready, _ := publisher.Ready(); return ready })
}

// failure is what the log says of a session that does not come about. Trouble says the same. It may take some tries: a broker
// that refuses a certificate closes the connection, which at times is seen before its reason.
func failure(t *testing.T, login credentials.Credentials, text string) string {
	t.Helper()
	var mu sync.Mutex
	var log strings.Builder
	publisher := amqp.NewPublisher(amqp.Options{
		Source: func() (amqp.Target, error) { return amqp.TargetOf(login, "/") }, Name: t.Name(),
		Log: slog.New(slog.NewTextHandler(&locked{w: &log, mu: &mu}, nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { publisher.Run(ctx) })
	testtransport.Eventually(t, "the failure", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(log.String(), text) && strings.Contains(log.String(), "retryIn")
	})
	trouble := publisher.Trouble()
	cancel()
	running.Wait()
	if trouble == nil || !strings.Contains(log.String(), strings.Split(trouble.Error(), `"`)[0]) {
		t.Errorf("trouble %v, and the log %s", trouble, log.String())
	}
	return log.String()
}
