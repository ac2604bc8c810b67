package controllers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/brokerpool"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

// kindUser stands in events for a user of the broker.
const kindUser = "User"

// Events about the users of workers.
const (
	eventUserMade     = "BrokerUserCreated"
	eventUserRotated  = "BrokerUserRotated"
	eventUserRepaired = "BrokerUserRepaired"
	eventUserDeleted  = "BrokerUserDeleted"
)

func wantsUser(t *v1alpha1.Transport) bool { return ptr.Deref(t.Spec.Broker.ScopedUser, false) }

// hasUser is true where workers have got the login of a user of their own once.
func hasUser(t *v1alpha1.Transport) bool {
	return slices.ContainsFunc(t.Status.BrokerUsers, func(u v1alpha1.BrokerUser) bool { return u.Since != nil })
}

// awaitsUser is true while workers must not be made: those that are to have a user of their own never get the team's login instead.
func (run *transportRun) awaitsUser() bool {
	return wantsUser(run.transport) && !hasUser(run.transport)
}

// forWorkers are the Secrets that worker pods mount. A user that cannot be made takes nothing from workers that run.
func (run *transportRun) forWorkers() workload.Secrets {
	if wantsUser(run.transport) && hasUser(run.transport) {
		return workload.Secrets{Login: workload.UserSecretName(run.transport)}
	}
	return run.source.forWorkers()
}

// userReconciler is one look after the users of a Transport.
type userReconciler struct {
	r      *TransportReconciler
	run    *transportRun
	port   *brokerpool.View
	vhost  string
	queues []string
	rights topology.Rights
	// secret with the login of the current user; nil where there is none.
	secret *corev1.Secret
	turn   rotation
	// confirmed is true once the user that workers log in as is known to have the rights that they need.
	confirmed bool
}

// keepUser gives the workers their own user, before they are told of queues that it may not consume yet. Where it cannot be made, for a right
// that is missing or a user of somebody else, the workers go on with what they have, and the condition is Stalled with BrokerRefused,
// SecretForbidden or Conflict. While it is not certain that they may consume what the spec has, they are told nothing new.
func (r *TransportReconciler) keepUser(ctx context.Context, run *transportRun) error {
	if !wantsUser(run.transport) {
		return nil
	}
	k := &userReconciler{r: r, run: run, vhost: run.transport.Status.Broker.VHost, queues: run.consumedQueues(r.owner(run.transport))}
	k.rights = topology.WorkerRights(compile.NamesOf(run.transport), k.queues)
	var err error
	if k.port, err = r.users(ctx, run); err == nil {
		err = k.keep(ctx)
	}
	switch {
	case err == nil:
		run.warnOfAdmin()
		return nil
	case errors.Is(err, errOutdated):
		return err
	case hasUser(run.transport) && !k.confirmed:
		return userError(err)
	}
	run.partly(userError(err))
	return nil
}

// consumedQueues are those that workers consume, or may consume as long as not all of them know better.
func (run *transportRun) consumedQueues(owner string) []string {
	names := slices.Concat(run.ownQueues(owner, queuesIn(run.live.configs())), queuesIn(run.compiled.Workers), run.report.Leaving)
	names = slices.DeleteFunc(names, run.unproved(owner))
	slices.Sort(names)
	return slices.Compact(names)
}

// unproved tells of a queue that the Transport did not make, and that the team's login has not shown to be the team's: the binding from the return
// exchange, for which RabbitMQ asks for a right on the queue, is neither there nor was it refused, but not tried. The administrator's login must
// not give a right on it. That a status says that it was made is no proof: a server of the team's may have had it written there.
func (run *transportRun) unproved(owner string) func(queue string) bool {
	names, untried := compile.NamesOf(run.transport), map[string]bool{}
	for _, binding := range run.unmade() {
		work := binding.Destination
		_, there := run.observed.Queues[work]
		if binding.Source == names.Return() && (!there || !run.made(owner, work)) {
			untried[work], untried[names.Quarantine(work)] = true, true
		}
	}
	return func(queue string) bool { return untried[queue] }
}

