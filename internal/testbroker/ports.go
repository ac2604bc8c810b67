package testbroker

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// ports of a node stand side by side. While the node lives this process holds a lock on them, so that no two brokers of this machine
// ever choose the same ones, whoever starts them.
type ports struct {
	lock *os.File

	amqp, management             int
	secureAMQP, secureManagement int
	distribution, epmd           int
}

// The ports of a broker are below those that systems give to outgoing connections, which come and go in the seconds until it listens.
const firstPort, lastPort, portsOfABroker = 15_000, 29_999, 6

// reservePorts finds ports that no other broker has and nobody listens on. Another program may listen on one before the broker does.
func reservePorts() (*ports, error) {
	folder := filepath.Join(os.TempDir(), fmt.Sprintf("redrive-ports-%d", os.Getuid()))
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("folder of the locks on ports: %w", err)
	}
	for tries := 1; ; tries++ {
		const blocks = (lastPort - firstPort + 1) / portsOfABroker
		first := firstPort + portsOfABroker*rand.IntN(blocks) //nolint:gosec // it guards nothing
		lock, err := lockPorts(folder, first)
		if err == nil {
			p := &ports{
				lock: lock, amqp: first, management: first + 1, secureAMQP: first + 2, secureManagement: first + 3,
				distribution: first + 4, epmd: first + 5,
			}
			if err = p.free(); err == nil {
				return p, nil
			}
			err = errors.Join(err, p.release())
		}
		if tries == 1000 {
			return nil, fmt.Errorf("find free ports: %w", err)
		}
	}
}

// onPorts tries to start nodes on ports. Where that fails and another program, which came before them, listens on one, it tries again on
// others.
func onPorts(log io.Writer, nodes int, reserve func() (*ports, error), try func([]*ports) error) error {
	const most = 5
	for tries := 1; ; tries++ {
		all := make([]*ports, nodes)
		for i := range all {
			reserved, err := reserve()
			if err != nil {
				return err
			}
			all[i] = reserved
		}
		err := try(all)
		if err == nil {
			return nil
		}
		var taken error
		for _, reserved := range all {
			taken = errors.Join(taken, reserved.free())
		}
		if taken == nil || tries == most {
			return err
		}
		_, _ = fmt.Fprintf(log, "RabbitMQ is started again, on other ports: %v, and it has said: %v\n", taken, err)
	}
}

// lockPorts locks a broker's ports, from the first one on.
func lockPorts(folder string, first int) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(folder, strconv.Itoa(first)), os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // a folder of ours
	if err != nil {
		return nil, fmt.Errorf("lock on ports: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another broker has the ports from %d on: %w", first, err), lock.Close())
	}
	return lock, nil
}

// FreeAddress is one on loopback that nobody listens on at the moment.
func FreeAddress() (string, error) {
	listener, err := net.Listen("tcp", loopback(0)) //nolint:noctx // closed at once
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String(), nil
}

// free is an error where somebody listens on one of the ports.
func (p *ports) free() error {
	for port := p.amqp; port < p.amqp+portsOfABroker; port++ {
		listener, err := net.Listen("tcp", loopback(port)) //nolint:noctx // closed at once
		if err != nil {
			return fmt.Errorf("another program has a port: %w", err)
		}
		_ = listener.Close()
	}
	return nil
}

// release gives the ports to others. The file stays: whoever waits for a lock on a file that is gone would hold nothing.
func (p *ports) release() error {
	if err := p.lock.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("give up the lock on ports: %w", err)
	}
	return nil
}
