package subprocess

import (
	"errors"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// orphanage is how often orphans are taken away: often enough that they do not use up the pod's process numbers.
const orphanage = time.Second

// The first process of a container keeps its first thread to itself; see Main.
func init() { //nolint:gochecknoinits // it must be before Go moves the main goroutine to another thread
	if os.Getpid() == 1 {
		runtime.LockOSThread()
	}
}

// Main runs a program and returns its exit code. It is to be called by the main goroutine, and does more where this process is
// the first of a container: there it takes away orphans, which are processes whose parent has ended, when they end as well. Nobody else
// would, and they would use up the process numbers of the pod.
//
// It takes no other child's end away, whoever started it. To the kernel a child belongs to the thread that started it, and an
// orphan to the first thread; and that one is kept to the main goroutine, which does nothing else. So the program runs in
// another goroutine.
func Main(program func() int) int {
	if os.Getpid() != 1 || unix.Gettid() != 1 {
		return program()
	}
	code := make(chan int, 1)
	go func() { code <- program() }()
	ticks := time.NewTicker(orphanage)
	defer ticks.Stop()
	for {
		select {
		case code := <-code:
			return code
		case <-ticks.C:
			takeOrphans()
		}
	}
}

// takeOrphans takes away the children of this thread that have ended.
func takeOrphans() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WNOTHREAD, nil)
		if pid <= 0 && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
