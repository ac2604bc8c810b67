package main

import (
	"html"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

func TestDashboard_LaysPanelsInRowsWithoutOverlap(t *testing.T) {
	taken, ids := map[[2]int]string{}, map[int]bool{}
	for _, p := range must(readDashboard()).Panels {
		if ids[p.ID] {
			t.Errorf("panel %q has an id that another has", p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies over %q, or outside", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if (p.Type == "row") == (len(p.Targets) > 0) {
			t.Errorf("panel %q of type %s has %d queries", p.Title, p.Type, len(p.Targets))
		}
	}
}

// Whoever chooses a namespace or a Transport is to see nothing of others.
func TestDashboard_HeedsTheVariablesInEveryQuery(t *testing.T) {
	d := must(readDashboard())
	const namespace, transport = "only-this-namespace", "only-this-transport"
	for i, v := range d.Templating.List {
		d.Templating.List[i].AllValue = map[string]string{"namespace": namespace, "transport": transport}[v.Name]
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			expr := must(parser.NewParser(parser.Options{}).ParseExpr(d.expanded(target.Expr, time.Minute, time.Minute)))
			parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
				selector, is := node.(*parser.VectorSelector)
				if !is || strings.HasPrefix(selector.Name, "controller_runtime_") { // of all Transports together
					return nil
				}
				text := selector.String()
				if !strings.Contains(text, `namespace=~"`+namespace+`"`) || !strings.Contains(text, `transport=~"`+transport+`"`) {
					t.Errorf("panel %q: %s does not heed the variables", p.Title, text)
				}
				return nil
			})
		}
	}
}

func TestDashboard_ComesInAConfigMapWithTheLabelOfTheSidecar(t *testing.T) {
	var component struct {
		ConfigMapGenerator []struct {
			Files   []string
			Options struct{ Labels map[string]string }
		}
	}
	if err := yaml.Unmarshal(must(read("config/grafana/kustomization.yaml")), &component); err != nil {
		t.Fatal(err)
	}
	made := component.ConfigMapGenerator[0]
	if len(made.Files) != 1 || "config/grafana/"+made.Files[0] != dashboardFile || made.Options.Labels["grafana_dashboard"] != "1" {
		t.Errorf("got %+v", made)
	}
}

func TestDashboard_HasAllPanelsInItsPicture(t *testing.T) {
	picture := string(must(read("docs/images/dashboard.svg")))
	if len(picture) > 300_000 {
		t.Errorf("the picture has %d bytes", len(picture))
	}
	for _, p := range must(readDashboard()).Panels {
		if !strings.Contains(picture, ">"+html.EscapeString(p.Title)+"<") {
			t.Errorf("the picture has no %q: make dashboard-picture", p.Title)
		}
	}
}
