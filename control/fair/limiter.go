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

// Limiter bounds amounts that are in use, for each user and for all users together. The part of a bound that is
// not in use is called room. A request that finds too little room waits. When room is freed, the waiting users
// get it round robin. Requests of one user and kind get room in the order of their arrival. Only a request that
// gets room is woken.
//
// For example, user A has 100 reads waiting and user B sends one. Freed room goes to A and B in turn, so B
// waits for one read of A and not for 100.
//
// A Limiter must be created by NewLimiter. Its methods are safe for concurrent use.
type Limiter struct {
	bounds          []Bound
	allBoundIndexes []int // indexes of all bounds in the field bounds

	mu sync.Mutex
	// amount that all users have in use, by bound; guarded by mu, like the fields below
	totalInUseByBound []int64
	users             map[int]*userUsage // by uid; only users that have something in use or wait
	waitingUsers      []*userUsage       // users with waiting requests; the first one is served next
	// lastArrivalNumber is the arrival number of the newest request that had to wait.
	lastArrivalNumber int64
}

// Bound is a limit on an amount in use.
type Bound struct {
	MaxAmount        int64
	SharedByAllUsers bool // MaxAmount is for all users together; otherwise MaxAmount is for each user
}

// Request asks for an amount of room. The zero Request asks for an amount of 1 within all bounds, for the user with the
// id 0.
type Request struct {
	UserID       int   // uid, or the number of another object for which amounts are counted, such as a connection
	BoundIndexes []int // indexes of the bounds that the amount counts towards; nil means all bounds
	// Each user has one queue of waiting requests for each WaitQueueKind. A waiting request delays only later requests in
	// the same queue.
	WaitQueueKind int
	Amount        int64     // 0 means 1
	Deadline      time.Time // when the request stops waiting; zero means never
	// GrantCondition must also be true before the request gets room; nil means no condition. The caller must call
	// DispatchWaiting when the result of GrantCondition may have changed. GrantCondition must not use the Limiter.
	GrantCondition func() bool
}

// ErrWaitDeadline means that a request did not get room before its deadline.
var ErrWaitDeadline = errors.New("no room before the deadline")

// userUsage holds the amounts that a user has in use, and the user's waiting requests.
type userUsage struct {
	userID        int
	inUseByBound  []int64           // amount in use, by bound
	waitingCount  int               // number of requests in queues
	waitersByKind map[int][]*waiter // waiting requests, by kind; nil until a request has to wait
}

// waiter is a request that waits for room.
type waiter struct {
	Request
	arrivalNumber int64  // number of the request, in the order of arrival
	onGranted     func() // called when the request has got its room, while Limiter.mu is held
}

// NewLimiter returns a Limiter with the given bounds.
func NewLimiter(bounds ...Bound) *Limiter {
	l := &Limiter{bounds: bounds, totalInUseByBound: make([]int64, len(bounds)), users: map[int]*userUsage{}}
	for i := range bounds {
		l.allBoundIndexes = append(l.allBoundIndexes, i)
	}
	return l
}

// Acquire waits until the request gets its room. The caller must free the room with Release. If the request
// gets no room, Acquire returns ErrWaitDeadline or the error of ctx.
func (l *Limiter) Acquire(ctx context.Context, r Request) error {
	l.mu.Lock()
	u := l.ensureUserLocked(r.UserID)
	if l.tryAcquireLocked(u, &r) {
		l.mu.Unlock()
		return nil
	}
	granted := make(chan struct{})
	w := &waiter{Request: r, onGranted: func() { close(granted) }}
	l.enqueueWaiterLocked(u, w)
	l.mu.Unlock()
	var deadlineReached <-chan time.Time
	if !r.Deadline.IsZero() {
		timer := time.NewTimer(time.Until(r.Deadline))
		defer timer.Stop()
		deadlineReached = timer.C
	}
	err := ErrWaitDeadline
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
	return nil // the request got its room just before its deadline or the end of ctx
}

