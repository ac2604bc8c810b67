package subprocess

// Interrupt asks the program and its group to end as Ctrl-C in a terminal does, which programs that start others leave to those
// and wait for. It does nothing where they have ended, and on Windows, where nobody can be asked so.
func (p *Process) Interrupt() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		interruptGroup(p.pid)
	}
}
