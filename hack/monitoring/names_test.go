package main

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

// catalogue is which labels a metric has in Prometheus: its own, and those of the pod that it comes from.
type catalogue map[string]map[string]bool

// exported is what config/prometheus gathers from a manager and a worker, with the labels that the two monitors add.
func exported(t *testing.T) catalogue {
	t.Helper()
	data := must(read("config/prometheus/testdata/exported.txt"))
	ofTarget := map[string][]string{"manager": ofAllTargets(), "worker": append(ofAllTargets(), relabelled(t)...)}
	known := catalogue{}
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(line)
		if words[0] == "#" {
			continue
		}
		own := map[string]bool{model.MetricNameLabel: true}
		for _, label := range append(words[2:], ofTarget[words[0]]...) {
			own[label] = true
		}
		known[words[1]] = own
		if strings.HasSuffix(words[1], "_seconds") { // a histogram, or a gauge that nobody asks for buckets
			known[words[1]+"_bucket"] = maps.Clone(own)
			known[words[1]+"_bucket"]["le"] = true
		}
	}
	if len(known) < 40 {
		t.Fatalf("only %d metrics are known: the test reads nothing", len(known))
	}
	return known
}

// ofAllTargets are the labels that the Prometheus operator gives all targets of a monitor.
func ofAllTargets() []string {
	return []string{"namespace", "pod", "container", "endpoint", "job", "instance"}
}

// relabelled are the labels that the PodMonitor adds.
func relabelled(t *testing.T) []string {
	t.Helper()
	var monitor monitoringv1.PodMonitor
	strict(t, "config/prometheus/workers_monitor.yaml", &monitor)
	var added []string
	for _, rule := range monitor.Spec.PodMetricsEndpoints[0].RelabelConfigs {
		added = append(added, rule.TargetLabel)
	}
	return added
}

func strict(t *testing.T, path string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(must(read(path)), into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// queries are all that is asked of Prometheus, by where it stands.
func queries(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, rule := range alerts(t) {
		all["alert "+rule.Alert] = rule.Expr
	}
	d := must(readDashboard())
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all["panel "+p.Title+" "+target.RefID] = d.expanded(target.Expr, time.Minute, time.Minute)
		}
	}
	lists := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)
	for _, v := range d.Templating.List {
		if match := lists.FindStringSubmatch(v.Query); match != nil {
			all["variable "+v.Name] = "count by (" + match[2] + ") (" + d.expanded(match[1], time.Minute, time.Minute) + ")"
		} else if v.Type == "query" {
			t.Errorf("the query of variable %s is not understood: %s", v.Name, v.Query)
		}
	}
	return all
}

func TestQueries_AskForExportedMetricsAndLabels(t *testing.T) {
	known := exported(t)
	for place, query := range queries(t) {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
		if err != nil {
			t.Errorf("%s: %v", place, err)
			continue
		}
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			known.check(t, place, node)
			return nil
		})
	}
}

// check looks at the selectors of a query, and at what is grouped or matched by.
func (c catalogue) check(t *testing.T, place string, node parser.Node) {
	t.Helper()
	switch node := node.(type) {
	case *parser.VectorSelector:
		if c[node.Name] == nil {
			t.Errorf("%s: nobody exports %s", place, node.Name)
			return
		}
		for _, matcher := range node.LabelMatchers {
			if !c[node.Name][matcher.Name] {
				t.Errorf("%s: %s has no label %s", place, node.Name, matcher.Name)
			}
		}
	case *parser.AggregateExpr:
		c.checkAll(t, place, node.Expr, node.Grouping)
	case *parser.BinaryExpr:
		if node.VectorMatching != nil && node.VectorMatching.On {
			c.checkAll(t, place, node, node.VectorMatching.MatchingLabels)
		}
	}
}

// checkAll is for labels that all selectors below must have.
func (c catalogue) checkAll(t *testing.T, place string, below parser.Node, wanted []string) {
	t.Helper()
	parser.Inspect(below, func(node parser.Node, _ []parser.Node) error {
		selector, is := node.(*parser.VectorSelector)
		for _, label := range wanted {
			if is && !c[selector.Name][label] {
				t.Errorf("%s: %s has no label %s", place, selector.Name, label)
			}
		}
		return nil
	})
}

// values of labels are the programs' own words. They are found where the code has them.
func words(t *testing.T) map[string][]string {
	t.Helper()
	in := func(path, pattern string) []string {
		var found []string
		for _, match := range regexp.MustCompile(pattern).FindAllSubmatch(must(read(path)), -1) {
			found = append(found, string(match[1]))
		}
		if len(found) == 0 {
			t.Errorf("%s has no %s", path, pattern)
		}
		return found
	}
	conditions := in("api/v1alpha1/conditions.go", `(?m)^\t\w+ += "(\w+)"$`)
	return map[string][]string{
		"condition": conditions,
		"reason":    append(in("internal/handler/process_metrics.go", `exitReason = "(\w+)"`), conditions...),
		"role":      in("internal/topology/objects.go", `Role = "(\w+)"`),
		"outcome":   in("internal/worker/pipeline.go", `kind = "(\w+)"`),
		"state":     {"Closed", "Open", "Probing", "Ramping"}, // see TestWords_HaveTheStatesOfTheBreaker
		"keyed":     {"true", "false"},
		"name":      in("cmd/manager/main.go", `LeaderElectionID: +"([\w.-]+)"`),
		// controller-runtime names a controller by its kind.
		"controller": {"transport", "retrypolicy"},
	}
}

func TestWords_HaveTheStatesOfTheBreaker(t *testing.T) {
	want := `"` + strings.Join(words(t)["state"], `", "`) + `"`
	if !strings.Contains(string(must(read("internal/resilience/breaker.go"))), want) {
		t.Errorf("internal/resilience/breaker.go does not have %s", want)
	}
}

// A matcher of what no program ever says would never match.
func TestQueries_AskForValuesThatProgramsSay(t *testing.T) {
	said, seen := words(t), 0
	for place, query := range queries(t) {
		expr := must(parser.NewParser(parser.Options{}).ParseExpr(query))
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			selector, is := node.(*parser.VectorSelector)
			if !is {
				return nil
			}
			for _, matcher := range selector.LabelMatchers {
				if matcher.Name == model.MetricNameLabel || matcher.Value == ".*" {
					continue
				}
				for value := range strings.SplitSeq(matcher.Value, "|") {
					seen++
					if !slices.Contains(said[matcher.Name], value) {
						t.Errorf("%s: %s is never %q", place, matcher.Name, value)
					}
				}
			}
			return nil
		})
	}
	if seen < 20 {
		t.Errorf("only %d values were found: the test reads nothing", seen)
	}
}
