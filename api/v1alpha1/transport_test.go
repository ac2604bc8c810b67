package v1alpha1_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// minimal is the least that a Transport needs, in the flow style so that fields can be added to it.
const minimal = "broker: {secretRef: {name: r}}\nqueues: [{name: a}]\n"

func TestBroker_RefusesInvalidFields(t *testing.T) {
	broker := func(fields string) string { return "broker: {" + fields + "}\nqueues: [{name: a}]\n" }
	runs(t, "Transport", map[string]verdict{
		"the least":            {minimal, ""},
		"no broker":            {"queues: [{name: a}]", "spec.broker: Required value"},
		"no source":            {broker("vhost: v"), "exactly one of: secretRef, clusterRef"},
		"a cluster":            {broker("clusterRef: {name: r}"), ""},
		"two sources":          {broker("secretRef: {name: r}, clusterRef: {name: r}"), "exactly one of: secretRef, clusterRef"},
		"no name of a cluster": {broker("clusterRef: {}"), required},
		"no name of a Secret":  {broker("secretRef: {}"), required},
		"an empty Secret name": {broker(`secretRef: {name: ""}`), tooShort},
		"a long Secret name":   {broker("secretRef: {name: " + long(254) + "}"), tooLong},
		"a vhost":              {broker("secretRef: {name: r}, vhost: /"), ""},
		"an empty vhost":       {broker(`secretRef: {name: r}, vhost: ""`), tooShort},
		"a long vhost":         {broker("secretRef: {name: r}, vhost: " + long(256)), tooLong},
	})
}

func TestTransport_RefusesInvalidExchangesAndPolicyRules(t *testing.T) {
	runs(t, "Transport", map[string]verdict{
		"an exchange":                    {minimal + "exchange: {name: e, type: Direct, unroutedTo: a}", ""},
		"an exchange without type":       {minimal + "exchange: {name: e}", required},
		"an exchange without name":       {minimal + "exchange: {type: Topic}", required},
		"an exchange with an empty name": {minimal + `exchange: {name: "", type: Topic}`, tooShort},
		"an exchange with a long name":   {minimal + "exchange: {type: Topic, name: " + long(221) + "}", tooLong},
		"a headers exchange":             {minimal + "exchange: {name: e, type: Headers}", enum},
		"an empty unroutedTo":            {minimal + `exchange: {name: e, type: Fanout, unroutedTo: ""}`, tooShort},
		"a long unroutedTo":              {minimal + "exchange: {name: e, type: Fanout, unroutedTo: " + long(248) + "}", tooLong},
		"a prefix":                       {minimal + "prefix: p", ""},
		"an empty prefix":                {minimal + `prefix: ""`, tooShort},
		"a long prefix":                  {minimal + "prefix: " + long(221), tooLong},
		"a policy without name":          {minimal + "retryPolicyRef: {}", required},
		"a policy with a long name":      {minimal + "retryPolicyRef: {name: " + long(254) + "}", tooLong},
		"a rule":                         {minimal + "retryPolicies: [{when: x, retryPolicyRef: {name: p}}]", ""},
		"the same rule twice":            {minimal + "retryPolicies: [" + list(2, "{when: x, retryPolicyRef: {name: p}}") + "]", ""},
		"a rule without condition":       {minimal + "retryPolicies: [{retryPolicyRef: {name: p}}]", required},
		"a rule with an empty condition": {minimal + `retryPolicies: [{when: "", retryPolicyRef: {name: p}}]`, tooShort},
		"a rule with a long condition":   {minimal + "retryPolicies: [{retryPolicyRef: {name: p}, when: " + long(2049) + "}]", tooLong},
		"a rule without policy":          {minimal + "retryPolicies: [{when: x}]", required},
	})
}