// TryAcquire takes the room for a request if it is available without waiting, and reports whether it was.
func (l *Limiter) TryAcquire(r Request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.ensureUserLocked(r.UserID)
	defer l.forgetIdleUserLocked(u)
	return l.tryAcquireLocked(u, &r)
}

// AcquireAsync is like Acquire, but returns immediately. It calls onAcquired when the request has got its room,
// unless ctx ends before. onAcquired must not block or use the Limiter. AcquireAsync ignores the deadline of r.
func (l *Limiter) AcquireAsync(ctx context.Context, r Request, onAcquired func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.ensureUserLocked(r.UserID)
	if l.tryAcquireLocked(u, &r) {
		onAcquired()
		return
	}
	w := &waiter{Request: r}
	stop := context.AfterFunc(ctx, func() { l.stopWaiting(w) })
	w.onGranted = func() {
		stop()
		onAcquired()
	}
	l.enqueueWaiterLocked(u, w)
}

// Release frees the room that a request has got.
func (l *Limiter) Release(r Request) {
	r.Amount = -cmp.Or(r.Amount, 1)
	l.ForceAcquire(r)
}

// ForceAcquire adds the amount of a request to what is in use, even if the sum exceeds a bound. A negative amount
// frees room.
func (l *Limiter) ForceAcquire(r Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.ensureUserLocked(r.UserID)
	l.addInUseLocked(u, &r)
	if r.Amount < 0 {
		l.dispatchAfterReleaseLocked(u, &r)
	}
	l.forgetIdleUserLocked(u)
}

// InUse returns the amount that a user has in use of the bound with the given index.
func (l *Limiter) InUse(userID, boundIndex int) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if u := l.users[userID]; u != nil {
		return u.inUseByBound[boundIndex]
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

// DispatchWaiting gives room to waiting requests whose GrantCondition is now true.
func (l *Limiter) DispatchWaiting() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dispatchWaitingLocked()
}

// dispatchAfterReleaseLocked gives room to waiting requests, after the request r of the user u has freed room.
func (l *Limiter) dispatchAfterReleaseLocked(u *userUsage, r *Request) {
	if slices.ContainsFunc(l.boundIndexes(r), func(b int) bool { return l.bounds[b].SharedByAllUsers }) {
		l.dispatchWaitingLocked()
	} else if u.waitingCount > 0 {
		l.grantAllFittingLocked(u) // only u can use the freed room
	}
}

// dispatchWaitingLocked gives the free room to the waiting users round robin.
func (l *Limiter) dispatchWaitingLocked() {
	for i := 0; i < len(l.waitingUsers); {
		u := l.waitingUsers[i]
		if !l.grantOldestFittingLocked(u) {
			i++ // no request of this user fits now; try the next user
			continue
		}
		l.waitingUsers = slices.Delete(l.waitingUsers, i, i+1)
		if u.waitingCount > 0 {
			l.waitingUsers = append(l.waitingUsers, u)
		}
	}
}

// grantOldestFittingLocked gives room to one waiting request of the user: the oldest of those that fit within their
// bounds. It returns false if none fits.
func (l *Limiter) grantOldestFittingLocked(u *userUsage) bool {
	var oldestWaiter *waiter
	for _, q := range u.waitersByKind {
		if len(q) > 0 && (oldestWaiter == nil || q[0].arrivalNumber < oldestWaiter.arrivalNumber) &&
			l.fitsBoundsLocked(u, &q[0].Request) {
			oldestWaiter = q[0]
		}
	}
	if oldestWaiter == nil {
		return false
	}
	l.addInUseLocked(u, &oldestWaiter.Request)
	l.removeWaiterLocked(u, oldestWaiter)
	oldestWaiter.onGranted()
	return true
}

