package compile_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

// configOf is the configuration of a worker group with a handler, as its workers read it.
func configOf(t *testing.T, handler v1alpha1.Handler) compile.Config {
	t.Helper()
	result, err := compile.Compile(transport(func(s *v1alpha1.TransportSpec) { s.Workers[0].Handler = handler }), nil)
	if err != nil {
		t.Fatal(err)
	}
	data, err := compile.Encode(result.Workers[0])
	if err != nil {
		t.Fatal(err)
	}
	config, err := compile.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(config.Handler, handler) {
		t.Errorf("the worker reads the handler %+v, the spec has %+v", config.Handler, handler)
	}
	return config
}

// A worker of version 2 reads of a handler nothing but its URL. It would post without a login what must not go without one, and
// so it must not take such a configuration: it keeps the one before and says so.
func TestConfig_HasTheOldestVersionThatCanCarryItOut(t *testing.T) {
	const url = "https://127.0.0.1:8080/"
	command := []string{"php", "handle.php"}
	cases := map[string]struct {
		handler v1alpha1.Handler
		want    int
	}{
		"a URL":               {v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: url}}, 2},
		"a URL and an image":  {v1alpha1.Handler{Image: new("shop:v1"), HTTP: &v1alpha1.HTTPHandler{URL: url}}, 2},
		"headers of a Secret": {v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: url, HeadersSecretRef: &v1alpha1.LocalReference{Name: "s"}}}, 3},
		"an authority":        {v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: url, TLS: &v1alpha1.HTTPTLS{CASecretRef: v1alpha1.SecretKeyReference{Name: "s"}}}}, 3},
		"a socket":            {v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: url, UnixSocket: new("/run/http.sock")}}, 3},
		"another format":      {v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: url, Format: new(v1alpha1.HTTPFormatCloudEvents)}}, 3},
		"a readiness URL":     {v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: url, ReadinessURL: new(url)}}, 3},
		"rules for headers":   {v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: url, Headers: &v1alpha1.HTTPHeaders{Prefix: new("X-")}}}, 6},
		"kept connections":    {v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: url, KeepAlive: new(true)}}, 3},
		"no kept connections": {v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: url, KeepAlive: new(false)}}, 7},
		"exec":                {v1alpha1.Handler{Image: new("shop:v1"), Exec: &v1alpha1.ExecHandler{Command: command}}, 3},
		"process": {v1alpha1.Handler{Image: new("shop:v1"), Process: &v1alpha1.ProcessHandler{
			Command: command, Processes: new(int32(4)), Recycle: &v1alpha1.Recycle{Memory: new("256Mi")},
		}}, 3},
		"inProcess": {v1alpha1.Handler{Image: new("shop:v1"), InProcess: &v1alpha1.InProcessHandler{}}, 3},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := configOf(t, tc.handler).Version; got != tc.want {
				t.Errorf("version %d, want %d", got, tc.want)
			}
		})
	}
	config := configOf(t, v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: url}})
	migrated := config.WithStandIns(map[string]compile.Standin{"test": {Queue: "test.migrating"}})
	if migrated.Version != 4 {
		t.Errorf("writes version %d where a queue has a stand-in", migrated.Version)
	}
	config.Policies = map[string]v1alpha1.RetryPolicySpec{"p": {Unlimited: new(true)}}
	if compile.Version != 7 {
		t.Errorf("this build reads version %d", compile.Version)
	}
	if unlimited := config.WithStandIns(nil); unlimited.Version != 5 {
		t.Errorf("writes version %d where a policy is unlimited", unlimited.Version)
	}
}

func TestCompile_GivesEveryQueueAWeight(t *testing.T) {
	result, err := compile.Compile(transport(func(s *v1alpha1.TransportSpec) { s.Queues[1].Weight = new(int32(5)) }), nil)
	if err != nil {
		t.Fatal(err)
	}
	queues := result.Workers[0].Queues
	if queues[0].Weight != 1 || queues[1].Weight != 5 {
		t.Errorf("the weights are %d and %d, want 1 where it is left out, and 5", queues[0].Weight, queues[1].Weight)
	}
}

