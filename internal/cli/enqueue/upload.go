// Package enqueue sends new jobs to the service, in requests of bounded size, and prints what the
// service answers.
//
// Start with Upload.
package enqueue

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/connect"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// These constants bound one request. If not all jobs fit into one request, several requests of one batch
// contain them.
const (
	maxRequestJobs  = control.MaxBatchRequestJobs
	maxRequestBytes = control.MaxLineBytes / 2
)

// UploadOptions say how a command enqueues several jobs.
type UploadOptions struct {
	Output *term.Output
	Cmd    *cobra.Command // the command that is running; messages name its flags
	Finder *connect.Finder

	InputUnit      string // word for the part of the input that is one job: "line", "entry" or "argument"
	IdempotencyKey string // idempotency key of the request; "" for none
	NoCwd          bool   // run the jobs in the home directory
	RequireLimits  bool   // reject jobs with limits that the service cannot enforce
	StartNext      bool   // start the jobs before the user's other waiting jobs
}

// Upload enqueues the jobs of a file, all of them or none. It uses one request if they fit. Otherwise it
// sends several requests with a batch id, and the last one commits the batch. It sends each request while it
// reads the jobs of the next one.
type Upload struct {
	UploadOptions
	ctx    context.Context
	Client *control.Client // client of the service; nil until the first request is sent

	ReadProgress readProgress
	JobsRead     int // number of jobs read
	callerFields callerFields
	files        input.NamedFiles
	expiredJobs  ExpiredJobs

	request     request // jobs of the next request
	sorter      depSorter
	fileIndexes []int // fileIndexes[i] is the index in the file of the job with the id answers.IDs[i]

	batchID string // "" while one request holds all jobs
	// sendResult receives the result of the request in flight. It is nil if no request is in flight.
	sendResult chan error
	// answers combines the replies to all requests. Its FoundIndexes contains line numbers instead of
	// indexes.
	answers          control.EnqueueBatchResult
	startMu          sync.Mutex // held while a request is started, and forever after an abort
	commitsBatch     bool       // the request in flight commits the batch; guarded by startMu
	requestsInFlight sync.WaitGroup
}

// NewUpload returns an upload. commonSpec holds the fields that all jobs share.
func NewUpload(ctx context.Context, options UploadOptions, commonSpec *queue.Spec) *Upload {
	expired := ExpiredJobs{sharedExpiry: queue.ValueOr(commonSpec.ExpiresAt, 0)}
	return &Upload{UploadOptions: options, ctx: ctx, files: input.NamedFiles{}, expiredJobs: expired}
}

// Add adds one job. When the collected jobs fill a request, Add sends that request. line is the number of the
// job's line, for errors.
func (u *Upload) Add(raw []byte, line int) error {
	j, err := u.prepareJob(raw)
	if err != nil {
		return fault.AtLine(err, line)
	}
	u.expiredJobs.Add(u.InputUnit, line, j.expiresAt)
	j.line, j.index = line, u.JobsRead
	if u.sorter.sentIDs == nil {
		u.sorter.hashSeed, u.sorter.sentIDs = maphash.MakeSeed(), map[uint64]bool{}
	}
	err = u.addToRequest(j, u.sorter.readyJobs)
	if u.JobsRead++; err != nil || len(u.sorter.delayedJobs) < maxDelayedJobs {
		return err
	}
	return u.addDelayedToRequests()
}

// addDelayedToRequests puts the jobs that were held back into requests, and sends the requests that are full.
func (u *Upload) addDelayedToRequests() error {
	rest, err := u.sorter.sortRemaining(u.request.jobs)
	if err != nil {
		return err
	}
	u.request = request{}
	for _, j := range rest {
		if err := u.addToRequest(j, u.sorter.recordIDs); err != nil {
			return err
		}
	}
	return nil
}

