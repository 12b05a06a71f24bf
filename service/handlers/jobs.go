package handlers

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/doctor"
	"github.com/queuectl/queuectl/service/reasons"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// viewer converts jobs and events to their form in a reply.
type viewer struct {
	store    store.Store
	guard    *access.Guard
	nodeList *cluster.NodeList
	owners   *access.Owners
	pauses   *settings.AllPause
	runAs    *access.RunAs
	units    *settings.Units
	waits    *reasons.Finder
}

// filters converts the parameters of requests to filters of the store.
type filters struct {
	directory *access.Directory
	owners    *access.Owners
}

// intake validates new jobs and stores them.
type intake struct {
	account    worker.Account // account that jobs run as
	shares     *control.UserLimits
	store      store.Store
	boot       *doctor.BootAdvisor
	gateRules  *settings.GateRules
	limits     *doctor.LimitsReport
	nodeList   *cluster.NodeList
	owners     *access.Owners
	queueList  *queueReader
	queueRules *settings.QueueRules
	quota      *settings.Quota
	runAs      *access.RunAs
	settings   *settings.Keeper

	nextBatches nextBatches // batches that were enqueued with "next", and the priority of their first request
}

// Jobs shows jobs and waits for them.
type Jobs struct {
	log          *slog.Logger
	node         string // name of this node
	pool         *worker.Pool
	shares       *control.UserLimits
	store        store.Store
	filters      *filters
	guard        *access.Guard
	nodeList     *cluster.NodeList
	outputReader *outputReader
	reader       *jobReader
	views        *viewer
	waits        *reasons.Finder
}

// Batches enqueues jobs.
type Batches struct {
	store  store.Store
	intake *intake
	owners *access.Owners
	quota  *settings.Quota
	reader *jobReader
}

// Enqueue implements control.API.
func (h *Batches) Enqueue(ctx context.Context, p control.Enqueue) (control.EnqueueResult, error) {
	receipt, notes, err := h.intake.enqueue(ctx,
		enqueueRequest{specs: []queue.Spec{p.Spec}, key: p.Key, requireLimits: p.RequireLimits, next: p.Next})
	if err != nil {
		return control.EnqueueResult{}, err
	}
	found := receipt.Found != nil && receipt.Found[0]
	out := control.EnqueueResult{ID: receipt.IDs[0], Seq: receipt.Seqs[0], Duplicate: receipt.Duplicate ||
		found, UnenforcedLimits: notes.unenforcedLimits, NewQueues: h.intake.newQueues(ctx, &receipt)}
	if !out.Duplicate {
		out.MaxAttempts, out.Notes = notes.maxAttempts, notes.notes
	}
	if len(p.Spec.DependsOn) > 0 {
		out.State = h.failedImmediately(ctx, control.Name(out.ID))
	}
	return out, nil
}

// failedImmediately returns the state of a new job if one of its dependencies had already failed when it
// was enqueued. It returns "" if none had.
func (h *Batches) failedImmediately(ctx context.Context, id control.Name) string {
	j, err := h.reader.findJob(ctx, id)
	if err != nil || j.Reason != queue.ReasonDependency { // ignore the error, since the job is enqueued
		return ""
	}
	return j.State.String()
}

// existingIndexes returns the indexes of the drafts that created no job, because an equal job already
// existed.
func existingIndexes(r *store.Receipt) (list []int) {
	for i, found := range r.Found {
		if found {
			list = append(list, i)
		}
	}
	return list
}

// EnqueueBatch implements control.API.
func (h *Batches) EnqueueBatch(ctx context.Context, p control.EnqueueBatch) (control.EnqueueBatchResult, error) {
	uid := control.PeerFrom(ctx).UID
	switch {
	case p.Abort:
		h.intake.nextBatches.remove(uid, p.Batch)
		return control.EnqueueBatchResult{IDs: []string{}}, h.store.AbortBatch(ctx, uid, p.Batch)
	case p.Commit:
		receipt, notes, err := h.intake.enqueue(ctx, enqueueRequest{p.Jobs, p.Batch, p.Key, p.RequireLimits, p.Next})
		if err == nil {
			h.intake.nextBatches.remove(uid, p.Batch)
		}
		out := control.EnqueueBatchResult{
			IDs: append([]string{}, receipt.IDs...), Duplicate: receipt.Duplicate, FoundIndexes: existingIndexes(&receipt),
			UnenforcedLimits: notes.unenforcedLimits,
			NewQueues:        h.intake.newQueues(ctx, &receipt),
		}
		if !out.Duplicate {
			out.MaxAttempts, out.Notes = notes.maxAttempts, notes.notes
		}
		return out, err
	}
	r, notes, err := h.intake.request(ctx, enqueueRequest{specs: p.Jobs, batch: p.Batch, requireLimits: p.RequireLimits,
		next: p.Next})
	if err != nil {
		return control.EnqueueBatchResult{}, err
	}
	var receipt store.Receipt
	err = h.quota.WithRoom(ctx, r.UID, func() (err error) {
		receipt, err = h.store.StageBatch(ctx, r)
		return err
	})
	if err == nil {
		h.owners.Note(r.UID, r.Owner)
	}
	return control.EnqueueBatchResult{IDs: receipt.IDs, UnenforcedLimits: notes.unenforcedLimits,
		NewQueues: h.intake.newQueues(ctx, &receipt), MaxAttempts: notes.maxAttempts, Notes: notes.notes}, err
}

