package main

import (
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
)

// alerts are those of the PrometheusRule, as Prometheus loads them.
func alerts(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.Parse(must(ruleFile()), false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.Default())
	if len(errs) > 0 {
		t.Fatalf("config/prometheus/rules.yaml: %v", errs)
	}
	var all []rulefmt.Rule
	for _, group := range groups.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

func TestRulesAndMonitors_AreAsThePrometheusOperatorTakesThem(t *testing.T) {
	strict(t, "config/prometheus/rules.yaml", &monitoringv1.PrometheusRule{})
	strict(t, "config/prometheus/manager_monitor.yaml", &monitoringv1.ServiceMonitor{})
	strict(t, "config/prometheus/workers_monitor.yaml", &monitoringv1.PodMonitor{})
}

func TestAlerts_SayWhatPeopleNeed(t *testing.T) {
	const pages = "https://redrive.dev/docs/runbooks/"
	for _, alert := range alerts(t) {
		if !slices.Contains([]string{"info", "warning", "critical"}, alert.Labels["severity"]) {
			t.Errorf("%s has the severity %q", alert.Alert, alert.Labels["severity"])
		}
		if len(alert.Annotations["summary"]) < 10 || len(alert.Annotations["description"]) < 10 {
			t.Errorf("%s says %q", alert.Alert, alert.Annotations)
		}
		if got := alert.Annotations["runbook_url"]; got != pages+alert.Alert+".md" {
			t.Errorf("%s has its page at %q", alert.Alert, got)
		}
	}
}

// The documentation tells how to make a rule file for a Prometheus without its operator.
func TestRuleFile_IsWrittenByTheCommandOfTheDocs(t *testing.T) {
	const command = `sed -n '/^  groups:/,$s/^  //p' config/prometheus/rules.yaml`
	if !strings.Contains(string(must(read("docs/monitoring.md"))), command) {
		t.Fatalf("docs/monitoring.md does not have %s", command)
	}
	shell := exec.CommandContext(t.Context(), "sh", "-c", command)
	shell.Dir = root
	file, err := shell.Output()
	if err != nil {
		t.Fatal(err)
	}
	groups, errs := rulefmt.Parse(file, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.Default())
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	count := 0
	for _, group := range groups.Groups {
		count += len(group.Rules)
	}
	if count != len(alerts(t)) {
		t.Errorf("the file has %d of %d alerts", count, len(alerts(t)))
	}
}

func TestAlerts_HaveAPageEach(t *testing.T) {
	var names []string
	for _, alert := range alerts(t) {
		names = append(names, alert.Alert)
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs/runbooks/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	overview := string(must(read("docs/monitoring.md")))
	var found []string
	for _, page := range pages {
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		found = append(found, name)
		text := string(must(os.ReadFile(page)))
		for _, part := range []string{"# " + name + "\n", "\n## What it does to messages\n", "\n## How to look\n", "\n## What to do\n"} {
			if !strings.Contains(text, part) {
				t.Errorf("docs/runbooks/%s.md does not have %q", name, part)
			}
		}
		if !strings.Contains(overview, "["+name+"](runbooks/"+name+".md)") {
			t.Errorf("docs/monitoring.md does not lead to %s", name)
		}
	}
	slices.Sort(names)
	slices.Sort(found)
	if !slices.Equal(names, found) {
		t.Errorf("the alerts are %v, and the pages %v", names, found)
	}
}

// TestAlerts_FireWhenTheyShould plays series to Prometheus's own rules, a minute a step.
func TestAlerts_FireWhenTheyShould(t *testing.T) {
	cases := casesOf(t)
	for _, alert := range alerts(t) {
		known, there := cases[alert.Alert]
		if !there || len(known.Fires) == 0 || len(known.Quiet) == 0 {
			t.Errorf("%s has no case in which it fires, or none in which it does not", alert.Alert)
			continue
		}
		for _, series := range known.Fires {
			firing := fired(t, alert, series)
			if len(firing) == 0 {
				t.Errorf("%s does not fire on\n%s", alert.Alert, series)
			}
			for _, one := range firing {
				checkTexts(t, alert.Alert, one)
			}
		}
		for _, series := range known.Quiet {
			if firing := fired(t, alert, series); len(firing) > 0 {
				t.Errorf("%s fires on\n%s\n%v", alert.Alert, series, firing[0].Labels)
			}
		}
		delete(cases, alert.Alert)
	}
	for name := range cases {
		t.Errorf("there is no alert %s", name)
	}
}

// cases are series by which an alert fires, and others by which it does not, each a list to be played together.
type cases struct{ Fires, Quiet []string }

func casesOf(t *testing.T) map[string]cases {
	t.Helper()
	all := map[string]cases{}
	strict(t, "hack/monitoring/testdata/alerts.yaml", &all)
	return all
}

// fired are the alerts that fired at any time of two hours.
func fired(t *testing.T, alert rulefmt.Rule, series string) []*rules.Alert {
	t.Helper()
	load := "load 1m\n"
	for line := range strings.Lines(series) {
		load += "  " + strings.Replace(line, "{of", `{namespace="shop",transport="async"`, 1)
	}
	store := promqltest.LoadedStorage(t, load)
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, 1_000_000)
	expr := must(parser.NewParser(parser.Options{}).ParseExpr(alert.Expr))
	rule := rules.NewAlertingRule(alert.Alert, expr, time.Duration(alert.For), time.Duration(alert.KeepFiringFor),
		labels.FromMap(alert.Labels), labels.FromMap(alert.Annotations), labels.EmptyLabels(), "", true, slog.Default())
	query := rules.EngineQueryFunc(engine, store)
	for minute := range 120 {
		at := time.Unix(0, 0).Add(time.Duration(minute) * time.Minute)
		if _, err := rule.Eval(t.Context(), 0, at, query, &url.URL{}, 0); err != nil {
			t.Fatalf("%s: %v", alert.Alert, err)
		}
		var firing []*rules.Alert
		for _, one := range rule.ActiveAlerts() {
			if one.State == rules.StateFiring {
				firing = append(firing, one)
			}
		}
		if len(firing) > 0 {
			return firing
		}
	}
	return nil
}

// checkTexts finds texts that name a label that the alert does not have.
func checkTexts(t *testing.T, name string, alert *rules.Alert) {
	t.Helper()
	alert.Annotations.Range(func(l labels.Label) {
		if strings.Contains(l.Value, "<") || strings.Contains(l.Value, "  ") || strings.Contains(l.Value, " .") || strings.Contains(l.Value, "//"+"async") {
			t.Errorf("%s: its %s is %q", name, l.Name, l.Value)
		}
	})
}
