package apply_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"redrive.dev/redrive/internal/testtransport"
)

// The simulation takes a Transport through changes and faults by chance, in simulated time: simulated_world_test.go has the course of a seed and what
// becomes of each message, simulated_changes_test.go what people and faults do, simulated_operator_test.go and simulated_workers_test.go who works on
// it, and simulated_broker_test.go the broker. A seed that fails shows all that happened.
//
//	go test ./internal/apply -run TestSimulation_LosesNoMessageWhateverChanges -v -simulation.seed 4711
var (
	simulationSeed  = flag.Uint64("simulation.seed", 0, "first seed of the simulated changes; what happens is shown where there is one")
	simulationSeeds = flag.Uint64("simulation.seeds", 1, "number of seeds from simulation.seed on")
)

const (
	// usualSeeds are run each time, and longSeeds with the long tests.
	usualSeeds, longSeeds = 160, 6000
	// seedsTogether are run by one test.
	seedsTogether = 20
	// mostShown is how many seeds of these are shown in full where they fail.
	mostShown = 3
)

func TestSimulation_LosesNoMessageWhateverChanges(t *testing.T) {
	t.Parallel()
	if *simulationSeed > 0 {
		simulateAll(t, *simulationSeed, *simulationSeeds)
	} else {
		simulateAll(t, 1, usualSeeds)
	}
}

func TestSimulation_LosesNoMessageInThousandsOfChanges(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	simulateAll(t, usualSeeds+1, longSeeds)
}

func simulateAll(t *testing.T, first, seeds uint64) {
	t.Helper()
	for from := first; from < first+seeds; from += seedsTogether {
		to := min(from+seedsTogether, first+seeds)
		t.Run(fmt.Sprintf("seeds %d to %d", from, to-1), func(t *testing.T) {
			t.Parallel()
			shown := 0
			for seed := from; seed < to; seed++ {
				problems := simulate(t, seed, nil)
				if len(problems) == 0 && seeds > 1 {
					continue
				}
				if shown++; shown <= mostShown {
					show(t, seed, problems)
				}
				for _, problem := range problems {
					t.Errorf("seed %d: %s", seed, problem)
				}
			}
		})
	}
}

// show runs a seed once more, and shows all that happens.
func show(t *testing.T, seed uint64, problems []string) {
	t.Helper()
	var trace []string
	if again := simulate(t, seed, &trace); !slices.Equal(problems, again) {
		t.Errorf("seed %d gives something else each time: %q, and %q", seed, problems, again)
	}
	t.Logf("seed %d, again by -run TestSimulation_LosesNoMessageWhateverChanges -simulation.seed %d:\n%s", seed, seed, strings.Join(trace, "\n"))
}

// simulate runs one seed in simulated time, and says what went wrong.
func simulate(t *testing.T, seed uint64, trace *[]string) (problems []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed, trace)
		w.run()
		problems = w.problems
	})
	return problems
}
