//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
)

func TestScopedUser_ServesWorkersAndIsRemovedAfterUse(t *testing.T) {
	long(t)
	t.Parallel()
	// The right to write Secrets is not in the ordinary installation.
	suite.kubectl(t, "", "apply", "-k", "../../config/scoped-users")
	s := newShop(t, "scoped", plan{change: func(transport *v1alpha1.Transport) { transport.Spec.Broker.ScopedUser = new(true) }})
	must(t, s.broker.manage(t.Context(), http.MethodPut, apiPath("users", s.operator.user),
		map[string]string{"password": s.operator.password, "tags": "administrator"}, nil))
	s.open()
	user := s.scopedUser(s.awaitReady(readyWithin))
	s.awaitUser(user, s.worker.user)
	checkMixed(t, s, messages)
	checkQuarantine(t, s)

	flow := s.startLoad(60, func(n int) parcel { return parcel{id: numbered("later", n), pause: "100ms"} })
	s.awaitHandled(60)
	s.update(func(transport *v1alpha1.Transport) { transport.Spec.Broker.ScopedUser = nil })
	s.awaitUser(s.worker.user, user)
	await(t, 2*time.Minute, "the user to be forgotten", func() (bool, any) {
		transport, err := s.read(t.Context())
		return err == nil && len(transport.Status.BrokerUsers) == 0, fmt.Sprint(transport, err)
	})
	checkOnce(t, s.tally.settle(flow.stop(), 2*time.Minute))
	var left []struct {
		Name string `json:"name"`
	}
	must(t, s.broker.manage(t.Context(), http.MethodGet, apiPath("users"), nil, &left))
	for _, one := range left {
		if one.Name == user {
			t.Errorf("the broker still has the user %s", user)
		}
	}
}

// scopedUser is the user that the operator made for the workers. Its password must be found nowhere.
func (s *shop) scopedUser(transport *v1alpha1.Transport) string {
	s.t.Helper()
	if len(transport.Status.BrokerUsers) != 1 {
		s.t.Fatalf("status.brokerUsers is %+v", transport.Status.BrokerUsers)
	}
	user := transport.Status.BrokerUsers[0].Name
	var secrets corev1.SecretList
	must(s.t, suite.client.List(s.t.Context(), &secrets, client.InNamespace(s.namespace)))
	for _, secret := range secrets.Items {
		if string(secret.Data["username"]) == user {
			password := string(secret.Data["password"])
			suite.secrets.add("the workers' own user of "+s.name, user, password, password)
			return user
		}
	}
	s.t.Fatalf("no Secret has the login of %s", user)
	return ""
}
