package worker

import "testing"

func TestTurnsWithin_IsBoundedByProcessorsAndMemory(t *testing.T) {
	for _, tt := range []struct {
		memory           int64
		processors, want int
	}{
		{256 << 20, 1, 2}, {256 << 20, 2, 2}, {256 << 20, 64, 2}, {512 << 20, 64, 4}, {64 << 20, 16, 2}, {2 << 30, 8, 8}, {2 << 30, 64, 16},
	} {
		if turns := turnsWithin(tt.memory, tt.processors); turns != tt.want {
			t.Errorf("%d MiB and %d processors: %d turns, want %d", tt.memory>>20, tt.processors, turns, tt.want)
		}
	}
}
