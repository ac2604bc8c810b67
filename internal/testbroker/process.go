package testbroker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ServerVariable names a rabbitmq-server to run, where several are installed.
const ServerVariable = "REDRIVE_RABBITMQ_SERVER"

const stopWithin = 30 * time.Second

// process runs a node from an installed rabbitmq-server.
type process struct {
	server string
	system system
	folder string
	env    []string
	epmd   int
	// member is true for a node of a cluster.
	member bool
	node   *child
	// mapper is the node's epmd. Of those of a cluster, which have one port, the first stays and the others end at once.
	mapper *child
}

func newProcess(server string, on system, s settings) (*process, error) {
	folder, err := os.MkdirTemp(on.temporary(), "redrive-rabbitmq-")
	if err != nil {
		return nil, fmt.Errorf("state folder of RabbitMQ: %w", err)
	}
	files := map[string]string{
		"rabbitmq.conf":   configuration(on, s),
		"advanced.config": s.advanced(),
		"enabled_plugins": "[rabbitmq_management].\n",
		"env.conf":        "",
	}
	if s.cookie != "" {
		files[".erlang.cookie"] = s.cookie
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			return nil, fmt.Errorf("state folder of RabbitMQ: %w", err)
		}
	}
	in := func(name string) string { return filepath.Join(on.inside(folder), name) }
	return &process{server: server, system: on, folder: folder, epmd: s.epmd, member: len(s.members) > 0, env: append(os.Environ(),
		"HOME="+on.inside(folder), // the Erlang cookie
		"TMPDIR="+on.inside(folder),
		"RABBITMQ_NODENAME="+s.name(),
		"RABBITMQ_CONFIG_FILE="+in("rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE="+in("advanced.config"),
		"RABBITMQ_CONF_ENV_FILE="+in("env.conf"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+in("enabled_plugins"),
		"RABBITMQ_MNESIA_BASE="+in("data"),
		"RABBITMQ_LOG_BASE="+in("log"),
		"RABBITMQ_GENERATED_CONFIG_DIR="+in("generated"),
		"RABBITMQ_SCHEMA_DIR="+in("schema"),
		"RABBITMQ_PID_FILE="+in("pid"),
		"RABBITMQ_DIST_PORT="+strconv.Itoa(s.distribution),
		"ERL_EPMD_PORT="+strconv.Itoa(s.epmd),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1} "+s.erlang(),
	)}, nil
}

// name of the node.
func (s settings) name() string { return "redrive-" + strconv.Itoa(s.amqp) + "@localhost" }

// configuration keeps the node small.
func configuration(on system, s settings) string {
	secure := ""
	if s.tls != nil {
		secure = s.tls.configuration(on.inside(s.tls.folder), loopback(s.secureAMQP), "127.0.0.1", s.secureManagement)
	}
	return secure + strings.Join(append(s.common(),
		"listeners.tcp.default = "+loopback(s.amqp),
		"management.tcp.ip = 127.0.0.1",
		"management.tcp.port = "+strconv.Itoa(s.management),
		"default_user = "+user,
		"default_pass = "+s.password,
		"raft.wal_max_size_bytes = 134217728",
		"disk_free_limit.absolute = 50MB",
		"vm_memory_high_watermark.relative = 0.3",
		"",
	), "\n")
}

// common are the lines of every node, however it is run: the counts are fresh, but where the lines that were asked for say otherwise.
func (s settings) common() []string {
	lines := slices.Clone(s.lines)
	if s.fresh() {
		lines = append(lines, statisticsInterval+" = 1000")
	}
	if !s.asks(messageSize) {
		lines = append(lines, messageSize+" = "+strconv.Itoa(maxMessageSize))
	}
	for i, member := range s.members {
		lines = append(lines, fmt.Sprintf("cluster_formation.classic_config.nodes.%d = %s", i+1, member))
	}
	return lines
}

// erlang are the arguments of the node's runtime, for what rabbitmq.conf has no line.
func (s settings) erlang() string {
	if !s.fresh() {
		return ""
	}
	return "-rabbit quorum_tick_interval 1000"
}

// fresh is true where nobody asked for an interval of the counts.
func (s settings) fresh() bool { return !s.asks(statisticsInterval) }

// asks is true where one of the lines that were asked for sets a key.
func (s settings) asks(key string) bool {
	return slices.ContainsFunc(s.lines, func(line string) bool { return strings.HasPrefix(line, key) })
}

const (
	statisticsInterval = "collect_statistics_interval"
	messageSize        = "max_message_size"
)

// AsDelivered is the line of rabbitmq.conf that has a node count and collect its statistics as seldom as RabbitMQ does by itself.
const AsDelivered = statisticsInterval + " = 5000"

