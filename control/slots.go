package control

import (
	"context"
	"errors"
	"time"

	"github.com/queuectl/queuectl/control/fair"
	"github.com/queuectl/queuectl/queue"
)

// MaxStreamsPerUser is the maximum number of concurrent streams of one user.
const MaxStreamsPerUser = 64

// These constants limit what one user may have in progress, on all of the user's connections together unless stated
// otherwise.
const (
	maxRequestsPerUser         = 256 // maximum number of requests in progress
	maxRequestsPerConn         = 64  // maximum number of requests in progress on one connection
	maxManyJobsRequestsPerUser = 4   // maximum number of requests in progress that list or change many jobs
	maxHelperGoroutinesPerUser = 128 // maximum number of additional goroutines; see ReserveHelperGoroutine
	// maxBytesInProgressPerUser is the maximum size in bytes of the request lines and answers that are in progress. The
	// first uncountedBytesPerConn bytes of each connection do not count.
	maxBytesInProgressPerUser = MaxLineBytes
	// uncountedBytesPerConn is how many bytes of each connection do not count towards maxBytesInProgressPerUser.
	uncountedBytesPerConn = 16 << 10
)

// maxUserLimitWait is how long a request waits for room within these limits, that is, until enough other requests of
// the same user have ended.
const maxUserLimitWait = 5 * time.Second

// UserLimits shares the service fairly among its users. It limits what each user may have in progress. It also grants
// slots, the permissions for heavy work such as a database query, to the users round robin. Its methods are safe for
// concurrent use. See docs/decisions/0071.
type UserLimits struct {
	connLimiter      *fair.ConnLimiter
	helperGoroutines *fair.Limiter // additional goroutines of users; see ReserveHelperGoroutine
	heavyWorkSlots   *fair.Limiter // see HeavyWorkClass
}

// NewUserLimits returns a UserLimits in which no user has anything in progress.
func NewUserLimits() *UserLimits {
	slots := fair.NewLimiter(slotBounds()...)
	bounds := fair.ConnBounds{MaxUserRequests: maxRequestsPerUser, MaxConnRequests: maxRequestsPerConn,
		MaxUserListRequests: maxManyJobsRequestsPerUser,
		MaxUserStreams:      MaxStreamsPerUser, MaxUserBytesInProgress: maxBytesInProgressPerUser,
		UncountedBytesPerConn: uncountedBytesPerConn, MaxRequestWait: maxUserLimitWait}
	return &UserLimits{
		// When bytes of a user are freed, a request of this user may be able to build its answer; see RunStreamStep.
		connLimiter:      fair.NewConnLimiter(bounds, slots.DispatchWaiting),
		helperGoroutines: fair.NewLimiter(fair.Bound{MaxAmount: maxHelperGoroutinesPerUser}),
		heavyWorkSlots:   slots,
	}
}

// HeavyWorkClass is a kind of heavy work, such as a read about one job. Each operation of a class holds a slot of this
// class while it runs, so the number of slots limits how many operations run at the same time. See docs/decisions/0071.
type HeavyWorkClass int

// These are the classes of heavy work. classLongRequestDecoding and classLargeRequest are used only by the server in
// this package.
const (
	ClassOneJobRead HeavyWorkClass = iota // a read about one job
	// a read about many jobs (lists, selections, events, counts), or a read of output
	ClassManyJobsRead
	classLongRequestDecoding // decoding a request of more than uncountedBytesPerConn bytes
	classLargeRequest        // processing a request of more than largeRequestBytes bytes
	heavyWorkClassCount      // number of classes
)

// These are the numbers of slots. An ordinary user is any user except an admin.
const (
	// readSlots is the number of slots for ClassOneJobRead and ClassManyJobsRead together. It equals the number of
	// database connections for reading. One slot is reserved for ClassOneJobRead, and one for admins.
	readSlots = 4
	// manyJobsReadSlots is how many of the readSlots the ordinary users together may use for ClassManyJobsRead. Each
	// ordinary user may use one.
	manyJobsReadSlots = 2
	decodingSlots     = 2 // number of slots for classLongRequestDecoding; each user may hold at most one
	largeRequestSlots = 2 // number of slots for classLargeRequest; each user may hold at most one
)

