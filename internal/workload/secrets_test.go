package workload_test

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/workload"
)

// Who may write Transports, and no Secrets, must not get the login of RabbitMQ's administrator by what a worker shows.
func TestDeployment_ShowsNoLoginForTheManagementAPI(t *testing.T) {
	const volumes, env = `{"spec":{"volumes":[{"name":"v",%s}]}}`, `{"spec":{"containers":[{"name":"worker",%s}]}}`
	in := func(text, part string) string { return strings.Replace(text, "%s", part, 1) }
	templates := map[string]struct {
		template string
		field    string
		// free is true where it is refused only where templates are restricted.
		free bool
	}{
		"a volume":                {in(volumes, `"secret":{"secretName":"admin"}`), "volumes[v].secret.secretName", false},
		"its key in a volume":     {in(volumes, `"secret":{"secretName":"admin","items":[{"key":"management_uri","path":"x"}]}`), "volumes[v].secret.secretName", false},
		"another key":             {in(volumes, `"secret":{"secretName":"admin","items":[{"key":"username","path":"x"}]}`), "volumes[v].secret.secretName", true},
		"a projection":            {in(volumes, `"projected":{"sources":[{"secret":{"name":"admin"}}]}`), "volumes[v].projected.sources[0].secret.name", false},
		"a variable":              {in(env, `"env":[{"name":"A","valueFrom":{"secretKeyRef":{"name":"admin","key":"management_uri"}}}]`), "containers[worker].env[A]", false},
		"all as variables":        {in(env, `"envFrom":[{"secretRef":{"name":"admin"}}]`), "containers[worker].envFrom[0].secretRef.name", false},
		"a driver's login":        {in(volumes, `"csi":{"driver":"d","nodePublishSecretRef":{"name":"admin"}}`), "volumes[v].csi", false},
		"an older driver's login": {in(volumes, `"flexVolume":{"driver":"d","secretRef":{"name":"admin"}}`), "volumes[v].flexVolume", false},
		"a share's login":         {in(volumes, `"azureFile":{"shareName":"s","secretName":"admin"}`), "volumes[v].azureFile", false},
		"a target's login":        {in(volumes, `"iscsi":{"targetPortal":"p","iqn":"i","secretRef":{"name":"admin"}}`), "volumes[v].iscsi", false},
		"somebody else's Secret":  {in(volumes, `"secret":{"secretName":"other"}`), "volumes[v].secret.secretName", true},
	}
	for name, tt := range templates {
		t.Run(name, func(t *testing.T) {
			shop := transport("async")
			w := worker("default")
			w.Template = &runtime.RawExtension{Raw: []byte(tt.template)}
			guarded := map[string]bool{}
			for _, secret := range workload.SecretsShown(w) {
				guarded[secret] = secret == "admin"
			}
			opts := workload.Options{Image: "i", Guarded: guarded}
			if _, err := workload.Deployment(shop, w, opts); (err == nil) != tt.free || err != nil && !strings.Contains(err.Error(), tt.field) {
				t.Errorf("got %v", err)
			}
			opts.Restrict = true
			if _, err := workload.Deployment(shop, w, opts); err == nil || !strings.Contains(err.Error(), tt.field) {
				t.Errorf("restricted: got %v", err)
			}
		})
	}
	for name, tt := range map[string]struct {
		handler v1alpha1.HTTPHandler
		field   string
	}{
		"as headers":         {v1alpha1.HTTPHandler{HeadersSecretRef: &v1alpha1.LocalReference{Name: "admin"}}, "handler.http.headersSecretRef.name"},
		"as an authority":    {v1alpha1.HTTPHandler{TLS: &v1alpha1.HTTPTLS{CASecretRef: v1alpha1.SecretKeyReference{Name: "admin", Key: new("management_uri")}}}, "handler.http.tls.caSecretRef.key"},
		"its authority":      {v1alpha1.HTTPHandler{TLS: &v1alpha1.HTTPTLS{CASecretRef: v1alpha1.SecretKeyReference{Name: "admin"}}}, ""},
		"headers of another": {v1alpha1.HTTPHandler{HeadersSecretRef: &v1alpha1.LocalReference{Name: "other"}}, ""},
	} {
		shop := transport("async")
		w := worker("default")
		tt.handler.URL = "https://shop/"
		w.Handler = v1alpha1.Handler{HTTP: &tt.handler}
		if named := workload.SecretsShown(w); len(named) != 1 {
			t.Errorf("%s: named are %q", name, named)
		}
		_, err := workload.Deployment(shop, w, workload.Options{Image: "i", Guarded: map[string]bool{"admin": true}})
		if (err == nil) != (tt.field == "") || err != nil && !strings.Contains(err.Error(), tt.field) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTemplate_RefusesServiceAccountsWhereRestricted(t *testing.T) {
	for _, template := range []string{
		`{"spec":{"serviceAccountName":"admin"}}`, `{"spec":{"serviceAccount":"admin"}}`, `{"spec":{"automountServiceAccountToken":true}}`,
		`{"spec":{"volumes":[{"name":"v","projected":{"sources":[{"serviceAccountToken":{"path":"t"}}]}}]}}`,
		`{"spec":{"volumes":[{"name":"v","projected":{"sources":[{"podCertificate":{"signerName":"kubernetes.io/kube-apiserver-client-pod","keyType":"ED25519"}}]}}]}}`,
		`{"spec":{"volumes":[{"name":"v","csi":{"driver":"secrets-store.csi.k8s.io"}}]}}`,
	} {
		shop := transport("async")
		w := worker("default")
		w.Template = &runtime.RawExtension{Raw: []byte(template)}
		if _, err := workload.Deployment(shop, w, workload.Options{Image: "i"}); err != nil {
			t.Errorf("%s: %v", template, err)
		}
		if _, err := workload.Deployment(shop, w, workload.Options{Image: "i", Restrict: true}); err == nil || !strings.Contains(err.Error(), "--restrict-templates") {
			t.Errorf("restricted, %s: %v", template, err)
		}
	}
	shop := transport("async")
	if _, err := workload.Deployment(shop, worker("default"), workload.Options{Image: "i", Restrict: true}); err != nil {
		t.Errorf("without a template: %v", err)
	}
	many := &v1alpha1.Worker{Template: &runtime.RawExtension{Raw: []byte(`{"spec":{"volumes":[` +
		strings.TrimSuffix(strings.Repeat(`{"name":"v","secret":{"secretName":"s"}},`, 100), ",") + `]}}`)}}
	if got := workload.SecretsShown(many); !slices.Equal(got, []string{"s"}) {
		t.Errorf("named are %q", got)
	}
}
