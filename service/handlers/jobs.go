package handlers

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/store"
)

// Enqueue implements control.API.
func (h *API) Enqueue(ctx context.Context, p control.EnqueueParams) (control.EnqueueResult, error) {
	request := enqueueRequest{specs: []queue.Spec{p.JobSpec}, idempotencyKey: p.IdempotencyKey,
		requireLimits: p.RequireEnforceableLimits, runNext: p.RunBeforeCallersJobs}
	receipt, notes, err := h.enqueue(ctx, request, h.Store.Enqueue)
	if err != nil {
		return control.EnqueueResult{}, err
	}
	found := receipt.IsExisting != nil && receipt.IsExisting[0]
	out := control.EnqueueResult{JobID: receipt.IDs[0], JobSeq: receipt.Seqs[0], AlreadyExisted: receipt.Duplicate ||
		found,
		UnenforcedLimits: notes.unenforcedLimits, CreatedQueues: h.describeNewQueues(ctx, &receipt)}
	if !out.AlreadyExisted {
		out.MaxAttempts, out.Notes = notes.highestMaxAttempts, notes.otherNotes
	}
	if len(p.JobSpec.DependsOn) > 0 {
		j, err := h.findVisibleJob(ctx, control.JobID(out.JobID))
		// Ignore an error of this read, because the job is already enqueued. If this request is a repetition, the job may
		// have been removed, and another job may have its id.
		if err == nil && j.Seq == out.JobSeq && j.Reason == queue.ReasonDependency { // a dependency had already failed
			out.State = j.State.String()
		}
	}
	return out, nil
}

// EnqueueBatch implements control.API.
func (h *API) EnqueueBatch(ctx context.Context, p control.EnqueueBatchParams) (control.EnqueueBatchResult, error) {
	uid, put := control.PeerFrom(ctx).UID, h.Store.StageBatch
	if p.Abort {
		h.runNextBatches.forgetBatch(uid, p.BatchName)
		return control.EnqueueBatchResult{JobIDs: []string{}}, h.Store.AbortBatch(ctx, uid, p.BatchName)
	}
	if p.Commit {
		put = h.Store.Enqueue
	}
	receipt, notes, err := h.enqueue(ctx, enqueueRequest{p.Jobs, p.BatchName, p.IdempotencyKey, p.RequireEnforceableLimits,
		p.RunBeforeCallersJobs}, put)
	if err == nil && p.Commit {
		h.runNextBatches.forgetBatch(uid, p.BatchName)
	}
	out := control.EnqueueBatchResult{
		JobIDs: append([]string{}, receipt.IDs...), AlreadyExisted: receipt.Duplicate,
		UnenforcedLimits: notes.unenforcedLimits,
		CreatedQueues:    h.describeNewQueues(ctx, &receipt),
	}
	for i, found := range receipt.IsExisting {
		if found { // the job with index i was not created, because an equal job existed
			out.ExistingJobIndexes = append(out.ExistingJobIndexes, i)
		}
	}
	if !out.AlreadyExisted {
		out.MaxAttempts, out.Notes = notes.highestMaxAttempts, notes.otherNotes
	}
	return out, err
}

// enqueueRequest holds the jobs of a request, with its options.
type enqueueRequest struct {
	specs                     []queue.Spec
	batchName, idempotencyKey string
	requireLimits             bool
	runNext                   bool // the jobs start before the other waiting jobs of the caller
}

