//go:build linux || windows

package accounts

import (
	"fmt"
	"sync"
	"time"
)

const (
	// elsewhereFor is how long an answer is cached, and how long lookups fail immediately after a
	// timeout.
	elsewhereFor = time.Minute
	askFor       = 5 * time.Second // how long a lookup waits for an answer
	maxFound     = 10_000          // highest number of cached answers
)

// errSilent means that the other sources did not answer. It formats its text only in Error, because
// formatting at startup would be a tenth of the client's work before main.
var errSilent error = silentError{}

type silentError struct{}

// Error returns the message.
func (silentError) Error() string {
	return fmt.Sprintf("the user database outside this machine (such as LDAP) did not answer within %v", askFor)
}

// others caches lookups in sources that may be slow or not answer, such as LDAP. The zero value is
// ready for use. The methods may be called concurrently.
type others[T any] struct {
	mu     sync.Mutex
	found  map[string]*found[T] // lookups by name; guarded by mu
	silent time.Time            // time of the last lookup without an answer; guarded by mu
}

// found is one lookup, finished or in progress.
type found[T any] struct {
	done chan struct{} // closed once the fields said and err are set
	said T
	err  error

	at time.Time // when the lookup finished; zero while it is in progress; guarded by others.mu
}

// ask returns the cached entry, or calls the function in the parameter ask and returns its result.
// Concurrent callers for the same name share one lookup. If a lookup got no answer in the last
// minute, ask returns errSilent unless patient is set.
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
