package process

import (
	"fmt"
	"sync"
	"time"
)

// errHung means that a file or directory that a command names does not answer.
var errHung error = hungError{}

type hungError struct{}

// Error returns the limit of the search.
func (hungError) Error() string {
	return fmt.Sprintf("the lookup of this file or directory took longer than %v, because its disk does not respond",
		StartWithin)
}

// maxLate limits the look-ups of one account that were given up but have not returned. Each of them
// occupies a thread. maxLateOfAll limits those of all accounts together.
const (
	maxLate      = 32
	maxLateOfAll = 512
)

// lateLookUps counts look-ups that were given up but have not returned.
type lateLookUps struct {
	mu  sync.Mutex
	of  map[uint32]int // by uid; mu guards of and all
	all int
}

var lateOnes = lateLookUps{of: map[uint32]int{}}

// full returns the reason why an account may not start a look-up, or nil.
func (l *lateLookUps) full(uid uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.of[uid] >= maxLate:
		return fmt.Errorf("%w; %d other lookups of this account are still waiting", errHung, maxLate)
	case l.all >= maxLateOfAll:
		return &shortageError{fmt.Errorf("the lookup was not started, because %d other lookups are still waiting (%w)", l.all, errHung)}
	}
	return nil
}

// add changes the counts by n.
func (l *lateLookUps) add(uid uint32, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all += n
	if l.of[uid] += n; l.of[uid] == 0 {
		delete(l.of, uid)
	}
}

// lookUp calls f with the rights of the command's account, and waits for at most StartWithin: a file
// system of the account may never answer. If f returns later, its result is passed to giveBack. If id
// is nil, lookUp calls f directly and without a time limit.
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
	go func() { // only the kernel can end the call, so nothing waits for a goroutine that was given up
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
