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

// crew does what is asked of a job that may run: by the pool of this node or, of a store that nodes share, by that of the node
// which has it leased.
// See docs/decisions/0032.
type crew struct{ s *Service }

func (s *Service) crew() crew { return crew{s} }

// ask is what one node asks of another.
type ask struct {
	Do     string        `json:"do"` // see crew.here
	Seq    int64         `json:"seq,omitempty"`
	UID    int           `json:"uid,omitempty"`
	Number int           `json:"number,omitempty"` // of a signal
	On     bool          `json:"on,omitempty"`
	Change *askedChange  `json:"change,omitempty"`
	Cursor output.Cursor `json:"cursor,omitempty"`
	Ref    string        `json:"ref,omitempty"` // of an output file, or the id of a job
	At     int64         `json:"at,omitempty"`  // in it
	Length int64         `json:"length,omitempty"`
}

// askedChange is a store.Change as another node is told of it. Without a verb the job is given back, so that whoever asks can
// change it.
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

// answered is what another node answers.
type answered struct {
	Held  bool       `json:"held,omitempty"` // it has the job
	Chunk *livePiece `json:"chunk,omitempty"`
	Data  []byte     `json:"data,omitempty"` // of an output file
	Size  int64      `json:"size,omitempty"` // of all of it
	Again bool       `json:"again,omitempty"`
	Done  []string   `json:"done,omitempty"` // jobs
	Met   string     `json:"met,omitempty"`  // a name of askErrors
	Code  queue.Code `json:"code,omitempty"`
	Field string     `json:"field,omitempty"`
	Error string     `json:"error,omitempty"`

	Reasons []control.Reason   `json:"reasons,omitempty"` // that keep it from starting the job
	Units   []control.GateView `json:"units,omitempty"`   // of its resources
}

// askErrors are errors that are told by name.
var askErrors = map[string]error{"moved": store.ErrMoved, "leased": store.ErrLeased, "runs": worker.ErrRuns, "otherwise": worker.ErrOtherwise, "none": os.ErrNotExist}

// livePiece is a piece of a running attempt's output, as output.AppendChunks writes it.
type livePiece struct {
	Cursor output.Cursor `json:"cursor"` // after it
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

// Waits of what nodes ask each other.
const (
	askWithin       = 10 * time.Minute // for what ends a job
	readWithin      = 5 * time.Second  // for output; then it is asked for again
	maxParallelAsks = 64               // of either kind
)

// elsewhere asks the node that has a job leased. held is false if none has.
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

// ask asks a node, for as long as its lease lasts.
func (c crew) ask(ctx context.Context, node int64, a ask) (is answered, err error) {
	text, err := json.Marshal(a)
	if err != nil {
		return is, err
	}
	if a.Do == "cancel" || a.Do == "requeue" { // which are answered once the job has ended
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

// farAsks bounds for how many jobs on other nodes a user waits at once: more of them wait for those.
type farAsks struct {
	mu sync.Mutex
	of map[int]*places // by uid; guarded by mu
}

// places are those of a user.
type places struct {
	taken chan struct{}
	users int // that have one or wait for one; guarded by the farAsks' mu
}

// enter takes a place of a user, as soon as there is one, until leave is called.
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

// farAsksMost is how many places a user has.
const farAsksMost = 16

// watch has those who wait for a node's answer give up once its lease is over.
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

// nodeLost says that a node was lost, or removed, while it was asked.
type nodeLost struct{ error }

// Unwrap implements what package errors looks for.
func (e nodeLost) Unwrap() error { return e.error }

func isLost(err error) bool { return errors.As(err, new(nodeLost)) }

// either is what this node's pool says, or else that of the node which has the job. What ends a job is for whoever has it once that node is
// lost: others have it then, or nobody.
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

// inherited waits until another node has a job than the one that was lost with it, or none, for as long as a lease lasts.
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

// againEvery is how often it is looked again at what will be otherwise soon.
const againEvery = 250 * time.Millisecond

// here does with this node's pool what is asked.
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

// Cancel is worker.Pool.Cancel, wherever the job runs; so are the others.
func (c crew) Cancel(ctx context.Context, seq int64, uid int) (bool, error) {
	return c.either(ctx, ask{Do: "cancel", Seq: seq, UID: uid})
}

// Requeue has an attempt ended and its job wait.
func (c crew) Requeue(ctx context.Context, seq int64, uid int) (bool, error) {
	return c.either(ctx, ask{Do: "requeue", Seq: seq, UID: uid})
}

// Signal sends a signal to a running job's tree.
func (c crew) Signal(ctx context.Context, seq int64, number int) (bool, error) {
	return c.either(ctx, ask{Do: "signal", Seq: seq, Number: number})
}

// Pause has a running job stand still, or go on.
func (c crew) Pause(ctx context.Context, seq int64, on bool, uid int) (bool, error) {
	return c.either(ctx, ask{Do: "pause", Seq: seq, On: on, UID: uid})
}

// Thaw has a paused job go on, if it is.
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

// Running is which attempt of a job is held, by number; 0 is none.
func (c crew) Running(ctx context.Context, j *queue.Job) int {
	if n := c.s.pool.Running(j.Seq); n > 0 || c.s.cluster == nil || j.State != queue.Processing {
		return n
	}
	if node, err := c.s.cluster.Holder(ctx, j.Seq); err == nil && node != 0 {
		return j.Runs + 1
	}
	return 0
}

// Read reads output of a running job.
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
		case time.Since(answers) > 2*c.s.cluster.Lease(): // a lost node is known by then
			return nil, false, failed
		default: // the store is away for a while, say
			select {
			case <-ctx.Done():
				return nil, false, ctx.Err()
			case <-time.After(againEvery):
			}
		}
	}
	return chunk, ok, err
}

// nodeOf is the name of the node that has a job leased.
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

// answerAsks answers what other nodes ask, each for itself: some of it takes long. Whoever does not wait any more gets none.
func (s *Service) answerAsks(ctx context.Context) {
	s.dropAsks(ctx)
	var list []store.Asked
	for _, slow := range []bool{false, true} {
		for more := true; more; {
			some, err := s.cluster.Asked(ctx, slow, maxParallelAsks)
			if more = err == nil && len(some) == maxParallelAsks; err != nil {
				break // they are heard at the next hint
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

// dropAsks ends what is done for those who do not wait for it any more.
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
