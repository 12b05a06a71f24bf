package runas

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// LookUpTimeout limits how long a caller waits for a look-up, which is a call that accesses files of a
// user.
const LookUpTimeout = time.Second

// ErrHung means that a file or directory that a command names does not answer within LookUpTimeout.
var ErrHung error = hungError{}

// hungError is the type of ErrHung.
type hungError struct{}

// Error returns the message.
func (hungError) Error() string {
	return fmt.Sprintf("the disk of a file or directory did not respond within %v", LookUpTimeout)
}

// maxAbandonedPerUser limits the abandoned look-ups of one account: those that have not returned although
// their timeout has passed. Each of them occupies a thread. maxAbandonedTotal limits the abandoned look-ups
// of all accounts together.
const (
	maxAbandonedPerUser = 32
	maxAbandonedTotal   = 512
)

// abandonedLookUps counts look-ups that have not returned although their timeout has passed.
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

// LookUp calls f with the rights of an account. It waits for at most LookUpTimeout and then returns ErrHung, because
// a file system of the account may never answer. If f returns later, its result is passed to the function release.
// If no account is given (id is nil), LookUp calls f directly and without a time limit.
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
	// Only the kernel can end a call that hangs, so LookUp does not wait for this goroutine after the timeout.
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
	go func() { // this goroutine ends when the one above does
		r := <-results
		hungLookUps.adjustCount(id.UID, -1)
		if r.err == nil && release != nil {
			release(r.found)
		}
	}()
	return found, ErrHung
}

// LookUpAt calls f as LookUp does. When f has returned, it closes dirFD, the descriptor that f uses. If f
// hangs, the descriptor stays open after LookUpAt has returned.
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

// ShortageError means that the start of a command failed because this process lacks a resource:
// descriptors, a child process, kernel memory or a control group. An error about a file that the command
// names is never a ShortageError.
type ShortageError struct{ Err error }

// Error returns the reason.
func (e *ShortageError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *ShortageError) Unwrap() error { return e.Err }

// ClassifySwitchError converts an error of switching to an account. For a lack of kernel memory, it returns a
// ShortageError. It returns every other error unchanged, because the account is its cause.
func ClassifySwitchError(err error) error {
	if errors.Is(err, unix.ENOMEM) {
		return &ShortageError{Err: err}
	}
	return err
}
