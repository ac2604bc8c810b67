package resilience

// slots is into how many parts a window is divided.
const slots = 10

// tally counts events of three kinds; what they are is up to the user of the window.
type tally [3]uint32

// window counts over a sliding window: the present slot and the ten before it. So it covers its length at least, and up to
// a tenth more.
type window struct {
	// length of a slot in nanoseconds.
	length int64
	// slot is the number of the present one since the clock began.
	slot int64
	ring [slots + 1]tally
	sum  tally
}

func newWindow(length int64) window {
	return window{length: max(1, length/slots)}
}

// roll forgets what has left the window.
func (w *window) roll(now int64) {
	slot := now / w.length
	if slot-w.slot > slots {
		*w = window{length: w.length, slot: slot}
		return
	}
	for w.slot < slot {
		w.slot++
		oldest := w.present()
		for kind, n := range oldest {
			w.sum[kind] -= n
		}
		*oldest = tally{}
	}
}

// add counts an event of a kind. The window must have been rolled.
func (w *window) add(kind int) {
	w.present()[kind]++
	w.sum[kind]++
}

// remove takes one event of a kind back that was counted at a time, as far as the slot of that time is still counted and knows of one.
func (w *window) remove(kind int, at int64) {
	slot := at / w.length
	if at < 0 || slot > w.slot || w.slot-slot > slots {
		return
	}
	if counted := &w.ring[slot%int64(len(w.ring))]; counted[kind] > 0 {
		counted[kind]--
		w.sum[kind]--
	}
}

func (w *window) present() *tally {
	return &w.ring[w.slot%int64(len(w.ring))]
}

// covered is the time over which the window counts, in nanoseconds.
func (w *window) covered(now int64) int64 {
	return slots*w.length + now%w.length
}
