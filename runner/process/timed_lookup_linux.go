package process

import (
	"fmt"
	"sync"
	"time"
)

// errHung means that a file or directory that a command names does not answer.
var errHung error = hungError{}

type hungError struct{}

// Error says how long the look-up was given.
func (hungError) Error() string {
	return fmt.Sprintf("the disk of a file or directory did not respond within %v", StartWithin)
}

// maxAbandoned limits the look-ups of one account that were given up but have not returned. Each of
// them occupies a thread. maxAbandonedTotal limits those of all accounts together.
const (
	maxAbandoned      = 32
	maxAbandonedTotal = 512
)

// abandonedLookUps counts look-ups that were given up but have not returned.
type abandonedLookUps struct {
	mu    sync.Mutex
	byUID map[uint32]int // counts by account; mu guards byUID and total
	total int
}

var abandoned = abandonedLookUps{byUID: map[uint32]int{}}

// full returns the reason why an account may not start a look-up, or nil.
func (l *abandonedLookUps) full(uid uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.byUID[uid] >= maxAbandoned:
		return fmt.Errorf("no more files of this account are looked up, because %d lookups still wait (%w)", maxAbandoned,
			errHung)
	case l.total >= maxAbandonedTotal:
		return &shortageError{fmt.Errorf("no more files are looked up, because %d lookups still wait (%w)", l.total, errHung)}
	}
	return nil
}

// add changes the account's count and the total by n.
func (l *abandonedLookUps) add(uid uint32, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total += n
	if l.byUID[uid] += n; l.byUID[uid] == 0 {
		delete(l.byUID, uid)
	}
}

// lookUp calls f with the rights of the command's account, and waits for at most StartWithin: a file
// system of the account may never answer. If f returns later, lookUp passes its result to the function
// release. If id is nil, lookUp calls f directly and without a time limit.
func lookUp[T any](id *Identity, f func() (T, error), release func(T)) (found T, err error) {
	if id == nil {
		return f()
	}
	if err := abandoned.full(id.UID); err != nil {
		return found, err
	}
	type result struct {
		found T
		err   error
	}
	results, timedOut := make(chan result), make(chan struct{})
	go func() { // only the kernel can end the call, so nothing waits for a goroutine that was given up
		var r result
		r.err = withIdentity(id, func() (err error) {
			r.found, err = f()
			return err
		})
		select {
		case results <- r:
		case <-timedOut:
			abandoned.add(id.UID, -1)
			if r.err == nil && release != nil {
				release(r.found)
			}
		}
	}()
	timer := time.NewTimer(StartWithin)
	defer timer.Stop()
	select {
	case r := <-results:
		return r.found, r.err
	case <-timer.C:
		abandoned.add(id.UID, 1)
		close(timedOut)
		return found, errHung
	}
}
