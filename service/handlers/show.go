package handlers

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/reasons"
)

const (
	// maxShowTailBytes is the maximum number of bytes that Show returns from the end of each output stream of the
	// last attempt.
	maxShowTailBytes = 4 << 10
	// maxShownAttempts is the maximum number of attempts that Show returns.
	maxShownAttempts = 100
	// maxOutputReads limits how often Show reads the output. Show reads it again if the job's state changed
	// during the read, so that the shown output belongs to the shown state.
	maxOutputReads = 4
)

// Show implements control.API.
func (h *API) Show(ctx context.Context, p control.Show) (control.JobDetail, error) {
	req := &showRequest{api: h, peer: control.PeerFrom(ctx), id: string(p.ID), beforeAttempt: p.HistoryBefore,
		maxVisibility: access.VisibleAll}
	if p.WithoutEnv {
		req.maxVisibility = access.VisibleWithoutEnv
	}
	for {
		d, err := control.AnswerInSlot(ctx, h.UserLimits, control.ClassOneJob,
			func() (control.JobDetail, error) { return req.readDetail(ctx) })
		switch {
		case errors.Is(err, errOutputNotStored):
			attempt := req.job.StartedAttempts
			if req.job.State == queue.Processing {
				attempt++
			}
			err = h.readTail(ctx, &req.job, attempt, maxShowTailBytes, req.tails.add)
			if req.job.State == queue.Processing && errors.Is(err, queue.ErrUnavailable) {
				err = nil // the runner does not answer, so show the job without output
			}
			req.tailsUpToDate = true
			req.outputReads++
		case errors.Is(err, errNotAudited):
			req.maxVisibility = h.auditEnvironmentRead(ctx, &req.job)
			req.isAudited, err = true, nil
		default:
			return d, err
		}
		if err != nil {
			return control.JobDetail{}, err
		}
	}
}

// readDetail returns one of these errors if its caller must do a step without a read slot, and then call it
// again. For errOutputNotStored, the step is to read output from a file or from the runner. For
// errNotAudited, it is to record in the audit log that the caller sees another user's environment.
var (
	errOutputNotStored = errors.New("the output is not in the store")
	errNotAudited      = errors.New("the access is not recorded in the audit log")
)

// showRequest is the state of one show request.
type showRequest struct {
	api           *API
	peer          control.Peer
	id            string // id of the requested job
	beforeAttempt int    // show only attempts with a lower number; 0 means the newest attempts
	// maxVisibility limits what the reply shows, even if the peer may see more.
	maxVisibility access.Visibility

	job           queue.Job // the job as last read, without its large fields
	tails         outputTails
	resultJSON    []byte // result of the last attempt
	tailsUpToDate bool   // the tails belong to the current state of the job
	outputReads   int    // how often the output was read without a read slot
	isAudited     bool   // the audit log records that the peer sees the environment
}

// readDetail reads the job for the reply. It returns errOutputNotStored or errNotAudited if the caller must
// first do another step.
func (w *showRequest) readDetail(ctx context.Context) (control.JobDetail, error) {
	j, err := w.api.Store.GetFull(ctx, w.id)
	if err == nil && w.api.Guard.Hides(&w.peer, &j) {
		err = queue.NoJobError(w.id)
	}
	if err != nil {
		return control.JobDetail{}, err
	}
	if w.job.Seq != 0 {
		if err := checkSameJob(&j, &w.job); err != nil {
			return control.JobDetail{}, err
		}
	}
	if (j.State != w.job.State || j.StartedAttempts != w.job.StartedAttempts) && w.outputReads < maxOutputReads {
		w.tailsUpToDate = false
	}
	w.job = compactJob(&j)
	isOwner := w.api.Guard.IsOwner(&w.peer, &j)
	sees := min(w.maxVisibility, w.api.Guard.VisibilityFor(&w.peer, &j))
	if sees == access.VisibleAll && !isOwner && len(j.Env) > 0 && !w.isAudited {
		return control.JobDetail{}, errNotAudited
	}
	if sees >= access.VisibleWithoutEnv && !w.tailsUpToDate { // with less visibility, no output is shown
		if err := w.readTails(ctx); err != nil {
			return control.JobDetail{}, err
		}
	}
	d, err := w.api.buildDetail(ctx, &j, w.beforeAttempt)
	d.Output, d.Stderr = validUTF8Text(w.tails.streamEnds[output.Stdout]), validUTF8Text(w.tails.streamEnds[output.Stderr])
	// While an attempt runs, this total may be wrong, because only the end of the output was read.
	if j.State != queue.Processing {
		d.StdoutBytes = w.tails.printedBytes[output.Stdout]
	}
	d.Result = w.resultJSON
	access.HideDetail(&d, sees)
	return d, err
}

