package service

import (
	"context"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// pieceBytes is the approximate number of bytes of a stream that are read and sent while holding one read
// slot.
const pieceBytes = 64 << 10

// Wait implements control.API.
func (s *Service) Wait(ctx context.Context, p control.Wait, each func(control.Ended) error) (control.Waited, error) {
	ids := control.Selection{ID: p.ID, IDs: p.IDs}.Names()
	if len(ids) > control.MaxWaits {
		return control.Waited{}, queue.Invalid("ids", "too many jobs (%d); the maximum is %d", len(ids), control.MaxWaits)
	}
	w := &waiting{s: s, peer: control.PeerFrom(ctx), ids: ids, each: each, any: p.Any}
	if err := w.begin(ctx); err != nil {
		return control.Waited{}, err
	}
	watching := s.store.Watch(w.seqs)
	defer watching.Stop()
	for _, seq := range w.seqs {
		defer s.pool.Watch(seq)()
	}
	var timeout <-chan time.Time
	if p.Timeout > 0 {
		timer := time.NewTimer(time.Duration(p.Timeout))
		defer timer.Stop()
		timeout = timer.C
	}
	for over := false; ; {
		// Report jobs that have already ended, even after the timeout.
		if err := w.look(ctx, watching.Changed()); err != nil {
			return control.Waited{}, err
		}
		if over || w.done() {
			return control.Waited{Open: w.open(), TimedOut: over && !w.done()}, nil
		}
		select {
		case <-watching.C:
		case <-timeout:
			over = true
		case <-ctx.Done():
			return control.Waited{}, ctx.Err()
		}
	}
}

// waiting is the state of a request that waits for jobs to end. A held job has not ended.
type waiting struct {
	s     *Service
	peer  control.Peer
	ids   []string
	seqs  []int64 // sequence numbers of the jobs in ids
	ended []bool
	told  int
	any   bool
	each  func(control.Ended) error
}

// begin finds the jobs. It returns an error if one does not exist.
func (w *waiting) begin(ctx context.Context) error {
	w.ended = make([]bool, len(w.ids))
	for len(w.seqs) < len(w.ids) {
		refs, errs, err := w.s.look(ctx, w.ids[len(w.seqs):min(len(w.seqs)+lookStep, len(w.ids))])
		if err != nil {
			return err
		}
		for i := range refs {
			if errs[i] != nil {
				return errs[i]
			}
			w.seqs = append(w.seqs, refs[i].Seq)
		}
	}
	return nil
}

// look reports which of the changed jobs have ended, in the order of the request.
func (w *waiting) look(ctx context.Context, changed []int64) error {
	isChanged := make(map[int64]bool, len(changed))
	for _, seq := range changed {
		isChanged[seq] = true
	}
	for i := 0; i < len(w.ids) && !w.done(); {
		if w.ended[i] || !isChanged[w.seqs[i]] {
			i++
			continue
		}
		err := w.s.shares.Step(ctx, control.One, func() error {
			for looked, bytes := 0, 0; i < len(w.ids) && looked < lookStep && bytes < pieceBytes && !w.done(); i++ {
				if w.ended[i] || !isChanged[w.seqs[i]] {
					continue
				}
				looked++
				j, err := w.s.again(ctx, &queue.Job{ID: w.ids[i], Seq: w.seqs[i]})
				if err != nil {
					return err
				}
				if !j.State.Ended() {
					continue
				}
				bytes += store.TextSize(&j)
				if err := w.each(control.Ended{Job: w.s.viewTo(&w.peer, &j)}); err != nil {
					return err
				}
				w.ended[i] = true
				w.told++
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *waiting) done() bool { return w.told == len(w.ids) || w.any && w.told > 0 }

func (w *waiting) open() []string {
	open := []string{}
	for i, id := range w.ids {
		if !w.ended[i] {
			open = append(open, id)
		}
	}
	return open
}

// lookAgain is again with its own read slot. It returns the job without its large fields.
func (s *Service) lookAgain(ctx context.Context, was *queue.Job) (j queue.Job, err error) {
	err = s.shares.Do(ctx, control.One, func() error {
		got, err := s.again(ctx, was)
		j = outline(&got)
		return err
	})
	return j, err
}

// outline returns a job without the fields that may be large. A request may keep this part in memory while it
// waits.
func outline(j *queue.Job) queue.Job {
	return queue.Job{
		Seq: j.Seq, ID: j.ID, UID: j.UID, Priority: j.Priority, State: j.State, Reason: j.Reason, Runs: j.Runs,
		Attempts: j.Attempts, DueAt: j.DueAt, Since: j.Since, Arrival: j.Arrival, PausedAt: j.PausedAt, PausedBy: j.PausedBy,
		InputRemoved: j.InputRemoved, Execution: queue.Execution{OutputLimit: j.OutputLimit, TTY: j.TTY},
	}
}

// again reads a job again, within the caller's read slot. It returns an error if the job was removed and
// another job has its id now.
func (s *Service) again(ctx context.Context, was *queue.Job) (queue.Job, error) {
	j, err := s.store.Get(ctx, was.ID)
	if err == nil {
		err = sameJob(&j, was)
	}
	return j, err
}

func sameJob(j, was *queue.Job) error {
	if j.Seq != was.Seq {
		return queue.Errorf(queue.CodeNotFound, "job %q was removed, and another job has this id now", was.ID)
	}
	return nil
}
