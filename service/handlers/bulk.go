package handlers

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/store"
)

const (
	// maxParallelJobChanges is the maximum number of jobs that a bulk operation changes concurrently. Changes that are
	// made at the same time can be committed together.
	maxParallelJobChanges = 64
	// jobsPerReadSlot is the number of jobs that a request reads before it lets other requests read. It is
	// small because each job may be large, and the memory for reads must stay bounded.
	jobsPerReadSlot = 4
	// maxJobErrorBytes is the maximum length of one job's error in bytes of JSON. The errors of all jobs in a
	// request must fit in one reply.
	maxJobErrorBytes = 512
)

// bulkVerb is a change that a request makes to each of several jobs.
type bulkVerb struct {
	method string // name of the method, as in the table of methods
	// applyToJob changes a job that no other node has leased. If allowedStates is not empty, applyToJob changes only a job
	// in one of these states.
	applyToJob func(ctx context.Context, j *queue.Job, allowedStates []queue.State) error

	appliesOnThisNode bool // call applyToJob on this node even for jobs that another node has leased

	// remoteMethod is the method that this node calls on the node that has leased the job; "" means method. remoteParams
	// returns the parameters of the call. Its argument is a selection that names the job. If remoteParams is nil, the
	// parameters are this selection.
	remoteMethod           string
	remoteParams           func(selection control.JobSelection) any
	awaitsAttemptEnd       bool // wait for the end of the job's attempt before the answer
	changesOldestJobsFirst bool // of the jobs that match a filter, change the oldest first

	remoteCallOnlyRequeuesJob bool // the other node only returns the job to the queue; this node then calls applyToJob
}

// applyVerbToJobIDs applies a verb to the jobs with these ids, in any state. If another node sent the request,
// applyVerbToJobIDs skips jobs that are not in one of the states that the request lists.
func (h *API) applyVerbToJobIDs(ctx context.Context, v *bulkVerb, ids []string) (control.BulkResult, error) {
	onlyStates, _ := cluster.RelayedRequestStates(ctx)
	b := h.newBulkOperation(ctx, v, ids, onlyStates)
	for done := 0; done < len(ids) && ctx.Err() == nil; {
		jobs, errs, err := h.readJobs(ctx, ids[done:min(done+jobsPerReadSlot, len(ids))])
		if err != nil {
			return b.awaitResults(err)
		}
		for i := range jobs {
			if errs[i] == nil && !cluster.RequestMatchesJob(ctx, jobs[i].Seq) {
				errs[i] = queue.JobNotFoundError(jobs[i].ID)
			}
			b.startChange(done+i, &jobs[i], errs[i])
		}
		done += len(jobs)
	}
	return b.awaitResults(ctx.Err())
}

// applyVerbToJobRefs applies a verb to jobs and returns the results in the order of the request. If allowedStates is
// not empty, it skips jobs in other states. It stops when ctx ends, for example because the client disconnects.
func (h *API) applyVerbToJobRefs(ctx context.Context, v *bulkVerb, refs []store.JobRef,
	allowedStates []queue.State) (control.BulkResult, error) {
	ids := make([]string, len(refs))
	for i := range refs {
		ids[i] = refs[i].ID
	}
	b := h.newBulkOperation(ctx, v, ids, allowedStates)
	for i := 0; i < len(refs) && ctx.Err() == nil; i++ {
		j, err := b.jobOfRef(refs[i])
		b.startChange(i, &j, err)
	}
	return b.awaitResults(ctx.Err())
}

// readJobs reads the jobs with these ids, without their large fields. If an id does not exist, errs contains an
// error at its index.
func (h *API) readJobs(ctx context.Context, ids []string) (jobs []queue.Job, errs []error, err error) {
	jobs, errs = make([]queue.Job, len(ids)), make([]error, len(ids))
	peer := control.PeerFrom(ctx)
	err = h.UserLimits.RunInSlot(ctx, control.ClassOneJobRead, func() error {
		for i, id := range ids {
			j, err := h.Guard.GetVisibleJob(ctx, &peer, id)
			jobs[i], errs[i] = withoutLargeFields(&j), err
		}
		return nil
	})
	return jobs, errs, err
}

// bulkOperation is the state of a bulk operation on many jobs.
type bulkOperation struct {
	*API
	ctx                 context.Context
	peer                control.Peer
	verb                *bulkVerb
	allowedStates       []queue.State // see bulkVerb.applyToJob
	jobIDs              []string
	jobErrors           []error       // results, in the order of ids
	parallelChangeSlots chan struct{} // limits the number of concurrent changes
	runningChanges      sync.WaitGroup
}

// newBulkOperation returns a bulk operation that applies the verb v to the jobs with these ids.
func (h *API) newBulkOperation(ctx context.Context, v *bulkVerb, ids []string,
	allowedStates []queue.State) *bulkOperation {
	return &bulkOperation{API: h, ctx: ctx, peer: control.PeerFrom(ctx), verb: v, allowedStates: allowedStates,
		jobIDs:    ids,
		jobErrors: make([]error, len(ids)), parallelChangeSlots: make(chan struct{}, maxParallelJobChanges)}
}

