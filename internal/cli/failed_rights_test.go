package cli

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/internal/testbroker"
)

// replayer gives the commands a login with the rights that the docs ask for.
func (d *depot) replayer() {
	d.t.Helper()
	page, err := os.ReadFile("../../docs/failed-messages.md")
	if err != nil {
		d.t.Fatal(err)
	}
	found := regexp.MustCompile(`set_permissions -p shop shop-replayer '(\S+)' '(\S+)' '(\S+)'`).FindSubmatch(page)
	if found == nil {
		d.t.Fatal("the docs do not tell the rights of a replayer")
	}
	amqp, err := url.Parse(d.amqpURL)
	if err != nil {
		d.t.Fatal(err)
	}
	vhost, name := strings.TrimPrefix(amqp.Path, "/"), "replayer-"+strings.TrimPrefix(amqp.Path, "/")
	d.put("users/"+name, `{"password": "secret", "tags": "policymaker"}`)
	d.put("permissions/"+vhost+"/"+name, fmt.Sprintf(`{"configure": %q, "write": %q, "read": %q}`, found[1], found[2], found[3]))
	management, err := url.Parse(d.management)
	if err != nil {
		d.t.Fatal(err)
	}
	amqp.User, management.User = url.UserPassword(name, "secret"), url.UserPassword(name, "secret")
	d.amqpURL, d.management = amqp.String(), management.String()
}

// put writes to the management API as its administrator.
func (d *depot) put(path, body string) {
	d.t.Helper()
	request, err := http.NewRequestWithContext(d.t.Context(), http.MethodPut, testbroker.Shared(d.t).ManagementURL+"/api/"+path, strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		d.t.Fatal(err)
	}
	if _ = response.Body.Close(); response.StatusCode >= http.StatusBadRequest {
		d.t.Fatalf("PUT %s: %s", path, response.Status)
	}
}

func TestFailedReplay_NeedsNoMoreThanTheRightsInTheDocs(t *testing.T) {
	t.Parallel()
	d := newDepot(t, 20)
	d.replayer()
	d.accept(none)
	d.has(d.does(exitOK, "failed", "replay", "--yes", "--limit", "10"), "completed 10 messages")
	d.handles(10, 10)
	id := d.id(d.does(exitOK, "failed", "discard", "--yes"))
	d.has(d.does(exitOK, "replay", "ls"), id)
	d.does(exitOK, "replay", "cancel", id)
	d.has(d.does(exitOK, "failed", "discard", "--yes", "--undo-for", "0"), "10 deleted")
	d.handles(10, 0)
}

// The Transport's Secret has the login of the workers, which may not read the failure queue.
func TestFailed_LogsInAsTheSecretThatIsNamed(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.pin()
	s.giveUp()
	s.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "replayer"},
		StringData: map[string]string{"username": s.address(s.management).User.Username(), "password": s.password()},
	}, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "empty"}, StringData: map[string]string{"username": "shop-replayer"}})
	var own corev1.Secret
	if err := s.cluster.Client.Get(t.Context(), types.NamespacedName{Namespace: s.namespace, Name: "rabbitmq"}, &own); err != nil {
		t.Fatal(err)
	}
	own.Data["password"] = []byte("wrong")
	if err := s.cluster.Client.Update(t.Context(), &own); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := s.failed("groups", "async"); code != exitStatusError {
		t.Errorf("with the workers' login: exit code %d, %s", code, errs)
	}
	code, out, errs := s.failed("groups", "async", "--login-secret", "replayer")
	if code != exitOK || !strings.Contains(out, "6 failed messages in async.failed") {
		t.Errorf("exit code %d, %s%s", code, out, errs)
	}
	for name, want := range map[string]string{
		"none": `there is no Secret "none" in namespace "` + s.namespace + `"`, "empty": `the Secret "empty": key password: missing`,
	} {
		if code, _, errs := s.failed("groups", "async", "--login-secret", name); code != exitStatusError || !strings.Contains(errs, want) {
			t.Errorf("exit code %d, %s", code, errs)
		}
	}
	if code, _, errs := s.failed("groups", "-f", ".", "--login-secret", "replayer"); code != exitStatusError || !strings.Contains(errs, "--login-secret names a Secret of a cluster") {
		t.Errorf("with files: exit code %d, %s", code, errs)
	}
}
