package handlers

import (
	"context"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// bytesPerReadSlot is the approximate number of bytes of a stream that are read and sent while holding one read
// slot.
const bytesPerReadSlot = 64 << 10

// Wait implements control.API.
func (h *API) Wait(ctx context.Context, p control.Wait, each func(control.JobEndNotice) error) (control.WaitResult,
	error) {
	ids := control.Selection{ID: p.ID, IDs: p.IDs}.AllIDs()
	if len(ids) > control.MaxWaitIDs {
		return control.WaitResult{}, queue.Invalid("ids", "too many jobs (%d); the maximum is %d", len(ids),
			control.MaxWaitIDs)
	}
	req := &waitRequest{h: h, peer: control.PeerFrom(ctx), ids: ids, each: each, any: p.Any}
	if err := req.findJobs(ctx); err != nil {
		return control.WaitResult{}, err
	}
	watching := h.Store.Watch(req.seqs)
	defer watching.Stop()
	for _, seq := range req.seqs {
		defer h.Pool.WatchEnd(seq)()
	}
	var timeout <-chan time.Time
	if p.Timeout > 0 {
		timer := time.NewTimer(time.Duration(p.Timeout))
		defer timer.Stop()
		timeout = timer.C
	}
	for timedOut := false; ; {
		// Report the jobs that have already ended, even if the timeout has passed.
		if err := req.reportEnded(ctx, watching.ChangedJobs()); err != nil {
			return control.WaitResult{}, err
		}
		if timedOut || req.isDone() {
			return control.WaitResult{UnfinishedIDs: req.unfinishedIDs(), TimedOut: timedOut && !req.isDone()}, nil
		}
		select {
		case <-watching.C:
		case <-timeout:
			timedOut = true
		case <-ctx.Done():
			return control.WaitResult{}, ctx.Err()
		}
	}
}

// waitRequest is the state of a request that waits for jobs to end. A job in state held has not ended.
type waitRequest struct {
	h             *API
	peer          control.Peer
	ids           []string
	seqs          []int64 // sequence numbers of the jobs in ids
	hasEnded      []bool
	reportedCount int
	any           bool
	each          func(control.JobEndNotice) error
}

// findJobs finds the jobs. It returns an error if one does not exist.
func (w *waitRequest) findJobs(ctx context.Context) error {
	w.hasEnded = make([]bool, len(w.ids))
	for len(w.seqs) < len(w.ids) {
		refs, errs, err := w.h.readRefs(ctx, w.ids[len(w.seqs):min(len(w.seqs)+jobsPerReadSlot, len(w.ids))])
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

// reportEnded reports which of the changed jobs have ended, in the order of the request.
func (w *waitRequest) reportEnded(ctx context.Context, changed []int64) error {
	isChanged := make(map[int64]bool, len(changed))
	for _, seq := range changed {
		isChanged[seq] = true
	}
	for i := 0; i < len(w.ids) && !w.isDone(); {
		if w.hasEnded[i] || !isChanged[w.seqs[i]] {
			i++
			continue
		}
		err := w.h.UserLimits.RunStreamStep(ctx, control.ClassOneJob, func() error {
			for read, bytes := 0, 0; i < len(w.ids) && read < jobsPerReadSlot && bytes < bytesPerReadSlot && !w.isDone(); i++ {
				if w.hasEnded[i] || !isChanged[w.seqs[i]] {
					continue
				}
				read++
				j, err := w.h.reread(ctx, &queue.Job{ID: w.ids[i], Seq: w.seqs[i]})
				if err != nil {
					return err
				}
				if !j.State.Ended() {
					continue
				}
				bytes += store.JobTextSize(&j)
				if err := w.each(control.JobEndNotice{Job: w.h.viewJobFor(&w.peer, &j)}); err != nil {
					return err
				}
				w.hasEnded[i] = true
				w.reportedCount++
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *waitRequest) isDone() bool {
	return w.reportedCount == len(w.ids) || w.any && w.reportedCount > 0
}

func (w *waitRequest) unfinishedIDs() []string {
	ids := []string{}
	for i, id := range w.ids {
		if !w.hasEnded[i] {
			ids = append(ids, id)
		}
	}
	return ids
}

// rereadCompact takes a read slot and reads a job again. It returns the job without its large fields.
func (h *API) rereadCompact(ctx context.Context, old *queue.Job) (queue.Job, error) {
	j, err := read(ctx, h.UserLimits, control.ClassOneJob, func() (queue.Job, error) { return h.reread(ctx, old) })
	return compactJob(&j), err
}

// compactJob returns a job without the fields that may be large. A request may keep this part in memory while it
// waits.
func compactJob(j *queue.Job) queue.Job {
	return queue.Job{
		Seq: j.Seq, ID: j.ID, UID: j.UID, Priority: j.Priority, State: j.State, Reason: j.Reason,
		StartedAttempts: j.StartedAttempts,
		Attempts:        j.Attempts, DueAt: j.DueAt, AgingSince: j.AgingSince, ArrivalNumber: j.ArrivalNumber,
		PausedAt:     j.PausedAt,
		PausedBy:     j.PausedBy,
		InputRemoved: j.InputRemoved, Execution: queue.Execution{OutputLimit: j.OutputLimit, TTY: j.TTY},
	}
}

// reread reads a job again within the caller's read slot. It returns an error if the job was removed and
// another job has its id now.
func (h *API) reread(ctx context.Context, old *queue.Job) (queue.Job, error) {
	j, err := h.Store.Get(ctx, old.ID)
	if err == nil {
		err = checkSameJob(&j, old)
	}
	return j, err
}

func checkSameJob(j, old *queue.Job) error {
	if j.Seq != old.Seq {
		return queue.Errorf(queue.CodeNotFound, "job %q was removed, and another job has this id now", old.ID)
	}
	return nil
}
