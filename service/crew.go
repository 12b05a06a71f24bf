package service

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// crew executes commands about jobs that may be running. In a queue that several nodes share, crew sends a
// command to the node that holds the job's lease. See docs/decisions/0032.
//
// For example, node A gets a request to cancel a job whose lease node B holds. A's pool reports that it does
// not hold the job (here). A finds the holder, stores an ask for B in the database and waits for the answer
// (elsewhere). B reads the ask, cancels the job in its pool and stores the answer (answerAsks). A stops
// waiting if B's lease expires (watch). Once another node has taken over the job, A repeats the command
// (either).
type crew struct{ s *Service }

func (s *Service) crew() crew { return crew{s} }

// ask is a request from one node to another.
type ask struct {
	Do     string        `json:"do"` // the command, one of the cases in crew.here
	Seq    int64         `json:"seq,omitempty"`
	UID    int           `json:"uid,omitempty"`
	Number int           `json:"number,omitempty"` // number of the signal to send
	On     bool          `json:"on,omitempty"`
	Change *askedChange  `json:"change,omitempty"`
	Cursor output.Cursor `json:"cursor,omitempty"`
	Ref    string        `json:"ref,omitempty"` // reference of an output file, or the id of a job
	At     int64         `json:"at,omitempty"`  // offset in the output file, in bytes
	Length int64         `json:"length,omitempty"`
}

// askedChange is the form of store.Change in which it is sent to another node. An empty Verb makes that node
// return the job to the queue, so that the requesting node can change it.
type askedChange struct {
	Verb           queue.Verb     `json:"verb,omitempty"`
	UID            int            `json:"uid"`
	Timeout        *time.Duration `json:"timeout,omitempty"`
	Alone          bool           `json:"alone,omitempty"`
	Only           []queue.State  `json:"only,omitempty"`
	MaxPending     int64          `json:"max_pending,omitempty"`
	MaxPendingUser int64          `json:"max_pending_user,omitempty"`
	MaxBytesUser   int64          `json:"max_bytes_user,omitempty"`
}

// answered is the reply to an ask.
type answered struct {
	Held  bool       `json:"held,omitempty"` // the replying node holds the job's lease
	Chunk *livePiece `json:"chunk,omitempty"`
	Data  []byte     `json:"data,omitempty"` // part of an output file
	Size  int64      `json:"size,omitempty"` // size of the whole output file, in bytes
	Again bool       `json:"again,omitempty"`
	Done  []string   `json:"done,omitempty"` // ids of jobs
	Met   string     `json:"met,omitempty"`  // name of an error in askErrors; "" if there was none
	Code  queue.Code `json:"code,omitempty"`
	Field string     `json:"field,omitempty"`
	Error string     `json:"error,omitempty"`

	Reasons []control.Reason   `json:"reasons,omitempty"` // why the replying node does not start the job
	Units   []control.GateView `json:"units,omitempty"`   // resources of the replying node
}

// askErrors contains the errors that nodes send by name, so that the requesting node can compare them with
// errors.Is.
var askErrors = map[string]error{"moved": store.ErrMoved, "leased": store.ErrLeased, "runs": worker.ErrRuns, "otherwise": worker.ErrOtherwise, "none": os.ErrNotExist}

// livePiece is a piece of a running attempt's output, encoded by output.AppendChunks.
type livePiece struct {
	Cursor output.Cursor `json:"cursor"` // position after the piece
	Done   bool          `json:"done,omitempty"`
	Data   []byte        `json:"data,omitempty"`
}

// readHere reads output of an attempt that runs on this node.
func (c crew) readHere(ctx context.Context, seq int64, cursor output.Cursor, wait bool) (*livePiece, bool, error) {
	chunk, ok, err := c.s.pool.Read(ctx, seq, cursor, wait)
	if err != nil || !ok {
		return nil, ok, err
	}
	return &livePiece{chunk.Cursor, chunk.Done, chunk.Data}, true, nil
}

func (a *answered) fail(err error) {
	if err == nil {
		return
	}
	for name, known := range askErrors {
		if errors.Is(err, known) {
			a.Met = name
			return
		}
	}
	a.Code, a.Error = queue.CodeInternal, err.Error()
	if e, is := errors.AsType[*queue.Error](err); is {
		a.Code, a.Field, a.Error = e.Code, e.Field, e.Message
	}
}

func (a *answered) err() error {
	switch {
	case a.Met != "":
		return askErrors[a.Met]
	case a.Error != "":
		return &queue.Error{Code: a.Code, Field: a.Field, Message: a.Error}
	}
	return nil
}

