package tenancy_test

import (
	"errors"
	"fmt"
	"testing"

	"redrive.dev/redrive/internal/tenancy"
)

func TestAdmission_CountsByNamespace(t *testing.T) {
	t.Parallel()
	a := tenancy.NewAdmission(16)
	enter := func(namespace string, steady, want bool) (leave func()) {
		t.Helper()
		leave, err := a.Enter(namespace, steady)
		if (err == nil) != want || err != nil && !errors.Is(err, tenancy.ErrCrowded) {
			t.Fatalf("%s, steady %t: %v", namespace, steady, err)
		}
		return leave
	}
	for range 3 {
		enter("hostile", true, true)
	}
	enter("hostile", true, false)
	leave := enter("hostile", false, true)
	enter("hostile", false, false)
	enter("shop", true, true)()
	leave()
	enter("hostile", false, true)
}

// Four namespaces whose Transports wait for brokers that never answer had all reconciles, and no Transport of another one was looked at.
func TestAdmission_LeavesRoomForANamespaceBesideManyThatTakeWhatTheyGet(t *testing.T) {
	t.Parallel()
	for _, hostile := range []int{1, 4, 12} {
		const all = 1024
		a := tenancy.NewAdmission(all)
		var got []int
		left := all
		for n := range hostile {
			enter := func() bool {
				_, err := a.Enter(fmt.Sprint("hostile-", n), false)
				return err == nil
			}
			got = append(got, 0)
			for enter() {
				got[n]++
				left--
			}
		}
		if got[0] != all/4 || left < 8 {
			t.Errorf("they got %v, and left %d", got, left)
		}
		for n := range 5 {
			if _, err := a.Enter("shop", false); err != nil {
				t.Errorf("beside %v another one got %d", got, n)
				break
			}
		}
	}
}

func TestAdmission_GivesWhatIsLeftToANamespaceThatHasNone(t *testing.T) {
	t.Parallel()
	a := tenancy.NewAdmission(3)
	leave, err := a.Enter("a", true)
	if err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"b", "c"} {
		if _, err := a.Enter(namespace, true); err != nil {
			t.Errorf("%s: %v", namespace, err)
		}
	}
	if _, err := a.Enter("d", false); !errors.Is(err, tenancy.ErrCrowded) {
		t.Errorf("the fourth of three: %v", err)
	}
	leave()
	if _, err := a.Enter("b", false); !errors.Is(err, tenancy.ErrCrowded) {
		t.Errorf("one that has one gets the last: %v", err)
	}
	if _, err := a.Enter("d", false); err != nil {
		t.Error(err)
	}
}

// Namespaces that have 50 Transports each, as a quota allows, whose brokers never answer, left no place from the 31st on.
func TestAdmission_LeavesAPlaceBesideManyNamespacesWithinAQuota(t *testing.T) {
	t.Parallel()
	a := tenancy.NewAdmission(1024)
	for n := range 50 {
		for range 50 {
			_, _ = a.Enter(fmt.Sprint("hostile-", n), false)
		}
		if _, err := a.Enter(fmt.Sprint("shop-", n), false); err != nil {
			t.Fatalf("beside %d namespaces another one gets none: %v", n+1, err)
		}
	}
}