// enqueue stores the jobs of a request by calling storeJobs. If the request commits a batch (jobs that were sent in
// several requests), enqueue returns when all jobs of the batch are in the queue.
func (h *API) enqueue(ctx context.Context, request enqueueRequest,
	storeJobs func(context.Context, store.EnqueueRequest) (store.Receipt, error)) (store.Receipt, replyNotes, error) {
	r, notes, err := h.buildStoreRequest(ctx, request)
	if err != nil {
		return store.Receipt{}, notes, err
	}
	var receipt store.Receipt
	err = h.UserQuota.RunWithinQuota(ctx, r.UID, func() (err error) {
		receipt, err = storeJobs(ctx, r)
		return err
	})
	if err == nil {
		h.Owners.CacheOwnerName(r.UID, r.OwnerName)
	}
	for more := receipt.Staged; err == nil && more; {
		more, err = h.Store.ApplyBatch(ctx, receipt.Batch)
		if errors.Is(err, queue.ErrNoSpace) || errors.Is(err, queue.ErrUnavailable) {
			select { // retry: all jobs of a committed batch must reach the queue
			case <-time.After(applyBatchRetryDelay):
				more, err = true, nil
			case <-ctx.Done():
			}
		}
	}
	return receipt, notes, err
}

// applyBatchRetryDelay is the delay between two tries to move the jobs of a committed batch into the queue.
const applyBatchRetryDelay = 200 * time.Millisecond

// buildStoreRequest validates the specs of a request and converts them to jobs for the store. notes are messages for
// the user, which the reply contains.
func (h *API) buildStoreRequest(ctx context.Context, request enqueueRequest) (r store.EnqueueRequest, notes replyNotes,
	err error) {
	c := h.Settings.CurrentConfig()
	peer := control.PeerFrom(ctx)
	uid := peer.UID
	r = store.EnqueueRequest{Drafts: make([]queue.Job, len(request.specs)), UID: uid, BatchName: request.batchName,
		IdempotencyKey: request.idempotencyKey, MaxPendingJobs: c.MaxPending, MaxPendingJobsPerUser: c.MaxPendingPerUser,
		MaxBytesPerUser: h.UserQuota.MaxBytesPerUser(), SubmissionNumber: peer.InboxRowNumber}
	if len(request.idempotencyKey) > queue.MaxKeyBytes {
		return r, notes, queue.InvalidFieldError("key", "too long (%d bytes); the maximum is %d bytes",
			len(request.idempotencyKey),
			queue.MaxKeyBytes)
	}
	name := h.Owners.UserName(uid)
	if name != strconv.Itoa(uid) { // if name is a number, the account's name is unknown
		r.OwnerName = name
	}
	var bestWaiting store.WaitingPriority
	var earlierJobs int
	var priorityNotes []string
	if request.runNext {
		if bestWaiting, earlierJobs, err = h.bestWaitingPriority(ctx, uid, request.batchName,
			len(request.specs)); err != nil {
			return r, notes, err
		}
	}
	nodes := sync.OnceValues(func() ([]store.NodeState, error) { return h.NodeRegistry.Nodes(ctx) })
	resolveUser := h.Guard.JobUserResolver(&peer)
	for i := range request.specs {
		spec, err := h.QueueRules.WithQueueDefaults(&request.specs[i])
		var j queue.Job
		if err == nil {
			j, err = h.buildJobDraft(spec, c.JobDefaults(), name, resolveUser)
		}
		switch {
		case err != nil:
		case request.runNext:
			priorityNotes = h.raisePriorityForRunNext(&peer, &j, bestWaiting, earlierJobs+i)
		case request.specs[i].Priority != nil:
			err = h.checkMaySetPriority(&peer, &j)
		}
		j.UID = uid
		if err == nil {
			err = h.checkDemandsCanBeMet(&j, nodes)
		}
		var jobErr *queue.Error
		if errors.As(err, &jobErr) && len(request.specs) > 1 {
			return r, notes, jobErr.WithBatchIndex(i + 1)
		}
		if err != nil {
			return r, notes, err
		}
		if runs := h.JobAccount.JobUID(&j); i == 0 || runs != h.JobAccount.JobUID(&r.Drafts[i-1]) {
			if err := h.Guard.CheckRunnerMayRunAs(runs); err != nil {
				return r, notes, err
			}
		}
		r.Drafts[i] = j
	}
	h.addDraftNotes(&notes, r.Drafts)
	notes.otherNotes = append(notes.otherNotes, priorityNotes...)
	if notes.unenforcedLimits, err = h.UnenforcedLimits(ctx, r.Drafts, request.requireLimits); err != nil ||
		request.idempotencyKey == "" {
		return r, notes, err
	}
	r.RequestChecksum, err = requestDigest(&request)
	return r, notes, err
}

