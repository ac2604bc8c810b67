package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/topology"
)

// UserPort is the broker's own users as this package needs them; *broker.Client is one. Without the tag administrator every function
// fails with broker.ErrForbidden.
type UserPort interface {
	// User and Permissions give broker.ErrNotFound where there is no such user.
	User(ctx context.Context, name string) (broker.User, error)
	Permissions(ctx context.Context, user string) ([]broker.Permission, error)
	PutUser(ctx context.Context, name, password string) error
	Permit(ctx context.Context, user string, p broker.Permission) error
	Forbid(ctx context.Context, user, vhost string) error
}

// UserState is a user as the broker has it.
type UserState struct {
	Exists bool
	// Knows is true where the password is the user's.
	Knows bool
	// Tagged is true where somebody gave it tags.
	Tagged bool
	// Rights in the vhost of the Transport; nil where it has none.
	Rights *topology.Rights
	// Elsewhere are the other vhosts in which it may do anything.
	Elsewhere []string
}

// LookAtUser reads what a user is and may do, and changes nothing.
func LookAtUser(ctx context.Context, port UserPort, vhost, name, password string) (UserState, error) {
	user, err := port.User(ctx, name)
	if errors.Is(err, broker.ErrNotFound) {
		return UserState{}, nil
	}
	if err != nil {
		return UserState{}, err
	}
	state := UserState{Exists: true, Knows: user.HasPassword(password), Tagged: len(user.Tags) > 0}
	permissions, err := port.Permissions(ctx, name)
	if err != nil {
		return UserState{}, err
	}
	for _, p := range permissions {
		if p.VHost == vhost {
			state.Rights = &topology.Rights{Configure: p.Configure, Write: p.Write, Read: p.Read}
		} else {
			state.Elsewhere = append(state.Elsewhere, p.VHost)
		}
	}
	return state, nil
}

// PutUserRight makes a user what it is to be, where it differs, and returns what that was. Rights come before the password: nobody logs in with it
// and is refused what the workers need.
func PutUserRight(
	ctx context.Context, port UserPort, vhost, name, password string, seen UserState, rights topology.Rights,
) (changed []string, err error) {
	if !seen.Exists {
		changed = append(changed, "password")
		if err := port.PutUser(ctx, name, password); err != nil {
			return changed, err
		}
	}
	if seen.Rights == nil || *seen.Rights != rights {
		changed = append(changed, fmt.Sprintf("rights in vhost %q", vhost))
		err := port.Permit(ctx, name, broker.Permission{VHost: vhost, Configure: rights.Configure, Write: rights.Write, Read: rights.Read})
		if err != nil {
			return changed, err
		}
	}
	for _, other := range seen.Elsewhere {
		changed = append(changed, fmt.Sprintf("rights in vhost %q", other))
		if err := port.Forbid(ctx, name, other); err != nil {
			return changed, err
		}
	}
	if seen.Exists && (!seen.Knows || seen.Tagged) {
		changed = append(changed, "password and tags")
		if err := port.PutUser(ctx, name, password); err != nil {
			return changed, err
		}
	}
	return slices.Clip(changed), nil
}