// Limits of requests between nodes.
const (
	// Maximum time to answer a request, which may include waiting until a job ends.
	askWithin  = 10 * time.Minute
	readWithin = 5 * time.Second // maximum wait for new output; after that, the caller requests it again
	// Maximum number of requests of each kind, fast or slow, that are read in one query.
	maxParallelAsks = 64
)

// elsewhere sends a request to the node that holds the job's lease. held is false if no node holds it.
func (c crew) elsewhere(ctx context.Context, a ask) (is answered, held bool, err error) {
	if c.s.cluster == nil {
		return is, false, nil
	}
	node, err := c.s.cluster.Holder(ctx, a.Seq)
	if err != nil || node == 0 {
		return is, false, err
	}
	is, err = c.ask(ctx, node, a)
	return is, is.Held, err
}

// ask sends a request to a node and waits for the reply. It gives up when the node's lease has expired.
func (c crew) ask(ctx context.Context, node int64, a ask) (is answered, err error) {
	text, err := json.Marshal(a)
	if err != nil {
		return is, err
	}
	if a.Do == "cancel" || a.Do == "requeue" { // answered only when the job has ended
		leave, err := c.s.farAsks.enter(ctx, a.UID)
		if err != nil {
			return is, err
		}
		defer leave()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if a.Do == "read" || a.Do == "output" {
		silent := time.AfterFunc(2*readWithin, func() {
			cancel(queue.Errorf(queue.CodeUnavailable, "the node that has the job's output does not answer; see: queuectl node list"))
		})
		defer silent.Stop()
	}
	go c.watch(ctx, node, cancel)
	raw, err := c.s.cluster.Ask(ctx, node, text, slices.Contains([]string{"read", "output", "quiet"}, a.Do))
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err == nil {
		err = json.Unmarshal(raw, &is)
	}
	if err == nil {
		err = is.err()
	}
	return is, err
}

// farAsks limits how many jobs on other nodes one user can wait for concurrently. Further requests of the
// user wait.
type farAsks struct {
	mu sync.Mutex
	of map[int]*places // by uid; guarded by mu
}

// places is the semaphore of one user.
type places struct {
	taken chan struct{}
	users int // requests that hold or wait for a slot; guarded by the mu of farAsks
}

// enter waits for a slot of the user. The caller returns the slot by calling leave.
func (f *farAsks) enter(ctx context.Context, uid int) (leave func(), err error) {
	f.mu.Lock()
	p := f.of[uid]
	if p == nil {
		p = &places{taken: make(chan struct{}, farAsksMost)}
		if f.of == nil {
			f.of = map[int]*places{}
		}
		f.of[uid] = p
	}
	p.users++
	f.mu.Unlock()
	gone := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if p.users--; p.users == 0 {
			delete(f.of, uid)
		}
	}
	select {
	case p.taken <- struct{}{}:
		return func() { <-p.taken; gone() }, nil
	case <-ctx.Done():
		gone()
		return nil, ctx.Err()
	}
}

// farAsksMost is the number of slots of a user.
const farAsksMost = 16

// watch cancels a request with a nodeLost error when the lease of the requested node has expired or the node
// was removed.
func (c crew) watch(ctx context.Context, node int64, cancel func(error)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(c.s.cluster.Lease() / 3):
		}
		list, err := c.s.nodes(ctx)
		if at := slices.IndexFunc(list, func(n store.NodeState) bool { return n.ID == node }); err == nil && at < 0 {
			cancel(nodeLost{queue.Errorf(queue.CodeUnavailable, "the node that runs the job was removed; another node takes over the job soon")})
		} else if err == nil && !list[at].Alive {
			cancel(nodeLost{queue.Errorf(queue.CodeUnavailable, "the node that runs the job, %s, does not answer; another node takes over the job soon", list[at].Name)})
		}
	}
}

// nodeLost says that a node was lost or removed while it was handling a request.
type nodeLost struct{ error }

// Unwrap returns the underlying error for package errors.
func (e nodeLost) Unwrap() error { return e.error }

func isLost(err error) bool { return errors.As(err, new(nodeLost)) }

// either executes a command in this node's pool or, if the job is not here, on the node that holds it. If
// that node is lost while it ends a job, either repeats the command once the job has a new holder or none.
func (c crew) either(ctx context.Context, a ask) (bool, error) {
	for {
		is, err := c.here(ctx, &a)
		if is.Held || err != nil {
			return is.Held, err
		}
		_, held, err := c.elsewhere(ctx, a)
		if !isLost(err) || a.Do != "cancel" && a.Do != "requeue" || !c.inherited(ctx, a.Seq) {
			return held, err
		}
	}
}

