package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/deadletter"
	"redrive.dev/redrive/internal/failurequeue"
	"redrive.dev/redrive/internal/local"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/topology"
)

// failedFlags are those that all commands of failed have.
type failedFlags struct {
	statusFlags

	from string
	// loginSecret is the Secret of the cluster with the login to use; empty for that of the Transport.
	loginSecret string
	// Of what was found, which is meant.
	selection     deadletter.Selection
	since, before time.Duration

	// redactor is that of the Transport, once it is known.
	redactor deadletter.Redactor
}

const (
	formatWide = "wide"
	// shownError is how much of an error a table shows, in characters.
	shownError = 90
)

const failedHelp = `
Without -f it reads the Transport from the cluster of your kubeconfig, and goes to RabbitMQ as redrive status does: it needs the rights to
get the Transport and its Secret, and to create pods/portforward where RabbitMQ is a Service of the cluster. --login-secret names another
Secret with the login, where that of the Transport is the workers', which may not read the failure queue. With -f it
reads Transports from files; the broker is that of the Secret in the files, else that of ` + local.EnvAMQP + ` and ` + local.EnvManagement + `.
The login needs the rights to read the failure queue and to configure the queue that ends in .failed.lock.

To look, it takes all messages of the failure queue without acknowledging them, and gives them back in their order; the queue is as it was
afterwards. Meanwhile, which is seconds for 100,000 messages, no other consumer gets them, and a second look waits its turn: it ends
with an error that says who is looking. A failure queue without Redrive's delivery limit is not read.`

func newFailed(env Environment) *cobra.Command {
	command := &cobra.Command{
		Use:   "failed",
		Short: "Look at the messages that were given up, and send them back or discard them",
		Long: `Failed shows what is in the failure queue of a Transport: which messages failed alike and how many, each message with its error and
its attempts, and all of them as lines of JSON. Replay sends messages back to their work queues, and discard deletes them; the
others change nothing.
` + failedHelp,
	}
	command.AddCommand(
		newFailedGroups(env), newFailedList(env), newFailedShow(env), newFailedExport(env), newFailedImport(env), newFailedReplay(env), newFailedDiscard(env),
	)
	return command
}

// define adds the flags to a command.
func (f *failedFlags) define(command *cobra.Command, chooses bool) {
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &statusError{err} })
	set := command.Flags()
	set.StringVarP(&f.from, "filename", "f", "", "`path` of a directory, a file, or - for a stream on stdin; left out, the cluster")
	f.defineCluster(command)
	set.StringVar(&f.loginSecret, "login-secret", "",
		"`name` of a Secret in the Transport's namespace with the username and password of another RabbitMQ user; left out, the Transport's own")
	if !chooses {
		return
	}
	set.StringVar(&f.selection.Where, "where", "",
		"`expression` in CEL over the variables of policies, and over failure (reason, strategy, cause, source, at, age)")
	set.StringArrayVar(&f.selection.Causes, "cause", nil, "`ID` of a cause, as groups shows it; may be repeated")
	set.StringArrayVar(&f.selection.Queues, "queue", nil, "`name` of the work queue in which the messages failed; may be repeated")
	set.StringArrayVar(&f.selection.IDs, "id", nil, "`ID` of a message, as ls -o wide shows it; may be repeated")
	set.DurationVar(&f.since, "since", 0, "`duration`: given up no longer ago, such as 1h")
	set.DurationVar(&f.before, "before", 0, "`duration`: given up longer ago, such as 10m")
}

// oneTransport allows the name of a Transport, which may be left out where there is only one.
func oneTransport(command *cobra.Command, args []string) error {
	if err := cobra.MaximumNArgs(1)(command, args); err != nil {
		return &statusError{fmt.Errorf("%w: name one Transport", err)}
	}
	return nil
}

// look is a scan of one failure queue.
type look struct {
	transport *v1alpha1.Transport
	names     compile.Names
	target    amqp.Target
	dial      amqp.Dial
	port      *broker.Client
	// tell is told of what takes long.
	tell  func(text string)
	close func()
	now   time.Time
}

// looked is what came of a look.
type looked struct {
	*look

	// all are the messages of the failure queue, and chosen those that the flags choose.
	all, chosen int
	took        time.Duration
}

