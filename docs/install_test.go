package docs_test

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// The first message goes the way that the page shows: the names and the login in it are those of the example.
func TestFirstMessage_FitsItsBroker(t *testing.T) {
	documents := strings.Split(read(t, "docs/examples/first-message/broker/rabbitmq.yaml"), "\n---\n")
	if len(documents) != 3 {
		t.Fatalf("%d documents", len(documents))
	}
	var deployment appsv1.Deployment
	var service corev1.Service
	var secret corev1.Secret
	for i, into := range []any{&deployment, &service, &secret} {
		if err := yaml.UnmarshalStrict([]byte(documents[i]), into); err != nil {
			t.Fatal(err)
		}
	}
	container := deployment.Spec.Template.Spec.Containers[0]
	login := map[string]string{}
	for _, variable := range container.Env {
		login[variable.Name] = variable.Value
	}
	if login["RABBITMQ_DEFAULT_USER"] != secret.StringData["username"] || login["RABBITMQ_DEFAULT_PASS"] != secret.StringData["password"] {
		t.Error("the login in the Secret is not that of the broker")
	}
	// The operator looks it up in another namespace than the workers do.
	if want := service.Name + ".shop.svc"; secret.StringData["host"] != want {
		t.Errorf("the Secret names the host %s, and the Service is %s", secret.StringData["host"], want)
	}
	for _, port := range service.Spec.Ports {
		if !slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.ContainerPort == port.Port }) {
			t.Errorf("nobody listens on %d", port.Port)
		}
	}
	page := read(t, "docs/install.md")
	for _, part := range []string{
		"--user " + secret.StringData["username"] + ":" + secret.StringData["password"] + " ", `"routing_key": "test"`, "/api/exchanges/%2F/async/publish",
	} {
		if !strings.Contains(page, part) {
			t.Errorf("docs/install.md does not say %s", part)
		}
	}
}
