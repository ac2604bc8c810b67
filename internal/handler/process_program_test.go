package handler_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// hello is what a program says that takes one message at a time, and hello4 one that takes four.
const (
	hello  = `{"type":"hello","protocol":1}`
	hello4 = `{"type":"hello","protocol":1,"concurrency":4}`
)

// scripted is the command of a program that does what it is told, down to each byte. It carries out the commands first, and then, of
// each message, those in the body. They are separated by line feeds.
func scripted(first ...string) []string {
	return append(append([]string(nil), scriptedProgram...), strings.Join(first, "\n"))
}

// script is a message's body.
func script(commands ...string) string { return strings.Join(commands, "\n") }

var scriptedProgram = program("process-scripted", func() int {
	s := &scriptRun{}
	s.run(os.Args[2])
	for {
		line, ok := s.readLine()
		if !ok {
			return 0
		}
		var f struct{ ID, Body string }
		if err := json.Unmarshal(line, &f); err != nil {
			slog.Error("cannot read the frame", "error", err)
			return 1
		}
		s.id = f.ID
		s.run(f.Body)
	}
})

type scriptRun struct {
	id   string
	kept [][]byte
}

// readLine reads no more than a line, so that a test knows what was read.
func (s *scriptRun) readLine() ([]byte, bool) {
	var line []byte
	for one := make([]byte, 1); ; {
		if n, err := os.Stdin.Read(one); n == 0 || err != nil {
			return nil, false
		}
		if one[0] == '\n' {
			return line, true
		}
		line = append(line, one[0])
	}
}

func (s *scriptRun) run(script string) {
	for command := range strings.Lines(script) {
		verb, rest, _ := strings.Cut(strings.TrimSuffix(command, "\n"), " ")
		s.do(verb, rest)
	}
}

// do carries out one command.
func (s *scriptRun) do(verb, rest string) {
	number, _ := strconv.Atoi(rest)
	switch verb {
	case "say": // a line, in which $ID stands for the message's; \x.. is a byte
		s.say(rest)
	case "repeat": // so many times the answer to the message with the number 1
		_, _ = os.Stdout.WriteString(strings.Repeat(`{"type":"result","id":"1","outcome":"ack"}`+"\n", number))
	case "ack":
		s.say(`{"type":"result","id":"$ID","outcome":"ack"}`)
	case "begin": // so many bytes of an answer
		_, _ = os.Stdout.WriteString(`{"type":"result","id":"` + s.id + `","outcome":"ack","note":"` + strings.Repeat("x", number))
	case "more": // so many bytes more
		_, _ = os.Stdout.WriteString(strings.Repeat("x", number))
	case "end": // so many bytes more, and that was it
		_, _ = os.Stdout.WriteString(strings.Repeat("x", number) + "\"}\n")
	case "pid": // answers a failure whose status is the process's number
		s.say(fmt.Sprintf(`{"type":"result","id":"$ID","outcome":"failure","status":%d}`, os.Getpid()))
	case "exit":
		os.Exit(number)
	case "signal":
		_ = syscall.Kill(os.Getpid(), syscall.Signal(number))
		select {}
	case "hang":
		select {}
	case "sleep":
		time.Sleep(time.Duration(number) * time.Millisecond)
	case "complain": // on its standard error
		fmt.Fprintln(os.Stderr, rest)
	case "flood": // a gigabyte, to stdout or stderr, with or without lines
		floodWith(rest)
	case "close":
		_ = map[string]*os.File{"stdin": os.Stdin, "stdout": os.Stdout}[rest].Close()
	case "eat": // so many MiB of memory, for good
		eaten := bytes.Repeat([]byte{1}, number<<20)
		s.kept = append(s.kept, eaten)
	case "fork": // leave a process behind that holds what this one has open
		leaveBehind(rest == "away")
	case "await": // until there is a file
		for !exists(rest) {
			time.Sleep(5 * time.Millisecond)
		}
	case "touch":
		touch(rest)
	case "unless": // do no more where there is a file, but answer; else make it and go on
		s.unless(rest)
	}
}

// unless answers, and starts over with the next message, where a file is there.
func (s *scriptRun) unless(file string) {
	if exists(file) {
		touch(file + "." + strconv.Itoa(os.Getpid()))
		s.do("ack", "")
		return
	}
	touch(file)
}

func (s *scriptRun) say(text string) {
	text = strings.ReplaceAll(text, "$ID", s.id)
	if unquoted, err := strconv.Unquote("`" + text + "`"); err == nil && strings.Contains(text, `\x`) {
		text = strings.NewReplacer(`\xff`, "\xff", `\xfe`, "\xfe").Replace(unquoted)
	}
	_, _ = os.Stdout.WriteString(text + "\n")
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func touch(file string) {
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		panic(err)
	}
}

func floodWith(what string) {
	const gigabyte = 1 << 30
	where, form, _ := strings.Cut(what, " ")
	output := map[string]*os.File{"stdout": os.Stdout, "stderr": os.Stderr}[where]
	part := bytes.Repeat([]byte("flood "), 10_000)
	if form == "lines" {
		part = bytes.Repeat([]byte("flood\n"), 10_000)
	}
	for written := 0; written < gigabyte; {
		n, err := output.Write(part)
		if err != nil {
			return
		}
		written += n
	}
}

// leaveBehind starts a process with the standard input and output of this one, and away from its group if so told. It ends when
// nobody reads what it writes.
func leaveBehind(away bool) {
	other := exec.Command(os.Args[0], leftBehind)
	other.Stdin, other.Stdout, other.Stderr = os.Stdin, os.Stdout, os.Stderr
	other.SysProcAttr = &syscall.SysProcAttr{Setsid: away}
	if err := other.Start(); err != nil {
		panic(err)
	}
}

const leftBehind = "process-left-behind"

var _ = program(leftBehind, func() int {
	for {
		if _, err := os.Stdout.WriteString("still here\n"); err != nil {
			return 0
		}
		time.Sleep(20 * time.Millisecond)
	}
})
