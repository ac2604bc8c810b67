package brokerpool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/tenancy"
)

// A look keeps its snapshot as long as it lasts, and a broker that hangs later on makes that minutes: all snapshots together are bounded.
func TestPool_BoundsAllSnapshotsTogether(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/api/exchanges"):
			_, _ = io.WriteString(w, `[{"name":"amq.direct","type":"direct"}`)
			for i := range 5000 * strings.Count(r.URL.Path, "large") {
				_, _ = fmt.Fprintf(w, `,{"name":"exchange-%d","arguments":{"a":1,"b":2}}`, i)
			}
			_, _ = io.WriteString(w, "]")
		case r.URL.Path == "/api/cluster-name":
			_, _ = io.WriteString(w, `{"name":"rabbit@test"}`)
		default:
			_, _ = io.WriteString(w, "[]")
		}
	}))
	defer server.Close()
	b := NewPool(time.Hour, 8, nil)
	b.budget = tenancy.NewMemory(18 * tenancy.MemoryStep)
	observe := func(tenant, vhost string) (*View, error) {
		login, err := credentials.FromSecret(map[string][]byte{
			"host": []byte("127.0.0.1"), "username": []byte("u"), "password": []byte("p"), "management_uri": []byte(server.URL),
		})
		if err != nil {
			t.Fatal(err)
		}
		port, err := b.Port(types.NamespacedName{Namespace: "shop", Name: vhost}, login, vhost)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		own := port.View(tenant+"/async", time.Hour)
		_, err = own.Observe(ctx)
		return own, err
	}
	var ports []*View
	// The one that there is no room for waits for it as long as it may: nothing is proved by more of them.
	var refused error
	for i := 0; i < 8 && refused == nil; i++ {
		var own *View
		own, refused = observe("hostile", fmt.Sprint("large-", i))
		ports = append(ports, own)
		if i == 0 && refused != nil {
			t.Fatalf("the first snapshot: %v", refused)
		}
	}
	if !errors.Is(refused, broker.ErrUnreachable) {
		t.Fatalf("of eight snapshots one ends by %v", refused)
	}
	if all, hostile := b.budget.Used("hostile"); hostile > 9*tenancy.MemoryStep || all > 18*tenancy.MemoryStep {
		t.Errorf("%d bytes are taken, %d by one namespace", all, hostile)
	}
	for _, vhost := range []string{"small", "large"} {
		own, err := observe("shop", vhost)
		if err != nil {
			t.Errorf("another namespace: %v", err)
		}
		ports = append(ports, own)
	}
	for _, own := range ports {
		own.Release()
	}
	for _, port := range b.ports {
		port.drop(port.taken)
	}
	if all, hostile := b.budget.Used("hostile"); all != 0 || hostile != 0 {
		t.Errorf("all are gone, and %d bytes are taken", all)
	}
}
