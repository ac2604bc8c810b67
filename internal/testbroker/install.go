package testbroker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// installedServer finds rabbitmq-server, or installs it from the system's packages.
func installedServer(ctx context.Context, log io.Writer) (string, error) {
	if server := findServer(); server != "" {
		return server, nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return "", errors.New("no RabbitMQ to run: set AMQP_URL and MANAGEMENT_URL to one that runs, or start Docker, or install the package rabbitmq-server")
	}
	if err := install(ctx, log); err != nil {
		return "", fmt.Errorf("install RabbitMQ: %w; set AMQP_URL and MANAGEMENT_URL to one that runs instead", err)
	}
	if server := findServer(); server != "" {
		return server, nil
	}
	return "", errors.New("the package rabbitmq-server is installed, but holds no rabbitmq-server that can be run")
}

// packaged is the script of Debian's package.
const packaged = "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"

// findServer prefers the script of the package's library folder: the one on the path changes to the user rabbitmq first,
// which cannot read a state folder of ours.
func findServer() string {
	if server := os.Getenv(ServerVariable); server != "" {
		return server
	}
	candidates, _ := filepath.Glob(packaged)
	candidates = append(candidates, "/usr/lib/rabbitmq/bin/rabbitmq-server", "/opt/homebrew/sbin/rabbitmq-server", "/usr/local/sbin/rabbitmq-server")
	for _, candidate := range candidates {
		if info, err := os.Stat(candidate); err == nil && info.Mode()&0o111 != 0 {
			return candidate
		}
	}
	server, err := exec.LookPath("rabbitmq-server")
	if err != nil {
		return ""
	}
	return server
}

// install installs the package without letting it start a node of the system.
func install(ctx context.Context, log io.Writer) error {
	_, _ = fmt.Fprintln(log, "installing rabbitmq-server from the system's packages, a minute, once")
	const policy = "/usr/sbin/policy-rc.d"
	if _, err := os.Stat(policy); errors.Is(err, os.ErrNotExist) {
		if err := os.WriteFile(policy, []byte("#!/bin/sh\nexit 101\n"), 0o755); err != nil { //nolint:gosec // it must be executable
			return fmt.Errorf("keep the package from starting a node: %w", err)
		}
		defer func() { _ = os.Remove(policy) }()
	}
	for _, arguments := range [][]string{{"update", "-qq"}, {"install", "-qq", "-y", "--no-install-recommends", "rabbitmq-server"}} {
		command := exec.CommandContext(ctx, "apt-get", arguments...) //nolint:gosec // fixed arguments
		command.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if output, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", arguments[0], err, output)
		}
	}
	return nil
}
