// Package fair bounds what each user has in use at a time and lets users take turns, so that no
// user keeps the others waiting. Start with Limiter.
package fair

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Limiter bounds amounts that are in use, for each user and for all users together. A request that
// has no room waits. When room is freed, users that wait get it round robin. The requests of one
// user get it in the order of their arrival, except that a request without room does not delay
// those after it. Only requests that get room are woken.
//
// For example, user A has 100 reads waiting and user B sends one. When a read ends, A and B
// alternate, so B waits for one read of A and not for 100.
//
// A Limiter must be created by New. Its methods are safe for concurrent use.
type Limiter struct {
	bounds []Bound
	all    []int // indexes of all bounds

	mu      sync.Mutex
	shared  []int64       // by bound: the amount that all users have in use; guarded by mu, like the fields below
	users   map[int]*user // users that use or wait for something
	waiting []*user       // users with waiting requests, in the order in which they are served
}

// Bound is a limit on an amount in use.
type Bound struct {
	Max    int64
	Shared bool // Max is for all users together; otherwise it is for each user
}

// Request asks for room. Its zero value asks for an amount of 1 within all bounds, for user 0.
type Request struct {
	User     int       // uid, or the number of whatever else has its own bounds and turns
	Bounds   []int     // indexes of the bounds that the amount counts towards; nil means all
	Amount   int64     // 0 means 1
	Deadline time.Time // when the request stops waiting; zero means never
	// Ready is a further condition for getting room; nil means none. If its result may have changed,
	// call Dispatch. It must not use the Limiter.
	Ready func() bool
}

// ErrDeadline means that a request did not get room before its deadline.
var ErrDeadline = errors.New("no room before the deadline")

// user holds what a user uses and waits for.
type user struct {
	id      int
	inUse   []int64 // by bound
	waiting []*waiter
}

// waiter is a request that waits.
type waiter struct {
	Request
	grant func() // called with the Limiter's mu held once the request has its room
}

// New returns a Limiter with the given bounds.
func New(bounds ...Bound) *Limiter {
	l := &Limiter{bounds: bounds, shared: make([]int64, len(bounds)), users: map[int]*user{}}
	for i := range bounds {
		l.all = append(l.all, i)
	}
	return l
}

// Acquire waits for room. It returns ErrDeadline, or the error of ctx, if it has stopped waiting.
// Otherwise the caller must return the room with Release.
func (l *Limiter) Acquire(ctx context.Context, r Request) error {
	l.mu.Lock()
	u := l.userLocked(r.User)
	if l.takeLocked(u, &r) {
		l.mu.Unlock()
		return nil
	}
	granted := make(chan struct{})
	w := &waiter{r, func() { close(granted) }}
	l.enqueueLocked(u, w)
	l.mu.Unlock()
	var expired <-chan time.Time
	if !r.Deadline.IsZero() {
		timer := time.NewTimer(time.Until(r.Deadline))
		defer timer.Stop()
		expired = timer.C
	}
	err := ErrDeadline
	select {
	case <-granted:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-expired:
	}
	if l.withdraw(w) {
		return err
	}
	return nil // the request got its room in the meantime
}

// TryAcquire is like Acquire, but does not wait. It reports whether the request got room.
func (l *Limiter) TryAcquire(r Request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.userLocked(r.User)
	defer l.forgetIfIdleLocked(u)
	return l.takeLocked(u, &r)
}

// Start is like Acquire, but does not wait. It calls start when the request has room, unless ctx
// ends before. The function start must not block or use the Limiter. The deadline of r does not
// apply.
func (l *Limiter) Start(ctx context.Context, r Request, start func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.userLocked(r.User)
	if l.takeLocked(u, &r) {
		start()
		return
	}
	w := &waiter{Request: r}
	stop := context.AfterFunc(ctx, func() { l.withdraw(w) })
	w.grant = func() {
		stop()
		start()
	}
	l.enqueueLocked(u, w)
}

