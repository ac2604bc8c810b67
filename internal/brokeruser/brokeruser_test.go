package brokeruser

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
)

// A former user whose connections stay has a password that stays valid, and nobody was told.
func TestKeeper_AFormerUserThatIsUsedForADayIsTold(t *testing.T) {
	t.Parallel()
	const grace = 10 * time.Minute
	now := time.Now()
	made := func(name string, ago time.Duration) v1alpha1.BrokerUser {
		return v1alpha1.BrokerUser{Name: name, Since: &metav1.Time{Time: now.Add(-ago)}}
	}
	tests := map[string]struct {
		wanted bool
		users  []v1alpha1.BrokerUser
		want   []string
	}{
		"no former one":               {true, []v1alpha1.BrokerUser{made("b", 48*time.Hour)}, nil},
		"left an hour ago":            {true, []v1alpha1.BrokerUser{made("a", 900*time.Hour), made("b", time.Hour)}, nil},
		"left a day ago":              {true, []v1alpha1.BrokerUser{made("a", 900*time.Hour), made("b", 25*time.Hour)}, []string{"a"}},
		"a next one is about to come": {true, []v1alpha1.BrokerUser{made("a", 900*time.Hour), {Name: "b"}}, nil},
		"none is wanted":              {false, []v1alpha1.BrokerUser{made("a", 900*time.Hour), made("b", 25*time.Hour)}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			transport := &v1alpha1.Transport{Status: v1alpha1.TransportStatus{BrokerUsers: tt.users}}
			transport.Spec.Broker.ScopedUser = &tt.wanted
			if got := NewKeeper(nil, nil, RotationInterval, grace).Lingering(transport, now); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
