package brokeruser

import (
	"sync"
	"time"

	"redrive.dev/redrive/internal/topology"
)

// grants remember the rights that the operator gave to users, so that rights are taken back only after workers have had the time to
// learn of it. An operator that starts anew remembers nothing and takes them back at once. It is safe for concurrent use.
type grants struct {
	mu  sync.Mutex
	all map[string]grant
}

// grant is what one user may do, and since when it needs less; zero where it needs all.
type grant struct {
	rights topology.Rights
	less   time.Time
}

// waits is true where rights that were granted are more than is wanted, and are to stay for now. What somebody else granted is not.
func (g *grants) waits(user string, found, wanted topology.Rights, queues []string, now time.Time, grace time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := g.all[user]
	if found == wanted || known.rights != found || !found.Suffice(wanted, queues) {
		known.less = time.Time{}
		g.all[user] = known
		return false
	}
	if known.less.IsZero() {
		known.less = now
		g.all[user] = known
	}
	return now.Sub(known.less) < grace
}

// note remembers what a user was granted.
func (g *grants) note(user string, rights topology.Rights) {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := g.all[user]
	known.rights = rights
	g.all[user] = known
}

func (g *grants) forget(user string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.all, user)
}
