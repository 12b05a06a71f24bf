package control

import (
	"context"
	"errors"
	"time"

	"github.com/queuectl/queuectl/control/fair"
	"github.com/queuectl/queuectl/queue"
)

// MaxStreams is the maximum number of concurrent streams of one user.
const MaxStreams = 64

// These constants limit what one user may have in progress, on all connections together unless stated
// otherwise.
const (
	maxUserRequests     = 256 // maximum number of requests in progress
	maxConnRequests     = 64  // maximum number of requests in progress on one connection
	maxUserListRequests = 4   // maximum number of requests in progress that list or change many jobs
	maxUserHelpers      = 128 // maximum number of additional goroutines; see AcquireHelper
	// maxUserBytes is the maximum size in bytes of the request lines and answers that are in progress. The
	// first freeConnBytes of each connection do not count.
	maxUserBytes = MaxLineBytes
	// freeConnBytes is how many bytes of each connection do not count towards maxUserBytes.
	freeConnBytes = 16 << 10
)

// maxRoomWait is how long a request waits until the user's other requests leave room for it within these
// limits.
const maxRoomWait = 5 * time.Second

// UserLimits shares the service fairly among its users. It limits what each user may have in progress. It also
// grants slots, the permissions for heavy work, to the users round robin. Its methods are safe for concurrent
// use. See docs/decisions/0071.
type UserLimits struct {
	conns   *fair.Conns
	helpers *fair.Limiter // additional goroutines of users; see AcquireHelper
	slots   *fair.Limiter // see SlotClass
}

// NewUserLimits returns a UserLimits in which no user has anything in progress.
func NewUserLimits() *UserLimits {
	slots := fair.NewLimiter(slotBounds()...)
	bounds := fair.ConnBounds{Requests: maxUserRequests, ConnRequests: maxConnRequests, Lists: maxUserListRequests,
		Streams: MaxStreams, MaxBytes: maxUserBytes, FreeBytes: freeConnBytes, MaxWait: maxRoomWait}
	return &UserLimits{
		conns:   fair.NewConns(bounds, slots.Dispatch), // freed bytes may make room for an answer
		helpers: fair.NewLimiter(fair.Bound{Max: maxUserHelpers}),
		slots:   slots,
	}
}

// SlotClass is a kind of heavy work. The number of slots for a class is the number of operations of this class
// that may run at the same time. See docs/decisions/0071.
type SlotClass int

// These are the classes of heavy work. classDecoding and classLargeRequest are used only by the server in this
// package.
const (
	ClassOneJob       SlotClass = iota // a read about one job
	ClassManyJobs                      // a read about many jobs (lists, selections, events, counts), or of output
	classDecoding                      // decoding a request of more than freeConnBytes bytes
	classLargeRequest                  // processing a request of more than largeRequestBytes bytes
	slotClassCount                     // number of classes
)

// These are the numbers of slots. An ordinary user is any user except an admin.
const (
	// readSlots is the number of slots for ClassOneJob and ClassManyJobs together. It equals the number of
	// database connections for reading. One slot is reserved for ClassOneJob, and one for admins.
	readSlots = 4
	// manyJobsSlots is how many of the readSlots the ordinary users together may use for ClassManyJobs. Each of
	// them may use one.
	manyJobsSlots     = 2
	decodingSlots     = 2 // number of slots for classDecoding; each user may hold at most one
	largeRequestSlots = 2 // number of slots for classLargeRequest; each user may hold at most one
)

// These are indexes of the bounds in slotBounds.
const (
	boundReads            = iota // reads of ClassOneJob and ClassManyJobs
	boundOrdinaryReads           // reads of ordinary users
	boundManyJobs                // reads of ClassManyJobs
	boundOrdinaryManyJobs        // reads of ClassManyJobs by ordinary users
	boundManyJobsPerUser         // reads of ClassManyJobs by one ordinary user
	boundDecoding
	boundDecodingPerUser
	boundLargeRequest
	boundLargeRequestPerUser
	boundAnswersPerUser // answers and stream steps (see RunStreamStep) of one user
)

// slotBounds returns the bounds on slots, by the constants above. With boundAnswersPerUser, a user can exceed
// maxUserBytes by only one answer.
func slotBounds() []fair.Bound {
	return []fair.Bound{
		boundReads:               {Max: readSlots, Shared: true},
		boundOrdinaryReads:       {Max: readSlots - 1, Shared: true},
		boundManyJobs:            {Max: readSlots - 1, Shared: true},
		boundOrdinaryManyJobs:    {Max: manyJobsSlots, Shared: true},
		boundManyJobsPerUser:     {Max: 1},
		boundDecoding:            {Max: decodingSlots, Shared: true},
		boundDecodingPerUser:     {Max: 1},
		boundLargeRequest:        {Max: largeRequestSlots, Shared: true},
		boundLargeRequestPerUser: {Max: 1},
		boundAnswersPerUser:      {Max: 1},
	}
}

