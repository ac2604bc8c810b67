package broker_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testcert"
)

// secret is the data of a Secret for the TLS ports of a broker, with changes: an empty value takes a key away.
func secret(t *testing.T, b *testbroker.Broker, changes map[string][]byte) map[string][]byte {
	t.Helper()
	host, port, err := net.SplitHostPort(b.SecureAMQP)
	if err != nil {
		t.Fatal(err)
	}
	username, password := b.Login(t)
	data := map[string][]byte{
		"host": []byte(host), "port": []byte(port), "username": []byte(username), "password": []byte(password),
		"management_uri": []byte(b.SecureManagement),
	}
	for key, value := range changes {
		data[key] = value
		if len(value) == 0 {
			delete(data, key)
		}
	}
	return data
}

func TestTLS_WorksWithAPrivateAuthority(t *testing.T) {
	ours, theirs := testcert.NewAuthority(t, "ours"), testcert.NewAuthority(t, "theirs")
	client, stranger := ours.Issue(t, "client"), theirs.Issue(t, "client")
	good := ours.Issue(t, "127.0.0.1", "localhost")
	b := testbroker.PrivateTLS(t, testbroker.TLS{Cert: good.Cert, Key: good.Key, ClientCA: ours.PEM})
	u, err := url.Parse(b.SecureManagement)
	if err != nil {
		t.Fatal(err)
	}
	with := func(ca []byte, pair testcert.Pair) map[string][]byte {
		return map[string][]byte{"ca.crt": ca, "tls.crt": pair.Cert, "tls.key": pair.Key}
	}
	cases := []struct {
		name   string
		server testcert.Pair
		data   map[string][]byte
		text   string // empty where it works
	}{
		{"both know each other", good, with(ours.PEM, client), ""},
		{"one authority more is no harm", good, with(append(theirs.PEM, ours.PEM...), client), ""},
		{"no authority is given", good, with(nil, client), "is signed by an unknown authority (CN=ours): key ca.crt must hold"},
		{"the wrong authority is given", good, with(theirs.PEM, client), "is signed by an unknown authority (CN=ours): key ca.crt must hold"},
		{"no client certificate", good, with(ours.PEM, testcert.Pair{}), "refuses the client certificate (certificate required): the keys tls.crt and tls.key"},
		{"a client certificate of strangers", good, with(ours.PEM, stranger), "refuses the client certificate (certificate required)"},
		{"an expired client certificate", good, with(ours.PEM, ours.IssueExpired(t, "client")), "refuses the client certificate (expired certificate)"},
		{"an expired certificate", ours.IssueExpired(t, "127.0.0.1"), with(ours.PEM, client), "only: the broker needs a new one, or key ca.crt"},
		{"a certificate for another host", ours.Issue(t, "rabbitmq.shop.svc"), with(ours.PEM, client), "is for rabbitmq.shop.svc and not for 127.0.0.1: the keys host and management_uri"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b.ShowCertificate(t, testbroker.TLS{Cert: c.server.Cert, Key: c.server.Key, ClientCA: ours.PEM})
			login, err := credentials.FromSecret(secret(t, b, c.data))
			if err != nil {
				t.Fatal(err)
			}
			end, err := login.Management()
			if err != nil {
				t.Fatal(err)
			}
			_, err = connect(t, broker.Config{
				ManagementURL: end.URL, Username: end.Username, Password: end.Password(), VHost: "/", TLS: end.TLS,
			}).Observe(context.Background())
			if c.text == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			certificate, ok := errors.AsType[*credentials.CertificateError](err)
			if !ok || certificate.Address != u.Host || !errors.Is(err, broker.ErrUnreachable) || !strings.Contains(fmt.Sprint(err), c.text) {
				t.Errorf("want %q, got %v", c.text, err)
			}
		})
	}
}
