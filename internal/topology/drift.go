package topology

import (
	"encoding/json"
	"fmt"

	"redrive.dev/redrive/internal/compile"
)

// Fingerprint names what a Transport needs on the broker as far as it can be there now: without withheld bindings to
// exchanges and adopted queues of others. While it is the one with which everything was made, whatever is missing or changed is drift:
// somebody else's doing.
func Fingerprint(desired Objects, withheld []Withheld) string {
	own := make(map[string]bool, len(desired.Exchanges))
	for _, exchange := range desired.Exchanges {
		own[exchange.Name] = true
	}
	adopted := map[string]bool{}
	for _, queue := range desired.Queues {
		adopted[queue.Name] = queue.Adopt
	}
	absent := make(map[identity]bool, len(withheld))
	for _, w := range withheld {
		// One that waits for an object of ours to be put right has been there, and is to come back.
		if !own[w.Binding.Source] || adopted[w.Binding.Destination] {
			absent[w.Binding.identity()] = true
		}
	}
	standing := desired
	standing.Bindings = make([]Binding, 0, len(desired.Bindings))
	for _, binding := range desired.Bindings {
		if !absent[binding.identity()] {
			standing.Bindings = append(standing.Bindings, binding)
		}
	}
	text, err := json.Marshal(standing)
	if err != nil {
		text = fmt.Append(nil, standing)
	}
	return compile.Hash(text)
}

// Repairs splits the steps that were carried out while nothing about the desired objects had changed: what was made or
// changed again is a repair. What was removed is not: objects that are not wanted go in their own time. Nor is a bridge, which goes again.
func Repairs(steps []Step) (repairs, others []Step) {
	for _, step := range steps {
		if step.Action == ActionDelete || step.bridges {
			others = append(others, step)
		} else {
			repairs = append(repairs, step)
		}
	}
	return repairs, others
}
