package fair

import (
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"
)

// roomHangUpInterval is the interval at which the server checks whether clients whose requests wait
// for room are still connected.
const roomHangUpInterval = 500 * time.Millisecond

// hangUpWatch checks whether the clients whose connections wait for room are still connected. The
// server does not read such a connection, so nothing else would notice that its client has hung up.
type hangUpWatch struct {
	mu        sync.Mutex
	conns     map[*Conn]bool // guarded by mu
	scheduled bool           // checkHangUps is running, or a timer will call it; guarded by mu
}

// add adds a connection that waits for room.
func (w *hangUpWatch) add(c *Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns == nil {
		w.conns = map[*Conn]bool{}
	}
	w.conns[c] = true
	w.scheduleLocked()
}

// remove removes a connection that no longer waits.
func (w *hangUpWatch) remove(c *Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
}

// scheduleLocked schedules a call of checkHangUps, unless one is already scheduled or running.
func (w *hangUpWatch) scheduleLocked() {
	if !w.scheduled {
		w.scheduled = true
		time.AfterFunc(roomHangUpInterval, w.checkHangUps)
	}
}

// checkHangUps checks all connections. After each client that has gone, it lets other goroutines run. A
// user may close hundreds of connections together, and ending them all would delay everyone else's
// requests.
func (w *hangUpWatch) checkHangUps() {
	w.mu.Lock()
	waiting := slices.Collect(maps.Keys(w.conns))
	w.mu.Unlock()
	for _, c := range waiting {
		if c.cancelIfHungUp() {
			runtime.Gosched()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.scheduled = false; len(w.conns) > 0 {
		w.scheduleLocked()
	}
}
