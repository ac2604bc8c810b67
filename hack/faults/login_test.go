package faults

import (
	"testing"

	"redrive.dev/redrive/internal/testbroker"
)

// The broker ends the connections of a user that is deleted, and refuses new ones until there are new credentials.
func TestWorker_LosesNothingWhenCredentialsAreRevoked(t *testing.T) {
	t.Parallel()
	rounds(t, func(t *testing.T) {
		const revocations = 5
		s := newScene(t, testbroker.Shared(t), retrying())
		s.publish(100 * revocations)
		for range revocations {
			s.acknowledgesAgain()
			dials := s.wire.dials()
			s.node.DeleteUser(t, s.username)
			s.await(worksWithin, "a login to be refused", func() bool { return s.wire.dials() > dials })
			s.permit()
			s.acknowledgesAgain()
		}
		s.settle(bounds{faults: revocations, duplicates: revocations * 2 * prefetch})
	})
}
