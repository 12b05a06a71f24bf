//go:build linux || windows

package accounts

import (
	"fmt"
	"sync"
	"time"
)

const (
	elsewhereFor = time.Minute     // holds what other sources have said
	askFor       = 5 * time.Second // bounds their answer
	maxFound     = 10_000          // bounds what is remembered of them
)

// errSilent says that no other source has answered. Its text is made when it is asked for,
// as making it would be a tenth of what the client does before main.
var errSilent error = silentError{}

type silentError struct{}

// Error says how long they had.
func (silentError) Error() string {
	return fmt.Sprintf("the user database outside this machine (such as LDAP) did not answer within %v", askFor)
}

// others are sources of accounts that may be slow, or not answer, and what they have
// said. The zero value is ready, and its methods may be called at once.
type others[T any] struct {
	mu     sync.Mutex
	found  map[string]*found[T] // guarded by mu
	silent time.Time            // when somebody last did not answer; guarded by mu
}

// found is what another source has said.
type found[T any] struct {
	done chan struct{} // closed once there are:
	said T
	err  error

	at time.Time // guarded by the mu of others; zero until it is done
}

// ask asks for one entry. Who asks for the same meanwhile gets the same answer, and who
// is not patient gets none for a minute after somebody was not answered.
func (o *others[T]) ask(name string, patient bool, ask func() (T, error)) (T, error) {
	o.mu.Lock()
	f, known := o.found[name]
	if known && (f.at.IsZero() || time.Since(f.at) < elsewhereFor) {
		o.mu.Unlock()
		<-f.done
		return f.said, f.err
	}
	if !patient && !o.silent.IsZero() && time.Since(o.silent) < elsewhereFor {
		o.mu.Unlock()
		return *new(T), errSilent
	}
	if o.found == nil || len(o.found) >= maxFound {
		o.found = map[string]*found[T]{}
	}
	f = &found[T]{done: make(chan struct{})}
	o.found[name] = f
	o.mu.Unlock()
	f.said, f.err = ask()
	o.mu.Lock()
	defer o.mu.Unlock()
	f.at = time.Now()
	if f.err != nil {
		o.silent = f.at
		delete(o.found, name)
	}
	close(f.done)
	return f.said, f.err
}
