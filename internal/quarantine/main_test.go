package quarantine

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// roleVariable makes one of the processes that the tests need of the test's program.
const roleVariable = "REDRIVE_TEST_ROLE"

// here is the folder of a role's journal: the one that its process stands in.
const here = "."

// roles of the test's program.
var roles = map[string]func(){
	// writer begins and ends runs as fast as it can, and says so.
	"writer": func() {
		j := must(Open(here, noon, slog.New(slog.DiscardHandler)))
		for n := 1; ; n++ {
			for range 3 { // so that most of the time there is one
				check(j.Begin(strconv.Itoa(n), "test"))
			}
			check(j.End())
			if n == 1 {
				say("writing")
			}
		}
	},
	// victim is killed while it has a message.
	"victim": func() {
		begin()
		kill()
	},
	// quitter ends while it has a message.
	"quitter": func() {
		begin()
		os.Exit(7)
	},
	// obedient has a message until it is told to stop.
	"obedient": func() {
		begin()
		<-Attach(context.Background()).Done()
	},
	// sulking is obedient, but for its exit code.
	"sulking": func() {
		begin()
		<-Attach(context.Background()).Done()
		os.Exit(3)
	},
	// forebear has a message, starts a program that outlives it, and is killed.
	"forebear": func() {
		begin()
		survivor := as("survivor", here, os.Stdout)(context.Background())
		survivor.Stdin = os.Stdin
		check(survivor.Start())
		kill()
	},
	// survivor lives until its input ends.
	"survivor": func() {
		say("survivor")
		must(io.Copy(io.Discard, os.Stdin))
		say("end")
	},
	// echo prints what it reads, to the first line, and dies.
	"echo": func() {
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		say("read " + strings.TrimSpace(line))
		os.Exit(1)
	},
	// pod supervises an obedient child, and is its own program.
	"pod": func() {
		if IsChild() {
			begin()
			<-Attach(context.Background()).Done()
			return
		}
		(&Supervisor{Command: Itself, Journal: here, Log: slog.New(slog.DiscardHandler)}).Run(context.Background())
	},
}

func begin() {
	j := must(Open(here, noon, slog.New(slog.DiscardHandler)))
	check(j.Begin("m", "test"))
	say("began")
}

// kill ends this process as a signal does.
func kill() { check(must(os.FindProcess(os.Getpid())).Kill()) }

func say(line string) { must(fmt.Fprintln(os.Stdout, line)) }

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func TestMain(m *testing.M) {
	if role := roles[os.Getenv(roleVariable)]; role != nil {
		role()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// as is the command of the test's program in a role.
func as(role, dir string, out io.Writer) func(context.Context) *exec.Cmd {
	return func(ctx context.Context) *exec.Cmd {
		command := exec.CommandContext(ctx, must(os.Executable()))
		command.Dir, command.Env = dir, append(os.Environ(), roleVariable+"="+role)
		command.Stdout, command.Stderr = out, os.Stderr
		return command
	}
}

// lines are what processes print.
type lines chan string

func newLines(t *testing.T) (lines, *os.File) {
	t.Helper()
	reader, writer := must2(os.Pipe())
	found := make(lines, 1000)
	go func() {
		defer close(found)
		for scanner := bufio.NewScanner(reader); scanner.Scan(); {
			found <- scanner.Text()
		}
	}()
	t.Cleanup(func() { _ = writer.Close() })
	return found, writer
}

func must2[A, B any](a A, b B, err error) (A, B) {
	check(err)
	return a, b
}

// next waits for a line.
func (l lines) next(t *testing.T) string {
	t.Helper()
	select {
	case line := <-l:
		return line
	case <-time.After(30 * time.Second):
		t.Fatal("nothing was printed for half a minute")
		return ""
	}
}
