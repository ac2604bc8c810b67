package broker_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

func TestMain(m *testing.M) { testbroker.Main(m) }

// odd holds what URLs, patterns and bindings could trip over.
const odd = `a.b(c)[d]{e}+*?^$|\#- ü/%2F x'"`

func config(t *testing.T, b *testbroker.Broker, vhost string) broker.Config {
	t.Helper()
	found, err := credentials.FromURLs(b.AMQPURL, b.ManagementURL)
	if err != nil {
		t.Fatal(err)
	}
	end, err := found.Management()
	if err != nil {
		t.Fatal(err)
	}
	return broker.Config{ManagementURL: end.URL, Username: end.Username, Password: end.Password(), VHost: vhost, TLS: end.TLS}
}

func connect(t *testing.T, config broker.Config) *broker.Client {
	t.Helper()
	client, err := broker.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func create(t *testing.T, client *broker.Client, step topology.Step) (existed bool) {
	t.Helper()
	step.Action = topology.ActionCreate
	existed, err := client.Apply(context.Background(), step)
	if err != nil {
		t.Fatal(err)
	}
	return existed
}

func quorum(name string) *topology.Queue {
	return &topology.Queue{Name: name, Type: "quorum", Durable: true, Arguments: topology.Arguments{
		"x-queue-type": "quorum", "redrive-owner": "o/n s/ü", "x-message-ttl": int64(86_400_000),
	}}
}

// long has as many bytes as a name may have, nearly all of which are escaped in a URL.
var long = strings.Repeat("ü/%*# ", 36) + "xyz"

func TestClient_MakesSeesAndDeletesObjectsWithOddNames(t *testing.T) {
	b := testbroker.Shared(t)
	vhost := b.Vhost(t) + "/ü %2F"
	b.MakeVhost(t, vhost)
	direct := config(t, b, vhost)
	behind := direct
	behind.ManagementURL = prefixed(t, direct.ManagementURL, "/rabbit/management")
	for way, config := range map[string]broker.Config{"directly": direct, "behind a path prefix": behind} {
		for kind, name := range map[string]string{"odd": odd, "long": long} {
			t.Run(kind+" "+way, func(t *testing.T) { makesSeesAndDeletes(t, connect(t, config), vhost, name) })
		}
	}
}

// prefixed is the URL of a proxy that shows the management API below a path, as an Ingress does.
func prefixed(t *testing.T, to, prefix string) string {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	server := httptest.NewServer(http.StripPrefix(prefix, forward))
	t.Cleanup(server.Close)
	return server.URL + prefix
}

func makesSeesAndDeletes(t *testing.T, client *broker.Client, vhost, odd string) {
	t.Helper()
	ctx := context.Background()

	exchange := &topology.Exchange{Name: odd, Type: "topic", Durable: true, Arguments: topology.Arguments{"redrive-owner": "o/n s/ü"}}
	binding := topology.Binding{Source: odd, Destination: odd, RoutingKey: odd, Arguments: topology.Arguments{"redrive-owner": "o/n s/ü"}}
	policy := &topology.Policy{
		Name: odd, Pattern: "^" + regexp.QuoteMeta(odd) + "$", ApplyTo: "queues", Priority: 1000,
		Definition: topology.Arguments{"overflow": "reject-publish", "delivery-limit": int64(1<<31 - 1)},
	}
	for _, step := range []topology.Step{{Policy: policy}, {Exchange: exchange}, {Queue: quorum(odd)}, {Binding: &binding}} {
		if create(t, client, step) {
			t.Errorf("%s existed", step)
		}
	}
	if !create(t, client, topology.Step{Queue: quorum(odd)}) || !create(t, client, topology.Step{Exchange: exchange}) {
		t.Error("the second creation must say that it existed")
	}

	testtransport.Eventually(t, "the policy applies", func() bool {
		state, err := client.Queue(ctx, odd)
		if err != nil {
			t.Fatal(err)
		}
		return state.Policy == policy.Name && state.Messages != nil
	})
	binding.PropertiesKey = seesOddNames(t, client, vhost, odd, policy)
	deletesOddNames(t, client, binding, policy)
}

// seesOddNames compares what is observed, and returns the broker's name of the binding.
func seesOddNames(t *testing.T, client *broker.Client, vhost, odd string, policy *topology.Policy) string {
	t.Helper()
	observed, err := client.Observe(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if observed.VHost != vhost || observed.Cluster == "" {
		t.Errorf("identity: %+v", observed.Identity)
	}
	if got := observed.Exchanges[odd]; got.Type != "topic" || !got.Durable || got.Arguments.Owner() != "o/n s/ü" {
		t.Errorf("exchange: %+v", got)
	}
	if got := observed.Queues[odd]; got.Type != "quorum" || got.Arguments.Owner() != "o/n s/ü" || *got.Messages != 0 {
		t.Errorf("queue: %+v", got)
	}
	if len(observed.Bindings) != 1 || observed.Bindings[0].Name() != (topology.Binding{Source: odd, Destination: odd, RoutingKey: odd}).Name() || observed.Bindings[0].Arguments.Owner() == "" {
		t.Fatalf("bindings: %+v", observed.Bindings)
	}
	if got := observed.Policies[policy.Name]; got.Pattern != policy.Pattern || got.Priority != 1000 {
		t.Errorf("policy: %+v", got)
	}
	return observed.Bindings[0].PropertiesKey
}

// deletesOddNames deletes everything twice: what is gone already is success.
func deletesOddNames(t *testing.T, client *broker.Client, binding topology.Binding, policy *topology.Policy) {
	t.Helper()
	ctx, odd := context.Background(), binding.Source
	if err := client.DeleteExchange(ctx, odd); !errors.Is(err, broker.ErrConflict) {
		t.Errorf("an exchange in use: want ErrConflict, got %v", err)
	}
	for range 2 {
		for _, step := range []topology.Step{{Binding: &binding}, {Policy: policy}} {
			step.Action = topology.ActionDelete
			if _, err := client.Apply(ctx, step); err != nil {
				t.Error(err)
			}
		}
		if err := client.DeleteQueue(ctx, odd, false, false); err != nil {
			t.Error(err)
		}
		if err := client.DeleteExchange(ctx, odd); err != nil {
			t.Error(err)
		}
	}
	if _, err := client.Queue(ctx, odd); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("want ErrNotFound, got %v", err)
	}
	if bindings, err := client.Bindings(ctx, odd); err != nil || len(bindings) > 0 {
		t.Errorf("want no bindings, got %v, %v", bindings, err)
	}
}

func TestClient_TellsRefusalsOfARealBrokerApart(t *testing.T) {
	b := testbroker.Shared(t)
	vhost := b.Vhost(t)
	good := config(t, b, vhost)
	client := connect(t, good)
	create(t, client, topology.Step{Queue: quorum("q")})
	create(t, client, topology.Step{Exchange: &topology.Exchange{Name: "e", Type: "direct", Durable: true}})

	user := strings.ToLower("u-" + vhost)
	secret := b.User(t, user, "policymaker", vhost, "^allowed", "", "")
	plain := b.User(t, user+"-plain", "", vhost, ".*", ".*", ".*")
	as := func(name, password string) *broker.Client {
		changed := good
		changed.Username, changed.Password = name, password
		return connect(t, changed)
	}
	elsewhere := good
	elsewhere.VHost = "no such vhost"
	other := quorum("q")
	other.Arguments["x-message-ttl"] = int64(1)
	declare := func(client *broker.Client, queue *topology.Queue) error {
		_, err := client.Apply(context.Background(), topology.Step{Action: topology.ActionCreate, Queue: queue})
		return err
	}
	observe := func(client *broker.Client) error { _, err := client.Observe(context.Background()); return err }
	cases := []struct {
		name string
		err  error
		want error
	}{
		{"a wrong password", observe(as(user, "wrong")), broker.ErrUnauthorized},
		{"a wrong password on a write", declare(as(user, "wrong"), quorum("allowed")), broker.ErrUnauthorized},
		{"a user without a tag", observe(as(user+"-plain", plain)), broker.ErrForbidden},
		{"a name outside of the user's rights", declare(as(user, secret), quorum("forbidden")), broker.ErrForbidden},
		{"a vhost that does not exist", observe(connect(t, elsewhere)), broker.ErrNotFound},
		{"a queue in a vhost that does not exist", declare(connect(t, elsewhere), quorum("q")), broker.ErrNotFound},
		{"a queue with other arguments", declare(client, other), broker.ErrConflict},
		{"a quorum queue if empty", client.DeleteQueue(context.Background(), "q", true, false), broker.ErrConflict},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if !errors.Is(c.err, c.want) {
				t.Errorf("want %v, got %v", c.want, c.err)
			}
		})
	}
}

