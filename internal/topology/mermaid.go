package topology

import (
	"fmt"
	"slices"
	"strings"
)

// Mermaid draws the objects as a flowchart in Mermaid's language. The same objects always give the same text.
func Mermaid(objects Objects) string {
	drawing := &drawing{ids: map[string]string{}}
	drawing.linef("flowchart LR")
	if producers := objects.ExchangeOf(RoleProducers); producers != "" {
		drawing.linef("  producer([producer]) --> %s", drawing.id(KindExchange, producers))
	}
	for _, exchange := range objects.Exchanges {
		drawing.linef("  %s[/%s/]:::%s", drawing.id(KindExchange, exchange.Name),
			label(exchange.Name, exchange.Type), class(exchange.Role))
	}
	for _, queue := range objects.Queues {
		drawing.linef("  %s[(%s)]:::%s", drawing.id(KindQueue, queue.Name), label(queue.Name, queueNote(queue)), class(queue.Role))
	}
	drawing.bindings(objects)
	drawing.deadLetters(objects)
	drawing.alternates(objects)
	drawing.worker(objects)
	drawing.linef("  classDef work fill:#e3f2fd,stroke:#1565c0")
	drawing.linef("  classDef quarantine fill:#f3e5f5,stroke:#6a1b9a")
	drawing.linef("  classDef lane fill:#fff8e1,stroke:#f9a825")
	drawing.linef("  classDef failure fill:#ffebee,stroke:#c62828")
	drawing.linef("  classDef exchange fill:#f5f5f5,stroke:#616161")
	return drawing.text.String()
}

type drawing struct {
	text strings.Builder
	ids  map[string]string
}

func (d *drawing) linef(format string, arguments ...any) {
	fmt.Fprintf(&d.text, format+"\n", arguments...)
}

// id is a node's name in the drawing; names on the broker may hold what Mermaid does not allow.
func (d *drawing) id(kind Kind, name string) string {
	key := Ref{Kind: kind, Name: name}.String()
	if _, known := d.ids[key]; !known {
		d.ids[key] = fmt.Sprintf("%s%d", kind[:1], len(d.ids)+1)
	}
	return d.ids[key]
}

// bindings draws one arrow for each pair of ends, with all its keys.
func (d *drawing) bindings(objects Objects) {
	type pair struct{ source, destination string }
	var order []pair
	keys := map[pair][]string{}
	for _, binding := range objects.Bindings {
		ends := pair{binding.Source, binding.Destination}
		if _, known := keys[ends]; !known {
			order = append(order, ends)
		}
		key := binding.RoutingKey
		if lane, ok := binding.Arguments[laneHeader].(string); ok {
			key = lane
		}
		if key != "" {
			keys[ends] = append(keys[ends], key)
		} else if keys[ends] == nil {
			keys[ends] = []string{}
		}
	}
	ours := map[string]bool{}
	for _, exchange := range objects.Exchanges {
		ours[exchange.Name] = true
	}
	for _, ends := range order {
		source := d.id(KindExchange, ends.source)
		if !ours[ends.source] {
			ours[ends.source] = true
			d.linef("  %s[/%s/]", source, label(ends.source, "of another team"))
		}
		d.linef("  %s", arrow(source, "-->", strings.Join(keys[ends], ", "), d.id(KindQueue, ends.destination)))
	}
}

func (d *drawing) deadLetters(objects Objects) {
	for _, queue := range objects.Queues {
		target, ok := queue.Arguments[argDeadLetterExchange].(string)
		if !ok {
			continue
		}
		d.linef("  %s", arrow(d.id(KindQueue, queue.Name), "-.->", deadLettering(queue.Role), d.id(KindExchange, target)))
	}
}

// deadLettering says why messages leave a queue by themselves.
func deadLettering(role Role) string {
	switch role {
	case RoleLane:
		return "TTL"
	case RoleQuarantine:
		return "delivery limit"
	default:
		return "expired, rejected"
	}
}

func (d *drawing) alternates(objects Objects) {
	for _, exchange := range objects.Exchanges {
		target, ok := exchange.Arguments[argAlternateExchange].(string)
		if exchange.Role == RoleProducers {
			target, ok = objects.ExchangeOf(RoleAlternate), true
		}
		if ok && target != "" {
			d.linef("  %s", arrow(d.id(KindExchange, exchange.Name), "-.->", "unroutable", d.id(KindExchange, target)))
		}
	}
}

func (d *drawing) worker(objects Objects) {
	queues := objects.QueuesOf(RoleWork)
	if len(queues) == 0 {
		return
	}
	for _, queue := range queues {
		d.linef("  %s ==> worker([worker])", d.id(KindQueue, queue))
	}
	d.published("worker", objects, "release, redelivered")
	quarantine := objects.QueuesOf(RoleQuarantine)
	if len(quarantine) == 0 {
		return
	}
	for _, queue := range quarantine {
		d.linef("  %s ==> quarantine([\"quarantine worker\"])", d.id(KindQueue, queue))
	}
	d.published("quarantine", objects, "release, crash")
}

// published draws where a worker publishes to.
func (d *drawing) published(worker string, objects Objects, returned string) {
	for _, way := range []struct {
		role Role
		text string
	}{{RoleFallback, "retry"}, {RoleReturn, returned}, {RoleFailed, "fail"}} {
		d.linef("  %s", arrow(worker, "==>", way.text, d.id(KindExchange, objects.ExchangeOf(way.role))))
	}
}

func arrow(from, shape, text, to string) string {
	if text == "" {
		return from + " " + shape + " " + to
	}
	return fmt.Sprintf("%s %s|%s| %s", from, shape, quoted(text), to)
}

func label(name, note string) string {
	if note == "" {
		return quoted(name)
	}
	return quoted(name + "\n" + note)
}

func queueNote(queue Queue) string {
	var notes []string
	switch {
	case queue.Adopt:
		notes = append(notes, "adopted")
	case queue.Type != TypeQuorum:
		notes = append(notes, queue.Type)
	}
	if queue.Arguments[argSingleActive] == true {
		notes = append(notes, "single active consumer")
	}
	return strings.Join(notes, ", ")
}

// quoted is a label in Mermaid's own escapes.
func quoted(text string) string {
	return `"` + strings.NewReplacer("#", "#35;", "&", "#amp;", `"`, "#quot;", "<", "#lt;", ">", "#gt;", "\n", "<br/>").Replace(text) + `"`
}

func class(role Role) string {
	if slices.Contains([]Role{RoleWork, RoleQuarantine, RoleLane, RoleFailure}, role) {
		return string(role)
	}
	return "exchange"
}