// Release returns the room of a request.
func (l *Limiter) Release(r Request) {
	r.Amount = -cmp.Or(r.Amount, 1)
	l.Add(r)
}

// Add adds an amount without waiting, even if that exceeds a bound. A negative amount frees room.
func (l *Limiter) Add(r Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.userLocked(r.User)
	l.addLocked(u, &r)
	if r.Amount < 0 {
		l.dispatchLocked()
	}
	l.forgetIfIdleLocked(u)
}

// InUse returns the amount that a user has in use within a bound.
func (l *Limiter) InUse(id, bound int) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if u := l.users[id]; u != nil {
		return u.inUse[bound]
	}
	return 0
}

// Waiting returns the number of a user's requests that wait.
func (l *Limiter) Waiting(id int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if u := l.users[id]; u != nil {
		return len(u.waiting)
	}
	return 0
}

// Dispatch gives room to waiting requests whose Ready returns true now.
func (l *Limiter) Dispatch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dispatchLocked()
}

// dispatchLocked gives free room to waiting users round robin.
func (l *Limiter) dispatchLocked() {
	for i := 0; i < len(l.waiting); {
		u := l.waiting[i]
		next := slices.IndexFunc(u.waiting, func(w *waiter) bool { return l.takeLocked(u, &w.Request) })
		if next < 0 {
			i++ // giving room to other users does not make room for this one
			continue
		}
		u.waiting[next].grant()
		u.waiting = slices.Delete(u.waiting, next, next+1)
		l.waiting = slices.Delete(l.waiting, i, i+1)
		if len(u.waiting) > 0 {
			l.waiting = append(l.waiting, u)
		}
	}
}

// takeLocked takes the room for a request if there is enough, and reports whether it did.
func (l *Limiter) takeLocked(u *user, r *Request) bool {
	for _, b := range l.boundsOf(r) {
		inUse := u.inUse[b]
		if l.bounds[b].Shared {
			inUse = l.shared[b]
		}
		if inUse+cmp.Or(r.Amount, 1) > l.bounds[b].Max {
			return false
		}
	}
	if r.Ready != nil && !r.Ready() {
		return false
	}
	l.addLocked(u, r)
	return true
}

// addLocked adds the amount of a request to what is in use.
func (l *Limiter) addLocked(u *user, r *Request) {
	for _, b := range l.boundsOf(r) {
		u.inUse[b] += cmp.Or(r.Amount, 1)
		l.shared[b] += cmp.Or(r.Amount, 1)
	}
}

func (l *Limiter) boundsOf(r *Request) []int {
	if r.Bounds == nil {
		return l.all
	}
	return r.Bounds
}

// enqueueLocked makes a request wait.
func (l *Limiter) enqueueLocked(u *user, w *waiter) {
	if len(u.waiting) == 0 {
		l.waiting = append(l.waiting, u)
	}
	u.waiting = append(u.waiting, w)
}

// withdraw stops a request from waiting. It reports whether the request was still waiting.
func (l *Limiter) withdraw(w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.users[w.User]
	if u == nil {
		return false
	}
	at := slices.Index(u.waiting, w)
	if at < 0 {
		return false
	}
	if u.waiting = slices.Delete(u.waiting, at, at+1); len(u.waiting) == 0 {
		l.waiting = slices.DeleteFunc(l.waiting, func(o *user) bool { return o == u })
	}
	l.forgetIfIdleLocked(u)
	return true
}

// userLocked returns a user, and adds it if it is new.
func (l *Limiter) userLocked(id int) *user {
	u := l.users[id]
	if u == nil {
		u = &user{id: id, inUse: make([]int64, len(l.bounds))}
		l.users[id] = u
	}
	return u
}

// forgetIfIdleLocked deletes a user that neither uses nor waits for anything.
func (l *Limiter) forgetIfIdleLocked(u *user) {
	if len(u.waiting) == 0 && !slices.ContainsFunc(u.inUse, func(n int64) bool { return n != 0 }) {
		delete(l.users, u.id)
	}
}
