package handler

import "time"

// SetStuckAfter changes how long runaways may hold all places.
func (h *InProcess) SetStuckAfter(d time.Duration) { h.stuckAfter = d }