// These are the indexes of the bounds that slotBounds returns.
const (
	readsBoundIndex            = iota // reads of ClassOneJobRead and ClassManyJobsRead
	ordinaryReadsBoundIndex           // reads of ordinary users
	manyJobsBoundIndex                // reads of ClassManyJobsRead
	ordinaryManyJobsBoundIndex        // reads of ClassManyJobsRead by ordinary users
	manyJobsPerUserBoundIndex         // reads of ClassManyJobsRead by one ordinary user
	decodingBoundIndex
	decodingPerUserBoundIndex
	largeRequestBoundIndex
	largeRequestPerUserBoundIndex
	answersPerUserBoundIndex // answers and stream steps (see RunStreamStep) of one user
)

// slotBounds returns the bounds on slots, in the order of the indexes above. answersPerUserBoundIndex lets each user
// build only one answer at a time. So a user exceeds maxBytesInProgressPerUser by at most this one answer.
func slotBounds() []fair.Bound {
	return []fair.Bound{
		readsBoundIndex:               {MaxAmount: readSlots, SharedByAllUsers: true},
		ordinaryReadsBoundIndex:       {MaxAmount: readSlots - 1, SharedByAllUsers: true},
		manyJobsBoundIndex:            {MaxAmount: readSlots - 1, SharedByAllUsers: true},
		ordinaryManyJobsBoundIndex:    {MaxAmount: manyJobsReadSlots, SharedByAllUsers: true},
		manyJobsPerUserBoundIndex:     {MaxAmount: 1},
		decodingBoundIndex:            {MaxAmount: decodingSlots, SharedByAllUsers: true},
		decodingPerUserBoundIndex:     {MaxAmount: 1},
		largeRequestBoundIndex:        {MaxAmount: largeRequestSlots, SharedByAllUsers: true},
		largeRequestPerUserBoundIndex: {MaxAmount: 1},
		answersPerUserBoundIndex:      {MaxAmount: 1},
	}
}

// slotBoundIndexes returns the bounds that apply to a slot of class c, as indexes into the result of slotBounds.
func slotBoundIndexes(c HeavyWorkClass, isAdmin bool) []int {
	switch {
	case c == ClassOneJobRead && isAdmin:
		return []int{readsBoundIndex}
	case c == ClassOneJobRead:
		return []int{readsBoundIndex, ordinaryReadsBoundIndex}
	case c == ClassManyJobsRead && isAdmin:
		return []int{readsBoundIndex, manyJobsBoundIndex}
	case c == ClassManyJobsRead:
		return []int{readsBoundIndex, ordinaryReadsBoundIndex, manyJobsBoundIndex, ordinaryManyJobsBoundIndex,
			manyJobsPerUserBoundIndex}
	case c == classLongRequestDecoding:
		return []int{decodingBoundIndex, decodingPerUserBoundIndex}
	}
	return []int{largeRequestBoundIndex, largeRequestPerUserBoundIndex}
}

// maxSlotWait is how long a request waits for a slot before it fails.
const maxSlotWait = 10 * time.Second

// newSlotRequest returns a fair.Request for a slot of class c, on behalf of the user of ctx.
func newSlotRequest(ctx context.Context, c HeavyWorkClass) fair.Request {
	peer := PeerFrom(ctx)
	return fair.Request{UserID: peer.UID, BoundIndexes: slotBoundIndexes(c, peer.Right.Covers(RightAdmin)),
		WaitQueueKind: int(c)}
}

