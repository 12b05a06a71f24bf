package process

import (
	"fmt"
	"sync/atomic"
	"time"
)

// errHung says that what a command names does not answer.
var errHung = fmt.Errorf("it took longer than %v to find: the disk that it is on does not answer", StartWithin)

// maxLate bounds the look-ups that were given up and have not returned: each keeps a thread.
const maxLate = 64

// late counts them.
var late atomic.Int64

// lookUp calls f, which looks at what a command names, with the rights of the command's
// account, for StartWithin at most: a disk of the account's may never answer. What f finds
// later is given back. For this process's own account it just calls f.
func lookUp[T any](id *Identity, f func() (T, error), giveBack func(T)) (found T, err error) {
	if id == nil {
		return f()
	}
	if late.Load() >= maxLate {
		return found, fmt.Errorf("%w, and neither do %d others", errHung, maxLate)
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
			late.Add(-1)
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
		late.Add(1)
		close(givenUp)
		return found, errHung
	}
}