func TestQueue_RefusesInvalidFields(t *testing.T) {
	const (
		ttl   = "messageTTL is between 1s and 720h"
		adopt = "adopt takes a queue as it is: leave out type and singleActiveConsumer"
	)
	queue := func(fields string) string {
		return "broker: {secretRef: {name: r}}\nqueues: [{name: a, " + fields + "}]\n"
	}
	runs(t, "Transport", map[string]verdict{
		"no queues":                  {"broker: {secretRef: {name: r}}", "spec.queues: Required value"},
		"an empty list of queues":    {"broker: {secretRef: {name: r}}\nqueues: []", tooFew},
		"a queue twice":              {"broker: {secretRef: {name: r}}\nqueues: [{name: a}, {name: a}]", duplicate},
		"a queue without name":       {"broker: {secretRef: {name: r}}\nqueues: [{type: Quorum}]", required},
		"a queue with a long name":   {"broker: {secretRef: {name: r}}\nqueues: [{name: " + long(248) + "}]", tooLong},
		"a queue with an empty name": {"broker: {secretRef: {name: r}}\nqueues: [{name: ''}]", tooShort},
		"any type of queue":          {queue("type: Classic"), ""},
		"a stream":                   {queue("type: Stream"), enum},
		"an empty type":              {queue(`type: ""`), enum},
		"single active consumer":     {queue("singleActiveConsumer: true"), ""},
		"a word for a boolean":       {queue(`singleActiveConsumer: "yes"`), "must be of type boolean"},
		"adopt":                      {queue("adopt: true, bindingKeys: [k], limits: {messageTTL: 1h}"), ""},
		"a former name":              {queue("previousNames: [b, c]"), ""},
		"its own name as a former":   {queue("previousNames: [a]"), "previousNames holds the names that the queue had before"},
		"no name as a former":        {queue("previousNames: ['']"), "spec.queues[0].previousNames[0]"},
		"a former name twice":        {queue("previousNames: [b, b]"), "spec.queues[0].previousNames[1]: Duplicate value"},
		"nine former names":          {queue("previousNames: [b, c, d, e, f, g, h, i, j]"), "must have at most 8 items"},
		"adopt and a type":           {queue("adopt: true, type: Classic"), adopt},
		"adopt and one consumer":     {queue("adopt: true, singleActiveConsumer: false"), adopt},
		"no adoption and a type":     {queue("adopt: false, type: Classic, singleActiveConsumer: true"), ""},
		"a word for adopt":           {queue(`adopt: "yes"`), "must be of type boolean"},
		"binding keys":               {queue(`bindingKeys: ["", "#", "a.*"]`), ""},
		"a binding key twice":        {queue("bindingKeys: [k, k]"), ""},
		"a long binding key":         {queue("bindingKeys: [" + long(256) + "]"), tooLong},
		"33 binding keys":            {queue("bindingKeys: [" + numbers(33) + "]"), tooMany},
		"a binding":                  {queue("bindings: [{exchange: e, keys: [k]}]"), ""},
		"a binding without keys":     {queue("bindings: [{exchange: e, keys: []}]"), tooFew},
		"a binding without exchange": {queue("bindings: [{keys: [k]}]"), required},
		"a binding to the default":   {queue(`bindings: [{exchange: "", keys: [k]}]`), tooShort},
		"an exchange bound twice":    {queue("bindings: [{exchange: e, keys: [k]}, {exchange: e, keys: [l]}]"), duplicate},
		"33 keys of a binding":       {queue("bindings: [{exchange: e, keys: [" + numbers(33) + "]}]"), tooMany},
		"limits":                     {queue("limits: {messageTTL: 24h, dropOldestAfter: 1}"), ""},
		"limits without any":         {queue("limits: {}"), "at least 1 properties"},
		"messageTTL at its least":    {queue("limits: {messageTTL: 1s}"), ""},
		"messageTTL below":           {queue("limits: {messageTTL: 999ms}"), ttl},
		"messageTTL at its most":     {queue("limits: {messageTTL: 720h}"), ""},
		"messageTTL over":            {queue("limits: {messageTTL: 720h1ms}"), ttl},
		"dropOldestAfter 0":          {queue("limits: {dropOldestAfter: 0}"), atLeast},
		"dropOldestAfter too large":  {queue("limits: {dropOldestAfter: 1000000001}"), atMost},
		"a queue's policy":           {queue("retryPolicyRef: {name: p}"), ""},
		"weight at its least":        {queue("weight: 1"), ""},
		"weight below":               {queue("weight: 0"), atLeast},
		"weight at its most":         {queue("weight: 100"), ""},
		"weight over":                {queue("weight: 101"), atMost},
		"half a weight":              {queue("weight: 1.5"), "must be of type integer"},
	})
}

