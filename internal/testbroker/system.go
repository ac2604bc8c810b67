package testbroker

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// RootVariable names the folder of a whole Debian system with another RabbitMQ, as hack/brokers.sh makes it. Brokers then run
// there, which takes root on Linux.
const RootVariable = "REDRIVE_RABBITMQ_ROOT"

// system is the root folder of the system that a node runs in; empty for the one that we run in.
type system string

func systemOfEnvironment() system {
	root := os.Getenv(RootVariable)
	if root == "" {
		return ""
	}
	return system(filepath.Clean(root))
}

// server finds the system's rabbitmq-server, as a path inside; empty where there is none.
func (s system) server() string {
	found, _ := filepath.Glob(filepath.Join(string(s), packaged))
	if len(found) == 0 {
		return ""
	}
	return s.inside(found[0])
}

// temporary is the parent of folders that the system can see, for os.MkdirTemp.
func (s system) temporary() string {
	if s == "" {
		return inMemory()
	}
	return filepath.Join(string(s), "tmp")
}

// inside is a path of ours as the system sees it.
func (s system) inside(path string) string { return strings.TrimPrefix(path, string(s)) }

// command runs a program of the system. Its /proc is mounted for this one process and its children, and so is gone with them.
func (s system) command(ctx context.Context, name string, arguments ...string) *exec.Cmd {
	if s != "" {
		arguments = append([]string{"--mount", "--mount-proc=/proc", "--root=" + string(s), name}, arguments...)
		name = "unshare"
	}
	return exec.CommandContext(ctx, name, arguments...) //nolint:gosec // a command of ours
}