// unmade are the bindings that the last run on the broker was to make and did not try: those that are withheld, and those that are left out because of
// others, as all are that lead into a queue without a count.
func (run *transportRun) unmade() (bindings []topology.Binding) {
	for _, withheld := range run.report.Withheld {
		bindings = append(bindings, withheld.Binding)
	}
	for _, step := range run.report.Skipped {
		if step.Action == topology.ActionCreate && step.Binding != nil {
			bindings = append(bindings, *step.Binding)
		}
	}
	return bindings
}

// declared is nil where the Transport made the exchanges to which workers publish: so the team's login may declare them. Those that were there before, or
// that are left out since a request may still delete them, may be another team's, or become it.
func (k *userReconciler) declared() error {
	names, owner := compile.NamesOf(k.run.transport), k.r.owner(k.run.transport)
	for _, name := range []string{names.Failed(), names.Fallback(), names.Return()} {
		exchange, there := k.run.observed.Exchanges[name]
		made := exchange.Arguments.Owner() == owner || slices.ContainsFunc(k.run.report.Steps, func(step topology.Step) bool {
			return step.Action == topology.ActionCreate && step.Exchange != nil && step.Exchange.Name == name
		})
		switch {
		case made:
		case there:
			return stalled(v1alpha1.ReasonConflict, fmt.Errorf("exchange %q was not made by this Transport, and a user of its own gets no right on it: "+
				"choose another spec.prefix, or leave out spec.broker.scopedUser", name))
		default:
			return waiting(v1alpha1.ReasonProgressing, 0, fmt.Errorf("exchange %q is not made yet, and before that no user gets a right on it", name))
		}
	}
	return nil
}

// queuesIn are the queues that some configurations name.
func queuesIn(configs []compile.Config) (names []string) {
	for i := range configs {
		for _, queue := range configs[i].Queues {
			for _, name := range []string{queue.Name, queue.Quarantine, queue.Standin} {
				if name != "" {
					names = append(names, name)
				}
			}
		}
	}
	return names
}

func (k *userReconciler) keep(ctx context.Context) error {
	if err := k.read(ctx); err != nil {
		return err
	}
	current, password := k.turn.current, ""
	var seen apply.UserState
	if current != "" {
		var err error
		password = string(k.secret.Data["password"])
		if seen, err = apply.LookAtUser(ctx, k.port, k.vhost, current, password); err != nil {
			return err
		}
		k.turn.wrong = !seen.Exists || !seen.Knows
	}
	next := k.turn.next()
	var intended error
	if next != "" {
		// That comes first, so that whoever goes on after a crash knows what was wrong.
		if intended = k.declared(); intended == nil {
			intended = k.recordIntent(ctx, next)
		}
		if errors.Is(intended, errOutdated) {
			return intended
		}
	}
	if current != "" {
		if err := k.repair(ctx, current, password, seen); err != nil {
			return err
		}
		k.confirmed = true
		if known := findUser(k.run.transport.Status.BrokerUsers, current); known.Since == nil {
			known.Since = new(metav1.Now()) // Whoever wrote the Secret came no further.
		}
		if intended != nil || next == "" {
			return errors.Join(intended, k.writeSecret(ctx, current, password))
		}
	}
	if intended != nil || next == "" {
		return intended
	}
	return k.change(ctx, next)
}

// read finds out which user the workers have.
func (k *userReconciler) read(ctx context.Context) error {
	t := k.run.transport
	secret, err := k.r.userSecret(ctx, t)
	if err != nil {
		return err
	}
	k.secret = secret
	names := topology.UserNames(t, k.r.owner(t))
	t.Status.BrokerUsers = slices.DeleteFunc(slices.Clone(t.Status.BrokerUsers), func(u v1alpha1.BrokerUser) bool {
		foreign := !slices.Contains(names[:], u.Name)
		if foreign {
			k.r.retain(k.run, u.Name)
		}
		return foreign
	})
	k.turn = rotation{names: names, recorded: t.Status.BrokerUsers, every: k.r.Options.RotateUsers, now: time.Now()}
	if secret != nil && len(secret.Data["password"]) >= minPassword {
		if known := k.turn.find(string(secret.Data["username"])); known != nil {
			k.turn.current = known.Name
		}
	}
	return nil
}

