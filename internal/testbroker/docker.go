package testbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// ImageVariable names the image for brokers in Docker, where it is not to be defaultImage.
const ImageVariable = "REDRIVE_RABBITMQ_IMAGE"

const defaultImage = "rabbitmq:4-management"

// docker runs a node in a container.
type docker struct {
	settings

	log       io.Writer
	container string
	// folder of the node's configuration.
	folder string
}

func dockerAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, "docker", "info").Run() == nil
}

func (d *docker) start(ctx context.Context) error {
	if d.container != "" {
		_, err := d.run(ctx, "start", d.container)
		return err
	}
	image := cmp.Or(os.Getenv(ImageVariable), defaultImage)
	_, _ = fmt.Fprintln(d.log, "starting", image, "in Docker")
	secure, err := d.secure()
	if err != nil {
		return err
	}
	common, err := d.configured()
	if err != nil {
		return err
	}
	arguments := append([]string{
		"run", "--detach",
		"--publish", loopback(d.amqp) + ":5672", "--publish", loopback(d.management) + ":15672",
		"--env", "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=" + d.erlang(),
		"--env", "RABBITMQ_DEFAULT_USER=" + user, "--env", "RABBITMQ_DEFAULT_PASS=" + d.password,
		// The node's name, and with it its data, must outlive the container's restarts.
		"--hostname", "redrive",
	}, append(common, secure...)...)
	d.container, err = d.run(ctx, append(arguments, image)...)
	return err
}

// configured are the arguments that give a container the lines of every node.
func (d *docker) configured() ([]string, error) {
	var err error
	if d.folder, err = os.MkdirTemp("", "redrive-rabbitmq-"); err != nil {
		return nil, fmt.Errorf("the configuration of RabbitMQ: %w", err)
	}
	name := filepath.Join(d.folder, "node.conf")
	content := strings.Join(append(d.common(), ""), "\n")
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil { //nolint:gosec // another user reads it
		return nil, fmt.Errorf("the configuration of RabbitMQ: %w", err)
	}
	advanced := filepath.Join(d.folder, "advanced.config")
	if err := os.WriteFile(advanced, []byte(d.advanced()), 0o644); err != nil { //nolint:gosec // another user reads it
		return nil, fmt.Errorf("the configuration of RabbitMQ: %w", err)
	}
	return []string{
		"--volume", name + ":/etc/rabbitmq/conf.d/80-node.conf:ro", "--volume", advanced + ":/etc/rabbitmq/advanced.config:ro",
	}, nil
}

// secure are the arguments that give a container TLS.
func (d *docker) secure() ([]string, error) {
	if d.tls == nil {
		return nil, nil
	}
	const folder, config = "/etc/redrive-tls", "tls.conf"
	content := d.tls.configuration(folder, "5671", "0.0.0.0", 15671) + "management.tcp.port = 15672\n"
	if err := os.WriteFile(filepath.Join(d.tls.folder, config), []byte(content), 0o644); err != nil { //nolint:gosec // another user reads it
		return nil, fmt.Errorf("the configuration of TLS: %w", err)
	}
	return []string{
		"--publish", loopback(d.secureAMQP) + ":5671", "--publish", loopback(d.secureManagement) + ":15671",
		"--volume", d.tls.folder + ":" + folder + ":ro",
		"--volume", filepath.Join(d.tls.folder, config) + ":/etc/rabbitmq/conf.d/90-" + config + ":ro",
	}, nil
}

func (d *docker) control(ctx context.Context, arguments ...string) error {
	_, err := d.run(ctx, append([]string{"exec", d.container, "rabbitmqctl"}, arguments...)...)
	return err
}

func (d *docker) stop(ctx context.Context, graceful bool) error {
	if d.container == "" {
		return nil
	}
	verb := "kill"
	if graceful {
		verb = "stop"
	}
	_, err := d.run(ctx, verb, d.container)
	return err
}

func (d *docker) remove(ctx context.Context) error {
	var err error
	if d.container != "" {
		_, err = d.run(ctx, "rm", "--force", "--volumes", d.container)
	}
	return errors.Join(err, os.RemoveAll(d.folder))
}

func (d *docker) freeze(bool) error {
	return errors.New("a node in Docker is not frozen: run where there is no Docker, with an installed rabbitmq-server, or set " + RootVariable)
}

func (d *docker) alive() bool { return d.container != "" }

func (d *docker) problem(ctx context.Context) string {
	text, _ := d.run(ctx, "logs", "--tail", "20", d.container)
	return "the end of its log:\n" + text
}

func (d *docker) run(ctx context.Context, arguments ...string) (string, error) {
	output, err := exec.CommandContext(ctx, "docker", arguments...).CombinedOutput() //nolint:gosec // arguments of ours
	text := strings.TrimSpace(string(output))
	if err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", arguments[0], err, text)
	}
	return text[strings.LastIndex(text, "\n")+1:], nil
}