// LongConfirmTimeout is a line of rabbitmq.conf, a comment there, that leaves a node the confirm timeout of lanes that RabbitMQ has by
// itself, 180 s: tests take it that prove what Redrive does without the shorter one. All other nodes have what docs/install.md advises.
const LongConfirmTimeout = "# lanes wait for confirms as long as RabbitMQ lets them"

// advanced is the content of advanced.config.
func (s settings) advanced() string {
	if slices.Contains(s.lines, LongConfirmTimeout) {
		return "[].\n"
	}
	return "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 5000}]}].\n"
}

// maxMessageSize is larger than RabbitMQ 4 allows by default, so that tests can send what older brokers take.
const maxMessageSize = 32 << 20

func (p *process) start(ctx context.Context) error {
	if p.mapper == nil {
		// The node would start a port mapper that outlives it. With one of ours on its port it does not.
		// It outlives the context, and is ended by remove.
		command := p.command(context.WithoutCancel(ctx), "epmd", "-port", strconv.Itoa(p.epmd), "-address", "127.0.0.1")
		mapper, err := startChild(command)
		if err != nil {
			return fmt.Errorf("start epmd: %w", err)
		}
		p.mapper = mapper
	}
	node, err := startChild(p.command(context.WithoutCancel(ctx), p.server)) // ended by stop
	if err != nil {
		return fmt.Errorf("start %s: %w", p.server, err)
	}
	p.node = node
	return nil
}

// command of the node's system, in the node's environment.
func (p *process) command(ctx context.Context, name string, arguments ...string) *exec.Cmd {
	command := p.system.command(ctx, name, arguments...)
	command.Env, command.Dir = p.env, p.folder
	return command
}

func (p *process) stop(_ context.Context, graceful bool) error {
	if p.node == nil {
		return nil
	}
	err := p.node.stop(graceful)
	p.node = nil
	return err
}

// freeze lets all of the node's processes stand still, or go on.
func (p *process) freeze(frozen bool) error {
	if p.node == nil {
		return errors.New("the node does not run")
	}
	signal := syscall.SIGCONT
	if frozen {
		signal = syscall.SIGSTOP
	}
	return syscall.Kill(-p.node.command.Process.Pid, signal) //nolint:wrapcheck // the caller says what it did
}

func (p *process) remove(context.Context) error {
	var err error
	if p.mapper != nil {
		err = p.mapper.stop(false)
		p.mapper = nil
	}
	return errors.Join(err, os.RemoveAll(p.folder))
}

func (p *process) control(ctx context.Context, arguments ...string) error {
	command := p.command(ctx, filepath.Join(filepath.Dir(p.server), "rabbitmqctl"), arguments...)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("rabbitmqctl %s: %w: %s", arguments[0], err, output)
	}
	return nil
}

// alive is false also without a port mapper: it ends where another program listens on its port, and then the node never registers.
func (p *process) alive() bool {
	return p.node != nil && p.node.alive() && (p.member || p.mapper.alive())
}

func (p *process) problem(context.Context) string {
	text := ""
	if p.node != nil {
		text = p.node.output.String()
	}
	if !p.member && !p.mapper.alive() {
		text += "epmd has ended\n"
	}
	logs, _ := filepath.Glob(filepath.Join(p.folder, "log", "*.log"))
	for _, name := range logs {
		content, err := os.ReadFile(name) //nolint:gosec // our own folder
		if err == nil {
			text += string(content)
		}
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return "the end of its log:\n" + strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// child is a process in a group of its own.
type child struct {
	command *exec.Cmd
	output  *output
	done    chan struct{}
}

func startChild(command *exec.Cmd) (*child, error) {
	c := &child{command: command, output: &output{}, done: make(chan struct{})}
	command.Stdout, command.Stderr = io.Discard, c.output
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endWithParent(command.SysProcAttr)
	if err := command.Start(); err != nil {
		return nil, err //nolint:wrapcheck // wrapped by the callers
	}
	prefer(command.Process.Pid)
	go func() {
		_ = command.Wait()
		close(c.done)
	}()
	return c, nil
}

// output keeps what a process writes, and can be read while it still runs.
type output struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.Write(p) //nolint:wrapcheck // a buffer does not fail
}

func (o *output) String() string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.String()
}

func (c *child) alive() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

func (c *child) stop(graceful bool) error {
	group := -c.command.Process.Pid
	if graceful {
		_ = syscall.Kill(group, syscall.SIGCONT) // a frozen one does not end
		_ = syscall.Kill(group, syscall.SIGTERM)
		select {
		case <-c.done:
		case <-time.After(stopWithin):
		}
	}
	// Also after a graceful end: what the process started may still be on its way out.
	_ = syscall.Kill(group, syscall.SIGKILL)
	select {
	case <-c.done:
		return nil
	case <-time.After(stopWithin):
		return fmt.Errorf("process %d does not end", c.command.Process.Pid)
	}
}