func TestTransport_ChecksFailureLanesAndDeletionPolicy(t *testing.T) {
	runs(t, "Transport", map[string]verdict{
		"a failure queue":                  {minimal + "failure: {queue: f, dropOldestAfter: 1000000000}", ""},
		"an empty failure":                 {minimal + "failure: {}", ""},
		"a failure queue without name":     {minimal + `failure: {queue: ""}`, tooShort},
		"a failure queue with a long name": {minimal + "failure: {queue: " + long(256) + "}", tooLong},
		"masks":                            {minimal + "failure: {redact: [body.customer.email, body.cards.*.number, headers.x-user.id]}", ""},
		"a mask of nothing":                {minimal + "failure: {redact: [body]}", "should match"},
		"a mask without a field":           {minimal + "failure: {redact: ['body.']}", "should match"},
		"a mask with an empty field":       {minimal + "failure: {redact: [body.a..b]}", "should match"},
		"a mask of something else":         {minimal + "failure: {redact: [message.body.a]}", "should match"},
		"a mask twice":                     {minimal + "failure: {redact: [body.a, body.a]}", duplicate},
		"a long mask":                      {minimal + "failure: {redact: [body." + long(249) + "]}", tooLong},
		"too many masks":                   {minimal + "failure: {redact: [" + list(65, "body.a") + "]}", tooMany},
		"a failure queue that drops all":   {minimal + "failure: {dropOldestAfter: 0}", atLeast},
		"fine lanes":                       {minimal + "lanes: Fine", ""},
		"lanes that are none":              {minimal + "lanes: Coarse", enum},
		"Retain":                           {minimal + "deletionPolicy: Retain", ""},
		"a deletion policy that is none":   {minimal + "deletionPolicy: Orphan", enum},
	})
}

func TestWorker_RefusesInvalidFields(t *testing.T) {
	const timeout = "timeout is between 100ms and 15m"
	worker := func(fields string) string {
		return minimal + "workers: [{name: w, handler: {http: {url: 'http://h/'}}, " + fields + "}]\n"
	}
	runs(t, "Transport", map[string]verdict{
		"a worker":                           {worker("replicas: 5, queues: [a], concurrency: 10, timeout: 30s"), ""},
		"a worker without handler":           {minimal + "workers: [{name: w}]", required},
		"a worker without name":              {minimal + "workers: [{handler: {http: {url: 'http://h/'}}}]", required},
		"a worker twice":                     {minimal + "workers: [" + list(2, "{name: w, handler: {http: {url: 'http://h/'}}}") + "]", duplicate},
		"a worker with a dot":                {minimal + "workers: [{name: a.b, handler: {http: {url: 'http://h/'}}}]", "should match"},
		"a worker with a long name":          {minimal + "workers: [{name: " + strings.Repeat("w", 64) + ", handler: {http: {url: 'http://h/'}}}]", tooLong},
		"no replicas at all":                 {worker("replicas: 0"), ""},
		"replicas below 0":                   {worker("replicas: -1"), atLeast},
		"too many replicas":                  {worker("replicas: 1001"), atMost},
		"concurrency 0":                      {worker("concurrency: 0"), atLeast},
		"too much concurrency":               {worker("concurrency: 1001"), atMost},
		"an empty list of a worker's queues": {worker("queues: []"), tooFew},
		"a worker's queue twice":             {worker("queues: [a, a]"), duplicate},
		"a long name in the list":            {worker("queues: [" + long(248) + "]"), tooLong},
		"timeout at its least":               {worker("timeout: 100ms"), ""},
		"timeout below":                      {worker("timeout: 99ms"), timeout},
		"timeout at its most":                {worker("timeout: 15m"), ""},
		"timeout over":                       {worker("timeout: 15m1ms"), timeout},
		"autoscaling":                        {worker("autoscaling: {max: 10}"), ""},
		"autoscaling from zero":              {worker("autoscaling: {min: 0, max: 1, messagesPerPod: 1}"), ""},
		"autoscaling to one number":          {worker("autoscaling: {min: 10, max: 10}"), ""},
		"autoscaling without a bound":        {worker("autoscaling: {min: 1}"), required},
		"autoscaling to nothing":             {worker("autoscaling: {min: 0, max: 0}"), atLeast},
		"autoscaling upside down":            {worker("autoscaling: {min: 3, max: 2}"), "min must not be more than max"},
		"autoscaling below zero":             {worker("autoscaling: {min: -1, max: 2}"), atLeast},
		"autoscaling too far":                {worker("autoscaling: {max: 1001}"), atMost},
		"a pod for no message":               {worker("autoscaling: {max: 2, messagesPerPod: 0}"), atLeast},
		"a pod for too many messages":        {worker("autoscaling: {max: 2, messagesPerPod: 1000001}"), atMost},
		"replicas beside autoscaling":        {worker("replicas: 1, autoscaling: {max: 2}"), "exclude each other"},
		"a template":                         {worker("template: {spec: {nodeSelector: {a: b}, anything: [goes]}}"), ""},
		"a template that is a list":          {worker("template: []"), "must be of type object"},
	})
}

