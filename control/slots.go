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

// These are limits for what one user may have in progress on all connections together.
const (
	maxUserRequests     = 256 // maximum number of requests in progress
	maxConnRequests     = 64  // maximum number of requests in progress on one connection
	maxUserListRequests = 4   // maximum number of requests in progress that list or change many jobs
	maxUserHelpers      = 128 // maximum number of extra goroutines, beyond one per request
	// maxUserBytes is the maximum size of request lines and answers in progress, in bytes. The first
	// freeConnBytes of each connection do not count.
	maxUserBytes = MaxLineBytes
	// freeConnBytes is the number of bytes of each connection that do not count towards maxUserBytes.
	freeConnBytes = 16 << 10
)

// maxRoomWait is how long a request waits for room within the user's limits.
const maxRoomWait = 5 * time.Second

// UserLimits shares the service fairly among its users. It limits what each user may have in progress, and
// grants slots (permissions for heavy work) to users round robin. Its methods are safe for concurrent use. See
// docs/decisions/0071.
type UserLimits struct {
	conns   *fair.Conns
	helpers *fair.Limiter // extra goroutines; see AcquireHelper
	slots   *fair.Limiter // see SlotClass
}

// NewUserLimits returns limits of which nothing is in use.
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

// SlotClass is a kind of heavy work. The number of slots of each class limits how many operations run
// concurrently. See docs/decisions/0071.
type SlotClass int

// These are the classes of heavy work. Only the server itself uses classDecoding and classLargeRequest.
const (
	ClassOneJob       SlotClass = iota // a read about one job
	ClassManyJobs                      // a read about many jobs (lists, selections, events, counts), or of output
	classDecoding                      // decoding a request of more than freeConnBytes bytes
	classLargeRequest                  // processing a request of more than largeRequestBytes bytes
	slotClassCount                     // number of classes
)

// These are numbers of slots. Ordinary users are all users except admins.
const (
	// readSlots is the number of slots for ClassOneJob and ClassManyJobs together. It equals the number of the
	// store's read connections. One slot is reserved for ClassOneJob, and one for admins.
	readSlots = 4
	// manyJobsSlots is how many of the readSlots all ordinary users together may use for ClassManyJobs. Each user
	// may use one.
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
	boundAnswersPerUser // answers and stream steps of one user
)

// slotBounds returns the bounds on slots. Because of boundAnswersPerUser, only one answer of a user at a time
// can exceed maxUserBytes.
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

// boundsOf returns the indexes of the bounds that apply to a slot of class c.
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

// maxSlotWait is the longest time that a request waits for a slot.
const maxSlotWait = 10 * time.Second

// slotRequest returns the request for a slot of class c for the user of ctx.
func slotRequest(ctx context.Context, c SlotClass) fair.Request {
	peer := PeerFrom(ctx)
	return fair.Request{User: peer.UID, Bounds: boundsOf(c, peer.Right.Covers(RightAdmin)), Kind: int(c)}
}

// acquireSlot waits for the slot that r requests. If it returns nil, the caller must release the slot.
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

// RunInSlot calls f while it holds a slot of class c for the user of ctx. The function f must be short, for
// example one read of the store or of at most 256 KiB of output. It may wait only for the disk, and must not
// call RunInSlot.
func (s *UserLimits) RunInSlot(ctx context.Context, c SlotClass, f func() error) error {
	r := slotRequest(ctx, c)
	if err := s.acquireSlot(ctx, r); err != nil {
		return err
	}
	defer s.slots.Release(r)
	return f()
}

// RunStreamStep calls f like RunInSlot, for one step of a stream. The pieces that f sends are written to the
// client after the slot is released. A step starts only if the user's limit of bytes leaves room for its
// output. Each user has at most one step in progress.
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

// AnswerInSlot calls f like RunStreamStep, for the answer of a request. While it holds the slot, it also
// encodes the result of f as JSON.
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

// AcquireHelper reserves one of the user's extra goroutines without waiting. It returns false if none is free. The
// caller must call the returned function after the goroutine has ended.
func (s *UserLimits) AcquireHelper(ctx context.Context) (release func(), ok bool) {
	r := fair.Request{User: PeerFrom(ctx).UID}
	if !s.helpers.TryAcquire(r) {
		return nil, false
	}
	return func() { s.helpers.Release(r) }, true
}

// ChargeBytes adds n bytes to the bytes that the user of ctx has in progress, until the request of ctx ends.
func ChargeBytes(ctx context.Context, n int) {
	if t := activeRequestOf(ctx); t != nil {
		t.chargedBytes += int64(n)
		t.conn.fairConn.AddBytes(n)
	}
}