// run connects, and shows visit the messages that the flags choose, the oldest first. With failurequeue.ErrNotWhole, others had the rest of them.
func (f *failedFlags) run(ctx context.Context, env Environment, name string, visit func(*deadletter.Letter) error) (looked, error) {
	if _, err := f.chosen(time.Now()).Chooser(time.Now()); err != nil {
		return looked{}, err
	}
	l, err := f.open(ctx, env, name)
	if err != nil {
		return looked{}, err
	}
	defer l.close()
	if failure := l.transport.Spec.Failure; failure != nil {
		f.redactor = deadletter.NewRedactor(failure.Redact)
	}
	chooser, err := f.chosen(l.now).Chooser(l.now)
	if err != nil {
		return looked{}, err
	}
	chosen := 0
	result, err := l.scan(ctx, func(letter *deadletter.Letter) error {
		if !chooser.Chooses(letter) {
			return nil
		}
		chosen++
		return visit(letter)
	})
	result.chosen = chosen
	if err == nil {
		err = leftOut(env, chooser)
	}
	return result, err
}

// chosen is the selection of the flags.
func (f *failedFlags) chosen(now time.Time) deadletter.Selection {
	selection := f.selection
	if f.since > 0 {
		selection.Since = now.Add(-f.since)
	}
	if f.before > 0 {
		selection.Before = now.Add(-f.before)
	}
	return selection
}

// leftOut tells of messages that the expression cannot judge.
func leftOut(env Environment, chooser *deadletter.Chooser) error {
	messages, first := chooser.Failed()
	if messages == 0 {
		return nil
	}
	return write(env.Err, fmt.Appendf(nil, "redrive: --where fails on %d messages, which are left out: %v\n", messages, first))
}

// scan shows visit all messages of the failure queue, the oldest first.
func (l *look) scan(ctx context.Context, visit func(*deadletter.Letter) error) (looked, error) {
	reader := deadletter.Reader{Names: l.names, Exchange: l.exchange(), Now: l.now}
	result := looked{look: l}
	var err error
	result.all, err = failurequeue.Scan(ctx, failurequeue.Options{
		Target: l.target, Dial: l.dial, Queue: l.names.FailureQueue(), Lock: l.names.FailureLock(), Holder: holder("redrive failed", l.now), Check: l.pinned,
		State: l.state, Tell: l.tell,
	}, func(m message.Message) error {
		letter := reader.Read(m)
		return visit(&letter)
	})
	result.took = time.Since(l.now)
	return result, l.explained(ctx, err)
}

// explained says who else looks where that is what is wrong.
func (l *look) explained(ctx context.Context, err error) error {
	if errors.Is(err, failurequeue.ErrLocked) {
		return fmt.Errorf("%w: %s", err, l.lockedBy(ctx))
	}
	return err
}

// exchange is that of the producers; empty for the default one.
func (l *look) exchange() string {
	if l.transport.Spec.Exchange == nil {
		return ""
	}
	return l.transport.Spec.Exchange.Name
}

// open finds the Transport and the ways to its broker.
func (f *failedFlags) open(ctx context.Context, env Environment, name string) (l *look, err error) {
	switch {
	case f.from != "" && f.loginSecret != "":
		return nil, errors.New("--login-secret names a Secret of a cluster: with -f, the Secret in the files has the login, or " + local.EnvAMQP)
	case f.from != "":
		l, err = f.fromFiles(ctx, env, name)
	default:
		l, err = f.fromCluster(ctx, env, name)
	}
	if err == nil {
		l.tell = func(text string) { _ = write(env.Err, []byte("redrive: "+text+"\n")) }
	}
	return l, err
}

func (f *failedFlags) fromFiles(ctx context.Context, env Environment, name string) (*look, error) {
	source, err := newSource(env, f.from)
	if err != nil {
		return nil, err
	}
	files, err := source.load(ctx)
	if err != nil {
		return nil, err
	}
	brokers, err := local.Brokers(files.set, env.Getenv)
	if err != nil {
		return nil, fmt.Errorf("choose the broker:\n%w", err)
	}
	var found []*v1alpha1.Transport
	var all []string
	for i := range files.units {
		t := files.units[i].Transport
		all = append(all, t.Name)
		if name == "" || name == t.Name && (f.namespace == "" || f.namespace == t.Namespace) {
			found = append(found, t)
		}
	}
	slices.Sort(all)
	if len(found) != 1 {
		return nil, fmt.Errorf("%s: name one of its Transports: %s", source.name(), strings.Join(all, ", "))
	}
	on := brokers[client.ObjectKeyFromObject(found[0])]
	target, err := amqp.TargetOf(on.Credentials, on.VHost)
	if err != nil {
		return nil, err
	}
	end := on.Management
	port, err := broker.New(broker.Config{ManagementURL: end.URL, Username: end.Username, Password: end.Password(), VHost: on.VHost, TLS: end.TLS})
	if err != nil {
		return nil, fmt.Errorf("the management API: %w", err)
	}
	return &look{
		transport: found[0], names: compile.NamesOf(found[0]), target: target, port: port, close: port.Close, now: time.Now(),
	}, nil
}

