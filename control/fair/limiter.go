// Package fair bounds what each user has in use at a time, and serves users round robin, so that no user delays
// the others. Start with Limiter.
package fair

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Limiter bounds amounts that are in use, for each user and for all users together. A request that finds
// no room waits. Freed room goes round robin to the users that wait. One user's requests of the same kind
// get room in the order of their arrival. Only a request that gets room is woken.
//
// For example, user A has 100 reads waiting and user B sends one. When a read ends, A and B alternate, so B
// waits for one read of A and not for 100.
//
// A Limiter must be created by NewLimiter. Its methods are safe for concurrent use.
type Limiter struct {
	bounds    []Bound
	allBounds []int // indexes of all bounds in the field bounds

	mu           sync.Mutex
	totalInUse   []int64       // amount in use by all users, by bound; guarded by mu, like the fields below
	users        map[int]*user // users that have something in use or wait
	waitingUsers []*user       // users with waiting requests, in the order in which they are served
	// lastArrival is the number of the newest request that had to wait.
	lastArrival int64
}

// Bound is a limit on an amount in use.
type Bound struct {
	Max    int64
	Shared bool // Max is for all users together; otherwise it is for each user
}

// Request asks for room. The zero Request asks for an amount of 1 within all bounds, for user 0.
type Request struct {
	User   int   // uid, or the number of another object that counts as a user
	Bounds []int // indexes of the bounds that the amount counts towards; nil means all
	// Kind is the index of the user's queue in which the request waits; it is below maxKinds. A waiting request
	// delays only later requests of the same user and kind.
	Kind     int
	Amount   int64     // 0 means 1
	Deadline time.Time // when the request stops waiting; zero means never
	// Condition is a further condition for getting room; nil means none. Call Dispatch when its result may have
	// changed. The function must not use the Limiter.
	Condition func() bool
}

// ErrDeadline means that a request did not get room before its deadline.
var ErrDeadline = errors.New("no room before the deadline")

// maxKinds is the number of values that Request.Kind can have.
const maxKinds = 8

// user holds the amounts that a user has in use, and the user's waiting requests.
type user struct {
	id           int
	inUse        []int64     // by bound
	waitingCount int         // number of requests in queues
	queues       [][]*waiter // by kind; nil until a request has to wait
}

// waiter is a request that waits for room.
type waiter struct {
	Request
	arrival   int64  // number of the request in the order of arrival
	onGranted func() // called, with Limiter.mu held, once there is room
}

// NewLimiter returns a Limiter with the given bounds.
func NewLimiter(bounds ...Bound) *Limiter {
	l := &Limiter{bounds: bounds, totalInUse: make([]int64, len(bounds)), users: map[int]*user{}}
	for i := range bounds {
		l.allBounds = append(l.allBounds, i)
	}
	return l
}

// Acquire waits until the request gets its room. The caller must return the room with Release. If the request
// gets none, Acquire returns ErrDeadline or the error of ctx.
func (l *Limiter) Acquire(ctx context.Context, r Request) error {
	l.mu.Lock()
	u := l.userLocked(r.User)
	if l.tryTakeLocked(u, &r) {
		l.mu.Unlock()
		return nil
	}
	granted := make(chan struct{})
	w := &waiter{Request: r, onGranted: func() { close(granted) }}
	l.enqueueLocked(u, w)
	l.mu.Unlock()
	var deadlineReached <-chan time.Time
	if !r.Deadline.IsZero() {
		timer := time.NewTimer(time.Until(r.Deadline))
		defer timer.Stop()
		deadlineReached = timer.C
	}
	err := ErrDeadline
	select {
	case <-granted:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-deadlineReached:
	}
	if l.stopWaiting(w) {
		return err
	}
	return nil // the request got its room in the meantime
}

// TryAcquire is like Acquire, but returns false instead of waiting.
func (l *Limiter) TryAcquire(r Request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.userLocked(r.User)
	defer l.forgetIfIdleLocked(u)
	return l.tryTakeLocked(u, &r)
}

// AcquireAsync is like Acquire, but returns immediately. It calls onAcquired once the request has room, unless
// ctx ends before. onAcquired must not block or use the Limiter. AcquireAsync ignores the deadline of r.
func (l *Limiter) AcquireAsync(ctx context.Context, r Request, onAcquired func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.userLocked(r.User)
	if l.tryTakeLocked(u, &r) {
		onAcquired()
		return
	}
	w := &waiter{Request: r}
	stop := context.AfterFunc(ctx, func() { l.stopWaiting(w) })
	w.onGranted = func() {
		stop()
		onAcquired()
	}
	l.enqueueLocked(u, w)
}

// Release frees the room that a request has got.
func (l *Limiter) Release(r Request) {
	r.Amount = -cmp.Or(r.Amount, 1)
	l.ForceAdd(r)
}

// ForceAdd adds the amount of a request to what is in use, even if that exceeds a bound. A negative amount
// frees room.
func (l *Limiter) ForceAdd(r Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.userLocked(r.User)
	l.addInUseLocked(u, &r)
	if r.Amount < 0 {
		l.dispatchFreedLocked(u, &r)
	}
	l.forgetIfIdleLocked(u)
}

// InUse returns the amount that a user has in use within the bound with the given index.
func (l *Limiter) InUse(userID, boundIndex int) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if u := l.users[userID]; u != nil {
		return u.inUse[boundIndex]
	}
	return 0
}

