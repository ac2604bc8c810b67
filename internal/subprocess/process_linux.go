package subprocess

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// longestBusy is the longest pause before a file that is being written is tried again.
const longestBusy = 64 * time.Millisecond

// system is what Linux keeps of a process.
type system struct {
	// pidfd becomes readable when the process ends, so that waiting takes no thread; -1 where the kernel has none (before 5.4, and
	// some sandboxes).
	pidfd int
}

func startSystem(path string, c Command, files [3]*os.File) (pid int, _ system, err error) {
	pid, s, err := fork(path, c, [3]uintptr{files[0].Fd(), files[1].Fd(), files[2].Fd()})
	runtime.KeepAlive(files)
	return pid, s, err
}

// fork starts a program. The kernel watches the thread that does it: when that ends, it kills the program. Go ends a thread
// only when a goroutine ends that has locked itself to it, and nothing here does so; a test keeps watch.
func fork(path string, c Command, files [3]uintptr) (pid int, _ system, err error) {
	pidfd := -1 // and so it stays where the kernel has none
	attributes := syscall.ProcAttr{
		Dir:   c.Dir,
		Env:   c.Env,
		Files: files[:],
		Sys:   &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, PidFD: &pidfd},
	}
	if c.Env == nil {
		attributes.Env = os.Environ()
	}
	for pause := time.Millisecond; ; pause *= 2 {
		pid, err = syscall.ForkExec(path, c.Args, &attributes) //nolint:gosec // it is the command that was configured
		// A process that is just being started elsewhere may have the file open for writing, by inheritance, until it is.
		if !errors.Is(err, syscall.ETXTBSY) || pause > longestBusy {
			break
		}
		time.Sleep(pause)
	}
	if err != nil {
		return 0, system{}, err //nolint:wrapcheck // the caller explains it
	}
	return pid, system{pidfd}, nil
}

// await waits until the process has ended, and leaves it in the table.
func (s system) await(pid int) {
	if s.pidfd < 0 || !awaitReadable(s.pidfd) {
		awaitPid(pid)
	}
}

// awaitReadable waits without a thread; false says that it could not.
func awaitReadable(pidfd int) bool {
	own, err := unix.FcntlInt(uintptr(pidfd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return false
	}
	err = unix.SetNonblock(own, true) // makes Go wait for the file with all others
	file := os.NewFile(uintptr(own), "pidfd")
	defer func() { _ = file.Close() }() // nothing is written to it
	if err != nil {
		return false
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return false
	}
	ended := false
	err = raw.Read(func(fd uintptr) bool {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PIDFD, int(fd), &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		ended = err == nil && info.Signo != 0
		return ended || err != nil && !errors.Is(err, unix.EINTR)
	})
	return err == nil && ended
}

// awaitPid waits with a thread of its own.
func awaitPid(pid int) {
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// ended returns a descriptor that becomes readable, or hangs up, when the process has ended. free is to be called when nobody
// looks at it any more.
func (p *Process) ended() (fd int, free func(), err error) {
	if p.system.pidfd >= 0 {
		return p.system.pidfd, func() {}, nil
	}
	var pair [2]int
	if err := unix.Pipe2(pair[:], unix.O_CLOEXEC); err != nil {
		return -1, nil, err //nolint:wrapcheck // the caller explains it
	}
	go func() {
		awaitPid(p.pid)
		_ = unix.Close(pair[1])
	}()
	return pair[0], func() { _ = unix.Close(pair[0]) }, nil
}

// reap takes an ended process out of the table.
func (s system) reap(pid int) Exit {
	if s.pidfd >= 0 {
		_ = unix.Close(s.pidfd) // nothing is written to it
	}
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(pid, &status, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil { // somebody in this process took it away
			return Exit{Code: -1}
		}
		return exitOf(status)
	}
}