// addToRequest adds a job to the next request. If that request is full, addToRequest first sends it.
// selectReady returns the jobs of the full request that can be sent now.
func (u *Upload) addToRequest(j pendingJob, selectReady func([]pendingJob) []pendingJob) error {
	maxJobs, maxBytes := maxRequestJobs, maxRequestBytes
	if u.IdempotencyKey != "" {
		// With an idempotency key, all jobs must be in one request, because only a single request can be
		// repeated safely.
		maxJobs, maxBytes = queue.MaxJobsPerRequest, control.MaxLineBytes-64<<10
	}
	if u.request.isFull(&j, maxJobs, maxBytes) {
		if u.IdempotencyKey != "" {
			return fault.Usagef("--key: the jobs do not fit in one request (at most %d jobs, %d bytes, and %d arguments and "+
				"environment variables); split the file, or leave out --key", maxJobs, maxBytes, control.MaxArgEnvCount)
		}
		if u.request.jobs = selectReady(u.request.jobs); len(u.request.jobs) > 0 {
			if err := u.send(false); err != nil {
				return err
			}
		}
		u.request.jsonBytes, u.request.argEnvCount = 0, 0
	}
	u.request.add(j)
	return nil
}

// prepareJob validates a job and adds the caller's working directory, umask and environment.
func (u *Upload) prepareJob(raw []byte) (j pendingJob, err error) {
	if err := queue.CheckJSON(raw); err != nil {
		return j, err
	}
	var s queue.Spec
	if err := s.Decode(raw, nil); err != nil {
		return j, err
	}
	j.ID = queue.ValueOr(s.ID, "")
	j.parents, j.expiresAt = dependencyIDs(&s), s.ExpiresAt
	if j.raw, err = u.callerFields.addTo(raw, &s, u.NoCwd); err != nil {
		return j, err
	}
	u.files.Warn(u.Output, u.Cmd, &s)
	j.argEnvCount = control.ArgEnvCount(&s)
	return j, nil
}

// connect connects to the service, and starts it if necessary.
func (u *Upload) connect() error {
	c, err := u.Finder.AutostartClient(u.ctx)
	if err != nil {
		return err
	}
	u.Client = c
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	go func() { // this goroutine ends at a signal, or with the process
		<-interrupts
		u.abortAndExit()
	}()
	return nil
}

// send sends the collected jobs. It first waits for the reply to the previous request. If commit is true, the
// request also commits the batch.
func (u *Upload) send(commit bool) error {
	if err := u.awaitReply(); err != nil {
		return err
	}
	u.startMu.Lock() // after abortAndExit, this call blocks until the process exits, so no request starts
	defer u.startMu.Unlock()
	if u.Client == nil {
		if err := u.connect(); err != nil {
			return err
		}
	}
	u.commitsBatch = commit
	if !commit && u.batchID == "" {
		u.batchID = control.NewIdempotencyKey()
	}
	jobs := u.request.jobs
	p := control.EnqueueBatch{Batch: u.batchID, EncodedJobs: make([][]byte, len(jobs)), Commit: commit,
		RequireLimits: u.RequireLimits, RunNext: u.StartNext}
	if commit {
		p.Key = u.IdempotencyKey
	}
	lines := make([]int, len(jobs))
	for i := range jobs {
		p.EncodedJobs[i], lines[i] = jobs[i].raw, jobs[i].line
		u.fileIndexes = append(u.fileIndexes, jobs[i].index)
	}
	sent := make(chan error, 1)
	u.sendResult = sent
	u.requestsInFlight.Go(func() {
		got, err := u.Client.EnqueueBatch(u.ctx, p)
		mergeResult(&u.answers, &got, lines) // send and its callers read answers only after awaitReply
		sent <- errorAtLine(err, lines)
	})
	u.request = request{}
	u.showProgress(commit)
	return nil
}

// showProgress shows how many jobs were sent, unless the request commits the batch.
func (u *Upload) showProgress(commit bool) {
	switch p := &u.ReadProgress; {
	case commit:
	case p.fileBytes > 0:
		u.Output.DrawBar(term.ProgressBar{Current: p.bytesRead.Load(), Total: p.fileBytes, StartedAt: p.startedAt,
			Suffix:  present.JobsText(u.JobsRead) + " sent",
			InBytes: true})
	default:
		u.Output.ShowProgress("%s sent", present.JobsText(u.JobsRead))
	}
}

// sortIDs sorts answers.IDs by the order of the jobs in the file.
func (u *Upload) sortIDs() {
	if !u.sorter.isReordered || len(u.answers.IDs) != len(u.fileIndexes) {
		return
	}
	ids := make([]string, len(u.fileIndexes))
	for i, at := range u.fileIndexes {
		ids[at] = u.answers.IDs[i]
	}
	u.answers.IDs = ids
}

