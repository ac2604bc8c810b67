// Package brokeruser keeps the RabbitMQ users as which the workers of Transports log in: it makes them, changes their passwords, lets their rights
// follow the queues, and deletes them once no worker needs them.
package brokeruser

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/topology"
)

// kindUser stands in events for a user of the broker.
const kindUser = "User"

// Events about the users of workers.
const (
	eventMade     = "BrokerUserCreated"
	eventRotated  = "BrokerUserRotated"
	eventRepaired = "BrokerUserRepaired"
	eventDeleted  = "BrokerUserDeleted"
	eventRetained = "Retained"
)

// RotationInterval is how old a password becomes where no flag says otherwise.
const RotationInterval = 30 * 24 * time.Hour

// lingerLimit is how long a user may have connections beyond the time in which workers leave it, before that is told.
const lingerLimit = 24 * time.Hour

// Port is the broker's users as an administrator's login sees them. *brokerpool.View is one.
type Port interface {
	apply.UserPort

	// Sessions is how many connections a user has.
	Sessions(ctx context.Context, user string) (int, error)
	// DeleteUser succeeds where there is none.
	DeleteUser(ctx context.Context, name string) error
}

// Keeper keeps the users of all Transports. It is safe for concurrent use.
type Keeper struct {
	client client.Client
	// live reads from the API server itself.
	live client.Reader
	// rotate is how old a password becomes, and grace how long workers may take to see another Secret.
	rotate, grace time.Duration
	grants        *grants
}

// NewKeeper returns a Keeper. Passwords become as old as rotate, and grace is how long workers may take to see another Secret.
func NewKeeper(c client.Client, live client.Reader, rotate, grace time.Duration) *Keeper {
	return &Keeper{client: c, live: live, rotate: rotate, grace: grace, grants: &grants{all: map[string]grant{}}}
}

// Look is what one reconcile knows of a Transport, beside the broker's users.
type Look struct {
	Transport *v1alpha1.Transport
	// Status is patched before a user is made, and gets the events.
	Status *outcome.Patcher
	// Owner is the value of the owner mark of the Transport's objects.
	Owner string
	Port  Port
	// Login is the team's: the workers' differs from it by user, password and vhost.
	Login credentials.Credentials
	// Queues are those that the workers consume, or may consume as long as not all of them know better.
	Queues []string
	// Observed is what the broker has, and Steps what was done there since.
	Observed *topology.Observed
	Steps    []topology.Step
}

// Wanted says whether the workers of a Transport are to have a user of their own.
func Wanted(t *v1alpha1.Transport) bool { return ptr.Deref(t.Spec.Broker.ScopedUser, false) }

// Exists says whether workers have got the login of a user of their own once.
func Exists(t *v1alpha1.Transport) bool {
	return slices.ContainsFunc(t.Status.BrokerUsers, func(u v1alpha1.BrokerUser) bool { return u.Since != nil })
}

// Names of a Transport's users, for a message.
func Names(t *v1alpha1.Transport) string {
	names := make([]string, len(t.Status.BrokerUsers))
	for i, user := range t.Status.BrokerUsers {
		names[i] = user.Name
	}
	return strings.Join(names, "; ")
}

// Leave deletes users that no worker needs any more: the former one after a change, and all where the spec wants none. One is needed as long as
// somebody is logged in as it, and for as long as it may take the pods to see another Secret.
func (k *Keeper) Leave(ctx context.Context, look *Look) error {
	t := look.Transport
	for _, user := range k.idle(t, time.Now()) {
		// RabbitMQ answers with 500 where a login without the tag asks for the connections of somebody else. Asked for the user, it
		// says that it may not.
		if _, err := look.Port.User(ctx, user.Name); err != nil && !errors.Is(err, broker.ErrNotFound) {
			return err
		}
		sessions, err := look.Port.Sessions(ctx, user.Name)
		if err != nil {
			return err
		}
		if sessions > 0 {
			continue
		}
		if err := k.delete(ctx, look, user.Name); err != nil {
			return err
		}
		if Wanted(t) || len(t.Status.BrokerUsers) > 1 {
			t.Status.BrokerUsers = slices.DeleteFunc(slices.Clone(t.Status.BrokerUsers), func(u v1alpha1.BrokerUser) bool { return u == user })
			continue
		}
		// The Secret is known by the last user of the status.
		if err := k.removeSecret(ctx, look); err != nil {
			return err
		}
		t.Status.BrokerUsers = nil
	}
	return nil
}

// Abandon forgets the users of a Transport that wants none, where the login no longer has the right to delete them. Nothing needs them any more, and
// nothing is to wait for a tag that somebody took away on purpose.
func (k *Keeper) Abandon(ctx context.Context, look *Look) error {
	look.Status.EventOnceWritten(corev1.EventTypeWarning, eventRetained, "left are the RabbitMQ users "+Names(look.Transport)+
		", which may still exist, because the operator's login no longer has the tag administrator: delete them")
	look.Transport.Status.BrokerUsers = nil
	return k.removeSecret(ctx, look)
}

// Drop deletes the users of a Transport that goes, once nobody needs them any more.
func (k *Keeper) Drop(ctx context.Context, look *Look) error {
	for _, user := range slices.Clone(look.Transport.Status.BrokerUsers) {
		if err := k.delete(ctx, look, user.Name); err != nil {
			return err
		}
	}
	return nil
}

// idle are the users that workers were told to leave long enough ago.
func (k *Keeper) idle(t *v1alpha1.Transport, now time.Time) []v1alpha1.BrokerUser {
	if !Wanted(t) {
		return slices.Clone(t.Status.BrokerUsers)
	}
	users := slices.DeleteFunc(slices.Clone(t.Status.BrokerUsers), func(u v1alpha1.BrokerUser) bool { return u.Since == nil })
	if len(users) < 2 || len(users) < len(t.Status.BrokerUsers) {
		return nil
	}
	slices.SortStableFunc(users, func(a, b v1alpha1.BrokerUser) int { return a.Since.Compare(b.Since.Time) })
	if now.Sub(users[len(users)-1].Since.Time) < k.grace {
		return nil
	}
	return users[:len(users)-1]
}

// Lingering are the users that workers were told to leave so long ago that somebody has to end what is still logged in as them.
func (k *Keeper) Lingering(t *v1alpha1.Transport, now time.Time) []string {
	var names []string
	if Wanted(t) {
		for _, user := range k.idle(t, now.Add(-lingerLimit)) {
			names = append(names, user.Name)
		}
	}
	return names
}

// delete deletes one of ours, and says so.
func (k *Keeper) delete(ctx context.Context, look *Look, name string) error {
	if names := topology.UserNames(look.Transport, look.Owner); !slices.Contains(names[:], name) {
		look.retain(name)
		return nil
	}
	if err := outcome.CheckCurrent(ctx, k.live, look.Transport); err != nil {
		return outcome.Outdated(err)
	}
	if err := look.Port.DeleteUser(ctx, name); err != nil {
		return err
	}
	k.grants.forget(name)
	look.Status.Event(corev1.EventTypeNormal, eventDeleted, "user "+name+" is deleted")
	return nil
}

// retain says of a user that nothing is done to it: whoever may write a status could have the administrator's login change any user.
func (l *Look) retain(name string) {
	l.Status.Event(corev1.EventTypeWarning, eventRetained, "left is the RabbitMQ user "+name+
		", which stands in status.brokerUsers, and is not one that the operator makes for this Transport")
}