func TestTransport_HasDefaults(t *testing.T) {
	cluster := server(t)
	o := object(t, "Transport", minimal)
	o.SetNamespace(cluster.Namespace(t))
	if err := cluster.Client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	spec, _, err := unstructured.NestedMap(o.Object, "spec")
	if err != nil {
		t.Fatal(err)
	}
	want := "map[broker:map[secretRef:map[name:r]] deletionPolicy:DeleteIfEmpty lanes:Standard queues:[map[name:a]]]"
	if got := fmt.Sprint(spec); got != want {
		t.Errorf("spec is\n%v\nwant\n%v", got, want)
	}
	if got := fmt.Sprint(o.Object["status"]); got != "map[observedGeneration:-1]" {
		t.Errorf("status is %v, want observedGeneration -1: else a fresh object looks healthy", got)
	}
}

func TestTransport_RefusesChangesOfExchangePrefixAndVhost(t *testing.T) {
	const exchange = "exchange: {name: e, type: Direct}\n"
	cases := map[string]struct{ before, after, want string }{
		"another name of the exchange": {minimal + exchange, minimal + "exchange: {name: f, type: Direct}", "name and type of the exchange cannot be changed"},
		"another type of the exchange": {minimal + exchange, minimal + "exchange: {name: e, type: Topic}", "name and type of the exchange cannot be changed"},
		"an exchange added":            {minimal, minimal + exchange, "an exchange cannot be added to or removed from a Transport"},
		"an exchange removed":          {minimal + exchange, minimal, "an exchange cannot be added to or removed from a Transport"},
		"another prefix":               {minimal + "prefix: p", minimal + "prefix: q", "prefix cannot be changed"},
		"a prefix added":               {minimal, minimal + "prefix: p", "prefix cannot be changed"},
		"a prefix removed":             {minimal + "prefix: p", minimal, "prefix cannot be changed"},
		"another vhost": {
			"broker: {secretRef: {name: r}, vhost: a}\nqueues: [{name: a}]", "broker: {secretRef: {name: r}, vhost: b}\nqueues: [{name: a}]",
			"the vhost of a Transport cannot be changed",
		},
		"the vhost removed, after which another could be set": {
			"broker: {secretRef: {name: r}, vhost: a}\nqueues: [{name: a}]", minimal, "the vhost of a Transport cannot be changed or taken out",
		},

		"a vhost that the Secret had": {minimal, "broker: {secretRef: {name: r}, vhost: a}\nqueues: [{name: a}]", ""},
		"another Secret":              {minimal, "broker: {secretRef: {name: s}}\nqueues: [{name: a}]", ""},
		"another unroutedTo":          {minimal + exchange, minimal + "exchange: {name: e, type: Direct, unroutedTo: a}", ""},
		"another queue":               {minimal, "broker: {secretRef: {name: r}}\nqueues: [{name: b}]", ""},
		"another name of a queue":     {minimal, "broker: {secretRef: {name: r}}\nqueues: [{name: b, previousNames: [a]}]", ""},
		"another type of a queue":     {minimal, "broker: {secretRef: {name: r}}\nqueues: [{name: a, type: Classic}]", ""},
		"another deletion policy":     {minimal, minimal + "deletionPolicy: Retain", ""},
		"a worker":                    {minimal, minimal + "workers: [{name: w, handler: {http: {url: 'http://h/'}}}]", ""},
	}
	cluster := server(t)
	namespace := cluster.Namespace(t)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := object(t, "Transport", tc.before)
			o.SetNamespace(namespace)
			if err := cluster.Client.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			var spec map[string]any
			if err := yaml.Unmarshal([]byte(tc.after), &spec); err != nil {
				t.Fatal(err)
			}
			o.Object["spec"] = spec
			err := cluster.Client.Update(t.Context(), o, client.FieldValidation("Strict"))
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error is %v, want %q in it", err, tc.want)
			case tc.want != "" && !strings.Contains(err.Error(), "make a second Transport"):
				t.Errorf("the way out is not in %v", err)
			}
		})
	}
}

// numbers are n different strings.
func numbers(n int) string {
	items := make([]string, n)
	for i := range items {
		items[i] = fmt.Sprintf("k%d", i)
	}
	return strings.Join(items, ", ")
}

func long(n int) string { return strings.Repeat("x", n) }