// acquireSlot waits for the slot that r requests. If it returns nil, the caller must release the slot in
// s.heavyWorkSlots.
func (s *UserLimits) acquireSlot(ctx context.Context, r fair.Request) error {
	r.Deadline = time.Now().Add(maxSlotWait)
	switch err := s.heavyWorkSlots.Acquire(ctx, r); {
	case !errors.Is(err, fair.ErrWaitDeadline):
		return err
	case r.GrantCondition != nil && !r.GrantCondition():
		return queue.Errorf(queue.CodeUnavailable, "your requests and answers in progress take %d bytes, the maximum per "+
			"user; try again when your other commands have received their answers", maxBytesInProgressPerUser)
	}
	return queue.Errorf(queue.CodeUnavailable, "the service has been busy with other users' reads for %v; try again later",
		maxSlotWait)
}

// RunInSlot waits for a slot of class c for the user of ctx, and calls work while it holds the slot. work must be
// short, for example one database query or one read of at most 256 KiB of output. work may wait only for the disk, and
// must not call RunInSlot.
func (s *UserLimits) RunInSlot(ctx context.Context, c HeavyWorkClass, work func() error) error {
	r := newSlotRequest(ctx, c)
	if err := s.acquireSlot(ctx, r); err != nil {
		return err
	}
	defer s.heavyWorkSlots.Release(r)
	return work()
}

// RunStreamStep calls produce while it holds a slot, like RunInSlot. produce builds the next pieces of a stream. They
// are written to the client after the slot is released, so a slow client does not occupy a slot. RunStreamStep first
// waits until the user has fewer than maxBytesInProgressPerUser bytes in progress, and no other step runs for this
// user.
func (s *UserLimits) RunStreamStep(ctx context.Context, c HeavyWorkClass, producePieces func() error) error {
	t, r, ownBytes := activeRequestOf(ctx), newSlotRequest(ctx, c), int64(0)
	if t != nil {
		ownBytes = t.bytesChargedToUser
	}
	if !s.connLimiter.UnlimitedBytes() {
		r.BoundIndexes, r.WaitQueueKind = append(r.BoundIndexes, answersPerUserBoundIndex), r.WaitQueueKind+
			int(heavyWorkClassCount)
		r.GrantCondition = func() bool {
			_, bytes := s.connLimiter.Usage(r.UserID)
			return bytes-ownBytes < maxBytesInProgressPerUser
		}
	}
	if err := s.acquireSlot(ctx, r); err != nil {
		return err
	}
	err := func() error {
		defer s.heavyWorkSlots.Release(r)
		if t != nil {
			t.streamStepHoldsSlot = true
			defer func() { t.streamStepHoldsSlot = false }()
		}
		return producePieces()
	}()
	if t == nil {
		return err
	}
	if failed := t.flushStreamPieces(); err == nil {
		err = failed
	}
	return err
}

// AnswerInSlot calls produceResult like RunStreamStep, to get the result of a request. It also encodes the result as
// JSON while it holds the slot.
func AnswerInSlot[R any](ctx context.Context, s *UserLimits, c HeavyWorkClass, produceResult func() (R, error)) (r R,
	err error) {
	err = s.RunStreamStep(ctx, c, func() error {
		var err error
		if r, err = produceResult(); err != nil {
			return err
		}
		if t := activeRequestOf(ctx); t != nil {
			t.storeUnsentAnswer(encodeAnswerLine(t.id, r, nil))
		}
		return nil
	})
	return r, err
}

// ReserveHelperGoroutine reserves an additional goroutine for the user of ctx, for work on the user's request. It does
// not wait: it returns false if the user already has maxHelperGoroutinesPerUser additional goroutines. The caller calls
// release after the goroutine has ended.
func (s *UserLimits) ReserveHelperGoroutine(ctx context.Context) (release func(), ok bool) {
	r := fair.Request{UserID: PeerFrom(ctx).UID}
	if !s.helperGoroutines.TryAcquire(r) {
		return nil, false
	}
	return func() { s.helperGoroutines.Release(r) }, true
}

// ChargeBytesToUser counts byteCount more bytes as in progress for the user of ctx, until the request of ctx ends.
func ChargeBytesToUser(ctx context.Context, byteCount int) {
	if t := activeRequestOf(ctx); t != nil {
		t.bytesChargedToUser += int64(byteCount)
		t.conn.fairConn.ForceAddBytes(byteCount)
	}
}
