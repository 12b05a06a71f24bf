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
func (h *API) Enqueue(ctx context.Context, p control.Enqueue) (control.EnqueueResult, error) {
	request := enqueueRequest{specs: []queue.Spec{p.Spec}, idempotencyKey: p.Key, requireLimits: p.RequireLimits,
		runNext: p.RunNext}
	receipt, notes, err := h.enqueue(ctx, request, h.Store.Enqueue)
	if err != nil {
		return control.EnqueueResult{}, err
	}
	found := receipt.IsExisting != nil && receipt.IsExisting[0]
	out := control.EnqueueResult{ID: receipt.IDs[0], Seq: receipt.Seqs[0], Duplicate: receipt.Duplicate || found,
		UnenforcedLimits: notes.unenforcedLimits, NewQueues: h.createdQueues(ctx, &receipt)}
	if !out.Duplicate {
		out.MaxAttempts, out.Notes = notes.maxAttempts, notes.notes
	}
	if len(p.Spec.DependsOn) > 0 {
		j, err := h.findJob(ctx, control.JobID(out.ID))
		// Ignore an error of this read, since the job is already enqueued. If this is a repeated request, the job may
		// have been removed, and another job may have its id.
		if err == nil && j.Seq == out.Seq && j.Reason == queue.ReasonDependency { // a dependency had already failed
			out.State = j.State.String()
		}
	}
	return out, nil
}

// EnqueueBatch implements control.API.
func (h *API) EnqueueBatch(ctx context.Context, p control.EnqueueBatch) (control.EnqueueBatchResult, error) {
	uid, put := control.PeerFrom(ctx).UID, h.Store.StageBatch
	if p.Abort {
		h.runNextBatches.remove(uid, p.Batch)
		return control.EnqueueBatchResult{IDs: []string{}}, h.Store.AbortBatch(ctx, uid, p.Batch)
	}
	if p.Commit {
		put = h.Store.Enqueue
	}
	receipt, notes, err := h.enqueue(ctx, enqueueRequest{p.Jobs, p.Batch, p.Key, p.RequireLimits, p.RunNext}, put)
	if err == nil && p.Commit {
		h.runNextBatches.remove(uid, p.Batch)
	}
	out := control.EnqueueBatchResult{
		IDs: append([]string{}, receipt.IDs...), Duplicate: receipt.Duplicate, UnenforcedLimits: notes.unenforcedLimits,
		NewQueues: h.createdQueues(ctx, &receipt),
	}
	for i, found := range receipt.IsExisting {
		if found { // job i was not created, because an equal job existed
			out.FoundIndexes = append(out.FoundIndexes, i)
		}
	}
	if !out.Duplicate {
		out.MaxAttempts, out.Notes = notes.maxAttempts, notes.notes
	}
	return out, err
}

// enqueueRequest holds the jobs of a request, with its options.
type enqueueRequest struct {
	specs                     []queue.Spec
	batchName, idempotencyKey string
	requireLimits             bool
	runNext                   bool // the jobs start before the caller's own waiting jobs
}

// enqueue stores the jobs of a request by means of the callback. If the request commits a batch (jobs that were
// enqueued in several requests), enqueue returns once all jobs of the batch are in the queue.
func (h *API) enqueue(ctx context.Context, a enqueueRequest,
	storeJobs func(context.Context, store.Request) (store.Receipt, error)) (store.Receipt, replyNotes, error) {
	r, notes, err := h.buildRequest(ctx, a)
	if err != nil {
		return store.Receipt{}, notes, err
	}
	var receipt store.Receipt
	err = h.Quota.RunWithinQuota(ctx, r.UID, func() (err error) {
		receipt, err = storeJobs(ctx, r)
		return err
	})
	if err == nil {
		h.Owners.RememberName(r.UID, r.Owner)
	}
	for more := receipt.Staged; err == nil && more; {
		more, err = h.Store.ApplyBatch(ctx, receipt.Batch)
		if errors.Is(err, queue.ErrNoSpace) || errors.Is(err, queue.ErrUnavailable) {
			select { // retry: all jobs of a committed batch must reach the queue
			case <-time.After(applyRetryDelay):
				more, err = true, nil
			case <-ctx.Done():
			}
		}
	}
	return receipt, notes, err
}

// applyRetryDelay is the delay between two tries to move the jobs of a committed batch into the queue.
const applyRetryDelay = 200 * time.Millisecond

