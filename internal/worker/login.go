package worker

import (
	"context"
	"fmt"
	"sync"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/credentials"
)

// Login is the broker's address and login as the files of a folder have them, such as those of a mounted Secret.
type Login struct {
	dir   string
	vhost string

	mu sync.Mutex
	// good is what was last read and could be used; nil where nothing ever was.
	good *credentials.Credentials
}

// NewLogin reads a folder. vhost is that of the spec; empty where the folder's holds. What cannot be read yet may come later.
func NewLogin(dir, vhost string) *Login {
	l := &Login{dir: dir, vhost: vhost}
	_, _ = l.read()
	return l
}

// Target is the amqp.Source of the worker's sessions. It reads the folder anew. What cannot be used takes nothing away: the
// target stays what it was, so that a Secret that was deleted or spoilt does not keep a worker from the broker.
func (l *Login) Target() (amqp.Target, error) {
	_, err := l.read()
	good := l.last()
	if good == nil {
		return amqp.Target{}, err
	}
	return amqp.TargetOf(*good, l.vhost)
}

// read returns what the folder has now.
func (l *Login) read() (*credentials.Credentials, error) {
	found, err := credentials.FromFiles(l.dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l.dir, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.good = &found
	return &found, nil
}

func (l *Login) last() *credentials.Credentials {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.good
}

// Renew moves the worker over to what its source gives now, without giving a message back: new sessions begin, and those
// that stand finish what they have. Where the broker refuses the new ones, those that stand go on, and it is tried again.
func (w *Worker) Renew() {
	w.consumer.Renew()
	w.publisher.Renew()
}

// FollowLogin renews the worker when the folder's content changes, until ctx ends. What cannot be used is logged once.
func (w *Worker) FollowLogin(ctx context.Context, l *Login) {
	seen, refused := l.last(), ""
	w.followFolder(ctx, l.dir, func() {
		found, err := l.read()
		if err != nil {
			if err.Error() != refused {
				w.options.Log.Error("the broker's credentials cannot be used; those before stay in use", "error", err)
			}
			refused = err.Error()
			return
		}
		refused = ""
		if seen != nil && found.Equal(*seen) {
			return
		}
		seen = found
		w.options.Log.Info("the broker's credentials have changed", "address", found.Address())
		w.Renew()
	})
}
