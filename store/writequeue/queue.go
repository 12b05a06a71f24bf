// Package writequeue chooses which waiting operations are committed next, so that no user can block
// the writes of other users.
//
// Start with Queue.
package writequeue

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// PriorityClass is the priority class of an operation.
type PriorityClass uint8

const (
	UrgentClass PriorityClass = iota // from the worker pool: committed first, and never refused
	PromptClass                      // commands on stored jobs, settings and upkeep
	NormalClass                      // new jobs and removals: refused if too many operations wait
)

// These constants limit the numbers of waiting and committed operations.
const (
	maxWaitingOps          = 4096 // operations that may wait, not counting urgent ones
	slotsReservedForPrompt = 256  // part of maxWaitingOps that only operations of class PromptClass may use
	MaxGroupOps            = 512  // operations in one commit, not counting urgent ones
	// maxTrackedOwners limits the entries in each of the maps Queue.lastServeClockByOwner and Queue.slowUsers.
	maxTrackedOwners = 1000
)

// MinSlowOpTime is the shortest duration of an operation that counts as slow. After a slow operation, the user's next
// operation is committed alone, so that other users do not wait for it.
const MinSlowOpTime = 10 * time.Millisecond

// MaxGroupTime limits how long the operations of one commit may take while operations of several users wait. Urgent
// operations do not count toward this time. The first operation that exceeds the limit is the last one of its commit.
// The limit is short, because an operation waits for the current commit and for its own commit. A job even needs three
// commits: to be stored, claimed and settled.
const MaxGroupTime = MinSlowOpTime

// severalUsersPeriod is how long HadSeveralUsersRecently stays true after operations of several users have waited
// together.
const severalUsersPeriod = time.Second

// OpOwner is the user and the class of an operation. TakeGroup serves different owners in turn.
type OpOwner struct {
	UID   int
	Class PriorityClass
}

// Op is an operation that waits for a commit. The engine defines the type.
type Op interface {
	comparable
	Owner() OpOwner
}

// Queue holds the operations that wait for a commit. The zero value is an empty queue. Only the writer, the goroutine
// that commits, may call TakeGroup, PutBack, RecordServedOp, IsOfSlowUser, SetNextSolo and HadSeveralUsersRecently.
type Queue[O Op] struct {
	mu         sync.Mutex
	waitingOps []O // in the order of their classes, and of their arrival within a class; guarded by mu

	// for each owner, the value of serveClock when its last operation was carried out
	lastServeClockByOwner map[OpOwner]int64
	serveClock            int64        // number of operations carried out for users
	slowUsers             map[int]bool // users whose last operation took MinSlowOpTime or longer
	lastSeveralUsersAt    time.Time    // when operations of several users last waited at the same time
	nextSolo              *O           // an operation of a slow user, to be committed next and alone; nil if not set
}

// Add adds an operation. It returns an error if too many operations are waiting.
func (q *Queue[O]) Add(o O) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, c := len(q.waitingOps), o.Owner().Class
	if c == NormalClass && n >= maxWaitingOps-slotsReservedForPrompt || c == PromptClass && n >= maxWaitingOps {
		return queue.Errorf(queue.CodeUnavailable, "the service is overloaded: %d requests are waiting for the "+
			"disk; try again later", n)
	}
	q.waitingOps = slices.Insert(q.waitingOps, q.firstIndexOfClassLocked(c+1), o)
	return nil
}

// firstIndexOfClassLocked returns the index of the first waiting operation of class c or a later class, or the length
// of the queue if it contains no such operation.
func (q *Queue[O]) firstIndexOfClassLocked(c PriorityClass) int {
	at, _ := slices.BinarySearchFunc(q.waitingOps, c, func(o O,
		c PriorityClass) int {
		return cmp.Compare(o.Owner().Class, c)
	})
	return at
}

// Withdraw removes a waiting operation. It has no effect on an operation that TakeGroup has returned.
func (q *Queue[O]) Withdraw(o O) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.removeLocked(o)
}

// removeLocked removes an operation, and reports whether it was waiting.
func (q *Queue[O]) removeLocked(o O) bool {
	at := slices.Index(q.waitingOps, o)
	if at >= 0 {
		q.waitingOps = slices.Delete(q.waitingOps, at, at+1)
	}
	return at >= 0
}

// Len returns the number of waiting operations.
func (q *Queue[O]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waitingOps)
}

