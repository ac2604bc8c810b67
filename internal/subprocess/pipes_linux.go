package subprocess

import "golang.org/x/sys/unix"

const (
	// atOnce is how much certainly fits into a new pipe.
	atOnce = 4 << 10
	// wide is the size of a pipe for what does not fit into an ordinary one, if the system grants it.
	wide = 1 << 20
)

// pipes are the two ends each of a program's input, output and errors; -1 for one that is closed.
type pipes [6]int

const (
	outputRead = iota
	problemsRead
	inputWrite
	inputRead
	outputWrite
	problemsWrite
)

// open opens all, for an input of a size.
func (p *pipes) open(input int) error {
	*p = pipes{-1, -1, -1, -1, -1, -1}
	for _, ends := range [][2]int{{inputRead, inputWrite}, {outputRead, outputWrite}, {problemsRead, problemsWrite}} {
		var pair [2]int
		if err := unix.Pipe2(pair[:], unix.O_CLOEXEC); err != nil {
			return err //nolint:wrapcheck // the caller explains it
		}
		p[ends[0]], p[ends[1]] = pair[0], pair[1]
	}
	if input <= atOnce {
		return nil
	}
	if input > chunk {
		_, _ = unix.FcntlInt(uintptr(p[inputWrite]), unix.F_SETPIPE_SZ, wide) // without it, it takes more turns
	}
	return unix.SetNonblock(p[inputWrite], true) //nolint:wrapcheck // the caller explains it
}

// theirs are the program's ends, in the order of its descriptors.
func (p *pipes) theirs() [3]uintptr {
	return [3]uintptr{uintptr(p[inputRead]), uintptr(p[outputWrite]), uintptr(p[problemsWrite])}
}

func (p *pipes) closeTheirs() {
	for _, end := range []int{inputRead, outputWrite, problemsWrite} {
		p.closeOne(end)
	}
}

func (p *pipes) closeOne(end int) {
	if p[end] >= 0 {
		_ = unix.Close(p[end]) // nothing is lost with a pipe
		p[end] = -1
	}
}

func (p *pipes) close() {
	for end := range p {
		p.closeOne(end)
	}
}
