package tenancy_test

import (
	"errors"
	"testing"

	"redrive.dev/redrive/internal/tenancy"
)

func TestAdmission_CountsByNamespace(t *testing.T) {
	t.Parallel()
	a := tenancy.NewAdmission(4, 3)
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
	enter("shop", true, true)
	leave()
	enter("hostile", false, true)
}
