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
	// maxShownTailBytes is the maximum number of bytes that ShowJob returns from the end of each output stream of the
	// last attempt.
	maxShownTailBytes = 4 << 10
	// maxShownAttempts is the maximum number of attempts that ShowJob returns.
	maxShownAttempts = 100
	// maxOutputReadTries limits how often ShowJob reads the output. If the job's state has changed during the read,
	// ShowJob reads the output again, so that the shown output belongs to the shown state.
	maxOutputReadTries = 4
)

// ShowJob implements control.API.
func (h *API) ShowJob(ctx context.Context, p control.JobShowParams) (control.JobDetail, error) {
	req := &showRequest{API: h, peer: control.PeerFrom(ctx), jobID: string(p.ID),
		beforeAttemptNumber: p.AttemptsBelowNumber, maxVisibility: access.VisibleAll}
	if p.HideEnv {
		req.maxVisibility = access.VisibleWithoutEnv
	}
	for {
		d, err := control.AnswerInSlot(ctx, h.UserLimits, control.ClassOneJobRead,
			func() (control.JobDetail, error) { return req.readJobDetail(ctx) })
		switch {
		case errors.Is(err, errOutputNotInStore):
			attempt := req.job.StartedAttempts
			if req.job.State == queue.Processing {
				attempt++
			}
			err = h.readOutputTail(ctx, &req.job, attempt, maxShownTailBytes, req.tails.addChunk)
			if req.job.State == queue.Processing && errors.Is(err, queue.ErrUnavailable) {
				err = nil // the runner does not answer, so show the job without output
			}
			req.tailsMatchJobState = true
			req.outputReadCount++
		case errors.Is(err, errAccessNotAudited):
			req.maxVisibility = h.auditEnvironmentRead(ctx, &req.job)
			req.isAccessAudited, err = true, nil
		default:
			return d, err
		}
		if err != nil {
			return control.JobDetail{}, err
		}
	}
}

// readJobDetail returns one of these errors if its caller must do a step that must not be done in a read slot, and then
// call readJobDetail again. For errOutputNotInStore, the step is to read output from a file or from the runner. For
// errAccessNotAudited, the step is to record in the audit log that the caller sees another user's environment.
var (
	errOutputNotInStore = errors.New("the output is not in the store")
	errAccessNotAudited = errors.New("the access is not recorded in the audit log")
)

// showRequest is the state of one show request.
type showRequest struct {
	*API
	peer                control.Peer
	jobID               string // id of the requested job
	beforeAttemptNumber int    // show only attempts with a lower number; 0 means the newest attempts
	// maxVisibility limits what the reply shows, even if the peer may see more.
	maxVisibility access.Visibility

	job                queue.Job // the job as last read, without its large fields
	tails              outputTails
	resultJSON         []byte // result of the last attempt
	tailsMatchJobState bool   // the tails belong to the current state of the job
	outputReadCount    int    // how often the output was read without a read slot
	isAccessAudited    bool   // the audit log records that the peer sees the environment
}

// readJobDetail reads the job for the reply. It returns errOutputNotInStore or errAccessNotAudited if the caller must
// first do another step.
func (w *showRequest) readJobDetail(ctx context.Context) (result control.JobDetail, err error) {
	j, err := w.Store.GetWithEnvAndStdin(ctx, w.jobID)
	if err == nil && w.Guard.HidesJob(&w.peer, &j) {
		err = queue.JobNotFoundError(w.jobID)
	}
	if err != nil {
		return result, err
	}
	if w.job.Seq != 0 {
		if err := checkSameJob(&j, &w.job); err != nil {
			return result, err
		}
	}
	if (j.State != w.job.State || j.StartedAttempts != w.job.StartedAttempts) && w.outputReadCount < maxOutputReadTries {
		w.tailsMatchJobState = false
	}
	w.job = withoutLargeFields(&j)
	isOwner := w.Guard.PeerOwnsJob(&w.peer, &j)
	sees := min(w.maxVisibility, w.Guard.JobVisibilityFor(&w.peer, &j))
	if sees == access.VisibleAll && !isOwner && len(j.Env) > 0 && !w.isAccessAudited {
		return result, errAccessNotAudited
	}
	if sees >= access.VisibleWithoutEnv && !w.tailsMatchJobState { // with less visibility, the output is not shown
		if err := w.readOutputTails(ctx); err != nil {
			return result, err
		}
	}
	d, err := w.buildJobDetail(ctx, &j, w.beforeAttemptNumber)
	d.StdoutTail, d.StderrTail = validUTF8Text(w.tails.tailByStream[output.Stdout]),
		validUTF8Text(w.tails.tailByStream[output.Stderr])
	// While an attempt runs, this total may be wrong, because only the end of the output was read.
	if j.State != queue.Processing {
		d.StdoutBytes = w.tails.printedBytesByStream[output.Stdout]
	}
	d.Result = w.resultJSON
	access.HideJobDetailParts(&d, sees)
	return d, err
}

