//go:build unix

package subprocess_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"redrive.dev/redrive/internal/subprocess"
)

// script writes an executable file and returns its path.
func script(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	ok(t, os.MkdirAll(filepath.Dir(path), 0o755))
	ok(t, os.WriteFile(path, []byte(text), 0o755))
	return path
}

func TestStart_SaysWhyAProgramCannotBeStarted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name, text string) string { return script(t, dir, name, text) }
	plain := at("plain", "#!/bin/sh\n")
	ok(t, os.Chmod(plain, 0o644))
	ok(t, os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	ok(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o755))
	cases := map[string]struct{ program, want string }{
		"nothing":                     {"", "the command names no program"},
		"no such name":                {"no-such-program", `there is no program "no-such-program" in PATH (` + dir + "/empty:/bin)"},
		"one in the directory":        {"plain", "for the one in the working directory write ./plain"},
		"no such path":                {"/no/such/program", "/no/such/program does not exist"},
		"no such relative path":       {"./program", "./program does not exist"},
		"below a file":                {plain + "/x", "cannot be reached: not a directory"},
		"a link to nothing":           {"./dangling", "./dangling does not exist"},
		"a directory":                 {dir, dir + " is a directory"},
		"no file":                     {"./fifo", "./fifo is not a file"},
		"not executable":              {"./plain", "its mode is -rw-r--r--): make it executable with chmod +x"},
		"a text":                      {at("text", "echo hello\n"), "is a text without a first line that names its interpreter"},
		"an empty file":               {at("empty", ""), "is a text without a first line that names its interpreter"},
		"no interpreter":              {at("none", "#!\necho"), "a first line #! that names no interpreter"},
		"no such interpreter":         {at("missing", "#! /opt/php/bin/php -n\n"), "needs the interpreter /opt/php/bin/php does not exist"},
		"a program saved on Windows":  {at("crlf", "#!/bin/sh\r\necho\r\n"), "a first line that ends with a carriage return"},
		"an interpreter not in PATH":  {at("env", "#!/usr/bin/env php99\n"), `needs the interpreter php99: there is no program "php99" in PATH`},
		"another system's program":    {at("elf", foreign(t)), "needs the loader /lib/ld-none.so.9 does not exist"},
		"another machine's program":   {at("machine", "\x7fELF\x02\x01\x01"+strings.Repeat("\x00", 100)), "is not a program for this kind of machine"},
		"nothing that anybody knows":  {at("binary", "\x00\x01\x02\xff"), "is not a program for this kind of machine"},
		"an interpreter of text":      {at("text2", "#!"+filepath.Join(dir, "text")+"\n"), "is not a program for this kind of machine"},
		"an interpreter that may not": {at("plain2", "#!"+plain+"\n"), "the system forbids it"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command := subprocess.Command{Args: []string{c.program, "secret"}, Dir: dir, Env: []string{"PATH=" + dir + "/empty:/bin"}}
			process, err := subprocess.Start(command, os.Stdin, os.Stdout, os.Stderr)
			if err == nil {
				process.Wait()
				t.Fatal("it was started")
			}
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %q, want %q", err, c.want)
			}
		})
	}
}

// foreign is the head of a program that needs a loader that is not there: a little-endian 64-bit one.
func foreign(t *testing.T) string {
	t.Helper()
	const loader = "/lib/ld-none.so.9\x00"
	header := make([]byte, 64+56)
	copy(header, "\x7fELF\x02\x01\x01")
	header[16], header[18], header[20] = 2, 62, 1   // executable, x86-64, version
	header[32], header[52] = 64, 64                 // program headers begin after this one's size
	header[54], header[56], header[58] = 56, 1, 64  // one, of this size
	header[64], header[64+8] = 3, byte(len(header)) // it names the loader, behind it
	header[64+32], header[64+40] = byte(len(loader)), byte(len(loader))
	return string(header) + loader
}

func TestStart_SaysThatTheDirectoryIsMissing(t *testing.T) {
	t.Parallel()
	c := shell("exit")
	c.Dir = filepath.Join(t.TempDir(), "missing")
	_, err := subprocess.Start(c, os.Stdin, os.Stdout, os.Stderr)
	if err == nil || !strings.Contains(err.Error(), "which is no directory") {
		t.Errorf("got %v", err)
	}
}

func TestStart_SaysThatACommandIsTooLong(t *testing.T) {
	t.Parallel()
	_, err := subprocess.Start(shell("exit", strings.Repeat("x", 1<<20)), os.Stdin, os.Stdout, os.Stderr)
	if err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("got %v", err)
	}
}

func TestFind_FindsTheInterpreterOfAScript(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script(t, dir, "bin/mine", "#!/bin/sh\n")
	for _, text := range []string{
		"#!/bin/sh", "#!/bin/sh -e\n", "#! /bin/sh\n", "#!/usr/bin/env mine\n", "#!/usr/bin/env -S sh -e\n", "#!relative\n",
	} {
		c := subprocess.Command{Args: []string{script(t, dir, "it", text)}, Env: []string{"PATH=" + dir + "/bin"}}
		if _, err := subprocess.Find(c); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}
