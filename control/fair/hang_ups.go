package fair

import (
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"
)

// hangUpCheckInterval is the time between two checks for clients that have hung up while their connections wait for
// room.
const hangUpCheckInterval = 500 * time.Millisecond

// hangUpWatch finds clients that have hung up while their connections wait for room. The server does not read from a
// waiting connection, so without hangUpWatch it would not notice that the client has closed the connection.
type hangUpWatch struct {
	mu             sync.Mutex
	waitingConns   map[*Conn]bool // guarded by mu
	checkScheduled bool           // checkHangUps is running, or a timer will call it; guarded by mu
}

// add starts to watch a connection that waits for room.
func (w *hangUpWatch) add(c *Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waitingConns == nil {
		w.waitingConns = map[*Conn]bool{}
	}
	w.waitingConns[c] = true
	w.scheduleCheckLocked()
}

// remove stops watching a connection.
func (w *hangUpWatch) remove(c *Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waitingConns, c)
}

// scheduleCheckLocked schedules a call of checkHangUps. If a call is already scheduled or running, it does nothing.
func (w *hangUpWatch) scheduleCheckLocked() {
	if !w.checkScheduled {
		w.checkScheduled = true
		time.AfterFunc(hangUpCheckInterval, w.checkHangUps)
	}
}

// checkHangUps checks all watched connections. A user may close hundreds of connections together. Cancelling the
// requests of all these connections in a row would delay other users, so checkHangUps lets other goroutines run after
// each closed connection.
func (w *hangUpWatch) checkHangUps() {
	w.mu.Lock()
	waiting := slices.Collect(maps.Keys(w.waitingConns))
	w.mu.Unlock()
	for _, c := range waiting {
		if c.cancelIfHungUp() {
			runtime.Gosched()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.checkScheduled = false; len(w.waitingConns) > 0 {
		w.scheduleCheckLocked()
	}
}
