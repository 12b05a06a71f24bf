package process

import (
	"fmt"
	"sync"
	"time"
)

// errHung says that what a command names does not answer.
var errHung error = hungError{}

type hungError struct{}

// Error says how long it was looked for.
func (hungError) Error() string {
	return fmt.Sprintf("the search for this file or directory took longer than %v, because its disk does not answer",
		StartWithin)
}

// maxLate bounds the look-ups of an account that were given up and have not returned: each
// keeps a thread. maxLateOfAll bounds those of all accounts.
const (
	maxLate      = 32
	maxLateOfAll = 512
)

// lateLookUps counts them.
type lateLookUps struct {
	mu  sync.Mutex
	of  map[uint32]int // by uid; guarded by mu, as is:
	all int
}

var lateOnes = lateLookUps{of: map[uint32]int{}}

// full says why an account's look-up is not begun, nil if it is.
func (l *lateLookUps) full(uid uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.of[uid] >= maxLate:
		return fmt.Errorf("%w; %d other searches of this account are still waiting", errHung, maxLate)
	case l.all >= maxLateOfAll:
		return &shortageError{fmt.Errorf("the search was not started, because %d other searches are still waiting (%w)", l.all, errHung)}
	}
	return nil
}

// add counts n more, or less.
func (l *lateLookUps) add(uid uint32, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all += n
	if l.of[uid] += n; l.of[uid] == 0 {
		delete(l.of, uid)
	}
}

// lookUp calls f, which looks at what a command names, with the rights of the command's
// account, for StartWithin at most: a disk of the account's may never answer. What f finds
// later is given back. For this process's own account it just calls f.
func lookUp[T any](id *Identity, f func() (T, error), giveBack func(T)) (found T, err error) {
	if id == nil {
		return f()
	}
	if err := lateOnes.full(id.UID); err != nil {
		return found, err
	}
	type result struct {
		found T
		err   error
	}
	results, givenUp := make(chan result), make(chan struct{})
	go func() { // the kernel alone can end it, so nothing waits for it once it is given up
		var r result
		r.err = as(id, func() (err error) {
			r.found, err = f()
			return err
		})
		select {
		case results <- r:
		case <-givenUp:
			lateOnes.add(id.UID, -1)
			if r.err == nil && giveBack != nil {
				giveBack(r.found)
			}
		}
	}()
	timer := time.NewTimer(StartWithin)
	defer timer.Stop()
	select {
	case r := <-results:
		return r.found, r.err
	case <-timer.C:
		lateOnes.add(id.UID, 1)
		close(givenUp)
		return found, errHung
	}
}