// enqueueRequest holds the jobs of a request, with its options.
type enqueueRequest struct {
	specs         []queue.Spec
	batch, key    string
	requireLimits bool
	next          bool // the jobs start before the caller's own waiting jobs
}

// enqueue stores the jobs of a request. If the request commits a batch, enqueue returns once all jobs of
// the batch are in the queue.
func (in *intake) enqueue(ctx context.Context, a enqueueRequest) (store.Receipt, receiptNotes, error) {
	r, notes, err := in.request(ctx, a)
	if err != nil {
		return store.Receipt{}, notes, err
	}
	var receipt store.Receipt
	err = in.quota.WithRoom(ctx, r.UID, func() (err error) {
		receipt, err = in.store.Enqueue(ctx, r)
		return err
	})
	if err == nil {
		in.owners.Note(r.UID, r.Owner)
	}
	for more := receipt.Staged; err == nil && more; {
		more, err = in.store.ApplyBatch(ctx, receipt.Batch)
		if errors.Is(err, queue.ErrNoSpace) || errors.Is(err, queue.ErrUnavailable) {
			select { // retry: the batch is committed, so all its jobs must reach the queue
			case <-time.After(applyRetryDelay):
				more, err = true, nil
			case <-ctx.Done():
			}
		}
	}
	return receipt, notes, err
}

// applyRetryDelay is the delay before enqueue retries to move a committed batch into the queue.
const applyRetryDelay = 200 * time.Millisecond

// request validates specs and converts them to a request to the store.
func (in *intake) request(ctx context.Context, a enqueueRequest) (r store.Request, notes receiptNotes, err error) {
	c := in.settings.Current()
	peer := control.PeerFrom(ctx)
	uid, users := peer.UID, access.UserResolver{RunAs: in.runAs, Peer: &peer}
	r = store.Request{Drafts: make([]queue.Job, len(a.specs)), UID: uid, Batch: a.batch, Key: a.key,
		MaxPending: c.MaxPending, MaxPendingUser: c.MaxPendingUser, MaxBytesUser: in.quota.MaxBytesUser(),
		Submission: peer.Submission}
	if len(a.key) > queue.MaxKey {
		return r, notes, queue.Invalid("key", "too long (%d bytes); the maximum is %d bytes", len(a.key), queue.MaxKey)
	}
	name := in.owners.UserName(uid)
	if name != strconv.Itoa(uid) { // if name is a number, the account has no name or its name is unknown now
		r.Owner = name
	}
	var best store.WaitingPriority
	var earlier int
	var next []string
	if a.next {
		if best, earlier, err = in.bestWaiting(ctx, uid, a.batch, len(a.specs)); err != nil {
			return r, notes, err
		}
	}
	nodes := sync.OnceValues(func() ([]store.NodeState, error) { return in.nodeList.Nodes(ctx) })
	for i := range a.specs {
		spec, err := in.queueRules.WithDefaults(&a.specs[i])
		var j queue.Job
		if err == nil {
			j, err = in.draft(spec, c.Defaults(), name, &users)
		}
		switch {
		case err != nil:
		case a.next:
			next = in.putNext(&peer, &j, best, earlier+i)
		case a.specs[i].Priority != nil:
			err = in.checkPriority(&peer, &j)
		}
		var fault *queue.Error
		if errors.As(err, &fault) && len(a.specs) > 1 {
			return r, notes, fault.WithIndex(i + 1)
		}
		if err != nil {
			return r, notes, err
		}
		j.UID = uid
		if err := in.checkDemands(&j, nodes); err != nil {
			if errors.As(err, &fault) && len(a.specs) > 1 {
				err = fault.WithIndex(i + 1)
			}
			return r, notes, err
		}
		if runs := in.account.RunsAs(&j); i == 0 || runs != in.account.RunsAs(&r.Drafts[i-1]) {
			if err := in.runAs.MayRun(runs); err != nil {
				return r, notes, err
			}
		}
		r.Drafts[i] = j
	}
	in.addNotes(&notes, r.Drafts)
	notes.notes = append(notes.notes, next...)
	if notes.unenforcedLimits, err = in.limits.UnenforcedLimits(ctx, r.Drafts, a.requireLimits); err != nil ||
		a.key == "" {
		return r, notes, err
	}
	r.Sum, err = requestDigest(&a)
	return r, notes, err
}

