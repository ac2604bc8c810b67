package handler_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// programs are what the test binary can be in place of the tests: it is started by a handler under test with the name of one
// as its first argument.
var programs = map[string]func() int{}

// program registers one, under a name that no flag of the tests has, and returns the command that starts it.
func program(name string, run func() int) []string {
	programs[name] = run
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return []string{self, name}
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && programs[os.Args[1]] != nil {
		os.Exit(programs[os.Args[1]]())
	}
	_ = os.Setenv("NO_PROXY", "*") // the machine's proxy is not under test
	goleak.VerifyTestMain(m)
}
