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

// bytesPerReadSlot is the approximate number of bytes of a stream that a request reads and sends before it lets other
// requests read.
const bytesPerReadSlot = 64 << 10

// WaitForJobs implements control.API.
func (h *API) WaitForJobs(ctx context.Context, p control.JobWaitParams, handleNotice func(control.JobEndNotice) error) (
	result control.JobWaitResult, err error) {
	ids := p.AllIDs()
	if len(ids) > control.MaxWaitOrFollowJobIDs {
		return result, queue.InvalidFieldError("ids", "too many jobs (%d); the maximum is %d", len(ids),
			control.MaxWaitOrFollowJobIDs)
	}
	req := &waitRequest{API: h, peer: control.PeerFrom(ctx), sendNotice: handleNotice,
		endsWithFirstEndedJob: p.ReturnAfterFirst}
	if err := req.findJobs(ctx, ids); err != nil {
		return result, err
	}
	var seqs []int64
	for _, ref := range req.unreportedJobs {
		seqs = append(seqs, ref.Seq)
		defer h.Pool.WatchJobEnd(ref.Seq)()
	}
	watching := h.Store.WatchJobs(seqs)
	defer watching.Stop()
	var timeout <-chan time.Time
	if p.MaxWait > 0 {
		timer := time.NewTimer(time.Duration(p.MaxWait))
		defer timer.Stop()
		timeout = timer.C
	}
	for timedOut := false; ; {
		// Report jobs that have already ended, even if the timeout has passed.
		if err := req.reportEndedJobs(ctx, watching.ChangedJobs()); err != nil {
			return result, err
		}
		if timedOut || req.isDone() {
			result = control.JobWaitResult{UnfinishedJobIDs: []string{}, TimedOut: timedOut && !req.isDone()}
			for _, ref := range req.unreportedJobs {
				result.UnfinishedJobIDs = append(result.UnfinishedJobIDs, ref.ID)
			}
			return result, nil
		}
		select {
		case <-watching.C:
		case <-timeout:
			timedOut = true
		case <-ctx.Done():
			return result, ctx.Err()
		}
	}
}

// waitRequest is the state of a request that waits for jobs to end. A held job has not ended, so the request
// waits for it.
type waitRequest struct {
	*API
	peer                  control.Peer
	unreportedJobs        []store.JobRef // jobs whose end has not been reported yet, in the order of the request
	hasReportedJob        bool
	endsWithFirstEndedJob bool // the request ends when the first job has ended
	sendNotice            func(control.JobEndNotice) error
}

// findJobs reads references to the jobs with these ids into w.unreportedJobs. It returns an error if an id does not
// exist.
func (w *waitRequest) findJobs(ctx context.Context, ids []string) error {
	for some := range slices.Chunk(ids, jobsPerReadSlot) {
		jobs, errs, err := w.readJobs(ctx, some)
		if err = cmp.Or(append(errs, err)...); err != nil {
			return err
		}
		for i := range jobs {
			j := &jobs[i]
			w.unreportedJobs = append(w.unreportedJobs, store.JobRef{Seq: j.Seq, ID: j.ID, State: j.State, UID: j.UID})
		}
	}
	return nil
}

// reportEndedJobs sends a notice for each of the changed jobs that has ended, in the order of the request.
func (w *waitRequest) reportEndedJobs(ctx context.Context, changedSeqs []int64) error {
	isChanged := make(map[int64]bool, len(changedSeqs))
	for _, seq := range changedSeqs {
		isChanged[seq] = true
	}
	for i := 0; i < len(w.unreportedJobs) && !w.isDone(); {
		if !isChanged[w.unreportedJobs[i].Seq] {
			i++
			continue
		}
		err := w.UserLimits.RunStreamStep(ctx, control.ClassOneJobRead, func() error {
			for read, bytes := 0, 0; i < len(w.unreportedJobs) && read < jobsPerReadSlot && bytes < bytesPerReadSlot &&
				!w.isDone(); read++ {
				ref := w.unreportedJobs[i]
				if !isChanged[ref.Seq] {
					i++
					continue
				}
				j, err := w.rereadJob(ctx, &queue.Job{ID: ref.ID, Seq: ref.Seq})
				if err != nil {
					return err
				}
				if !j.State.HasEnded() {
					i++
					continue
				}
				bytes += store.JobTextBytes(&j)
				if err := w.sendNotice(control.JobEndNotice{Job: w.newJobViewFor(&w.peer, &j)}); err != nil {
					return err
				}
				w.unreportedJobs, w.hasReportedJob = slices.Delete(w.unreportedJobs, i, i+1), true
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
	return len(w.unreportedJobs) == 0 || w.endsWithFirstEndedJob && w.hasReportedJob
}

// rereadCompactJob takes a read slot, reads a job again and returns it without its large fields.
func (h *API) rereadCompactJob(ctx context.Context, earlierRead *queue.Job) (queue.Job, error) {
	j, err := withReadSlot(ctx, h.UserLimits, control.ClassOneJobRead,
		func() (queue.Job, error) { return h.rereadJob(ctx, earlierRead) })
	return withoutLargeFields(&j), err
}

// withoutLargeFields returns a job without the fields that may be large, so that a waiting request needs little memory.
func withoutLargeFields(j *queue.Job) queue.Job {
	return queue.Job{
		Seq: j.Seq, ID: j.ID, UID: j.UID, Priority: j.Priority, State: j.State, Reason: j.Reason,
		StartedAttempts: j.StartedAttempts, Attempts: j.Attempts, DueAt: j.DueAt, AgingSince: j.AgingSince,
		ArrivalNumber: j.ArrivalNumber, PausedAt: j.PausedAt, PausedBy: j.PausedBy,
		InputRemoved: j.InputRemoved,
		ExecutionSettings: queue.ExecutionSettings{OutputLimitBytes: j.OutputLimitBytes, TTY: j.TTY, RunAsUser: j.RunAsUser,
			RunAsUID: j.RunAsUID},
	}
}

// rereadJob reads a job again. The caller holds a read slot. It returns an error if the job was removed, even if
// another job has its id now.
func (h *API) rereadJob(ctx context.Context, earlierRead *queue.Job) (queue.Job, error) {
	j, err := h.Store.GetJob(ctx, earlierRead.ID)
	if err == nil {
		err = checkSameJob(&j, earlierRead)
	}
	return j, err
}

// checkSameJob returns an error if j is not the job earlierRead, but another job that got the same id later.
func checkSameJob(j, earlierRead *queue.Job) error {
	if j.Seq != earlierRead.Seq {
		return queue.Errorf(queue.CodeNotFound, "job %q was removed, and another job has this id now", earlierRead.ID)
	}
	return nil
}