// WaitingCount returns the number of a user's requests that wait.
func (l *Limiter) WaitingCount(userID int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if u := l.users[userID]; u != nil {
		return u.waitingCount
	}
	return 0
}

// Dispatch gives room to waiting requests whose Condition is now true.
func (l *Limiter) Dispatch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dispatchLocked()
}

// dispatchFreedLocked gives room to waiting requests after the request r of the user u has freed some.
func (l *Limiter) dispatchFreedLocked(u *user, r *Request) {
	if slices.ContainsFunc(l.boundIndexes(r), func(b int) bool { return l.bounds[b].Shared }) {
		l.dispatchLocked()
	} else if u.waitingCount > 0 {
		l.grantAllLocked(u) // the room can only be used by u
	}
}

// dispatchLocked gives the free room to waiting users round robin.
func (l *Limiter) dispatchLocked() {
	for i := 0; i < len(l.waitingUsers); {
		u := l.waitingUsers[i]
		if !l.grantOldestLocked(u) {
			i++ // this user gets no room, whatever the others get
			continue
		}
		l.waitingUsers = slices.Delete(l.waitingUsers, i, i+1)
		if u.waitingCount > 0 {
			l.waitingUsers = append(l.waitingUsers, u)
		}
	}
}

// grantOldestLocked gives room to the oldest request of the user for which there is room. It returns false if
// there is no such request.
func (l *Limiter) grantOldestLocked(u *user) bool {
	var oldestWaiter *waiter
	for _, q := range u.queues {
		if len(q) > 0 && (oldestWaiter == nil || q[0].arrival < oldestWaiter.arrival) && l.hasRoomLocked(u, &q[0].Request) {
			oldestWaiter = q[0]
		}
	}
	if oldestWaiter == nil {
		return false
	}
	l.addInUseLocked(u, &oldestWaiter.Request)
	l.removeLocked(u, oldestWaiter)
	oldestWaiter.onGranted()
	return true
}

// tryTakeLocked takes the room for a new request. It returns false if there is not enough room or if an earlier
// request waits.
func (l *Limiter) tryTakeLocked(u *user, r *Request) bool {
	if r.Kind < len(u.queues) && len(u.queues[r.Kind]) > 0 || !l.hasRoomLocked(u, r) {
		return false
	}
	l.addInUseLocked(u, r)
	return true
}

// hasRoomLocked reports whether a request could get its room now.
func (l *Limiter) hasRoomLocked(u *user, r *Request) bool {
	for _, b := range l.boundIndexes(r) {
		inUse := u.inUse[b]
		if l.bounds[b].Shared {
			inUse = l.totalInUse[b]
		}
		if inUse+cmp.Or(r.Amount, 1) > l.bounds[b].Max {
			return false
		}
	}
	return r.Condition == nil || r.Condition()
}

// addInUseLocked adds the amount of a request to the amounts in use.
func (l *Limiter) addInUseLocked(u *user, r *Request) {
	for _, b := range l.boundIndexes(r) {
		u.inUse[b] += cmp.Or(r.Amount, 1)
		l.totalInUse[b] += cmp.Or(r.Amount, 1)
	}
}

func (l *Limiter) boundIndexes(r *Request) []int {
	if r.Bounds == nil {
		return l.allBounds
	}
	return r.Bounds
}

// enqueueLocked adds a request to the queue of its user and kind.
func (l *Limiter) enqueueLocked(u *user, w *waiter) {
	if u.waitingCount == 0 {
		l.waitingUsers = append(l.waitingUsers, u)
	}
	if u.queues == nil {
		u.queues = make([][]*waiter, maxKinds)
	}
	u.waitingCount++
	l.lastArrival++
	w.arrival = l.lastArrival
	u.queues[w.Kind] = append(u.queues[w.Kind], w)
}

// removeLocked removes a request from its queue. It returns false if the request was not in the queue.
func (l *Limiter) removeLocked(u *user, w *waiter) bool {
	if u.queues == nil {
		return false
	}
	q := &u.queues[w.Kind]
	at := slices.Index(*q, w)
	if at < 0 {
		return false
	}
	*q = slices.Delete(*q, at, at+1)
	u.waitingCount--
	return true
}

// grantAllLocked gives room to all requests of a user for which there is room. If none of the user's requests
// still waits, it removes the user from waitingUsers.
func (l *Limiter) grantAllLocked(u *user) {
	for l.grantOldestLocked(u) {
	}
	if u.waitingCount == 0 {
		l.waitingUsers = slices.DeleteFunc(l.waitingUsers, func(o *user) bool { return o == u })
	}
}

// stopWaiting removes a request from its queue. It returns false if the request was no longer waiting.
func (l *Limiter) stopWaiting(w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.users[w.User]
	if u == nil || !l.removeLocked(u, w) {
		return false
	}
	l.grantAllLocked(u) // the request may have delayed later ones in its queue
	l.forgetIfIdleLocked(u)
	return true
}

// userLocked returns the user with an id, and creates it if it does not exist.
func (l *Limiter) userLocked(userID int) *user {
	u := l.users[userID]
	if u == nil {
		u = &user{id: userID, inUse: make([]int64, len(l.bounds))}
		l.users[userID] = u
	}
	return u
}

// forgetIfIdleLocked deletes a user that has nothing in use and no waiting requests.
func (l *Limiter) forgetIfIdleLocked(u *user) {
	if u.waitingCount == 0 && !slices.ContainsFunc(u.inUse, func(n int64) bool { return n != 0 }) {
		delete(l.users, u.id)
	}
}