// inherited waits until the lease of a lost node's job has moved to a live node or no longer exists. It gives
// up after the duration of a node lease.
func (c crew) inherited(ctx context.Context, seq int64) bool {
	ctx, cancel := context.WithTimeout(ctx, c.s.cluster.Lease())
	defer cancel()
	was, err := c.s.cluster.Holder(ctx, seq)
	for err == nil && was != 0 && !c.s.lives(ctx, was) {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(againEvery):
		}
		was, err = c.s.cluster.Holder(ctx, seq)
	}
	return err == nil
}

// againEvery is the polling interval for states that are expected to change soon.
const againEvery = 250 * time.Millisecond

// here executes a request in this node's pool.
func (c crew) here(ctx context.Context, a *ask) (is answered, err error) {
	p := c.s.pool
	switch a.Do {
	case "cancel":
		is.Held, err = p.Cancel(ctx, a.Seq, a.UID)
	case "requeue":
		is.Held, err = p.Requeue(ctx, a.Seq, a.UID)
	case "signal":
		is.Held, err = p.Signal(ctx, a.Seq, a.Number)
	case "pause":
		is.Held, err = p.Pause(ctx, a.Seq, a.On, a.UID)
	case "thaw":
		is.Held, err = p.Running(a.Seq) > 0, p.Thaw(ctx, a.Seq, a.UID)
	case "change":
		if a.Change.Verb == "" {
			is.Held, err = p.GiveBack(ctx, a.Seq)
			break
		}
		g := a.Change
		is.Held, err = p.Change(ctx, a.Seq, store.Change{Verb: g.Verb, UID: g.UID, Timeout: g.Timeout, Alone: g.Alone, Only: g.Only, MaxPending: g.MaxPending, MaxPendingUser: g.MaxPendingUser, MaxBytesUser: g.MaxBytesUser})
	case "read":
		within, cancel := context.WithTimeout(ctx, readWithin)
		defer cancel()
		is.Chunk, is.Held, err = c.readHere(within, a.Seq, a.Cursor, a.On)
		if err != nil && within.Err() != nil && ctx.Err() == nil && a.On {
			is.Again, is.Held, err = true, true, nil
		}
	case "obey", "freeze", "drained":
		is.Held = true
		err = c.s.obey(ctx)
		switch {
		case err != nil:
		case a.Do == "freeze":
			is.Done, err = p.PauseAll(c.s.paused.Load() != nil)(ctx)
		case a.Do == "drained":
			err = p.AwaitNoStarts(ctx, worker.NoStartsWithin)
		}
	case "quiet":
		is.Held = true
		within, cancel := context.WithTimeout(ctx, readWithin)
		defer cancel()
		if err = p.Quiet(within); err != nil && ctx.Err() == nil {
			is.Again, err = true, nil
		}
	case "why":
		is.Held = true
		var j queue.Job
		if j, err = c.s.store.Get(ctx, a.Ref); err == nil {
			is.Reasons, err = c.s.whyHere(ctx, &j)
		}
	case "units":
		is.Held = true
		is.Units, err = c.s.unitsHere(ctx)
	case "output":
		is.Data, is.Size, err = c.piece(a)
		is.Held = true
	default:
		err = queue.Errorf(queue.CodeUnsupported, "node %s runs a queuectl version that does not know the request %q; upgrade node %[1]s",
			c.s.node, queue.Clip(a.Do))
	}
	return is, err
}

// Cancel is worker.Pool.Cancel for a job on any node. The same holds for the methods below.
func (c crew) Cancel(ctx context.Context, seq int64, uid int) (bool, error) {
	return c.either(ctx, ask{Do: "cancel", Seq: seq, UID: uid})
}

// Requeue ends an attempt and returns its job to the queue.
func (c crew) Requeue(ctx context.Context, seq int64, uid int) (bool, error) {
	return c.either(ctx, ask{Do: "requeue", Seq: seq, UID: uid})
}

// Signal sends a signal to a running job's process tree.
func (c crew) Signal(ctx context.Context, seq int64, number int) (bool, error) {
	return c.either(ctx, ask{Do: "signal", Seq: seq, Number: number})
}

// Pause freezes a running job, or resumes it.
func (c crew) Pause(ctx context.Context, seq int64, on bool, uid int) (bool, error) {
	return c.either(ctx, ask{Do: "pause", Seq: seq, On: on, UID: uid})
}

// Thaw resumes a job if it is paused.
func (c crew) Thaw(ctx context.Context, seq int64, uid int) error {
	_, err := c.either(ctx, ask{Do: "thaw", Seq: seq, UID: uid})
	return err
}

// Change changes a job that is leased and has not started.
func (c crew) Change(ctx context.Context, seq int64, g store.Change) (bool, error) {
	done, err := c.s.pool.Change(ctx, seq, g)
	if done || err != nil {
		return done, err
	}
	asked := &askedChange{g.Verb, g.UID, g.Timeout, g.Alone, g.Only, g.MaxPending, g.MaxPendingUser, g.MaxBytesUser}
	if g.Edit != nil {
		asked.Verb = ""
	}
	is, held, err := c.elsewhere(ctx, ask{Do: "change", Seq: seq, Change: asked})
	return held && (g.Edit == nil || is.err() != nil), err
}