// recordIntent writes down that a user is about to be made, once it is certain that it can be and is nobody else's.
func (k *userReconciler) recordIntent(ctx context.Context, name string) error {
	if err := k.tryToWrite(ctx); err != nil {
		return err
	}
	t := k.run.transport
	known := findUser(t.Status.BrokerUsers, name)
	if known != nil && known.Since == nil {
		return nil
	}
	if known == nil {
		_, err := k.port.User(ctx, name)
		switch {
		case err == nil:
			return stalled(v1alpha1.ReasonConflict, fmt.Errorf(
				"RabbitMQ has a user %q already that this Transport did not make: delete it if it is unused (rabbitmqctl delete_user), "+
					"or leave out spec.broker.scopedUser", name))
		case !errors.Is(err, broker.ErrNotFound):
			return err
		}
	}
	t.Status.BrokerUsers = slices.DeleteFunc(slices.Clone(t.Status.BrokerUsers), func(u v1alpha1.BrokerUser) bool { return u.Name == name })
	t.Status.BrokerUsers = append(t.Status.BrokerUsers, v1alpha1.BrokerUser{Name: name})
	if err := k.run.status.writeStatus(ctx, k.r.Client); err != nil {
		return outdated(err)
	}
	return nil
}

// repair takes back what others changed of the user that workers log in as, and lets its rights follow its queues: at once where
// they grow, and where they shrink once all workers have had the time to learn of it.
func (k *userReconciler) repair(ctx context.Context, name, password string, seen apply.UserState) error {
	granted := k.rights
	if seen.Rights != nil && k.r.grants.waits(name, *seen.Rights, k.rights, k.queues, time.Now(), k.r.Options.Waits.Grace) {
		granted = *seen.Rights
	}
	k.r.grants.note(name, granted)
	foreign := k.turn.wrong || seen.Tagged || len(seen.Elsewhere) > 0
	right := seen.Rights != nil && *seen.Rights == granted
	if right && !foreign {
		return nil
	}
	if seen.Rights == nil || seen.Rights.Write != granted.Write {
		if err := k.declared(); err != nil {
			return err
		}
	}
	if err := k.r.current(ctx, k.run.transport); err != nil {
		return outdated(err)
	}
	changed, err := apply.PutUserRight(ctx, k.port, k.vhost, name, password, seen, granted)
	if err != nil {
		return err
	}
	if foreign || seen.Rights == nil {
		k.run.status.eventOnBroker(kindUser, name, eventUserRepaired, "user "+name+" was changed or deleted; restored: "+joinedBy(", ", changed))
	}
	return nil
}

// change makes the next user and gives its login to the workers. They move over by themselves, each in its own time, and nothing is
// taken from the user before: whoever is killed in between leaves the workers with a login that works.
func (k *userReconciler) change(ctx context.Context, name string) error {
	t := k.run.transport
	if err := k.r.current(ctx, t); err != nil {
		return outdated(err)
	}
	password := rand.Text() + rand.Text()
	seen, err := apply.LookAtUser(ctx, k.port, k.vhost, name, password)
	if err != nil {
		return err
	}
	if _, err := apply.PutUserRight(ctx, k.port, k.vhost, name, password, seen, k.rights); err != nil {
		return err
	}
	k.r.grants.note(name, k.rights)
	if err := k.writeSecret(ctx, name, password); err != nil {
		return err
	}
	reason, note := eventUserMade, "user "+name+" is made for the workers"
	if k.turn.current != "" {
		reason, note = eventUserRotated, "the workers move from user "+k.turn.current+" to "+name
	}
	k.run.status.eventOnceWritten(corev1.EventTypeNormal, reason, note)
	findUser(t.Status.BrokerUsers, name).Since = new(metav1.Now())
	return nil
}

// leaveUsers deletes users that no worker needs any more: the former one after a change, and all where the spec wants none. One is needed as
// long as somebody is logged in as it, and for as long as it may take the pods to see another Secret.
func (r *TransportReconciler) leaveUsers(ctx context.Context, run *transportRun) error {
	t := run.transport
	if len(t.Status.BrokerUsers) == 0 || len(run.live.rolling()) > 0 || run.incomplete != nil && !wantsUser(t) {
		return nil
	}
	err := r.leaveIdle(ctx, run)
	switch {
	case err == nil, errors.Is(err, errOutdated):
		return err
	case !wantsUser(t) && errors.Is(err, broker.ErrForbidden):
		// Nothing needs it any more, and nothing is to wait for a tag that somebody took away on purpose.
		run.status.eventOnceWritten(corev1.EventTypeWarning, "Retained", "left are the RabbitMQ users "+userNames(t)+
			", which may still exist, because the operator's login no longer has the tag administrator: delete them")
		t.Status.BrokerUsers = nil
		return r.removeUserSecret(ctx, run)
	}
	run.partly(userError(err))
	return nil
}

