package workload_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

// A template could make it root, with capabilities.
func TestDeployment_KeepsTheContainerOfAHandlersImageRestricted(t *testing.T) {
	for context, allowed := range map[string]bool{
		`{"runAsUser":0,"runAsNonRoot":false}`:                                          false,
		`{"allowPrivilegeEscalation":true}`:                                             false,
		`{"capabilities":{"add":["SETUID","DAC_OVERRIDE"],"drop":null}}`:                false,
		`{"runAsUser":1234,"readOnlyRootFilesystem":false}`:                             true,
		`{"seccompProfile":{"type":"Localhost","localhostProfile":"p.json"}}`:           true,
		`{"capabilities":{"add":["NET_BIND_SERVICE"]},"allowPrivilegeEscalation":null}`: false,
	} {
		for _, sidecars := range []bool{false, true} {
			t.Run(fmt.Sprint(context, sidecars), func(t *testing.T) {
				transport := testtransport.New("http://127.0.0.1:8080/messages")
				worker, opts, list := &transport.Spec.Workers[0], options, "containers"
				if opts.NativeSidecars = sidecars; sidecars {
					list = "initContainers"
				}
				worker.Handler.Image = new("shop:v1")
				worker.Template = &runtime.RawExtension{Raw: fmt.Appendf(nil, `{"spec":{%q:[{"name":"handler","securityContext":%s}]}}`, list, context)}
				_, err := workload.Deployment(transport, worker, opts)
				if allowed != (err == nil) || err != nil && !strings.Contains(err.Error(), "restricted Pod Security Standard") {
					t.Errorf("allowed is %v, got %v", allowed, err)
				}
			})
		}
	}
}
