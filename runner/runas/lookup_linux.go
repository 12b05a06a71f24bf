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

// ErrLookUpHung means that an access to a file or directory that a command names has not returned within
// LookUpTimeout.
var ErrLookUpHung = fmt.Errorf("the disk of a file or directory did not respond within %v", LookUpTimeout)

// maxAbandonedLookUpsPerUser limits the abandoned look-ups of one account: those that have not returned within
// LookUpTimeout. Each of them occupies a thread. maxAbandonedLookUpsTotal limits the abandoned look-ups of all
// accounts together.
const (
	maxAbandonedLookUpsPerUser = 32
	maxAbandonedLookUpsTotal   = 512
)

// abandonedLookUps counts look-ups that have not returned within LookUpTimeout.
type abandonedLookUps struct {
	mu         sync.Mutex
	countByUID map[uint32]int // counts by account; mu guards countByUID and totalCount
	totalCount int
}

// hungLookUps counts the abandoned look-ups of this process.
var hungLookUps = abandonedLookUps{countByUID: map[uint32]int{}}

// checkLookUpAllowed returns the reason why no further look-up may start for an account, or nil.
func (l *abandonedLookUps) checkLookUpAllowed(uid uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.countByUID[uid] >= maxAbandonedLookUpsPerUser:
		return fmt.Errorf("the job's files cannot be opened, because %d earlier file accesses of its account still hang; "+
			"check the network file systems: %w", maxAbandonedLookUpsPerUser, ErrLookUpHung)
	case l.totalCount >= maxAbandonedLookUpsTotal:
		return &ResourceShortageError{Err: fmt.Errorf("the job's files cannot be opened, because %d earlier file accesses "+
			"of jobs still hang; check the network file systems: %w", l.totalCount, ErrLookUpHung)}
	}
	return nil
}

// adjustCount adds delta to the number of abandoned look-ups of the account, and to the total.
func (l *abandonedLookUps) adjustCount(uid uint32, delta int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.totalCount += delta
	if l.countByUID[uid] += delta; l.countByUID[uid] == 0 {
		delete(l.countByUID, uid)
	}
}

// LookUpAs calls lookUp with the rights of an account, and returns its result. A file system of the account may never
// respond. So after LookUpTimeout, LookUpAs returns ErrLookUpHung. If lookUp succeeds after the timeout,
// releaseLateResult gets its result, unless releaseLateResult is nil. If id is nil, LookUpAs simply calls lookUp,
// without a time limit.
func LookUpAs[T any](id *Identity, lookUp func() (T, error), releaseLateResult func(T)) (found T, err error) {
	if id == nil {
		return lookUp()
	}
	if err := hungLookUps.checkLookUpAllowed(id.UID); err != nil {
		return found, err
	}
	type result struct {
		found T
		err   error
	}
	results := make(chan result, 1)
	// Only the kernel can end a call that hangs, so this goroutine may still exist after the timeout.
	go func() {
		var r result
		r.err = callWithIdentity(id, func() (err error) {
			r.found, err = lookUp()
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
	go func() { // this goroutine ends when lookUp returns
		r := <-results
		hungLookUps.adjustCount(id.UID, -1)
		if r.err == nil && releaseLateResult != nil {
			releaseLateResult(r.found)
		}
	}()
	return found, ErrLookUpHung
}

// LookUpInDirAs calls lookUp as LookUpAs does. dirFD is a descriptor that lookUp uses. When lookUp has returned,
// LookUpInDirAs closes dirFD. If lookUp hangs, LookUpInDirAs returns first, and dirFD is closed when lookUp returns.
func LookUpInDirAs[T any](owner *Identity, dirFD int, lookUp func() (T, error)) (found T, err error) {
	var started atomic.Bool
	found, err = LookUpAs(owner, func() (found T, err error) {
		if !started.CompareAndSwap(false, true) {
			return found, ErrLookUpHung
		}
		defer unix.Close(dirFD)
		return lookUp()
	}, nil)
	if started.CompareAndSwap(false, true) {
		unix.Close(dirFD)
	}
	return found, err
}

// ResourceShortageError means that a command could not start because this process lacks a resource: descriptors, a
// child process, kernel memory or a control group. A problem with a file that the command names never causes a
// ResourceShortageError.
type ResourceShortageError struct{ Err error }

// Error returns the message of Err.
func (e *ResourceShortageError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *ResourceShortageError) Unwrap() error { return e.Err }

// ClassifyAccountSwitchError classifies err, the error of a failed switch to another account. If the kernel lacks
// memory, the result is a ResourceShortageError. All other errors are caused by the account, so they are returned
// unchanged.
func ClassifyAccountSwitchError(err error) error {
	if errors.Is(err, unix.ENOMEM) {
		return &ResourceShortageError{Err: err}
	}
	return err
}
