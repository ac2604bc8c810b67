package faults

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"redrive.dev/redrive/handler/run"
	"redrive.dev/redrive/internal/testbroker"
)

// roundsVariable says how often each case is run, each time on a new vhost with new processes.
const roundsVariable = "FAULT_ROUNDS"

// atOnce is how many cases run beside each other. They mostly wait.
const atOnce = "12"

func TestMain(m *testing.M) {
	if clock := os.Getenv(clockVariable); clock != "" {
		os.Exit(steppedWorker(clock))
	}
	if server := os.Getenv(namesVariable); server != "" {
		askFor(server)
		run.Main(nil)
	}
	if err := flag.Set("test.parallel", atOnce); err != nil { // the command line still decides
		panic(err)
	}
	testbroker.Main(cleaning{m})
}

// cleaning removes the programs after the tests.
type cleaning struct{ *testing.M }

func (c cleaning) Run() int {
	defer func() { _ = os.RemoveAll(built.folder) }()
	return c.M.Run()
}

// built are the programs under test, as they are shipped.
var built struct {
	once            sync.Once
	folder          string
	worker, redrive string
	err             error
	output          []byte
}

// programs builds the programs once.
func programs(t testing.TB) (paths struct{ worker, redrive string }) {
	t.Helper()
	built.once.Do(func() {
		built.folder, built.err = os.MkdirTemp("", "redrive-faults-") //nolint:usetesting // all tests of the package share it
		if built.err != nil {
			return
		}
		built.output, built.err = exec.Command("go", "build", "-o", built.folder, "../../cmd/worker", "../../cmd/redrive").CombinedOutput()
	})
	if built.err != nil {
		t.Fatalf("build the programs: %v\n%s", built.err, built.output)
	}
	paths.worker, paths.redrive = filepath.Join(built.folder, "worker"), filepath.Join(built.folder, "redrive")
	return paths
}

// rounds runs a case as often as asked for.
func rounds(t *testing.T, run func(t *testing.T)) {
	t.Helper()
	number := 1
	if text := os.Getenv(roundsVariable); text != "" {
		var err error
		if number, err = strconv.Atoi(text); err != nil || number < 1 {
			t.Fatalf("%s=%s is not a number of rounds", roundsVariable, text)
		}
	}
	if number == 1 {
		run(t)
		return
	}
	for n := range number {
		if !t.Run(strconv.Itoa(n+1), run) {
			return
		}
	}
}