func (f *failedFlags) fromCluster(ctx context.Context, env Environment, name string) (*look, error) {
	cluster, err := connectCluster(env, f.statusFlags)
	if err != nil {
		return nil, err
	}
	cluster.loginSecret = f.loginSecret
	l, err := cluster.look(ctx, name)
	if err != nil {
		cluster.close()
		return nil, err
	}
	l.close = func() {
		l.port.Close()
		cluster.close()
	}
	return l, nil
}

// look finds a Transport and the ways to its broker; without a name, the only one of the namespace.
func (c *remoteCluster) look(ctx context.Context, name string) (*look, error) {
	names := []string{name}
	if name == "" {
		names = nil
	}
	found, err := c.transports(ctx, names)
	if err != nil {
		return nil, err
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("there are %d Transports in %s: name one", len(found), c.where())
	}
	t := &found[0]
	login, err := c.loginOf(ctx, t)
	if err != nil {
		return nil, err
	}
	end, err := c.management(login, t.Namespace)
	if err != nil {
		return nil, err
	}
	vhost := login.VHostOr(t.Spec.Broker.VHost)
	target, err := amqp.TargetOf(login, vhost)
	if err != nil {
		return nil, err
	}
	dial, err := c.way(ctx, login.Host, login.Port, t.Namespace)
	if err != nil {
		return nil, fmt.Errorf("no way to %s from here: %w", login.Address(), err)
	}
	port, err := c.api(ctx, end, vhostKey{t.Namespace, end.URL, end.Username, vhost})
	if err != nil {
		return nil, err
	}
	l := &look{transport: t, names: compile.NamesOf(t), target: target, port: port, now: time.Now()}
	if dial != nil {
		l.dial = amqp.Dial(dial)
	}
	return l, nil
}

// loginOf is the login for the failure queue of a Transport.
func (c *remoteCluster) loginOf(ctx context.Context, t *v1alpha1.Transport) (credentials.Credentials, error) {
	login, err := c.login(ctx, t)
	if err != nil || c.loginSecret == "" {
		return login, err
	}
	data, err := c.secret(ctx, t.Namespace, c.loginSecret)
	if err != nil {
		return login, err
	}
	if login, err = login.As(data); err != nil {
		return login, fmt.Errorf("the Secret %q: %w", c.loginSecret, err)
	}
	return login, nil
}

// state is what the management API tells of the failure queue.
func (l *look) state(ctx context.Context) (topology.QueueState, error) {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	return l.port.Queue(ctx, l.names.FailureQueue())
}

// pinned refuses a failure queue that must not be read.
func (l *look) pinned(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	queue, err := l.port.Queue(ctx, l.names.FailureQueue())
	if errors.Is(err, broker.ErrNotFound) {
		return fmt.Errorf("there is no failure queue %q in vhost %q", l.names.FailureQueue(), l.target.VHost)
	}
	if err != nil {
		return fmt.Errorf("ask the management API about the failure queue: %w", err)
	}
	observed, err := l.port.Observe(ctx)
	if err != nil {
		return fmt.Errorf("ask the management API about policies: %w", err)
	}
	return failurequeue.Pinned(queue, observed.Policies)
}

// lockedBy says who has the lock.
func (l *look) lockedBy(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	queue, err := l.port.Queue(ctx, l.names.FailureLock())
	if text, is := queue.Arguments[failurequeue.HolderArgument].(string); err == nil && is {
		return message.Text(text, 200)
	}
	return fmt.Sprintf("the connection that has declared the queue %q", l.names.FailureLock())
}

// holder says who looks, with which command.
func holder(command string, now time.Time) string {
	name := "somebody"
	if who, err := user.Current(); err == nil {
		name = who.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s, %s@%s, since %s", command, name, host, now.UTC().Format(time.RFC3339))
}
