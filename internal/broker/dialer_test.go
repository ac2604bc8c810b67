package broker_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/broker"
)

// Who writes a Secret must not reach by the operator what only the operator reaches, or learn whether something listens there.
func TestClient_AsksNothingInADeniedNetwork(t *testing.T) {
	asked := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = true
		if strings.HasSuffix(r.URL.Path, "/global-parameters") {
			_, _ = w.Write([]byte("[]"))
			return
		}
		_, _ = w.Write([]byte(`{"name":"rabbit@test"}`))
	}))
	defer server.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "http://"), ":")
	deny := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("169.254.0.0/16")}
	reasons := map[string]bool{}
	for _, host := range []string{
		"127.0.0.1:" + port, "localhost:" + port, "[::ffff:127.0.0.1]:" + port, "127.0.0.1:1", "169.254.169.254",
		"[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::1]", // the same by a translator
	} {
		client, err := broker.New(broker.Config{ManagementURL: "http://" + host, Username: "u", Password: password, VHost: "v", Deny: deny})
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Identity(t.Context())
		client.Close()
		if !errors.Is(err, broker.ErrUnreachable) || !strings.Contains(err.Error(), "--deny-broker-networks") {
			t.Errorf("%s: want it refused, got %v", host, err)
			continue
		}
		reasons[err.Error()] = true
	}
	if asked || len(reasons) != 1 {
		t.Errorf("asked: %v; what is said: %v", asked, reasons)
	}
	client, err := broker.New(broker.Config{ManagementURL: server.URL, Username: "u", Password: password, VHost: "v", Deny: deny[1:]})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Identity(t.Context()); err != nil {
		t.Errorf("in another network: %v", err)
	}
}

func TestError_RepeatsNoAnswerOfOthersThanRabbitMQ(t *testing.T) {
	for _, body := range []string{
		`{"error":"token s.INTERNAL-1 expired"}`, `{"error":"bad","reason":"INTERNAL-1"}`, `{"reason":"INTERNAL-1"}`, "INTERNAL-1",
	} {
		for _, status := range []int{http.StatusBadRequest, http.StatusForbidden, http.StatusInternalServerError} {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				_, _ = w.Write([]byte(body))
			}))
			client, err := broker.New(broker.Config{ManagementURL: server.URL, Username: "u", Password: password, VHost: "v"})
			if err != nil {
				t.Fatal(err)
			}
			_, err = client.Identity(t.Context())
			if err == nil || strings.Contains(err.Error(), "INTERNAL") {
				t.Errorf("%d %s: %v", status, body, err)
			}
			client.Close()
			server.Close()
		}
	}
}
