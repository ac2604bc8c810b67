//go:build unix

package subprocess

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Find returns the path of a command's program, if all that can be seen from outside says that it can be started. A name
// without a slash is looked for in the command's PATH; a relative path is one from the command's working directory. The error
// says what is wrong and what to do.
func Find(c Command) (path string, err error) {
	if len(c.Args) == 0 || c.Args[0] == "" {
		return "", errors.New("the command names no program")
	}
	path, err = locate(c.Args[0], c)
	if err != nil {
		return "", err
	}
	return path, examine(path, c)
}

// locate returns the path of a program that exists.
func locate(name string, c Command) (string, error) {
	if strings.Contains(name, "/") {
		_, err := os.Stat(within(c.Dir, name))
		return name, missing(name, err)
	}
	search := lookup(c.Env, "PATH")
	for _, dir := range filepath.SplitList(search) {
		if !filepath.IsAbs(dir) {
			continue // what the working directory happens to hold is not meant
		}
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	hint := ""
	if _, err := os.Stat(within(c.Dir, name)); err == nil {
		hint = fmt.Sprintf("; for the one in the working directory write ./%s", name)
	}
	return "", fmt.Errorf("there is no program %q in PATH (%s)%s", name, search, hint)
}

// missing explains the error of a stat.
func missing(path string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("%s does not exist", path)
	}
	return fmt.Errorf("%s cannot be reached: %w", path, errnoOf(err))
}

// examine looks for what keeps a file from being started.
func examine(path string, c Command) error {
	file := within(c.Dir, path)
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return missing(path, err)
	case info.IsDir():
		return fmt.Errorf("%s is a directory", path)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a file", path)
	case unix.Access(file, unix.X_OK) != nil:
		return fmt.Errorf("%s may not be executed by user %d (its mode is %s): make it executable with chmod +x, or name its "+
			"interpreter before it in the command", path, os.Getuid(), info.Mode().Perm())
	}
	return examineContent(path, file, c)
}

// examineContent looks into the file, if it may be read; who may only execute it learns from the start what is wrong.
func examineContent(path, file string, c Command) error {
	opened, err := os.Open(file) //nolint:gosec // it is the command that was configured
	if err != nil {
		return nil
	}
	defer func() { _ = opened.Close() }()
	head := make([]byte, 256) // as much as the kernel looks at
	n, err := io.ReadFull(opened, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	head = head[:n]
	switch {
	case strings.HasPrefix(string(head), "#!"):
		return examineScript(path, string(head), c)
	case strings.HasPrefix(string(head), elf.ELFMAG):
		return examineBinary(path, opened)
	case isText(head):
		return fmt.Errorf("%s is a text without a first line that names its interpreter, such as #!/bin/sh: "+
			"add it, or name the interpreter before it in the command", path)
	}
	return nil
}

// examineScript looks for the interpreter that the first line names.
func examineScript(path, head string, c Command) error {
	line, _, _ := strings.Cut(strings.TrimPrefix(head, "#!"), "\n")
	interpreter, argument, _ := strings.Cut(strings.Trim(line, " \t"), " ")
	argument = strings.Trim(argument, " \t")
	switch {
	case strings.HasSuffix(line, "\r"):
		return fmt.Errorf("%s has a first line that ends with a carriage return: save it with Unix line ends", path)
	case interpreter == "":
		return fmt.Errorf("%s has a first line #! that names no interpreter", path)
	case !strings.HasPrefix(interpreter, "/"):
		return nil
	}
	if _, err := os.Stat(interpreter); err != nil {
		return fmt.Errorf("%s needs the interpreter %w", path, missing(interpreter, err))
	}
	if filepath.Base(interpreter) == "env" && argument != "" && !strings.ContainsAny(argument, "-= \t/") {
		if _, err := locate(argument, c); err != nil {
			return fmt.Errorf("%s needs the interpreter %s: %w", path, argument, err)
		}
	}
	return nil
}

// examineBinary looks for the loader that a program with shared libraries names.
func examineBinary(path string, opened io.ReaderAt) error {
	binary, err := elf.NewFile(opened)
	if err != nil {
		return nil //nolint:nilerr // the kernel is the judge of it
	}
	for _, part := range binary.Progs {
		if part.Type != elf.PT_INTERP || part.Filesz > unix.PathMax {
			continue
		}
		name := make([]byte, part.Filesz)
		if _, err := part.ReadAt(name, 0); err != nil {
			return nil //nolint:nilerr // the kernel is the judge of it
		}
		loader := strings.TrimRight(string(name), "\x00")
		if _, err := os.Stat(loader); err != nil {
			return fmt.Errorf("%s is a program for another system: it needs the loader %w", path, missing(loader, err))
		}
	}
	return nil
}

// isText reports whether the beginning of a file is text. So is an empty file.
func isText(head []byte) bool {
	for len(head) > 0 {
		r, size := utf8.DecodeRune(head)
		if r == utf8.RuneError && size == 1 && len(head) >= utf8.UTFMax || r < ' ' && !strings.ContainsRune("\t\r\n\f\x1b", r) {
			return false
		}
		head = head[size:]
	}
	return true
}

// within returns a path as it is seen from this process's working directory.
func within(dir, path string) string {
	if dir == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// lookup returns the last value of a variable in an environment, as a program's own library would find it.
func lookup(env []string, name string) string {
	if env == nil {
		return os.Getenv(name)
	}
	for _, variable := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(variable, name+"="); ok {
			return value
		}
	}
	return ""
}

// startError explains why the system did not start a program that looked well.
func startError(path string, c Command, cause error) error {
	if c.Dir != "" {
		if info, err := os.Stat(c.Dir); err != nil || !info.IsDir() {
			return fmt.Errorf("%s cannot be started in %s, which is no directory: %w", path, c.Dir, cause)
		}
	}
	if err := examine(path, c); err != nil {
		return err
	}
	explanation := ""
	switch {
	case errors.Is(cause, syscall.ENOEXEC):
		explanation = "it is not a program for this kind of machine: "
	case errors.Is(cause, syscall.EACCES):
		explanation = "the system forbids it (its interpreter, the mount or a security module): "
	case errors.Is(cause, syscall.E2BIG):
		explanation = "its arguments and its environment together are too long: "
	case errors.Is(cause, syscall.EAGAIN), errors.Is(cause, syscall.ENOMEM):
		explanation = "there is no room for one more process (memory, or the limit of processes): "
	case errors.Is(cause, syscall.EMFILE), errors.Is(cause, syscall.ENFILE):
		explanation = "there are too many open files: "
	}
	return fmt.Errorf("%s cannot be started: %s%w", path, explanation, cause)
}

// errnoOf returns the system's own error, without the path.
func errnoOf(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}