// buildRequest validates the specs of a request and converts them to jobs for the store. notes are messages
// for the user in the reply.
func (h *API) buildRequest(ctx context.Context, a enqueueRequest) (r store.Request, notes replyNotes, err error) {
	c := h.Settings.Current()
	peer := control.PeerFrom(ctx)
	uid := peer.UID
	r = store.Request{Drafts: make([]queue.Job, len(a.specs)), UID: uid, Batch: a.batchName,
		IdempotencyKey: a.idempotencyKey, MaxPending: c.MaxPending, MaxPendingPerUser: c.MaxPendingPerUser,
		MaxBytesPerUser: h.Quota.MaxBytesPerUser(), Submission: peer.SubmissionNumber}
	if len(a.idempotencyKey) > queue.MaxKeyBytes {
		return r, notes, queue.Invalid("key", "too long (%d bytes); the maximum is %d bytes", len(a.idempotencyKey),
			queue.MaxKeyBytes)
	}
	name := h.Owners.UserName(uid)
	if name != strconv.Itoa(uid) { // if name is a number, the account's name is unknown
		r.Owner = name
	}
	var bestWaiting store.WaitingPriority
	var earlierJobs int
	var priorityNotes []string
	if a.runNext {
		if bestWaiting, earlierJobs, err = h.bestWaitingPriority(ctx, uid, a.batchName, len(a.specs)); err != nil {
			return r, notes, err
		}
	}
	nodes := sync.OnceValues(func() ([]store.NodeState, error) { return h.AllNodes.Nodes(ctx) })
	resolveUser := h.Guard.UserResolver(&peer)
	for i := range a.specs {
		spec, err := h.QueueRules.WithDefaults(&a.specs[i])
		var j queue.Job
		if err == nil {
			j, err = h.buildDraft(spec, c.JobDefaults(), name, resolveUser)
		}
		switch {
		case err != nil:
		case a.runNext:
			priorityNotes = h.raisePriorityToNext(&peer, &j, bestWaiting, earlierJobs+i)
		case a.specs[i].Priority != nil:
			err = h.checkPriority(&peer, &j)
		}
		j.UID = uid
		if err == nil {
			err = h.checkDemands(&j, nodes)
		}
		var jobErr *queue.Error
		if errors.As(err, &jobErr) && len(a.specs) > 1 {
			return r, notes, jobErr.WithIndex(i + 1)
		}
		if err != nil {
			return r, notes, err
		}
		if runs := h.Account.RunsAs(&j); i == 0 || runs != h.Account.RunsAs(&r.Drafts[i-1]) {
			if err := h.Guard.CheckMayRun(runs); err != nil {
				return r, notes, err
			}
		}
		r.Drafts[i] = j
	}
	h.addDraftNotes(&notes, r.Drafts)
	notes.notes = append(notes.notes, priorityNotes...)
	if notes.unenforcedLimits, err = h.examiner.UnenforcedLimits(ctx, r.Drafts, a.requireLimits); err != nil ||
		a.idempotencyKey == "" {
		return r, notes, err
	}
	r.Checksum, err = requestDigest(&a)
	return r, notes, err
}