// readOutputTails reads the end of the last attempt's output from the store. It returns errOutputNotInStore if the
// store does not contain the output.
func (w *showRequest) readOutputTails(ctx context.Context) error {
	w.tails, w.resultJSON = outputTails{}, nil
	switch {
	case w.job.State == queue.Processing:
		return errOutputNotInStore
	case w.job.StartedAttempts == 0:
		return nil
	}
	a, err := w.Store.Attempt(ctx, w.job.Seq, w.job.StartedAttempts)
	switch {
	case errors.Is(err, queue.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	w.resultJSON = a.Result
	if a.OutputFileRef != "" {
		return errOutputNotInStore
	}
	return output.Decode(bytes.NewReader(a.Output), w.tails.addChunk)
}

// outputTails holds the ends of the two streams of an attempt's output.
type outputTails struct {
	tailByStream [2][]byte // at most maxShownTailBytes bytes of each stream, by output.Stream
	// printedBytesByStream is the length of each stream, including bytes that were not kept. It is exact if the whole
	// output, or the end of an output file, was read.
	printedBytesByStream [2]int64
}

// addChunk appends a chunk to its stream. It keeps only the last bytes of each stream, beginning with a whole
// character. For damaged or lost bytes, it inserts a line that says so. If the stream of these bytes is unknown, it
// inserts the line in both streams.
func (t *outputTails) addChunk(c output.Chunk) error {
	t.printedBytesByStream[c.Stream] = max(t.printedBytesByStream[c.Stream], c.StreamOffset) + c.ByteLength()
	p := newOutputPiece(&c)
	p.NonUTF8Bytes = c.Data
	for s := range t.tailByStream {
		if s != int(c.Stream) && !c.StreamUnknown {
			continue
		}
		tail := p.AppendTo(t.tailByStream[s])
		if len(tail) > maxShownTailBytes {
			// Copy the end, so that the memory of the large chunk can be freed.
			tail = bytes.Clone(output.TextTail(tail, maxShownTailBytes))
		}
		t.tailByStream[s] = tail
	}
	return nil
}

// auditEnvironmentRead records in the audit log that the caller sees another user's environment. It returns how much of
// the job the caller may see. If the record could be written, the caller may see everything, and otherwise everything
// except the environment.
func (h *API) auditEnvironmentRead(ctx context.Context, j *queue.Job) access.Visibility {
	if err := h.Guard.RecordAudit(ctx, "show", "environment", j); err != nil {
		h.Log.Warn("the environment of a job was not shown, because the access could not be recorded", "job", j.ID, "error",
			err)
		return access.VisibleWithoutEnv
	}
	peer := control.PeerFrom(ctx)
	h.Log.Info("the user with this uid was shown the environment of another user's job", "job", j.ID,
		"uid", peer.UID, "pid", peer.PID)
	return access.VisibleAll
}

// errJobIDRequired is the error of a request that must name a job but does not.
var errJobIDRequired = queue.InvalidFieldError("id", "required; give the id of a job")

// withReadSlot calls read while it holds a read slot of the class slotClass, and returns the result of read. Read slots
// bound the memory and the work of one user's requests.
func withReadSlot[R any](ctx context.Context, limits *control.UserLimits, slotClass control.HeavyWorkClass,
	read func() (R, error)) (r R,
	err error) {
	err = limits.RunInSlot(ctx, slotClass, func() (err error) {
		r, err = read()
		return err
	})
	return r, err
}

// findVisibleJob reads the job with this id, without its large fields. It returns an error if the peer must not learn
// that the job exists.
func (h *API) findVisibleJob(ctx context.Context, id control.JobID) (queue.Job, error) {
	if id == "" {
		return queue.Job{}, errJobIDRequired
	}
	j, err := withReadSlot(ctx, h.UserLimits, control.ClassOneJobRead,
		func() (queue.Job, error) { return h.Guard.GetVisibleJob(ctx, new(control.PeerFrom(ctx)), string(id)) })
	return withoutLargeFields(&j), err
}

// findJobForMethod reads the job with this id, without its large fields. It returns an error if the peer must not learn
// that the job exists, or may not use the method on the job.
func (h *API) findJobForMethod(ctx context.Context, method string, id control.JobID) (queue.Job, error) {
	j, err := h.findVisibleJob(ctx, id)
	if err == nil {
		err = h.Guard.CheckMayActOnObject(new(control.PeerFrom(ctx)), method, "job", &j)
	}
	return j, err
}

// buildJobDetail returns a job with its newest attempts. If beforeAttemptNumber is not 0, it returns only attempts with
// a lower number.
func (h *API) buildJobDetail(ctx context.Context, j *queue.Job, beforeAttemptNumber int) (control.JobDetail, error) {
	views := []control.Job{h.newJobView(j)}
	h.NodeRegistry.SetJobNodeNames(ctx, views)
	h.reasonFinder.SetWaitReasons(ctx, []queue.Job{*j}, views)
	d := control.JobDetail{Job: views[0], Spec: queue.SpecOfJob(j).GivenFields(), History: []control.Attempt{},
		TotalAttempts: j.StartedAttempts}
	history, err := h.Store.AttemptHistory(ctx, j.Seq, beforeAttemptNumber, maxShownAttempts)
	if err != nil {
		return d, err
	}
	parents, _, err := h.Store.DependencyLinks(ctx, j.Seq, reasons.MaxDependencyLinks)
	if err != nil {
		return d, err
	}
	if len(parents) > 0 {
		d.Spec["depends_on"] = reasons.FormatDependencies(parents)
	}
	for i := range history {
		d.History = append(d.History, control.NewAttemptView(&history[i]))
	}
	if j.State != queue.Processing {
		return d, nil
	}
	d.TotalAttempts++
	if beforeAttemptNumber == 0 || beforeAttemptNumber > j.StartedAttempts+1 {
		d.History = append(d.History, control.NewAttemptView(&queue.Attempt{
			Number: j.StartedAttempts + 1, Worker: j.WorkerID, Node: cmp.Or(d.Node, h.NodeName),
			PID: j.PID, StartedAt: j.StartedAt, ExitCode: -1,
		}))
	}
	return d, nil
}

// validUTF8Text returns output as valid UTF-8, as JSON requires.
func validUTF8Text(printed []byte) string { return strings.ToValidUTF8(string(printed), "\uFFFD") }
