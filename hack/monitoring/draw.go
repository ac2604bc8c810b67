package main

import (
	"bytes"
	"context"
	"fmt"
	"html"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
)

// Sizes in pixels. A cell is one of the 24 columns and one of the rows of Grafana's grid.
const (
	cellWidth, cellHeight = 50, 27
	gap                   = 6
	left, top, bottom     = 44, 26, 18 // of the plot in its panel
	legendLine            = 13
	maxLegend             = 4
	head                  = 40
)

// colours are told apart also by those who do not see all of them.
func colours() []string {
	return []string{"#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#b07aa1", "#9c755f", "#edc948", "#ff9da7", "#79706e"}
}

// draw gives the dashboard as SVG. A panel without a single series is an error: the picture is to show that all of them work.
func draw(ctx context.Context, e *evaluation) ([]byte, error) {
	var svg bytes.Buffer
	rows := 0
	for _, p := range e.board.Panels {
		rows = max(rows, p.GridPos.Y+p.GridPos.H)
	}
	width, height := 24*cellWidth, head+rows*cellHeight
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="sans-serif" font-size="10">`+"\n",
		width, height, width, height)
	fmt.Fprintf(&svg, `<rect width="%d" height="%d" fill="#f4f5f5"/>`+"\n", width, height)
	fmt.Fprintf(&svg, `<text x="10" y="25" font-size="17">%s</text>`+
		`<text x="%d" y="25" text-anchor="end" fill="#666">all namespaces, all Transports; %s of a run</text>`+"\n",
		html.EscapeString(e.board.Title), width-10, e.end.Sub(e.begin).Round(time.Second))
	for i := range e.board.Panels {
		p := &e.board.Panels[i]
		x, y := p.GridPos.X*cellWidth, head+p.GridPos.Y*cellHeight
		if p.Type == "row" {
			fmt.Fprintf(&svg, `<text x="%d" y="%d" font-size="13" font-weight="bold">%s</text>`+"\n", x+10, y+19, html.EscapeString(p.Title))
			continue
		}
		lines, err := e.lines(ctx, p)
		if err != nil {
			return nil, err
		}
		if len(lines) == 0 {
			return nil, fmt.Errorf("panel %q shows nothing", p.Title)
		}
		plot := &plot{panel: p, lines: lines, begin: e.begin, end: e.end, width: p.GridPos.W*cellWidth - gap, height: p.GridPos.H*cellHeight - gap}
		fmt.Fprintf(&svg, `<g transform="translate(%d,%d)">`+"\n", x+gap/2, y+gap/2)
		plot.draw(&svg)
		svg.WriteString("</g>\n")
	}
	svg.WriteString("</svg>\n")
	return svg.Bytes(), nil
}

// plot is a panel with its lines.
type plot struct {
	panel         *panel
	lines         []line
	begin, end    time.Time
	width, height int
	highest       float64
}

func (p *plot) draw(svg *bytes.Buffer) {
	fmt.Fprintf(svg, `<rect width="%d" height="%d" rx="3" fill="#fff" stroke="#ddd"/><text x="10" y="17" font-size="12" font-weight="bold">%s</text>`+"\n",
		p.width, p.height, html.EscapeString(p.panel.Title))
	defaults := p.panel.FieldConfig.Defaults
	if defaults.Custom.Stacking.Mode == "normal" {
		p.stack()
	}
	for _, line := range p.lines {
		for _, point := range line.points {
			if !math.IsNaN(point.F) && !math.IsInf(point.F, 0) {
				p.highest = max(p.highest, point.F)
			}
		}
	}
	tick := tickOf(p.highest, defaults.Unit)
	p.highest = tick * math.Max(1, math.Ceil(p.highest/tick))
	for value := 0.0; value <= p.highest+tick/2; value += tick {
		y := p.y(value)
		fmt.Fprintf(svg, `<path d="M%d %.1fH%d" stroke="#eee"/><text x="%d" y="%.1f" text-anchor="end" fill="#666">%s</text>`+"\n",
			left, y, p.width-10, left-4, y+3, figure(value, defaults.Unit))
	}
	// The last are drawn first: of a stack they are the highest.
	for i, line := range slices.Backward(p.lines) {
		p.line(svg, line, colours()[i%len(colours())], float64(defaults.Custom.FillOpacity)/100)
	}
	p.legend(svg)
}

// stack puts each line on top of those before it.
func (p *plot) stack() {
	sums := map[int64]float64{}
	for i := range p.lines {
		for j := range p.lines[i].points {
			point := &p.lines[i].points[j]
			sums[point.T] += point.F
			point.F = sums[point.T]
		}
	}
}

func (p *plot) plotBottom() float64 {
	return float64(p.height - bottom - legendLine*min((len(p.lines)+1)/2, maxLegend))
}

func (p *plot) y(value float64) float64 {
	return p.plotBottom() - value/p.highest*(p.plotBottom()-top)
}

func (p *plot) x(t int64) float64 {
	passed := float64(t-p.begin.UnixMilli()) / float64(p.end.Sub(p.begin).Milliseconds())
	return left + passed*float64(p.width-10-left)
}

// line draws a series, with a gap where Prometheus had nothing for a while.
func (p *plot) line(svg *bytes.Buffer, l line, colour string, opacity float64) {
	gapAfter := 2 * p.end.Sub(p.begin).Milliseconds() / steps
	var parts [][]promql.FPoint
	for i, point := range l.points {
		if math.IsNaN(point.F) {
			continue
		}
		if len(parts) == 0 || i > 0 && point.T-l.points[i-1].T > gapAfter {
			parts = append(parts, nil)
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], point)
	}
	for _, part := range parts {
		var path strings.Builder
		for i, point := range part {
			_, _ = fmt.Fprintf(&path, "%c%.0f %.1f", "ML"[min(i, 1)], p.x(point.T), p.y(point.F))
		}
		if len(part) == 1 {
			path.WriteString("h1.5")
		}
		fmt.Fprintf(svg, `<path d="%s" fill="none" stroke="%s" stroke-width="1.3"/>`, path.String(), colour)
		fmt.Fprintf(svg, `<path d="%sL%.0f %.1fL%.0f %.1fZ" fill="%s" fill-opacity="%.2f"/>`+"\n", path.String(),
			p.x(part[len(part)-1].T), p.y(0), p.x(part[0].T), p.y(0), colour, opacity)
	}
}

// legend has two columns, and says how many lines it leaves out.
func (p *plot) legend(svg *bytes.Buffer) {
	for i, line := range p.lines {
		if i == 2*maxLegend-1 && len(p.lines) > 2*maxLegend {
			line.legend = fmt.Sprintf("and %d more", len(p.lines)-i)
		}
		if i == 2*maxLegend {
			return
		}
		x, y := 10+(i%2)*(p.width-10)/2, int(p.plotBottom())+18+legendLine*(i/2)
		fmt.Fprintf(svg, `<path d="M%d %dh9" stroke="%s" stroke-width="3"/><text x="%d" y="%d" fill="#333">%s</text>`+"\n",
			x, y-3, colours()[i%len(colours())], x+13, y, html.EscapeString(line.legend))
	}
}

// tickOf is the distance of the lines of a grid of about four.
func tickOf(highest float64, unit string) float64 {
	if highest <= 0 {
		return 1
	}
	size := math.Pow(10, math.Floor(math.Log10(highest/3)))
	for _, factor := range []float64{1, 2, 5, 10} {
		if tick := size * factor; highest/tick <= 4 {
			if unit == "short" {
				return math.Max(1, tick)
			}
			return tick
		}
	}
	return highest
}

func figure(value float64, unit string) string {
	number := func(value float64) string { return fmt.Sprint(math.Round(value*1000) / 1000) }
	switch {
	case unit == "percentunit":
		return number(value*100) + " %"
	case unit == "s" && value > 0 && value < 1:
		return number(value*1000) + " ms"
	case unit == "s":
		return number(value) + " s"
	case unit == "mps", unit == "ops":
		return number(value) + "/s"
	default:
		return number(value)
	}
}

var inLegend = regexp.MustCompile(`\{\{(\w+)\}\}`)

// legend fills in the labels of a series.
func legend(format string, metric labels.Labels) string {
	text := inLegend.ReplaceAllStringFunc(format, func(part string) string {
		return metric.Get(strings.Trim(part, "{}"))
	})
	return strings.TrimSpace(text)
}