func userNames(t *v1alpha1.Transport) string {
	return listed(t.Status.BrokerUsers, func(u v1alpha1.BrokerUser) string { return u.Name })
}

func (r *TransportReconciler) leaveIdle(ctx context.Context, run *transportRun) error {
	t := run.transport
	port, err := r.users(ctx, run)
	if err != nil {
		return err
	}
	for _, user := range r.idle(t, time.Now()) {
		// RabbitMQ answers with 500 where a login without the tag asks for the connections of somebody else. Asked for the user, it
		// says that it may not.
		if _, err := port.User(ctx, user.Name); err != nil && !errors.Is(err, broker.ErrNotFound) {
			return err
		}
		sessions, err := port.Sessions(ctx, user.Name)
		if err != nil {
			return err
		}
		if sessions > 0 {
			continue
		}
		if err := r.deleteUser(ctx, run, user.Name); err != nil {
			return err
		}
		if wantsUser(t) || len(t.Status.BrokerUsers) > 1 {
			t.Status.BrokerUsers = slices.DeleteFunc(slices.Clone(t.Status.BrokerUsers), func(u v1alpha1.BrokerUser) bool { return u == user })
			continue
		}
		// The Secret is known by the last user of the status.
		if err := r.removeUserSecret(ctx, run); err != nil {
			return err
		}
		t.Status.BrokerUsers = nil
	}
	return nil
}

// idle are the users that workers were told to leave long enough ago.
func (r *TransportReconciler) idle(t *v1alpha1.Transport, now time.Time) []v1alpha1.BrokerUser {
	if !wantsUser(t) {
		return slices.Clone(t.Status.BrokerUsers)
	}
	users := slices.DeleteFunc(slices.Clone(t.Status.BrokerUsers), func(u v1alpha1.BrokerUser) bool { return u.Since == nil })
	if len(users) < 2 || len(users) < len(t.Status.BrokerUsers) {
		return nil
	}
	slices.SortStableFunc(users, func(a, b v1alpha1.BrokerUser) int { return a.Since.Compare(b.Since.Time) })
	if now.Sub(users[len(users)-1].Since.Time) < r.Options.Waits.Grace {
		return nil
	}
	return users[:len(users)-1]
}

// deleteUser deletes one of ours, and says so.
func (r *TransportReconciler) deleteUser(ctx context.Context, run *transportRun, name string) error {
	if names := topology.UserNames(run.transport, r.owner(run.transport)); !slices.Contains(names[:], name) {
		r.retain(run, name)
		return nil
	}
	if err := r.current(ctx, run.transport); err != nil {
		return outdated(err)
	}
	port, err := r.users(ctx, run)
	if err != nil {
		return err
	}
	if err := port.DeleteUser(ctx, name); err != nil {
		return err
	}
	r.grants.forget(name)
	run.status.event(corev1.EventTypeNormal, eventUserDeleted, "user "+name+" is deleted")
	return nil
}

// retain says of a user that nothing is done to it: whoever may write a status could have the administrator's login change any user.
func (*TransportReconciler) retain(run *transportRun, name string) {
	run.status.event(corev1.EventTypeWarning, "Retained", "left is the RabbitMQ user "+name+
		", which stands in status.brokerUsers, and is not one that the operator makes for this Transport")
}

// userError tells what an error about users means for the Transport.
func userError(err error) error {
	if _, known := errors.AsType[*stepError](err); known {
		return err
	}
	if errors.Is(err, broker.ErrForbidden) {
		return stalled(v1alpha1.ReasonBrokerRefused, fmt.Errorf("spec.broker.scopedUser needs a login of the operator with the tag administrator, "+
			"and the workers keep their present login until it has one (rabbitmqctl set_user_tags USER administrator) or the field is removed: %w", err))
	}
	return brokerError(err)
}