// readTails reads the end of the last attempt's output from the store. It returns errOutputNotStored if the
// store does not contain the output.
func (w *showRequest) readTails(ctx context.Context) error {
	w.tails, w.resultJSON = outputTails{}, nil
	switch {
	case w.job.State == queue.Processing:
		return errOutputNotStored
	case w.job.StartedAttempts == 0:
		return nil
	}
	a, err := w.api.Store.Attempt(ctx, w.job.Seq, w.job.StartedAttempts)
	switch {
	case errors.Is(err, queue.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	w.resultJSON = a.Result
	if a.OutputRef != "" {
		return errOutputNotStored
	}
	return output.Decode(bytes.NewReader(a.Output), w.tails.add)
}

// outputTails holds the ends of the two streams of an attempt's output.
type outputTails struct {
	streamEnds [2][]byte // at most maxShowTailBytes bytes of each stream, by output.Stream
	// printedBytes is the length of each stream, including bytes that were not kept. It is exact if the whole
	// output or the end of a file was read.
	printedBytes [2]int64
}

// add appends a chunk to its stream. It keeps only the last bytes of each stream, from the beginning of a
// character. For damaged or lost bytes it inserts a line that says so, in both streams if the stream of these
// bytes is unknown.
func (t *outputTails) add(c output.Chunk) error {
	t.printedBytes[c.Stream] = max(t.printedBytes[c.Stream], c.Offset) + c.Length()
	p := newPiece(&c)
	p.Base64 = c.Data
	for s := range t.streamEnds {
		if s != int(c.Stream) && !c.StreamUnknown {
			continue
		}
		tail := p.AppendTo(t.streamEnds[s])
		if len(tail) > maxShowTailBytes {
			// Copy the end, so that the memory of the large chunk can be freed.
			tail = bytes.Clone(output.Tail(tail, maxShowTailBytes))
		}
		t.streamEnds[s] = tail
	}
	return nil
}

// auditEnvironmentRead records in the audit log that the caller sees another user's environment. It returns
// how much of the job the caller may see: everything, or everything except the environment if the record
// could not be written.
func (h *API) auditEnvironmentRead(ctx context.Context, j *queue.Job) access.Visibility {
	if err := h.Guard.Audit(ctx, "show", "environment", j); err != nil {
		h.Log.Warn("the environment of a job was not shown, because the access could not be recorded", "job", j.ID, "error",
			err)
		return access.VisibleWithoutEnv
	}
	peer := control.PeerFrom(ctx)
	h.Log.Info("the user with this uid was shown the environment of another user's job", "job", j.ID,
		"uid", peer.UID, "pid", peer.PID)
	return access.VisibleAll
}

// errNoID is the error of a request that must name a job but does not.
var errNoID = queue.Invalid("id", "required; give the id of a job")

// readInSlot calls f while it holds a read slot of class c, and returns the result of f. Read slots bound the
// memory and the work of one user's requests.
func readInSlot[R any](ctx context.Context, s *control.UserLimits, c control.SlotClass, f func() (R, error)) (r R,
	err error) {
	err = s.RunInSlot(ctx, c, func() (err error) {
		r, err = f()
		return err
	})
	return r, err
}

// findJob reads the job with an id, without its large fields. It returns an error if the peer must not learn
// that the job exists.
func (h *API) findJob(ctx context.Context, id control.JobID) (queue.Job, error) {
	if id == "" {
		return queue.Job{}, errNoID
	}
	j, err := readInSlot(ctx, h.UserLimits, control.ClassOneJob,
		func() (queue.Job, error) { return h.Guard.GetVisible(ctx, new(control.PeerFrom(ctx)), string(id)) })
	return compactJob(&j), err
}

// findJobFor reads the job with an id, without its large fields. It returns an error if the peer must not
// learn that the job exists, or may not use the method on the job.
func (h *API) findJobFor(ctx context.Context, method string, id control.JobID) (queue.Job, error) {
	j, err := h.findJob(ctx, id)
	if err == nil {
		err = h.Guard.CheckMayAct(new(control.PeerFrom(ctx)), method, &j)
	}
	return j, err
}

// buildDetail returns a job with its newest attempts. If beforeAttempt is not 0, it returns only attempts with a
// lower number.
func (h *API) buildDetail(ctx context.Context, j *queue.Job, beforeAttempt int) (control.JobDetail, error) {
	views := []control.Job{h.viewJob(j)}
	h.AllNodes.SetNodeNames(ctx, views)
	h.reasonFinder.SetWaitsFor(ctx, []queue.Job{*j}, views)
	d := control.JobDetail{Job: views[0], Spec: queue.SpecOf(j).GivenFields(), History: []control.Attempt{},
		HistoryTotal: j.StartedAttempts}
	history, err := h.Store.History(ctx, j.Seq, beforeAttempt, maxShownAttempts)
	if err != nil {
		return d, err
	}
	parents, _, err := h.Store.DependencyLinks(ctx, j.Seq, reasons.MaxLinks)
	if err != nil {
		return d, err
	}
	if len(parents) > 0 {
		d.Spec["depends_on"] = reasons.DependencyNames(parents)
	}
	for i := range history {
		d.History = append(d.History, control.ViewAttempt(&history[i]))
	}
	if j.State != queue.Processing {
		return d, nil
	}
	d.HistoryTotal++
	if beforeAttempt == 0 || beforeAttempt > j.StartedAttempts+1 {
		d.History = append(d.History, control.ViewAttempt(&queue.Attempt{
			Number: j.StartedAttempts + 1, Worker: j.WorkerID, Node: cmp.Or(d.Node, h.Node),
			PID: j.PID, StartedAt: j.StartedAt, ExitCode: -1,
		}))
	}
	return d, nil
}

// validUTF8Text returns output as valid UTF-8, as JSON requires.
func validUTF8Text(printed []byte) string { return strings.ToValidUTF8(string(printed), "\uFFFD") }