// Running returns the number of the attempt for which a node holds the job's lease, or 0 if none does.
func (c crew) Running(ctx context.Context, j *queue.Job) int {
	if n := c.s.pool.Running(j.Seq); n > 0 || c.s.cluster == nil || j.State != queue.Processing {
		return n
	}
	if node, err := c.s.cluster.Holder(ctx, j.Seq); err == nil && node != 0 {
		return j.Runs + 1
	}
	return 0
}

// Read reads output of a running job on any node.
func (c crew) Read(ctx context.Context, seq int64, cursor output.Cursor, wait bool) (*livePiece, bool, error) {
	chunk, ok, err := c.readHere(ctx, seq, cursor, wait)
	for answers := time.Now(); !ok && err == nil; {
		is, held, failed := c.elsewhere(ctx, ask{Do: "read", Seq: seq, Cursor: cursor, On: wait})
		switch {
		case failed == nil && !is.Again, failed != nil && (!wait || !errors.Is(failed, queue.ErrUnavailable)):
			return is.Chunk, held, failed
		case failed == nil:
			answers = time.Now()
		case isLost(failed):
			if !c.inherited(ctx, seq) {
				return nil, false, failed
			}
		case time.Since(answers) > 2*c.s.cluster.Lease(): // the lease of a lost node has expired by then
			return nil, false, failed
		default: // for example, the store is temporarily unavailable
			select {
			case <-ctx.Done():
				return nil, false, ctx.Err()
			case <-time.After(againEvery):
			}
		}
	}
	return chunk, ok, err
}

// nodeOf returns the name of the node that holds a job's lease, or this node's name if none does.
func (s *Service) nodeOf(ctx context.Context, seq int64) string {
	if s.cluster == nil {
		return s.node
	}
	node, err := s.cluster.Holder(ctx, seq)
	if err == nil && node != 0 {
		list, err := s.nodes(ctx)
		for i := range list {
			if err == nil && list[i].ID == node {
				return list[i].Name
			}
		}
	}
	return s.node
}

// answerAsks starts a goroutine for each request of another node, since some requests take long. A request is
// cancelled when its sender no longer waits.
func (s *Service) answerAsks(ctx context.Context) {
	s.dropAsks(ctx)
	var list []store.Asked
	for _, slow := range []bool{false, true} {
		for more := true; more; {
			some, err := s.cluster.Asked(ctx, slow, maxParallelAsks)
			if more = err == nil && len(some) == maxParallelAsks; err != nil {
				break // the next hint reads them again
			}
			list = append(list, some...)
		}
	}
	for _, one := range list {
		within, cancel := context.WithTimeout(ctx, askWithin)
		s.asked.Store(one.N, cancel)
		s.answering.Go(func() {
			defer s.asked.Delete(one.N)
			defer cancel()
			var a ask
			var is answered
			if err := json.Unmarshal(one.Ask, &a); err != nil || a.Do == "change" && a.Change == nil {
				is.fail(queue.Errorf(queue.CodeUnsupported, "node %s cannot read the request; run the same version of queuectl on all nodes", s.node))
			} else {
				is, err = s.crew().here(within, &a)
				is.fail(err)
			}
			text, err := json.Marshal(is)
			if len(text) > store.MaxAnswer {
				is = answered{}
				is.fail(queue.Errorf(queue.CodeTooLarge, "the answer of node %s is longer than the maximum of %d bytes", s.node, store.MaxAnswer))
				text, err = json.Marshal(is)
			}
			for err == nil && within.Err() == nil {
				failed := s.cluster.Answer(within, one.N, text)
				if !errors.Is(failed, queue.ErrUnavailable) {
					err = failed
					break
				}
				select {
				case <-within.Done():
				case <-time.After(time.Second):
				}
			}
			if err != nil && within.Err() == nil {
				s.log.Warn("cannot answer a request from another node", "error", err)
			}
		})
	}
}

// dropAsks cancels the requests whose senders no longer wait for the answer.
func (s *Service) dropAsks(ctx context.Context) {
	var begun []int64
	s.asked.Range(func(n, _ any) bool {
		begun = append(begun, n.(int64))
		return true
	})
	if len(begun) == 0 {
		return
	}
	wanted, err := s.cluster.Wanted(ctx)
	for _, n := range begun {
		if cancel, there := s.asked.Load(n); err == nil && there && !wanted[n] {
			cancel.(context.CancelFunc)()
		}
	}
}
