package main

import (
	"context"
	"fmt"
	"strings"
	"text/template"

	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/manifest"
	"redrive.dev/redrive/internal/topology"
)

const (
	namespace = "shop"
	secret    = "rabbitmq"
	// usersOfFirst: one Transport of so many uses the first policy.
	usersOfFirst = 5
)

// load is what the operator is given.
type load struct {
	transports, vhosts, policies int
}

func newLoad(s *settings) *load {
	return &load{transports: s.transports, vhosts: s.vhosts, policies: s.policies}
}

// title is the name of a line of the table.
func (l *load) title(what string) string {
	return fmt.Sprintf("%d Transports, %d policies, %d vhosts: %s", l.transports, l.policies, l.vhosts, what)
}

func (l *load) vhost(prefix string, i int) string { return fmt.Sprintf("%s-%02d", prefix, i%l.vhosts) }

func policyName(i int) string { return fmt.Sprintf("policy-%02d", i) }

// policyOf is the policy of a Transport.
func (l *load) policyOf(i int) string {
	if i%usersOfFirst == 0 {
		return policyName(0)
	}
	return policyName(1 + i%(l.policies-1))
}

// users is how many Transports use the first policy.
func (l *load) users() int { return (l.transports + usersOfFirst - 1) / usersOfFirst }

// The policies ignore what handlers ask for, so each Transport has the three lanes of its schedule and no ladder.
const manifests = `
{{- range .Policies}}
---
apiVersion: redrive.dev/v1alpha1
kind: RetryPolicy
metadata: {namespace: shop, name: {{.}}}
spec:
  handlerAdvice: Ignore
  backoff: {type: Explicit, delays: [5s, 1m, 10m]}
  strategies:
  - {name: rejected, when: "error.status in [400, 401, 403, 404, 422]", action: Fail}
{{- end}}
{{- range .Transports}}
---
apiVersion: redrive.dev/v1alpha1
kind: Transport
metadata: {namespace: shop, name: {{.Name}}}
spec:
  broker: {secretRef: {name: rabbitmq}, vhost: {{.VHost}}}
  exchange: {name: {{.Name}}, type: Direct}
  retryPolicyRef: {name: {{.Policy}}}
  queues:
  - {name: {{.Name}}.placed, bindingKeys: [placed]}
  - {name: {{.Name}}.paid, bindingKeys: [paid]}
  - {name: {{.Name}}.sent, bindingKeys: [sent]}
  - {name: {{.Name}}.closed, bindingKeys: [closed]}
  workers:
  - name: default
    replicas: 1
    handler: {http: {url: "http://127.0.0.1:8080/messages"}}
{{- end}}
`

// resources are what is applied, with the defaults that the API server would fill in.
type resources struct {
	transports []*v1alpha1.Transport
	policies   map[string]*v1alpha1.RetryPolicy
}

// resources for vhosts of a prefix.
func (l *load) resources(ctx context.Context, prefix string) (*resources, error) {
	type transport struct{ Name, VHost, Policy string }
	var data struct {
		Policies   []string
		Transports []transport
	}
	for i := range l.policies {
		data.Policies = append(data.Policies, policyName(i))
	}
	for i := range l.transports {
		data.Transports = append(data.Transports, transport{fmt.Sprintf("t-%04d", i), l.vhost(prefix, i), l.policyOf(i)})
	}
	var text strings.Builder
	if err := template.Must(template.New("").Parse(manifests)).Execute(&text, data); err != nil {
		return nil, fmt.Errorf("write the resources: %w", err)
	}
	loader, err := manifest.NewLoader()
	if err != nil {
		return nil, fmt.Errorf("read the resources: %w", err)
	}
	set, err := loader.Load(ctx, strings.NewReader(text.String()), manifest.Stdin)
	if err != nil {
		return nil, fmt.Errorf("read the resources: %w", err)
	}
	r := &resources{policies: map[string]*v1alpha1.RetryPolicy{}}
	for _, t := range data.Transports {
		r.transports = append(r.transports, set.Transports[types.NamespacedName{Namespace: namespace, Name: t.Name}])
	}
	for name, policy := range set.RetryPolicies {
		r.policies[name.Name] = policy
	}
	return r, nil
}

// steps are what a Transport comes to on an empty vhost, in the operator's own order.
func steps(t *v1alpha1.Transport, policies map[string]*v1alpha1.RetryPolicy) ([]topology.Step, error) {
	compiled, err := compile.Compile(t, policies)
	if err != nil {
		return nil, fmt.Errorf("compile %s: %w", t.Name, err)
	}
	desired, err := topology.Desired(t, compiled.Needs, "00000000-0000-0000-0000-000000000000/"+t.Namespace+"/"+t.Name)
	if err != nil {
		return nil, fmt.Errorf("topology of %s: %w", t.Name, err)
	}
	return topology.Plan(topology.Diff(desired, topology.Observed{}, nil)), nil
}
