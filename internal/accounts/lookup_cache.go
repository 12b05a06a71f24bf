//go:build linux || windows

package accounts

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// lookupCacheTTL is how long the result of a lookup is cached. It is also how long lookups fail immediately after a
	// timeout.
	lookupCacheTTL   = time.Minute
	lookupTimeout    = 5 * time.Second // how long a lookup waits for an answer
	maxCachedLookups = 10_000          // highest number of cached answers
)

// errLookupTimeout means that a source outside this machine did not answer within lookupTimeout. Its text is
// formatted when Error is called, not at each start of the program.
var errLookupTimeout error = lookupTimeoutError{}

type lookupTimeoutError struct{}

// Error returns the message.
func (lookupTimeoutError) Error() string {
	return fmt.Sprintf("the user database outside this machine (such as LDAP) did not answer within %v", lookupTimeout)
}

// lookupCache caches lookups in sources that may be slow or not respond, such as LDAP. The zero value is ready for use.
// The methods may be called concurrently.
type lookupCache[T any] struct {
	mu            sync.Mutex
	lookupsByName map[string]*cachedLookup[T] // lookups by name; guarded by mu
	lastTimeoutAt time.Time                   // time of the last errLookupTimeout; guarded by mu
}

// cachedLookup is the finished or running query for one name.
type cachedLookup[T any] struct {
	done   chan struct{} // closed once result and err are set
	result T
	err    error

	finishedAt time.Time // when the lookup finished; zero while it is in progress; guarded by lookupCache.mu
}

// getOrQuery returns the cached entry for a name. If the cache has none, it calls query and returns the result.
// Concurrent callers for the same name share one call of query.
//
// After query has returned errLookupTimeout for any name, get returns this error for a minute instead of calling query,
// unless alwaysQuery is set. get does not cache other errors.
func (o *lookupCache[T]) getOrQuery(name string, alwaysQuery bool, query func() (T, error)) (T, error) {
	o.mu.Lock()
	f, known := o.lookupsByName[name]
	if known && (f.finishedAt.IsZero() || time.Since(f.finishedAt) < lookupCacheTTL) {
		o.mu.Unlock()
		<-f.done
		return f.result, f.err
	}
	if !alwaysQuery && !o.lastTimeoutAt.IsZero() && time.Since(o.lastTimeoutAt) < lookupCacheTTL {
		o.mu.Unlock()
		return *new(T), errLookupTimeout
	}
	if o.lookupsByName == nil || len(o.lookupsByName) >= maxCachedLookups {
		o.lookupsByName = map[string]*cachedLookup[T]{}
	}
	f = &cachedLookup[T]{done: make(chan struct{})}
	o.lookupsByName[name] = f
	o.mu.Unlock()
	f.result, f.err = query()
	o.mu.Lock()
	defer o.mu.Unlock()
	f.finishedAt = time.Now()
	if f.err != nil {
		delete(o.lookupsByName, name)
	}
	if errors.Is(f.err, errLookupTimeout) {
		o.lastTimeoutAt = f.finishedAt
	}
	close(f.done)
	return f.result, f.err
}

// clear empties the cache.
func (o *lookupCache[T]) clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lookupsByName = nil
}

// DropCache drops the cached answers, so that the next lookups query the sources again.
func (d *Resolver) DropCache() { d.remoteLookupCache.clear() }