// abort asks the service to discard the jobs of the batch.
func (u *Upload) abort() error {
	_, err := u.Client.EnqueueBatch(context.WithoutCancel(u.ctx), control.EnqueueBatch{Batch: u.batchID, Abort: true})
	return err
}

// abortAndExit aborts the batch and exits. It locks u.startMu and never unlocks it, so that no other request
// can start.
func (u *Upload) abortAndExit() {
	u.startMu.Lock()
	u.Output.ShowProgress("")
	if u.commitsBatch {
		u.Output.Say("interrupted while the jobs were being stored: either all or none are in the queue; check with: " +
			"queuectl list")
		os.Exit(fault.ExitDetached)
	}
	// Wait for the request in flight. If it arrived after the abort, it would begin the batch again.
	u.requestsInFlight.Wait()
	u.abort() // if this fails, the service drops the batch after ten minutes
	u.Output.Say("interrupted; nothing was stored")
	os.Exit(fault.ExitDetached)
}

// awaitReply waits for the request in flight and returns its error.
func (u *Upload) awaitReply() error {
	if u.sendResult == nil {
		return nil
	}
	err := <-u.sendResult
	u.sendResult = nil
	return err
}

// FinishAndPrint commits the batch or, if err is not nil, aborts it. Then it prints the ids of the jobs. dueText
// describes when the jobs start, for example "; due …".
func (u *Upload) FinishAndPrint(err error, dueText string) error {
	err = u.CommitOrAbort(err)
	if e, ok := errors.AsType[*fault.LineError](err); ok {
		e.PartName = u.InputUnit
	}
	if u.Client != nil {
		defer u.Client.Close()
	}
	if err != nil {
		return err
	}
	u.sortIDs()
	if err := PrintEnqueued(u.ctx, u.Output, u.Client, u.answers.IDs); err != nil {
		return err
	}
	if u.expiredJobs.NotRunCount == u.JobsRead {
		u.answers.MaxAttempts = 0
	}
	return u.Output.PrintInfo("%s enqueued%s%s", present.JobsText(len(u.answers.IDs)-len(u.answers.FoundIndexes)), dueText,
		present.MaxAttemptsText(u.answers.MaxAttempts))
}

// CommitOrAbort commits the batch or, if err is not nil, aborts it. It returns err, or the error of the commit.
func (u *Upload) CommitOrAbort(err error) error {
	defer u.Output.ShowProgress("")
	if err == nil {
		err = u.addDelayedToRequests()
	}
	if err == nil {
		err = u.send(true)
	}
	if err == nil {
		err = u.awaitReply()
	}
	if err == nil {
		got := &u.answers
		WarnUnenforced(u.Output, got.UnenforcedLimits)
		PrintNewQueues(u.Output, got.NewQueues)
		PrintNotEnqueued(u.Output, u.InputUnit, got.FoundIndexes, len(got.IDs))
		PrintNotes(u.Output, u.Cmd, got.Notes)
		PrintExpired(u.Output, &u.expiredJobs)
	}
	if err == nil || u.batchID == "" {
		return err
	}
	u.awaitReply() // ignore the error of the request in flight, because err is the cause
	failed := u.abort()
	switch {
	case isBatchLost(err), !u.commitsBatch && errors.Is(err, queue.ErrUnavailable):
		return queue.Errorf(queue.CodeUnavailable, "the service stopped while the jobs were being sent, and nothing was "+
			"stored; run the same command again")
	case u.commitsBatch:
	case failed != nil:
		return fmt.Errorf("%w; nothing was stored\nthe service may keep the ids of these jobs reserved; "+
			"wait ten minutes before you repeat the command", err)
	}
	return err
}

// readProgress tracks how much of a file was read, for the progress bar.
type readProgress struct {
	file      *os.File
	startedAt time.Time
	fileBytes int64        // size of the file; 0 if unknown
	bytesRead atomic.Int64 // number of bytes read
}

// Track returns a reader of a file that counts the bytes that are read.
func (p *readProgress) Track(f *os.File) io.Reader {
	p.file, p.startedAt = f, time.Now()
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		p.fileBytes = info.Size()
	}
	return p
}

// Read implements io.Reader.
func (p *readProgress) Read(buffer []byte) (int, error) {
	n, err := p.file.Read(buffer)
	p.bytesRead.Add(int64(n))
	return n, err
}
