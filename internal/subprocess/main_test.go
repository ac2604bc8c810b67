package subprocess_test

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// roleVariable makes one of the processes that the tests need of the test's program.
const roleVariable = "REDRIVE_TEST_ROLE"

// roles of the test's program.
var roles = map[string]func() int{}

// role adds one and returns its name.
func role(name string, run func() int) string {
	roles[name] = run
	return name
}

func TestMain(m *testing.M) {
	if role := roles[os.Getenv(roleVariable)]; role != nil {
		os.Exit(role())
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what must happen.
const patience = 5 * time.Minute

// as is the command of the test's program in a role.
func as(ctx context.Context, t *testing.T, role string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	ok(t, err)
	command := exec.CommandContext(ctx, self)
	command.Env = append(os.Environ(), roleVariable+"="+role)
	command.Stderr = os.Stderr
	return command
}

// line reads a line.
func line(t *testing.T, from io.Reader) string {
	t.Helper()
	text, err := bufio.NewReader(from).ReadString('\n')
	ok(t, err)
	return text[:len(text)-1]
}

// eventually fails the test if something does not come true.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
