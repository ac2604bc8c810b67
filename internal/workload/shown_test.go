package workload_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

// The Secrets of the handler took places, and the last of the template were not looked at.
func TestSecretsShown_HasAllOfATemplateBesideThoseOfTheHandler(t *testing.T) {
	const most = 64
	volumes := make([]map[string]any, most)
	for i := range volumes {
		volumes[i] = map[string]any{"name": fmt.Sprint("v", i), "secret": map[string]any{"secretName": fmt.Sprintf("s%02d", i)}}
	}
	raw, err := json.Marshal(map[string]any{"spec": map[string]any{"volumes": volumes}})
	if err != nil {
		t.Fatal(err)
	}
	transport := testtransport.New("https://shop/messages")
	worker := &transport.Spec.Workers[0]
	worker.Handler.HTTP.HeadersSecretRef = &v1alpha1.LocalReference{Name: "headers"}
	worker.Handler.HTTP.TLS = &v1alpha1.HTTPTLS{CASecretRef: v1alpha1.SecretKeyReference{Name: "ca"}}
	worker.Template = &runtime.RawExtension{Raw: raw}
	names := workload.SecretsShown(worker)
	if len(names) != most+2 {
		t.Errorf("%d are looked at: %v", len(names), names)
	}
	opts := options
	opts.Guarded = map[string]bool{}
	for _, name := range names {
		opts.Guarded[name] = name == "s63"
	}
	if _, err := workload.Deployment(transport, worker, opts); err == nil || !strings.Contains(err.Error(), `Secret "s63"`) {
		t.Errorf("the last one has the login for the management API, and the template is not refused for it: %v", err)
	}
}