// boundsOf returns the bounds that apply to a slot of class c, as indexes of slotBounds.
func boundsOf(c SlotClass, isAdmin bool) []int {
	switch {
	case c == ClassOneJob && isAdmin:
		return []int{boundReads}
	case c == ClassOneJob:
		return []int{boundReads, boundOrdinaryReads}
	case c == ClassManyJobs && isAdmin:
		return []int{boundReads, boundManyJobs}
	case c == ClassManyJobs:
		return []int{boundReads, boundOrdinaryReads, boundManyJobs, boundOrdinaryManyJobs, boundManyJobsPerUser}
	case c == classDecoding:
		return []int{boundDecoding, boundDecodingPerUser}
	}
	return []int{boundLargeRequest, boundLargeRequestPerUser}
}

// maxSlotWait is how long a request waits for a slot before it fails.
const maxSlotWait = 10 * time.Second

// slotRequest returns a request for a slot of class c, on behalf of the user of ctx.
func slotRequest(ctx context.Context, c SlotClass) fair.Request {
	peer := PeerFrom(ctx)
	return fair.Request{User: peer.UID, Bounds: boundsOf(c, peer.Right.Covers(RightAdmin)), Kind: int(c)}
}

// acquireSlot waits for the slot that r requests. If it returns nil, the caller must release the slot in
// s.slots.
func (s *UserLimits) acquireSlot(ctx context.Context, r fair.Request) error {
	r.Deadline = time.Now().Add(maxSlotWait)
	switch err := s.slots.Acquire(ctx, r); {
	case !errors.Is(err, fair.ErrDeadline):
		return err
	case r.Condition != nil && !r.Condition():
		return queue.Errorf(queue.CodeUnavailable, "your requests and answers in progress take %d bytes, the maximum per "+
			"user; try again when your other commands have received their answers", maxUserBytes)
	}
	return queue.Errorf(queue.CodeUnavailable, "the service has been busy with other users' reads for %v; try again later",
		maxSlotWait)
}

// RunInSlot waits for a slot of class c for the user of ctx, and calls f while it holds the slot. f must be
// short, for example one database query or one read of at most 256 KiB of output. f may wait only for the disk,
// and must not call RunInSlot.
func (s *UserLimits) RunInSlot(ctx context.Context, c SlotClass, f func() error) error {
	r := slotRequest(ctx, c)
	if err := s.acquireSlot(ctx, r); err != nil {
		return err
	}
	defer s.slots.Release(r)
	return f()
}

// RunStreamStep calls f while it holds a slot, like RunInSlot. In f, a stream produces its next pieces. They are
// written to the client after the slot is released, so a slow client does not occupy a slot. RunStreamStep waits
// until the user has fewer than maxUserBytes in progress and no other step runs for this user.
func (s *UserLimits) RunStreamStep(ctx context.Context, c SlotClass, f func() error) error {
	t, r, ownBytes := activeRequestOf(ctx), slotRequest(ctx, c), int64(0)
	if t != nil {
		ownBytes = t.chargedBytes
	}
	if !s.conns.UnlimitedBytes() {
		r.Bounds, r.Kind = append(r.Bounds, boundAnswersPerUser), r.Kind+int(slotClassCount)
		r.Condition = func() bool {
			_, bytes := s.conns.Usage(r.User)
			return bytes-ownBytes < maxUserBytes
		}
	}
	if err := s.acquireSlot(ctx, r); err != nil {
		return err
	}
	err := func() error {
		defer s.slots.Release(r)
		if t != nil {
			t.inStreamStep = true
			defer func() { t.inStreamStep = false }()
		}
		return f()
	}()
	if t == nil {
		return err
	}
	if failed := t.flush(); err == nil {
		err = failed
	}
	return err
}

// AnswerInSlot calls f like RunStreamStep, to get the result of a request. It also encodes the result as JSON
// while it holds the slot.
func AnswerInSlot[R any](ctx context.Context, s *UserLimits, c SlotClass, f func() (R, error)) (r R, err error) {
	err = s.RunStreamStep(ctx, c, func() error {
		var err error
		if r, err = f(); err != nil {
			return err
		}
		if t := activeRequestOf(ctx); t != nil {
			t.setAnswer(answerLine(t.id, r, nil))
		}
		return nil
	})
	return r, err
}

// AcquireHelper reserves an additional goroutine for the user of ctx, for work on the user's request. It does
// not wait: it returns false if the user already has maxUserHelpers. The caller calls release after the
// goroutine has ended.
func (s *UserLimits) AcquireHelper(ctx context.Context) (release func(), ok bool) {
	r := fair.Request{User: PeerFrom(ctx).UID}
	if !s.helpers.TryAcquire(r) {
		return nil, false
	}
	return func() { s.helpers.Release(r) }, true
}

// ChargeBytes adds n to the bytes that the user of ctx has in progress, until the request of ctx ends.
func ChargeBytes(ctx context.Context, n int) {
	if t := activeRequestOf(ctx); t != nil {
		t.chargedBytes += int64(n)
		t.conn.fairConn.AddBytes(n)
	}
}
