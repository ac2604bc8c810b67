package cli

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

func TestAgain_CountsASecondSignalFromASecondOn(t *testing.T) {
	for name, tt := range map[string]struct {
		after time.Duration
		want  bool
	}{
		"the same Ctrl-C, handed on": {50 * time.Millisecond, false},
		"another one":                {time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				signals := make(chan os.Signal)
				go func() {
					time.Sleep(tt.after)
					signals <- os.Interrupt
				}()
				if got := again(ctx, signals); got != tt.want {
					t.Errorf("got %v, want %v", got, tt.want)
				}
			})
		})
	}
}
