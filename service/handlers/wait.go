package handlers

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// bytesPerReadSlot is about how many bytes of a stream a request reads and sends before it lets other
// requests read.
const bytesPerReadSlot = 64 << 10

// Wait implements control.API.
func (h *API) Wait(ctx context.Context, p control.Wait, handleNotice func(control.JobEndNotice) error) (
	control.WaitResult, error) {
	ids := control.Selection{ID: p.ID, IDs: p.IDs}.AllIDs()
	if len(ids) > control.MaxWaitIDs {
		return control.WaitResult{}, queue.Invalid("ids", "too many jobs (%d); the maximum is %d", len(ids),
			control.MaxWaitIDs)
	}
	req := &waitRequest{api: h, peer: control.PeerFrom(ctx), sendNotice: handleNotice, endsAtFirst: p.Any}
	if err := req.findJobs(ctx, ids); err != nil {
		return control.WaitResult{}, err
	}
	var seqs []int64
	for _, ref := range req.unfinished {
		seqs = append(seqs, ref.Seq)
		defer h.Pool.WatchEnd(ref.Seq)()
	}
	watching := h.Store.Watch(seqs)
	defer watching.Stop()
	var timeout <-chan time.Time
	if p.Timeout > 0 {
		timer := time.NewTimer(time.Duration(p.Timeout))
		defer timer.Stop()
		timeout = timer.C
	}
	for timedOut := false; ; {
		// Report jobs that have already ended, even if the timeout has passed.
		if err := req.reportEnded(ctx, watching.ChangedJobs()); err != nil {
			return control.WaitResult{}, err
		}
		if timedOut || req.isDone() {
			result := control.WaitResult{UnfinishedIDs: []string{}, TimedOut: timedOut && !req.isDone()}
			for _, ref := range req.unfinished {
				result.UnfinishedIDs = append(result.UnfinishedIDs, ref.ID)
			}
			return result, nil
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

// waitRequest is the state of a request that waits for jobs to end. A held job has not ended, so the request
// waits for it.
type waitRequest struct {
	api         *API
	peer        control.Peer
	unfinished  []store.JobRef // jobs whose end was not reported yet, in the order of the request
	anyReported bool
	endsAtFirst bool // the request ends when the first job has ended
	sendNotice  func(control.JobEndNotice) error
}

// findJobs reads references to the jobs with these ids into w.unfinished. It returns an error if an id does not
// exist.
func (w *waitRequest) findJobs(ctx context.Context, ids []string) error {
	for some := range slices.Chunk(ids, jobsPerReadSlot) {
		jobs, errs, err := w.api.readJobs(ctx, some)
		if err = cmp.Or(append(errs, err)...); err != nil {
			return err
		}
		for i := range jobs {
			j := &jobs[i]
			w.unfinished = append(w.unfinished, store.JobRef{Seq: j.Seq, ID: j.ID, State: j.State, UID: j.UID})
		}
	}
	return nil
}

// reportEnded sends a notice for each of the changed jobs that has ended, in the order of the request.
func (w *waitRequest) reportEnded(ctx context.Context, changedSeqs []int64) error {
	isChanged := make(map[int64]bool, len(changedSeqs))
	for _, seq := range changedSeqs {
		isChanged[seq] = true
	}
	for i := 0; i < len(w.unfinished) && !w.isDone(); {
		if !isChanged[w.unfinished[i].Seq] {
			i++
			continue
		}
		err := w.api.UserLimits.RunStreamStep(ctx, control.ClassOneJob, func() error {
			for read, bytes := 0, 0; i < len(w.unfinished) && read < jobsPerReadSlot && bytes < bytesPerReadSlot &&
				!w.isDone(); read++ {
				ref := w.unfinished[i]
				if !isChanged[ref.Seq] {
					i++
					continue
				}
				j, err := w.api.reread(ctx, &queue.Job{ID: ref.ID, Seq: ref.Seq})
				if err != nil {
					return err
				}
				if !j.State.Ended() {
					i++
					continue
				}
				bytes += store.JobTextSize(&j)
				if err := w.sendNotice(control.JobEndNotice{Job: w.api.viewJobFor(&w.peer, &j)}); err != nil {
					return err
				}
				w.unfinished, w.anyReported = slices.Delete(w.unfinished, i, i+1), true
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// isDone reports whether the request need not wait any longer.
func (w *waitRequest) isDone() bool {
	return len(w.unfinished) == 0 || w.endsAtFirst && w.anyReported
}

// rereadCompact takes a read slot, reads a job again and returns it without its large fields.
func (h *API) rereadCompact(ctx context.Context, old *queue.Job) (queue.Job, error) {
	j, err := readInSlot(ctx, h.UserLimits, control.ClassOneJob, func() (queue.Job, error) { return h.reread(ctx, old) })
	return compactJob(&j), err
}

// compactJob returns a job without the fields that may be large, so that a waiting request needs little memory.
func compactJob(j *queue.Job) queue.Job {
	return queue.Job{
		Seq: j.Seq, ID: j.ID, UID: j.UID, Priority: j.Priority, State: j.State, Reason: j.Reason,
		StartedAttempts: j.StartedAttempts, Attempts: j.Attempts, DueAt: j.DueAt, AgingSince: j.AgingSince,
		ArrivalNumber: j.ArrivalNumber, PausedAt: j.PausedAt, PausedBy: j.PausedBy,
		InputRemoved: j.InputRemoved,
		Execution:    queue.Execution{OutputLimit: j.OutputLimit, TTY: j.TTY, User: j.User, AsUID: j.AsUID},
	}
}

// reread reads a job again. The caller holds a read slot. It returns an error if the job was removed, even if
// another job has its id now.
func (h *API) reread(ctx context.Context, old *queue.Job) (queue.Job, error) {
	j, err := h.Store.Get(ctx, old.ID)
	if err == nil {
		err = checkSameJob(&j, old)
	}
	return j, err
}

// checkSameJob returns an error if j is not the job old, but another job that got the same id later.
func checkSameJob(j, old *queue.Job) error {
	if j.Seq != old.Seq {
		return queue.Errorf(queue.CodeNotFound, "job %q was removed, and another job has this id now", old.ID)
	}
	return nil
}