func TestClient_NeedsNoMoreThanThePolicymakerTag(t *testing.T) {
	b := testbroker.Shared(t)
	vhost := b.Vhost(t)
	user := strings.ToLower("pm-" + vhost)
	limited := config(t, b, vhost)
	limited.Password = b.User(t, user, "policymaker", vhost, ".*", ".*", ".*")
	limited.Username = user
	client := connect(t, limited)
	if _, err := client.Observe(context.Background()); err != nil {
		t.Fatal(err)
	}
	create(t, client, topology.Step{Policy: &topology.Policy{
		Name: "p", Pattern: "^q$", ApplyTo: "queues", Definition: topology.Arguments{"max-length": 1},
	}})
	create(t, client, topology.Step{Queue: quorum("q")})
	if err := client.DeleteQueue(context.Background(), "q", false, false); err != nil {
		t.Error(err)
	}
}

func TestWithTransport_SeesEveryRequest(t *testing.T) {
	b := testbroker.Shared(t)
	var seen []string
	client, err := broker.New(config(t, b, b.Vhost(t)), broker.WithTransport(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			seen = append(seen, r.Method)
			return next.RoundTrip(r)
		})
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Observe(context.Background()); err != nil {
		t.Fatal(err)
	}
	create(t, client, topology.Step{Queue: quorum("q")})
	if want := append(slices.Repeat([]string{http.MethodGet}, 7), http.MethodPut); !slices.Equal(seen, want) {
		t.Errorf("want %v, got %v", want, seen)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