// tryAcquireLocked takes the room for a new request. It returns false if the room is not sufficient, or if an
// earlier request of the same user and kind waits.
func (l *Limiter) tryAcquireLocked(u *userUsage, r *Request) bool {
	if len(u.waitersByKind[r.WaitQueueKind]) > 0 || !l.fitsBoundsLocked(u, r) {
		return false
	}
	l.addInUseLocked(u, r)
	return true
}

// fitsBoundsLocked reports whether a request fits within its bounds now.
func (l *Limiter) fitsBoundsLocked(u *userUsage, r *Request) bool {
	for _, b := range l.boundIndexes(r) {
		inUse := u.inUseByBound[b]
		if l.bounds[b].SharedByAllUsers {
			inUse = l.totalInUseByBound[b]
		}
		if inUse+cmp.Or(r.Amount, 1) > l.bounds[b].MaxAmount {
			return false
		}
	}
	return r.GrantCondition == nil || r.GrantCondition()
}

// addInUseLocked adds the amount of a request to the amounts in use.
func (l *Limiter) addInUseLocked(u *userUsage, r *Request) {
	for _, b := range l.boundIndexes(r) {
		u.inUseByBound[b] += cmp.Or(r.Amount, 1)
		l.totalInUseByBound[b] += cmp.Or(r.Amount, 1)
	}
}

func (l *Limiter) boundIndexes(r *Request) []int {
	if r.BoundIndexes == nil {
		return l.allBoundIndexes
	}
	return r.BoundIndexes
}

// enqueueWaiterLocked adds a request to the queue of its user and kind.
func (l *Limiter) enqueueWaiterLocked(u *userUsage, w *waiter) {
	if u.waitingCount == 0 {
		l.waitingUsers = append(l.waitingUsers, u)
	}
	if u.waitersByKind == nil {
		u.waitersByKind = map[int][]*waiter{}
	}
	u.waitingCount++
	l.lastArrivalNumber++
	w.arrivalNumber = l.lastArrivalNumber
	u.waitersByKind[w.WaitQueueKind] = append(u.waitersByKind[w.WaitQueueKind], w)
}

// removeWaiterLocked removes a request from its queue. It returns false if the request was not in the queue.
func (l *Limiter) removeWaiterLocked(u *userUsage, w *waiter) bool {
	q := u.waitersByKind[w.WaitQueueKind]
	at := slices.Index(q, w)
	if at < 0 {
		return false
	}
	u.waitersByKind[w.WaitQueueKind] = slices.Delete(q, at, at+1)
	u.waitingCount--
	return true
}

// grantAllFittingLocked gives room to the user's waiting requests, oldest first, until none fits any more. It removes
// the user from waitingUsers if no request waits any more.
func (l *Limiter) grantAllFittingLocked(u *userUsage) {
	for l.grantOldestFittingLocked(u) {
	}
	if u.waitingCount == 0 {
		l.waitingUsers = slices.DeleteFunc(l.waitingUsers, func(o *userUsage) bool { return o == u })
	}
}

// stopWaiting removes a request from its queue. It returns false if the request has already got its room.
func (l *Limiter) stopWaiting(w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.users[w.UserID]
	if u == nil || !l.removeWaiterLocked(u, w) {
		return false
	}
	l.grantAllFittingLocked(u) // requests that waited in the queue behind the removed request may fit now
	l.forgetIdleUserLocked(u)
	return true
}

// ensureUserLocked returns the user with an id. It adds the user to the map if necessary.
func (l *Limiter) ensureUserLocked(userID int) *userUsage {
	u := l.users[userID]
	if u == nil {
		u = &userUsage{userID: userID, inUseByBound: make([]int64, len(l.bounds))}
		l.users[userID] = u
	}
	return u
}

// forgetIdleUserLocked removes a user from the map if the user has nothing in use and no waiting requests.
func (l *Limiter) forgetIdleUserLocked(u *userUsage) {
	if u.waitingCount == 0 && !slices.ContainsFunc(u.inUseByBound, func(n int64) bool { return n != 0 }) {
		delete(l.users, u.userID)
	}
}
