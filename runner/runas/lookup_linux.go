package runas

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// LookUpTimeout limits how long a caller waits for a look-up, that is, for an access to a user's files.
const LookUpTimeout = time.Second

// ErrHung means that an access to a file or directory that a command names has not returned within
// LookUpTimeout.
var ErrHung error = hungError{}

// hungError is the type of ErrHung.
type hungError struct{}

// Error returns the message.
func (hungError) Error() string {
	return fmt.Sprintf("the disk of a file or directory did not respond within %v", LookUpTimeout)
}

// maxAbandonedPerUser limits the abandoned look-ups of one account: those that have not returned within
// LookUpTimeout. Each of them occupies a thread. maxAbandonedTotal limits the abandoned look-ups of all
// accounts together.
const (
	maxAbandonedPerUser = 32
	maxAbandonedTotal   = 512
)

// abandonedLookUps counts look-ups that have not returned within LookUpTimeout.
type abandonedLookUps struct {
	mu         sync.Mutex
	countByUID map[uint32]int // counts by account; mu guards countByUID and totalCount
	totalCount int
}

// hungLookUps counts the abandoned look-ups of this process.
var hungLookUps = abandonedLookUps{countByUID: map[uint32]int{}}

// limitError returns the reason why no further look-up may start for an account, or nil.
func (l *abandonedLookUps) limitError(uid uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.countByUID[uid] >= maxAbandonedPerUser:
		return fmt.Errorf("the job's files cannot be opened, because %d earlier file accesses of its account still hang; "+
			"check the network file systems: %w", maxAbandonedPerUser, ErrHung)
	case l.totalCount >= maxAbandonedTotal:
		return &ShortageError{Err: fmt.Errorf("the job's files cannot be opened, because %d earlier file accesses of "+
			"jobs still hang; check the network file systems: %w", l.totalCount, ErrHung)}
	}
	return nil
}

// adjustCount changes the account's count and the total by n.
func (l *abandonedLookUps) adjustCount(uid uint32, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.totalCount += n
	if l.countByUID[uid] += n; l.countByUID[uid] == 0 {
		delete(l.countByUID, uid)
	}
}

// LookUp calls f with the rights of an account, and returns its result. A file system of the account may
// never respond. So after LookUpTimeout, LookUp returns ErrHung. If f returns a result later, the result is
// passed to release. If id is nil, LookUp simply calls f, without a time limit.
func LookUp[T any](id *Identity, f func() (T, error), release func(T)) (found T, err error) {
	if id == nil {
		return f()
	}
	if err := hungLookUps.limitError(id.UID); err != nil {
		return found, err
	}
	type result struct {
		found T
		err   error
	}
	results := make(chan result, 1)
	// Only the kernel can end a call that hangs, so this goroutine may stay after the timeout.
	go func() {
		var r result
		r.err = withIdentity(id, func() (err error) {
			r.found, err = f()
			return err
		})
		results <- r
	}()
	select {
	case r := <-results:
		return r.found, r.err
	case <-time.After(LookUpTimeout):
	}
	hungLookUps.adjustCount(id.UID, 1)
	go func() { // this goroutine ends when the call of f returns
		r := <-results
		hungLookUps.adjustCount(id.UID, -1)
		if r.err == nil && release != nil {
			release(r.found)
		}
	}()
	return found, ErrHung
}

// LookUpAt calls f as LookUp does. It closes dirFD, a descriptor that f uses, when f has returned. If f
// hangs, LookUpAt returns before that.
func LookUpAt[T any](owner *Identity, dirFD int, f func() (T, error)) (found T, err error) {
	var started atomic.Bool
	found, err = LookUp(owner, func() (found T, err error) {
		if !started.CompareAndSwap(false, true) {
			return found, ErrHung
		}
		defer unix.Close(dirFD)
		return f()
	}, nil)
	if started.CompareAndSwap(false, true) {
		unix.Close(dirFD)
	}
	return found, err
}

// ShortageError means that a command could not start because this process lacks a resource: descriptors, a
// child process, kernel memory or a control group. An error about a file that the command names is never a
// ShortageError.
type ShortageError struct{ Err error }

// Error returns the reason.
func (e *ShortageError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *ShortageError) Unwrap() error { return e.Err }

// ClassifySwitchError returns an error of switching to an account. It turns a lack of kernel memory into a
// ShortageError. All other errors are caused by the account, so it returns them unchanged.
func ClassifySwitchError(err error) error {
	if errors.Is(err, unix.ENOMEM) {
		return &ShortageError{Err: err}
	}
	return err
}
