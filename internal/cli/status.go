package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"redrive.dev/redrive/internal/status"
)

const formatTable = "table"

// errNotReady is the end of status where a Transport is not Ready. It is no failure, and is not printed.
var errNotReady = errors.New("not all are Ready")

// statusError is an error of status, for which 1 means something else.
type statusError struct{ err error }

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

// statusFlags are the flags of status.
type statusFlags struct {
	kubeconfig, context, namespace string
	allNamespaces                  bool
	managementURL                  string
	format                         string
}

// defineCluster adds the flags that say where a cluster is, and the broker of its Transports.
func (f *statusFlags) defineCluster(command *cobra.Command) {
	set := command.Flags()
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "`path` of the kubeconfig; left out, KUBECONFIG, else ~/.kube/config")
	set.StringVar(&f.context, "context", "", "`name` of the kubeconfig's context; left out, the current one")
	set.StringVarP(&f.namespace, "namespace", "n", "", "`namespace` to look in; left out, that of the context")
	set.StringVar(&f.managementURL, "management-url", "", "`URL` by which the management API is reached from here; the login stays that of the Secret")
}

func newStatus(env Environment) *cobra.Command {
	var flags statusFlags
	command := &cobra.Command{
		Use:   "status [NAME...]",
		Short: "Show how the Transports of a cluster are, and what their queues hold",
		Long: `Status reads Transports from the cluster of your kubeconfig and shows each with its conditions and what to do about them,
its workers, and its queues and lanes as the broker counts them: messages that wait, that are in hand at workers, the
oldest that waits, and the consumers. It writes nothing, and takes no message out of a queue.

The login is that of the Transport's Secret. Where its management API is a Service of the cluster, status reaches it through
the API server, as kubectl port-forward does; --management-url names another way. It needs the rights to get
transports, and for the counts to get the Secret and the Service, or the RabbitmqCluster, to list endpointslices and to create
and get pods/portforward. What it may not read it leaves out, and says so.

The broker's counts are up to some seconds old. OLDEST is a bound: what waits in a lane is younger than the lane's delay
("<5s"), and what has expired and cannot leave is older (">5s"). RabbitMQ does not tell the age of other messages ("-").

Exit codes: 0 all are Ready, 1 some are not, 2 something is wrong, such as a name that does not exist.`,
		Example: `  redrive status
  redrive status -n shop async
  redrive status -A -o json | jq -r '.transports[] | select(.failed > 0) | .name'
  redrive status --management-url http://127.0.0.1:15672`,
		RunE: func(command *cobra.Command, names []string) error {
			ctx, stop := untilSignal(command.Context(), env.Signals)
			defer stop()
			err := showStatus(ctx, env, flags, names)
			if err == nil || errors.Is(err, errNotReady) {
				return err
			}
			return &statusError{err}
		},
	}
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &statusError{err} })
	set := command.Flags()
	flags.defineCluster(command)
	set.BoolVarP(&flags.allNamespaces, "all-namespaces", "A", false, "look in all namespaces")
	set.StringVarP(&flags.format, "output", "o", formatTable, "`format`: table or json")
	return command
}

func showStatus(ctx context.Context, env Environment, flags statusFlags, names []string) error {
	switch {
	case !slices.Contains([]string{formatTable, formatJSON}, flags.format):
		return fmt.Errorf("-o %s: the formats are table and json", flags.format)
	case flags.allNamespaces && len(names) > 0:
		return errors.New("names and --all-namespaces exclude each other")
	}
	cluster, err := connectCluster(env, flags)
	if err != nil {
		return err
	}
	defer cluster.close()
	transports, err := cluster.transports(ctx, names)
	if err != nil {
		return err
	}
	reports := make([]status.Report, len(transports))
	ready := true
	for i := range transports {
		reports[i] = cluster.report(ctx, &transports[i])
		ready = ready && reports[i].Ready
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("interrupted: %w", err)
	}
	if err := printReports(env, reports, flags.format, cluster.where()); err != nil {
		return err
	}
	if !ready {
		return errNotReady
	}
	return nil
}

func printReports(env Environment, reports []status.Report, format, where string) error {
	if format == formatJSON {
		text, err := json.MarshalIndent(map[string]any{"transports": reports}, "", "  ")
		if err != nil {
			return fmt.Errorf("write the report as JSON: %w", err)
		}
		return write(env.Out, append(text, '\n'))
	}
	if len(reports) == 0 {
		return write(env.Err, []byte("There are no Transports in "+where+".\n"))
	}
	return write(env.Out, []byte(statusText(reports, time.Now())))
}