// TakeGroup removes and returns the operations of the next commit.
func (q *Queue[O]) TakeGroup() (group []O) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if solo := q.nextSolo; solo != nil {
		q.nextSolo = nil
		if q.removeLocked(*solo) {
			return []O{*solo}
		}
	}
	urgent := q.firstIndexOfClassLocked(PromptClass)
	n := min(len(q.waitingOps), max(urgent, MaxGroupOps))
	others := q.waitingOps[urgent:]
	if slices.ContainsFunc(others, func(o O) bool { return o.Owner().UID != others[0].Owner().UID }) {
		q.lastSeveralUsersAt = time.Now()
		return q.takeFairGroupLocked(urgent, n)
	}
	group = slices.Clone(q.waitingOps[:n])
	q.waitingOps = slices.Delete(q.waitingOps, 0, n)
	return group
}

// takeFairGroupLocked takes a group of groupSize operations. The urgentCount urgent operations come first. Then the
// owners (each class of each user) take turns, so that a user with many operations cannot block other users. Within one
// round of turns, the owner that was served longest ago comes first, but owners whose user's last operation was slow
// come after all others. See docs/decisions/0006.
func (q *Queue[O]) takeFairGroupLocked(urgentCount, groupSize int) []O {
	var sortedOps []sortableOp[O]
	turns := map[OpOwner]int{}
	for _, o := range q.waitingOps[urgentCount:] {
		owner := o.Owner()
		key := sortableOp[O]{op: o, earlierOwnerOps: turns[owner], lastServeClock: q.lastServeClockByOwner[owner]}
		if q.slowUsers[owner.UID] {
			key.slowPenalty = 1
		}
		sortedOps = append(sortedOps, key)
		turns[owner]++
	}
	slices.SortStableFunc(sortedOps, func(a, b sortableOp[O]) int {
		return cmp.Or(a.earlierOwnerOps-b.earlierOwnerOps, a.slowPenalty-b.slowPenalty,
			cmp.Compare(a.lastServeClock, b.lastServeClock))
	})
	group, chosen := slices.Clone(q.waitingOps[:urgentCount]), make(map[O]bool, groupSize)
	for _, next := range sortedOps[:groupSize-urgentCount] {
		group = append(group, next.op)
	}
	for _, o := range group {
		chosen[o] = true
	}
	q.waitingOps = slices.DeleteFunc(q.waitingOps, func(o O) bool { return chosen[o] })
	return group
}

// sortableOp is an operation with its sort keys.
type sortableOp[O Op] struct {
	op              O
	earlierOwnerOps int   // number of earlier operations of the same user and class
	slowPenalty     int   // 1 if the user's last operation was slow
	lastServeClock  int64 // when this owner was last served, as a value of serveClock
}

// PutBack puts operations that TakeGroup has returned back into the queue, before all others of their class.
func (q *Queue[O]) PutBack(ops []O) {
	q.mu.Lock()
	defer q.mu.Unlock()
	// insert all operations of a class together, because each insertion moves all later operations in the slice
	for c := UrgentClass; c <= NormalClass; c++ {
		same := slices.DeleteFunc(slices.Clone(ops), func(o O) bool { return o.Owner().Class != c })
		q.waitingOps = slices.Insert(q.waitingOps, q.firstIndexOfClassLocked(c), same...)
	}
}

// RecordServedOp records that an operation was carried out, and how long it took.
func (q *Queue[O]) RecordServedOp(o O, duration time.Duration) {
	if len(q.lastServeClockByOwner) >= maxTrackedOwners || q.lastServeClockByOwner == nil {
		q.lastServeClockByOwner = map[OpOwner]int64{}
	}
	owner := o.Owner()
	q.serveClock++
	q.lastServeClockByOwner[owner] = q.serveClock
	switch {
	case duration < MinSlowOpTime:
		delete(q.slowUsers, owner.UID)
	case q.slowUsers == nil:
		q.slowUsers = map[int]bool{owner.UID: true}
	case len(q.slowUsers) < maxTrackedOwners:
		q.slowUsers[owner.UID] = true
	}
}

// IsOfSlowUser reports whether the last operation of o's user was slow. For an urgent operation, it returns false.
func (q *Queue[O]) IsOfSlowUser(o O) bool {
	owner := o.Owner()
	return owner.Class != UrgentClass && q.slowUsers[owner.UID]
}

// SetNextSolo makes the next call of TakeGroup return only operation o, unless operation o was withdrawn.
func (q *Queue[O]) SetNextSolo(o O) { q.nextSolo = &o }

// HadSeveralUsersRecently reports whether operations of several users wait, or have waited recently.
func (q *Queue[O]) HadSeveralUsersRecently(now time.Time) bool {
	return now.Sub(q.lastSeveralUsersAt) < severalUsersPeriod
}
