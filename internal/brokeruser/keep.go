package brokeruser

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/topology"
)

// Kept is what Keep has come to.
type Kept struct {
	// Confirmed is true once the user that workers log in as is known to have the rights that they need.
	Confirmed bool
	// SecretVersion is that of the Secret with its login; empty where there is none.
	SecretVersion string
}

// keeping is one Keep.
type keeping struct {
	*Keeper
	*Look

	vhost  string
	rights topology.Rights
	// secret with the login of the current user; nil where there is none.
	secret *corev1.Secret
	turn   rotation
	kept   Kept
}

// Keep gives the workers their own user, before they are told of queues that it may not consume yet, and changes its password when it is old. Where it
// cannot be made the error is Stalled with SecretForbidden or Conflict, or has broker.ErrForbidden in it; ErrOutdated where the Transport or
// the Secret has changed meanwhile.
func (k *Keeper) Keep(ctx context.Context, look *Look) (Kept, error) {
	s := &keeping{Keeper: k, Look: look, vhost: look.Transport.Status.Broker.VHost}
	s.rights = topology.WorkerRights(compile.NamesOf(look.Transport), look.Queues)
	err := s.keep(ctx)
	return s.kept, err
}

func (k *keeping) keep(ctx context.Context) error {
	if err := k.read(ctx); err != nil {
		return err
	}
	current, password := k.turn.current, ""
	var seen apply.UserState
	if current != "" {
		var err error
		password = string(k.secret.Data["password"])
		if seen, err = apply.LookAtUser(ctx, k.Port, k.vhost, current, password); err != nil {
			return err
		}
		k.turn.wrong = !seen.Exists || !seen.Knows
	}
	next := k.turn.next()
	var intended error
	if next != "" {
		// That comes first, so that whoever goes on after a crash knows what was wrong.
		if intended = k.mayWrite(); intended == nil {
			intended = k.recordIntent(ctx, next)
		}
		if errors.Is(intended, outcome.ErrOutdated) {
			return intended
		}
	}
	if current != "" {
		if err := k.repair(ctx, current, password, seen); err != nil {
			return err
		}
		k.kept.Confirmed = true
		if known := findUser(k.Transport.Status.BrokerUsers, current); known.Since == nil {
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

// mayWrite is nil where the Transport made the exchanges to which workers publish: so the team's login may declare them. Those that were there before, or
// that are left out since a request may still delete them, may be another team's, or become it.
func (k *keeping) mayWrite() error {
	names := compile.NamesOf(k.Transport)
	for _, name := range []string{names.Failed(), names.Fallback(), names.Return()} {
		exchange, there := k.Observed.Exchanges[name]
		made := exchange.Arguments.Owner() == k.Owner || slices.ContainsFunc(k.Steps, func(step topology.Step) bool {
			return step.Action == topology.ActionCreate && step.Exchange != nil && step.Exchange.Name == name
		})
		switch {
		case made:
		case there:
			return outcome.Stalled(v1alpha1.ReasonConflict, fmt.Errorf("exchange %q was not made by this Transport, and a user of its own gets no right on it: "+
				"choose another spec.prefix, or leave out spec.broker.scopedUser", name))
		default:
			return outcome.Waiting(v1alpha1.ReasonProgressing, 0, fmt.Errorf("exchange %q is not made yet, and before that no user gets a right on it", name))
		}
	}
	return nil
}

// read finds out which user the workers have.
func (k *keeping) read(ctx context.Context) error {
	t := k.Transport
	secret, err := k.readSecret(ctx, t)
	if err != nil {
		return err
	}
	k.secret = secret
	names := topology.UserNames(t, k.Owner)
	t.Status.BrokerUsers = slices.DeleteFunc(slices.Clone(t.Status.BrokerUsers), func(u v1alpha1.BrokerUser) bool {
		foreign := !slices.Contains(names[:], u.Name)
		if foreign {
			k.retain(u.Name)
		}
		return foreign
	})
	k.turn = rotation{names: names, recorded: t.Status.BrokerUsers, every: k.rotate, now: time.Now()}
	if secret != nil && len(secret.Data["password"]) >= minPassword {
		if known := k.turn.find(string(secret.Data["username"])); known != nil {
			k.turn.current = known.Name
		}
	}
	return nil
}

// recordIntent writes down that a user is about to be made, once it is certain that it can be and is nobody else's.
func (k *keeping) recordIntent(ctx context.Context, name string) error {
	if err := k.tryToWrite(ctx); err != nil {
		return err
	}
	t := k.Transport
	known := findUser(t.Status.BrokerUsers, name)
	if known != nil && known.Since == nil {
		return nil
	}
	if known == nil {
		_, err := k.Port.User(ctx, name)
		switch {
		case err == nil:
			return outcome.Stalled(v1alpha1.ReasonConflict, fmt.Errorf(
				"RabbitMQ has a user %q already that this Transport did not make: delete it if it is unused (rabbitmqctl delete_user), "+
					"or leave out spec.broker.scopedUser", name))
		case !errors.Is(err, broker.ErrNotFound):
			return err
		}
	}
	t.Status.BrokerUsers = slices.DeleteFunc(slices.Clone(t.Status.BrokerUsers), func(u v1alpha1.BrokerUser) bool { return u.Name == name })
	t.Status.BrokerUsers = append(t.Status.BrokerUsers, v1alpha1.BrokerUser{Name: name})
	if err := k.Status.WriteStatus(ctx); err != nil {
		return outcome.Outdated(err)
	}
	return nil
}

// repair takes back what others changed of the user that workers log in as, and lets its rights follow its queues: at once where
// they grow, and where they shrink once all workers have had the time to learn of it.
func (k *keeping) repair(ctx context.Context, name, password string, seen apply.UserState) error {
	granted := k.rights
	if seen.Rights != nil && k.grants.waits(name, *seen.Rights, k.rights, k.Queues, time.Now(), k.grace) {
		granted = *seen.Rights
	}
	k.grants.note(name, granted)
	foreign := k.turn.wrong || seen.Tagged || len(seen.Elsewhere) > 0
	right := seen.Rights != nil && *seen.Rights == granted
	if right && !foreign {
		return nil
	}
	if seen.Rights == nil || seen.Rights.Write != granted.Write {
		if err := k.mayWrite(); err != nil {
			return err
		}
	}
	if err := outcome.CheckCurrent(ctx, k.live, k.Transport); err != nil {
		return outcome.Outdated(err)
	}
	changed, err := apply.PutUserRight(ctx, k.Port, k.vhost, name, password, seen, granted)
	if err != nil {
		return err
	}
	if foreign || seen.Rights == nil {
		k.Status.EventOnBroker(kindUser, name, eventRepaired, "user "+name+" was changed or deleted; restored: "+strings.Join(changed, ", "))
	}
	return nil
}

// change makes the next user and gives its login to the workers. They move over by themselves, each in its own time, and nothing is
// taken from the user before: whoever is killed in between leaves the workers with a login that works.
func (k *keeping) change(ctx context.Context, name string) error {
	t := k.Transport
	if err := outcome.CheckCurrent(ctx, k.live, t); err != nil {
		return outcome.Outdated(err)
	}
	password := rand.Text() + rand.Text()
	seen, err := apply.LookAtUser(ctx, k.Port, k.vhost, name, password)
	if err != nil {
		return err
	}
	if _, err := apply.PutUserRight(ctx, k.Port, k.vhost, name, password, seen, k.rights); err != nil {
		return err
	}
	k.grants.note(name, k.rights)
	if err := k.writeSecret(ctx, name, password); err != nil {
		return err
	}
	reason, note := eventMade, "user "+name+" is made for the workers"
	if k.turn.current != "" {
		reason, note = eventRotated, "the workers move from user "+k.turn.current+" to "+name
	}
	k.Status.EventOnceWritten(corev1.EventTypeNormal, reason, note)
	findUser(t.Status.BrokerUsers, name).Since = new(metav1.Now())
	return nil
}