// jobOfRef returns the job of a reference, without its large fields. It reads the job if it may belong to a former
// account with the peer's uid, because a reference lacks the user's name.
func (b *bulkOperation) jobOfRef(r store.JobRef) (queue.Job, error) {
	j := queue.Job{Seq: r.Seq, ID: r.ID, State: r.State, UID: r.UID}
	if r.UID != b.peer.UID || !b.Owners.MayHaveFormerOwnerJobs(r.UID) {
		return j, nil
	}
	return b.rereadCompactJob(b.ctx, &j)
}

// startChange applies the verb to the job with this index. If the user's limit of goroutines allows one more, it does
// so in a new goroutine. readErr is the reason why the job could not be read; it is then the
// result for this job.
func (b *bulkOperation) startChange(jobIndex int, j *queue.Job, readErr error) {
	if b.ctx.Err() != nil {
		return // awaitResults returns the error of ctx
	}
	if readErr == nil {
		readErr = b.Guard.CheckMayActOnObject(&b.peer, b.verb.method, "job", j)
	}
	if b.jobErrors[jobIndex] = readErr; readErr != nil {
		return
	}
	select {
	case b.parallelChangeSlots <- struct{}{}:
	case <-b.ctx.Done():
		return
	}
	do := func() {
		defer func() { <-b.parallelChangeSlots }()
		b.jobErrors[jobIndex] = b.changeJob(j)
	}
	end, ok := b.UserLimits.ReserveHelperGoroutine(b.ctx)
	if !ok {
		do()
		return
	}
	b.runningChanges.Go(func() {
		defer end()
		do()
	})
}

// changeJob changes a job on the node that has leased it. While a job is being claimed, the store may already list the
// job's lease, although the worker pool of the leasing node does not know the job yet. changeJob then tries again.
func (b *bulkOperation) changeJob(j *queue.Job) error {
	for {
		if done, err := b.changeOnOtherNode(j); done || err != nil {
			return err
		}
		err := b.verb.applyToJob(b.ctx, j, b.allowedStates)
		if !errors.Is(err, store.ErrJobLeased) {
			return err
		}
		select {
		case <-time.After(time.Millisecond):
		case <-b.ctx.Done():
			return b.ctx.Err()
		}
	}
}

// changeOnOtherNode changes a job that another node has leased, by a request to that node. It returns false
// if no other node has leased the job.
func (b *bulkOperation) changeOnOtherNode(j *queue.Job) (changedRemotely bool, err error) {
	v, one := b.verb, control.JobSelection{ID: control.JobID(j.ID)}
	if v.appliesOnThisNode {
		return false, nil
	}
	req := cluster.Request{APIMethod: cmp.Or(v.remoteMethod, v.method), Params: one, AllowedStates: b.allowedStates,
		AwaitsAttemptEnd: v.awaitsAttemptEnd}
	if v.remoteParams != nil {
		req.Params = v.remoteParams(one)
	}
	var result control.BulkResult
	held, err := b.JobRouter.ForwardJobRequest(b.ctx, j.Seq, req, &result)
	switch {
	case err != nil || !held:
		return false, err
	case len(result.Refusals) > 0:
		return true, result.Refusals[0].AsError()
	case len(result.ChangedJobIDs) == 0:
		return true, store.ErrJobStateChanged
	}
	return !v.remoteCallOnlyRequeuesJob, nil
}

// awaitResults waits for the started changes and returns their results. startErr is the reason why some changes were
// not started; nil if all were started.
func (b *bulkOperation) awaitResults(startErr error) (control.BulkResult, error) {
	b.runningChanges.Wait()
	v := control.BulkResult{ChangedJobIDs: []string{}, Refusals: []control.Refusal{}}
	if startErr != nil {
		return v, startErr
	}
	for i, err := range b.jobErrors {
		var refusal *queue.Error
		switch {
		case err == nil:
			v.ChangedJobIDs = append(v.ChangedJobIDs, b.jobIDs[i])
		case errors.Is(err, store.ErrJobStateChanged): // the job no longer matches the selection
		case errors.As(err, &refusal) && refusal.Code != queue.CodeOutcomeUnknown:
			v.Refusals = append(v.Refusals, newRefusal(b.jobIDs[i], refusal))
		default:
			return v, err
		}
	}
	return v, nil
}

// firstUnexpectedError returns err or, if err is nil, the error about the first job that was not changed. It ignores
// errors about jobs that have ended or are about to end.
func firstUnexpectedError(v *control.BulkResult, err error) error {
	for i := range v.Refusals {
		code := v.Refusals[i].Code
		if err == nil && code != queue.CodeWrongState && code != queue.CodeNotFound {
			err = v.Refusals[i].AsError()
		}
	}
	return err
}

// newRefusal converts an error about one job to the form in which a reply lists such errors.
func newRefusal(jobID string, err *queue.Error) control.Refusal {
	text := queue.ClipJSON(strings.TrimSpace(err.Message), maxJobErrorBytes)
	return control.Refusal{JobID: jobID, Code: err.Code, Field: queue.ClipForMessage(err.Field), Message: text}
}
