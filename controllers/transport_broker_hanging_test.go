package controllers_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// Requests to a broker that takes them and never answers end after half a minute. All of the operator's workers could wait for
// such brokers at once.
func TestTransport_KeepsNoOtherWaitingForHangingBrokers(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	o := &operator{}
	hanging := newUnattendedWorld(t, o)
	others := newBystanders(t, o)
	hanging.create(hanging.policy("policy", time.Second))
	const brokers, vhosts, transports = 8, 5, 80
	liars := make([]*liar, brokers)
	for i := range liars {
		liars[i] = newLiar(t, testbroker.Shared(t).ManagementURL)
		liars[i].be(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		secret := hanging.secret()
		secret.Name = fmt.Sprint("hanging-", i)
		secret.StringData["management_uri"] = liars[i].URL
		hanging.create(secret)
	}
	all := make([]*v1alpha1.Transport, transports)
	for i := range all {
		all[i] = hanging.transport()
		all[i].Name = fmt.Sprintf("hanging-%02d", i)
		all[i].Spec.Broker.SecretRef.Name = fmt.Sprint("hanging-", i%brokers)
		all[i].Spec.Broker.VHost = new(fmt.Sprint("team-", i/brokers%vhosts))
		hanging.create(all[i])
	}
	// Longer than the deadline of a request, after which all may try again.
	for until := time.Now().Add(45 * time.Second); time.Now().Before(until); {
		others.check()
	}
	others.judge()
	for i, l := range liars {
		if l.requests.Load() == 0 {
			t.Errorf("nobody has asked broker %d", i)
		}
	}
	testtransport.Eventually(t, "half of the Transports to be told that their broker does not answer", func() bool {
		told := 0
		for _, transport := range all {
			hanging.get(transport)
			if hasReason(transport, v1alpha1.ReasonBrokerUnreachable) {
				told++
			}
		}
		return told >= transports/2
	})

	t.Log("they answer again")
	for _, l := range liars {
		l.be(nil)
	}
	for i := range brokers {
		transport := all[i]
		testtransport.Eventually(t, "broker "+transport.Spec.Broker.SecretRef.Name+" to be found well", func() bool {
			hanging.get(transport)
			return !hasReason(transport, v1alpha1.ReasonBrokerUnreachable)
		})
	}
}
