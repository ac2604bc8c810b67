package brokeruser

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/internal/brokerpool"
	"redrive.dev/redrive/internal/credentials"
)

// secretsOf is an API server that has Secrets and nothing else.
type secretsOf map[types.NamespacedName]map[string]string

// Get implements client.Reader.
func (s secretsOf) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	secret, ok := object.(*corev1.Secret)
	data, exists := s[key]
	if !ok || !exists {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, key.Name)
	}
	secret.Data = map[string][]byte{}
	for key, text := range data {
		secret.Data[key] = []byte(text)
	}
	return nil
}

// List implements client.Reader.
func (secretsOf) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("nothing is listed")
}

// A team that names another server, or another path of the same one, must not have users made by the administrator on its word.
func TestAdmins_ServeOnlyTheSameManagementAPI(t *testing.T) {
	var asked string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked, _, _ = r.BasicAuth()
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	withLogin := func(to string) string { return strings.Replace(server.URL, "http://", "http://"+to+":secret@", 1) }
	name := types.NamespacedName{Namespace: "redrive-system", Name: "admin"}
	gone := types.NamespacedName{Namespace: "redrive-system", Name: "gone"}
	for what, tt := range map[string]struct {
		admins []types.NamespacedName
		path   string
		want   string
		fails  bool
	}{
		"no administrator is named":  {nil, "", "", false},
		"the same API":               {[]types.NamespacedName{name}, "", "admin", false},
		"another path of it":         {[]types.NamespacedName{name}, "/mine", "", false},
		"a Secret that is not there": {[]types.NamespacedName{gone}, "", "", true},
	} {
		t.Run(what, func(t *testing.T) {
			asked = ""
			admins := &Admins{
				Live:    secretsOf{name: {"host": "rabbitmq", "username": "u", "password": "p", "management_uri": withLogin("admin")}},
				Brokers: brokerpool.NewPool(time.Hour, 8, nil), Secrets: tt.admins,
			}
			login, err := credentials.FromSecret(map[string][]byte{
				"host": []byte("rabbitmq"), "username": []byte("u"), "password": []byte("p"), "management_uri": []byte(withLogin("team") + tt.path),
			})
			if err != nil {
				t.Fatal(err)
			}
			port, err := admins.Port(t.Context(), types.NamespacedName{Namespace: "shop", Name: "async"}, login, nil)
			if (err != nil) != tt.fails {
				t.Fatalf("got %v", err)
			}
			if tt.fails {
				return
			}
			if port != nil {
				_, _ = port.User(t.Context(), "x")
			}
			if asked != tt.want {
				t.Errorf("%q asks for users, want %q", asked, tt.want)
			}
		})
	}
}