// requestDigest returns a hash of the content of an enqueue request. A later request with the same idempotency key is
// refused if the hash of its content differs.
func requestDigest(request *enqueueRequest) (digest [sha256.Size]byte, err error) {
	h := sha256.New()
	for i := range request.specs {
		raw, err := request.specs[i].WithoutTraceVariables().MarshalJSON()
		if err != nil {
			return digest, err
		}
		h.Write(append(raw, '\n'))
	}
	fmt.Fprintf(h, "%s\n%t", request.batchName, request.runNext)
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// buildJobDraft returns the job that a spec describes. submitter is the name of the user that enqueues it. The function
// resolveUser returns the account of the user that the spec names.
func (h *API) buildJobDraft(spec *queue.Spec, d queue.JobDefaults, submitter string,
	resolveUser func(name string) (access.JobUser, error)) (queue.Job, error) {
	j, err := queue.ResolveSpec(spec, d)
	if err == nil {
		err = checkSystemSupportsJob(&j)
	}
	if err != nil || spec.User == nil {
		j.RunAsUser = submitter
		return j, err
	}
	user, err := resolveUser(j.RunAsUser)
	j.RunAsUID, j.RunAsUser = &user.UID, user.Name
	return j, err
}

// newJobView converts a job to its form in a reply, with all fields.
func (h *API) newJobView(j *queue.Job) control.Job {
	v := control.JobViewContext{HeldUnits: h.Settings.ResourceUnitNames(j), CurrentTime: h.Store.Now(),
		JobOrder:         h.Store.RankOrder(),
		JobsEverEnqueued: h.Store.Counts().JobsEverEnqueued, TypicalRuntime: h.Store.TypicalRuntime(j.CommandFingerprint())}
	v.RunAsUser, v.OwnerName = h.Guard.UserAndOwnerNames(j)
	if pausedAt, pausedBy := h.PauseOfAllJobs.PauseOfJob(j); pausedAt != 0 {
		v.PausedAt, v.PausedBy = pausedAt, h.Owners.UserName(pausedBy)
	}
	return control.NewJobView(j, v)
}

// newJobViewFor converts a job to its form in a reply, and removes the parts that the peer may not see.
func (h *API) newJobViewFor(p *control.Peer, j *queue.Job) control.Job {
	v := h.newJobView(j)
	access.HideJobParts(&v, h.Guard.JobVisibilityFor(p, j))
	return v
}

// newJobViewsFor converts jobs like newJobViewFor. It leaves out jobs whose existence is hidden from the peer.
func (h *API) newJobViewsFor(ctx context.Context, p *control.Peer, jobs []queue.Job) []control.Job {
	list := make([]control.Job, 0, len(jobs))
	for i := range jobs {
		if !h.Guard.HidesJob(p, &jobs[i]) {
			list = append(list, h.newJobViewFor(p, &jobs[i]))
		}
	}
	h.NodeRegistry.SetJobNodeNames(ctx, list)
	h.reasonFinder.SetWaitReasons(ctx, jobs, list)
	return list
}

// ListJobs implements control.API.
func (h *API) ListJobs(ctx context.Context, p control.JobListParams) (control.JobPage, error) {
	peer := control.PeerFrom(ctx)
	f, err := h.parseListFilter(&peer, p)
	if err != nil {
		return control.JobPage{}, err
	}
	return control.AnswerInSlot(ctx, h.UserLimits, control.ClassManyJobsRead, func() (control.JobPage, error) {
		page, err := h.Store.ListJobs(ctx, f)
		if err != nil {
			return control.JobPage{}, err
		}
		return control.JobPage{Jobs: h.newJobViewsFor(ctx, &peer, page.Jobs), NextCursor: nextPageCursor(page.NextBeforeSeq)},
			nil
	})
}

// ListDeadJobs implements control.API.
func (h *API) ListDeadJobs(ctx context.Context, p control.DeadJobListParams) (control.JobPage, error) {
	return h.ListJobs(ctx, p.AsListParams())
}

// batchLabelName is the name of the label that holds the batch of a job.
const batchLabelName = "batch"

// parseListFilter converts the parameters of a list request to a filter of the store.
func (h *API) parseListFilter(peer *control.Peer, p control.JobListParams) (store.JobFilter, error) {
	f := store.JobFilter{Labels: p.WithLabels, Queue: p.Queue, Since: queue.UnixMillis(p.EndedOrEnqueuedSince),
		Until: queue.UnixMillis(p.EndedOrEnqueuedBefore), IDGlob: p.IDGlob, Limit: p.PageSize}
	if p.PageSize == 0 {
		f.Limit = store.MaxPageRows
	}
	if !peer.Right.Covers(control.RightOperate) {
		f.ViewerUID = &peer.UID
	}
	names := p.States
	if p.FailedOrDead {
		names = append([]string{queue.Dead.String(), queue.Failed.String()}, names...)
	}
	var err error
	if f.States, err = parseStates(names); err != nil {
		return f, err
	}
	if p.Submitter != "" {
		uid, ok := h.UserDirectory.UserID(p.Submitter)
		if !ok {
			uid, ok = h.Owners.FormerOwnerUID(p.Submitter)
		}
		if !ok {
			return f, queue.InvalidFieldError("user", "there is no user %q on this machine", queue.ClipForMessage(p.Submitter))
		}
		f.UID = &uid
	}
	if p.Batch != "" {
		if f.UID != nil && *f.UID != peer.UID {
			return f, queue.InvalidFieldError(
				"batch", `selects only your own jobs, but the parameter "user" names another user; leave out one of them`)
		}
		f.UID, f.Labels = &peer.UID, maps.Clone(f.Labels)
		if f.Labels == nil {
			f.Labels = map[string]string{}
		}
		f.Labels[batchLabelName] = p.Batch
	}
	if p.Cursor != "" {
		before, err := strconv.ParseInt(p.Cursor, 10, 64)
		if err != nil {
			return f, queue.InvalidFieldError("cursor", "is not a cursor that a list returned; list again without a cursor")
		}
		f.BeforeSeq = before
	}
	return f, nil
}

// parseStates returns the states with these names, without duplicates. The name "waiting" includes several states, such
// as pending.
func parseStates(names []string) (states []queue.State, err error) {
	for _, name := range names {
		list, err := queue.ParseStates(name)
		if err != nil {
			return nil, err
		}
		states = append(states, list...)
	}
	slices.Sort(states)
	return slices.Compact(states), nil
}

// minDelayForRebootNote is the smallest delay of a new job for which the reply warns that a reboot may prevent its
// start. During shorter delays, a reboot is too unlikely for a warning.
const minDelayForRebootNote = time.Hour

// replyNotes holds notes for the user in the reply about new or edited jobs.
type replyNotes struct {
	unenforcedLimits   []string // limits that this machine does not enforce
	highestMaxAttempts int      // the highest max_attempts of the jobs
	otherNotes         []string // other notes for the user
}

// addDraftNotes adds notes about jobs that are about to be enqueued.
func (h *API) addDraftNotes(notes *replyNotes, drafts []queue.Job) {
	delayed := false
	now := h.Store.Now()
	for i := range drafts {
		j := &drafts[i]
		notes.highestMaxAttempts = max(notes.highestMaxAttempts, j.MaxAttempts)
		delayed = delayed || j.Delay > minDelayForRebootNote || j.RunAt > now.Add(minDelayForRebootNote)
	}
	if delayed {
		notes.otherNotes = h.StartAtBootNotes()
	}
}
