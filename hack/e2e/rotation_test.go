//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// rotateWithin is how long operator and workers may take to use what a Secret says now: the operator reads it once a minute,
// give or take some seconds, and the workers move over in their own time.
const rotateWithin = 90 * time.Second

func TestCredentials_RotateUnderLoad(t *testing.T) {
	long(t)
	t.Parallel()
	s := openShop(t, "rotate", plan{})
	before := s.awaitPods(2, time.Minute)
	flow := s.startLoad(60, slow(s.name, 100*time.Millisecond))
	s.awaitHandled(60)

	oldOperator, oldWorker := s.operator, s.worker
	s.operator, s.worker = s.makeUser(operatorRole), s.makeUser(workerRole)
	s.writeSecret()
	s.awaitUser(s.worker.user, oldWorker.user)
	for _, old := range []login{oldOperator, oldWorker} {
		must(t, s.broker.manage(t.Context(), http.MethodDelete, apiPath("users", old.user), nil, nil))
	}
	s.awaitHandled(60)

	// The same users get other passwords; whoever comes with the old ones is refused from then on.
	s.operator, s.worker = s.renew(operatorRole, s.operator), s.renew(workerRole, s.worker)
	s.writeSecret()
	s.dropConnections(s.worker.user)
	s.awaitUser(s.worker.user, oldWorker.user)
	s.awaitHandled(60)

	s.tally.settle(flow.stop(), time.Minute)
	s.scale(3) // carried out by an operator and a worker with the new passwords
	s.awaitPods(3, time.Minute)
	after := s.awaitReady(rotateWithin)
	if after.Status.Workers != "3/3" {
		t.Errorf("status has %q workers", after.Status.Workers)
	}
	s.scale(2)
	pods := s.awaitPods(2, time.Minute)
	if !sameRestarts(before, pods) {
		t.Errorf("pods and restarts are %v, before the rotation %v", restarts(pods), restarts(before))
	}
}

// writeSecret as a tool that rotates does.
func (s *shop) writeSecret() {
	s.t.Helper()
	want := s.secret()
	current := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: secretName}}
	must(s.t, suite.client.Get(s.t.Context(), keyOf(current), current))
	current.StringData = want.StringData
	must(s.t, suite.client.Update(s.t.Context(), current))
}

// renew gives a user another password.
func (s *shop) renew(role string, old login) login {
	s.t.Helper()
	renewed := suite.secrets.password(role+" of "+s.name, old.user)
	s.setPassword(renewed, role)
	return renewed
}

// dropConnections of a user, as RabbitMQ itself does not when a password changes.
func (s *shop) dropConnections(user string) {
	s.t.Helper()
	all, err := s.broker.connections(s.t.Context(), s.vhost)
	must(s.t, err)
	for _, c := range all {
		if c.User == user {
			must(s.t, s.broker.manage(s.t.Context(), http.MethodDelete, apiPath("connections", c.Name), nil, nil))
		}
	}
}

// awaitUser waits until every pod has its two connections as one user, and none is left as another.
func (s *shop) awaitUser(user, gone string) {
	s.t.Helper()
	began := time.Now()
	await(s.t, rotateWithin, "the workers to connect as "+user, func() (bool, any) {
		all, err := s.broker.connections(s.t.Context(), s.vhost)
		if err != nil {
			return false, err
		}
		count := map[string]int{}
		for _, c := range all {
			count[c.User]++
		}
		return count[user] >= 4 && count[gone] == 0, fmt.Sprint(count)
	})
	s.t.Logf("connected as the user of the Secret after %s", time.Since(began).Round(100*time.Millisecond))
}