// requestDigest returns a hash of the content of an enqueue request. A later request with the same idempotency
// key is refused if its hash differs.
func requestDigest(a *enqueueRequest) (digest [sha256.Size]byte, err error) {
	h := sha256.New()
	for i := range a.specs {
		raw, err := a.specs[i].WithoutTrace().MarshalJSON()
		if err != nil {
			return digest, err
		}
		h.Write(append(raw, '\n'))
	}
	fmt.Fprintf(h, "%s\n%t", a.batchName, a.runNext)
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// buildDraft returns the job that a spec describes. submitter is the name of the user that enqueues it. The function
// resolveUser returns the account of the user that the spec names.
func (h *API) buildDraft(spec *queue.Spec, d queue.Defaults, submitter string,
	resolveUser func(name string) (access.JobUser, error)) (queue.Job, error) {
	j, err := queue.Resolve(spec, d)
	if err == nil {
		err = checkSystemSupports(&j)
	}
	if err != nil || spec.User == nil {
		j.User = submitter
		return j, err
	}
	user, err := resolveUser(j.User)
	j.AsUID, j.User = &user.UID, user.Name
	return j, err
}

// viewJob converts a job to its form in a reply, with all fields.
func (h *API) viewJob(j *queue.Job) control.Job {
	v := control.JobViewContext{HeldUnits: h.Settings.UnitNames(j), CurrentTime: h.Store.Now(), Order: h.Store.Order(),
		EnqueuedTotal: h.Store.Counts().EnqueuedTotal, TypicalRuntime: h.Store.TypicalRuntime(j.Fingerprint())}
	v.RunAsUser, v.Owner = h.Guard.UserAndOwnerNames(j)
	if pausedAt, pausedBy := h.Pauses.PauseOf(j); pausedAt != 0 {
		v.PausedAt, v.PausedBy = pausedAt, h.Owners.UserName(pausedBy)
	}
	return control.ViewJob(j, v)
}

// viewJobFor converts a job to its form in a reply, and removes the parts that the peer may not see.
func (h *API) viewJobFor(p *control.Peer, j *queue.Job) control.Job {
	v := h.viewJob(j)
	access.HideJob(&v, h.Guard.VisibilityFor(p, j))
	return v
}

// viewJobsFor converts jobs like viewJobFor. It leaves out jobs whose existence is hidden from the peer.
func (h *API) viewJobsFor(ctx context.Context, p *control.Peer, jobs []queue.Job) []control.Job {
	list := make([]control.Job, 0, len(jobs))
	for i := range jobs {
		if !h.Guard.Hides(p, &jobs[i]) {
			list = append(list, h.viewJobFor(p, &jobs[i]))
		}
	}
	h.AllNodes.SetNodeNames(ctx, list)
	h.reasonFinder.SetWaitsFor(ctx, jobs, list)
	return list
}

// List implements control.API.
func (h *API) List(ctx context.Context, p control.List) (control.JobPage, error) {
	peer := control.PeerFrom(ctx)
	f, err := h.parseFilter(&peer, p)
	if err != nil {
		return control.JobPage{}, err
	}
	return control.AnswerInSlot(ctx, h.UserLimits, control.ClassManyJobs, func() (control.JobPage, error) {
		page, err := h.Store.List(ctx, f)
		if err != nil {
			return control.JobPage{}, err
		}
		return control.JobPage{Jobs: h.viewJobsFor(ctx, &peer, page.Jobs), Next: pageCursor(page.Next)}, nil
	})
}

// DLQList implements control.API.
func (h *API) DLQList(ctx context.Context, p control.DLQList) (control.JobPage, error) {
	return h.List(ctx, p.List())
}

// batchLabel is the name of the label that holds the batch of a job.
const batchLabel = "batch"

// parseFilter converts the parameters of a list request to a filter of the store.
func (h *API) parseFilter(peer *control.Peer, p control.List) (store.Filter, error) {
	f := store.Filter{Labels: p.Label, Queue: p.Queue, Since: queue.Millis(p.Since), Until: queue.Millis(p.Until),
		Glob: p.IDGlob, Limit: p.Limit}
	if p.Limit == 0 {
		f.Limit = store.MaxPageRows
	}
	if !peer.Right.Covers(control.RightOperate) {
		f.Viewer = &peer.UID
	}
	names := p.State
	if p.Failed {
		names = append([]string{queue.Dead.String(), queue.Failed.String()}, names...)
	}
	var err error
	if f.States, err = parseStates(names); err != nil {
		return f, err
	}
	if p.User != "" {
		uid, ok := h.Directory.UserID(p.User)
		if !ok {
			uid, ok = h.Owners.FormerUID(p.User)
		}
		if !ok {
			return f, queue.Invalid("user", "there is no user %q on this machine", queue.Clip(p.User))
		}
		f.UID = &uid
	}
	if p.Batch != "" {
		if f.UID != nil && *f.UID != peer.UID {
			return f, queue.Invalid(
				"batch", `selects only your own jobs, but the parameter "user" names another user; leave out one of them`)
		}
		f.UID, f.Labels = &peer.UID, maps.Clone(f.Labels)
		if f.Labels == nil {
			f.Labels = map[string]string{}
		}
		f.Labels[batchLabel] = p.Batch
	}
	if p.Cursor != "" {
		before, err := strconv.ParseInt(p.Cursor, 10, 64)
		if err != nil {
			return f, queue.Invalid("cursor", "is not a cursor that a list returned; list again without a cursor")
		}
		f.BeforeSeq = before
	}
	return f, nil
}

// parseStates returns the states with these names, without duplicates. The name "waiting" represents several
// states, including pending.
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

// rebootNoteDelay is the smallest delay of a new job for which the reply warns that a reboot may prevent its
// start. During shorter delays, a reboot is too unlikely for a warning.
const rebootNoteDelay = time.Hour

// replyNotes holds notes for the user in the reply about new or edited jobs.
type replyNotes struct {
	unenforcedLimits []string // limits that this machine does not enforce
	maxAttempts      int      // the highest max_attempts of the jobs
	notes            []string // other notes for the user
}

// addDraftNotes adds notes about jobs that are about to be enqueued.
func (h *API) addDraftNotes(m *replyNotes, drafts []queue.Job) {
	delayed := false
	now := h.Store.Now()
	for i := range drafts {
		j := &drafts[i]
		m.maxAttempts = max(m.maxAttempts, j.MaxAttempts)
		delayed = delayed || j.Delay > rebootNoteDelay || j.RunAt > now.Add(rebootNoteDelay)
	}
	if delayed {
		m.notes = h.examiner.BootNotes()
	}
}
