package handler_test

import (
	"flag"
	"fmt"
	"os"
	"syscall"
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
	// The tests wait for programs and servers, and not for a processor. The command line still decides.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// unheard is an address at which nothing listens, and which no other test gets meanwhile: a socket is bound to it.
func unheard(t *testing.T) string {
	t.Helper()
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	syscall.CloseOnExec(socket)
	t.Cleanup(func() { _ = syscall.Close(socket) })
	if err := syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	bound, err := syscall.Getsockname(socket)
	if err != nil {
		t.Fatal(err)
	}
	address, _ := bound.(*syscall.SockaddrInet4)
	return fmt.Sprintf("127.0.0.1:%d", address.Port)
}