// What an older operator has written is read as well: it knew no weights.
func TestDecode_ReadsAConfigurationWithoutWeights(t *testing.T) {
	result, err := compile.Compile(transport(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	config := result.Workers[0]
	for i := range config.Queues {
		config.Queues[i].Weight = 0
	}
	data, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := compile.Decode(data)
	if err != nil || decoded.Queues[0].Weight != 0 {
		t.Errorf("the weight is %d, %v", decoded.Queues[0].Weight, err)
	}
}

// These words are in the environment of running pods, and workers of other versions compare them: what they say of a handler never changes.
func TestMadeFor_SaysTheSameInEachVersion(t *testing.T) {
	for want, handler := range map[string]v1alpha1.Handler{
		"http": {HTTP: &v1alpha1.HTTPHandler{URL: "http://shop/"}},
		"http, headersSecretRef partner, caSecretRef ca ca.crt, unixSocket /run/handler/http.sock, image shop:1": {
			Image: new("shop:1"),
			HTTP: &v1alpha1.HTTPHandler{
				URL: "http://shop/", HeadersSecretRef: &v1alpha1.LocalReference{Name: "partner"}, UnixSocket: new("/run/handler/http.sock"),
				TLS: &v1alpha1.HTTPTLS{CASecretRef: v1alpha1.SecretKeyReference{Name: "ca", Key: new("ca.crt")}},
			},
		},
		"exec, image shop:1":      {Image: new("shop:1"), Exec: &v1alpha1.ExecHandler{Command: []string{"handle"}}},
		"process, image shop:1":   {Image: new("shop:1"), Process: &v1alpha1.ProcessHandler{Command: []string{"handle"}}},
		"inProcess, image shop:1": {Image: new("shop:1"), InProcess: &v1alpha1.InProcessHandler{}},
	} {
		if got := compile.MadeFor(&handler, ""); got != want {
			t.Errorf("a pod says of its handler %q, want %q", got, want)
		}
	}
	of := func(template string) string {
		worker := v1alpha1.Worker{
			Handler: v1alpha1.Handler{Exec: &v1alpha1.ExecHandler{Command: []string{"handle"}}}, Template: &runtime.RawExtension{Raw: []byte(template)},
		}
		return compile.MadeFor(&worker.Handler, compile.TemplateDigest(&worker))
	}
	if got, want := of(`{"spec":{"nodeName":"a"},"metadata":{}}`), "exec, template 930626819af43c8b"; got != want {
		t.Errorf("a pod with a template says %q, want %q", got, want)
	}
	if got := of(`{"spec":{"nodeName":"b"},"metadata":{}}`); got == of(`{"spec":{"nodeName":"a"},"metadata":{}}`) {
		t.Errorf("a pod with another template says %q, too", got)
	}
}

// Of rollouts that do not end, the pods from before the first are those that handle messages, and those from before the last may be, too.
func TestConfig_KeepsTheHandlersOfPodsThatRunYet(t *testing.T) {
	image := func(version int) v1alpha1.Handler {
		return v1alpha1.Handler{Image: new(fmt.Sprintf("shop:%d", version)), Exec: &v1alpha1.ExecHandler{Command: []string{"handle"}}}
	}
	of := func(version int) compile.Config {
		handler := image(version)
		return compile.Config{Handler: handler, MadeFor: compile.MadeFor(&handler, ""), Concurrency: 10 + version}
	}
	former := func(version int) compile.FormerHandler {
		return compile.FormerHandler{Handler: image(version), MadeFor: of(version).MadeFor, Concurrency: 10 + version}
	}
	config := of(0)
	for version := range 9 {
		next := of(version + 1)
		config = next.WithFormerHandlers(&config)
	}
	again := config.WithFormerHandlers(&config)
	if want := []compile.FormerHandler{former(0), former(1), former(2), former(8)}; !reflect.DeepEqual(config.FormerHandlers, want) || !reflect.DeepEqual(again, config) {
		t.Errorf("the former handlers are %+v, and then %+v, want %+v", config.FormerHandlers, again.FormerHandlers, want)
	}
	for version, want := range map[int]bool{0: true, 2: true, 3: false, 7: false, 8: true, 9: true} {
		handler := image(version)
		if got, ok := config.HandlerMadeFor(compile.MadeFor(&handler, "")); ok != want || ok && !reflect.DeepEqual(got, former(version)) {
			t.Errorf("the handler for pods of version %d is %+v, %t, want %t", version, got, ok, want)
		}
	}
	back := of(0)
	if back = back.WithFormerHandlers(&config); len(back.FormerHandlers) != 4 || *back.FormerHandlers[3].Image != "shop:9" {
		t.Errorf("taken back, the former handlers are %+v", back.FormerHandlers)
	}
	if got, ok := config.HandlerMadeFor(""); !ok || !reflect.DeepEqual(got, former(9)) {
		t.Errorf("the handler for a pod that says nothing is %+v, %t", got, ok)
	}
	config.FormerHandlers[0].Concurrency = 0
	if got, ok := config.HandlerMadeFor(of(0).MadeFor); !ok || got.Concurrency != 19 {
		t.Errorf("of an earlier operator's former handler the concurrency is %d, want the present one", got.Concurrency)
	}
}
