//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
)

// commandLine is the redrive program of a user with the kubeconfig, and with a Secret of their own for the failure queue.
type commandLine struct {
	s       *shop
	program string
	secret  string
}

// commands builds the program, and makes a RabbitMQ user with the rights that the docs ask for.
func (s *shop) commands() *commandLine {
	s.t.Helper()
	c := &commandLine{s: s, program: filepath.Join(s.t.TempDir(), "redrive"), secret: replayerRole}
	build := exec.CommandContext(s.t.Context(), "go", "build", "-o", c.program, "../../cmd/redrive")
	if output, err := build.CombinedOutput(); err != nil {
		s.t.Fatalf("build redrive: %v\n%s", err, output)
	}
	user := s.makeUser(replayerRole)
	must(s.t, suite.create(s.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: c.secret},
		StringData: map[string]string{"username": user.user, "password": user.password},
	}))
	return c
}

// start is the program with arguments, and with the Secret.
func (c *commandLine) start(arguments ...string) *exec.Cmd {
	arguments = append(arguments, "--namespace", c.s.namespace, "--login-secret", c.secret)
	return exec.CommandContext(c.s.t.Context(), c.program, arguments...)
}

// run is what the program prints, which ends with success.
func (c *commandLine) run(arguments ...string) string {
	c.s.t.Helper()
	var problems bytes.Buffer
	command := c.start(arguments...)
	command.Stderr = &problems
	output, err := command.Output()
	if err != nil {
		c.s.t.Fatalf("redrive %s: %v\n%s%s", strings.Join(arguments, " "), err, output, problems.String())
	}
	return string(output)
}

// failedMessages are in the failure queue, of which nothing is taken.
func (s *shop) failedMessages() (number int64, err error) {
	queues, err := s.broker.queues(s.t.Context(), s.vhost)
	for _, queue := range queues {
		if queue.Name == failureQueue {
			number = int64(queue.Messages)
		}
	}
	return number, err
}

// The program is killed in the middle of a replay, and another one goes on: each message is handled, and nothing is left on the broker.
func TestReplay_SendsFailedMessagesBackAfterItsProgramIsKilled(t *testing.T) {
	t.Parallel()
	policy := briskPolicy()
	policy.MaxRetries = ptr.To[int32](0)
	s := openShop(t, "replay", plan{policy: &policy})
	redrive := s.commands()
	const number = 200
	parcels := make([]parcel, number)
	for n := range parcels {
		parcels[n] = parcel{id: numbered("order", n), answer: "503,200"}
	}
	all := s.publish(parcels...)
	await(t, time.Minute, "all messages to fail", func() (bool, any) {
		failed, err := s.failedMessages()
		return failed == number, fmt.Sprint(failed, err)
	})
	if out := redrive.run("failed", "groups", transportName); !strings.Contains(out, "200 failed messages in "+failureQueue) {
		t.Errorf("groups prints\n%s", out)
	}
	s.repairPolicy()

	first := redrive.start("failed", "replay", transportName, "--yes", "--rate", "20")
	var said bytes.Buffer
	first.Stdout, first.Stderr = &said, &said
	must(t, first.Start())
	await(t, time.Minute, "a part to be sent back", func() (bool, any) {
		must(t, s.tally.refreshLedger(t.Context()))
		handled := s.handledOf(all)
		return handled >= 20, handled
	})
	must(t, first.Process.Kill())
	_ = first.Wait() // it was killed
	id := regexp.MustCompile(`r-[0-9a-f]{8}`).FindString(redrive.run("replay", "ls", transportName))
	if id == "" {
		t.Fatalf("there is no replay to go on with; the first said\n%s", said.String())
	}
	if out := redrive.run("replay", "resume", transportName, id, "--rate", "0"); !strings.Contains(out, "completed 200 messages") {
		t.Errorf("resume prints\n%s", out)
	}
	if total := s.tally.settle(all, time.Minute); total.handled != number || total.failed != 0 {
		t.Error(total)
	}
	queues, err := s.broker.queues(t.Context(), s.vhost)
	must(t, err)
	for _, queue := range queues {
		if strings.Contains(queue.Name, ".replay.") {
			t.Errorf("queue %s is left", queue.Name)
		}
	}
}

// repairPolicy allows retries, and waits until all workers know of it.
func (s *shop) repairPolicy() {
	s.t.Helper()
	before := s.awaitReady(time.Minute).Status.ConfigHash
	s.changePolicy(func(spec *v1alpha1.RetryPolicySpec) { spec.MaxRetries = ptr.To[int32](3) })
	await(s.t, time.Minute, "another configuration", func() (bool, any) {
		transport, err := s.read(s.t.Context())
		return err == nil && transport.Status.ConfigHash != before, err
	})
	s.awaitConfig(time.Minute)
}

// handledOf counts those that the partner has handled.
func (s *shop) handledOf(all published) (handled int) {
	for id := range all {
		if slices.Contains(s.tally.statuses(id), 200) {
			handled++
		}
	}
	return handled
}