// requestDigest returns a hash of a request's content. A later request with the same key is refused if its hash
// differs.
func requestDigest(a *enqueueRequest) (digest [sha256.Size]byte, err error) {
	h := sha256.New()
	for i := range a.specs {
		raw, err := a.specs[i].WithoutTrace().MarshalJSON()
		if err != nil {
			return digest, err
		}
		h.Write(append(raw, '\n'))
	}
	fmt.Fprintf(h, "%s\n%t", a.batch, a.next)
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// draft returns the job for a spec. name is the name of the user who enqueues it.
func (in *intake) draft(spec *queue.Spec, d queue.Defaults, name string, users *access.UserResolver) (queue.Job,
	error) {
	j, err := queue.Resolve(spec, d)
	if err == nil {
		err = checkTerminal(&j)
	}
	if err == nil {
		err = checkSecrets(&j)
	}
	if err != nil || spec.User == nil {
		j.User = name
		return j, err
	}
	user, err := users.Resolve(j.User)
	j.AsUID, j.User = &user.UID, user.Name
	return j, err
}

// view converts a job, with all its fields, to its form in a reply.
func (w *viewer) view(j *queue.Job) control.Job {
	v := control.View{Units: w.units.UnitNames(j), CurrentTime: w.store.Now(), Order: w.store.Order(),
		EnqueuedTotal: w.store.Counts().EnqueuedTotal, TypicalRuntime: w.store.Usual(j.Fingerprint())}
	v.User, v.Owner = w.runAs.Names(j)
	if pausedAt, pausedBy := w.pauses.PauseOf(j); pausedAt != 0 {
		v.PausedAt, v.PausedBy = pausedAt, w.owners.UserName(pausedBy)
	}
	return control.ViewJob(j, v)
}

// viewFor returns a job as the peer may see it.
func (w *viewer) viewFor(p *control.Peer, j *queue.Job) control.Job {
	v := w.view(j)
	access.HideJob(&v, w.guard.VisibilityFor(p, j))
	return v
}

// viewsFor returns jobs as the peer may see them. It leaves out hidden jobs.
func (w *viewer) viewsFor(ctx context.Context, p *control.Peer, jobs []queue.Job) []control.Job {
	list := make([]control.Job, 0, len(jobs))
	for i := range jobs {
		if !w.guard.Hides(p, &jobs[i]) {
			list = append(list, w.viewFor(p, &jobs[i]))
		}
	}
	w.nodeList.NameNodes(ctx, list)
	w.waits.SetWaitsFor(ctx, jobs, list)
	return list
}

// List implements control.API.
func (h *Jobs) List(ctx context.Context, p control.List) (control.JobPage, error) {
	peer := control.PeerFrom(ctx)
	f, err := h.filters.filter(&peer, p)
	if err != nil {
		return control.JobPage{}, err
	}
	return h.page(ctx, f)
}

// DLQList implements control.API.
func (h *Jobs) DLQList(ctx context.Context, p control.DLQList) (control.JobPage, error) {
	return h.List(ctx, p.List())
}

// batchLabel is the name of the label that holds the batch of a job.
const batchLabel = "batch"

// filter converts the parameters of a list request to a filter of the store.
func (t *filters) filter(peer *control.Peer, p control.List) (store.Filter, error) {
	f := store.Filter{Labels: p.Label, Queue: p.Queue, Since: queue.Millis(p.Since), Until: queue.Millis(p.Until),
		Glob: p.IDGlob, Limit: p.Limit}
	if p.Limit == 0 {
		f.Limit = store.MaxPage
	}
	if !peer.Right.Covers(control.Operate) {
		f.Viewer = &peer.UID
	}
	if p.Failed {
		f.States = []queue.State{queue.Dead, queue.Failed}
	}
	for _, name := range p.State {
		states, err := queue.ParseStates(name)
		if err != nil {
			return f, err
		}
		for _, state := range states {
			// Avoid duplicates: the state names waiting and pending overlap.
			if !slices.Contains(f.States, state) {
				f.States = append(f.States, state)
			}
		}
	}
	if p.User != "" {
		uid, ok := t.directory.UserID(p.User)
		if !ok {
			uid, ok = t.owners.FormerUID(p.User)
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

func (h *Jobs) page(ctx context.Context, f store.Filter) (control.JobPage, error) {
	peer := control.PeerFrom(ctx)
	return control.Answer(ctx, h.shares, control.ClassMany, func() (control.JobPage, error) {
		page, err := h.store.List(ctx, f)
		if err != nil {
			return control.JobPage{}, err
		}
		return control.JobPage{Jobs: h.views.viewsFor(ctx, &peer, page.Jobs), Next: cursor(page.Next)}, nil
	})
}
