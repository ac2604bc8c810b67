package brokeruser

import (
	"hash/fnv"
	"slices"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

// minPassword is how long the passwords are at least that the operator makes. What is shorter is not from it.
const minPassword = 26

// rotation decides which of a Transport's two users comes next. All of it is in the status and the Secret, so that an operator that starts anew
// goes on where another one ended.
type rotation struct {
	// names are the two that the Transport may have, and recorded those in the status.
	names    [2]string
	recorded []v1alpha1.BrokerUser
	// current is the user in the Secret; empty where that holds no login of ours.
	current string
	// wrong is true where the broker does not have the current user, or not with the password in the Secret.
	wrong bool
	// every is how old a password becomes, by up to a tenth less.
	every time.Duration
	now   time.Time
}

// next is the user that is to take over from the current one; empty where none is.
func (t rotation) next() string {
	for _, known := range t.recorded {
		if known.Since == nil && known.Name != t.current {
			return known.Name // Somebody began to make it.
		}
	}
	if t.current != "" && !t.wrong && !t.old() {
		return ""
	}
	for _, name := range t.names {
		if name != t.current && t.find(name) == nil {
			return name
		}
	}
	if t.current != "" && !t.wrong {
		return "" // The other one still goes; there is no hurry.
	}
	// Both were in use. The one whose password is the older has the fewer workers.
	first, second := t.find(t.names[0]), t.find(t.names[1])
	if t.current == second.Name || t.current == "" && first.Since.Before(second.Since) {
		return first.Name
	}
	return second.Name
}

// old is true where the current password is so old that the next one is due. Transports that were made together do not change
// theirs together.
func (t rotation) old() bool {
	known := t.find(t.current)
	if known == nil || known.Since == nil {
		return false
	}
	spread := fnv.New32a()
	_, _ = spread.Write([]byte(t.current))
	early := time.Duration(float64(t.every) / 10 * float64(spread.Sum32()) / (1 << 32))
	return t.now.Sub(known.Since.Time) >= t.every-early
}

func (t rotation) find(name string) *v1alpha1.BrokerUser { return findUser(t.recorded, name) }

func findUser(users []v1alpha1.BrokerUser, name string) *v1alpha1.BrokerUser {
	if at := slices.IndexFunc(users, func(u v1alpha1.BrokerUser) bool { return u.Name == name }); at >= 0 {
		return &users[at]
	}
	return nil
}
