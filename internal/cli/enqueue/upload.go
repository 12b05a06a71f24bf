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

// These constants bound one request. If not all jobs fit into one request, they are sent as one batch in several
// requests.
const (
	maxRequestJobs  = control.MaxJobsPerPartialBatch
	maxRequestBytes = control.MaxLineBytes / 2
)

// UploadOptions say how a command enqueues several jobs.
type UploadOptions struct {
	Output *term.Output
	Cmd    *cobra.Command // the command that is running; messages name its flags
	Finder *connect.ServiceFinder

	InputUnitName           string // word for the part of the input with one job: "line", "entry" or "argument"
	IdempotencyKey          string // idempotency key of the request; "" for none
	RunInHomeDir            bool   // run the jobs in the home directory
	RequireEnforcedLimits   bool   // reject jobs with limits that the service cannot enforce
	StartBeforeOtherOwnJobs bool   // start the jobs before the user's other waiting jobs
}

// Upload enqueues the jobs of a file, all of them or none. If the jobs fit into one request, Upload sends only this
// request. Otherwise it sends several requests of one batch, and the last request commits the batch. While Upload waits
// for the reply to a request, it reads the jobs of the next one.
type Upload struct {
	UploadOptions
	ctx    context.Context
	Client *control.Client // client of the service; nil until the first request is sent

	ReadProgress fileReadProgress
	ReadJobCount int // number of jobs read
	callerFields callerFields
	files        input.CheckedFiles
	expiredJobs  ExpiredJobs

	request                 request // jobs of the next request
	sorter                  dependencySorter
	fileIndexesOfResultJobs []int // index in the file of each job in combinedResult.JobIDs

	batchID string // name of the batch; "" while one request holds all jobs
	// combinedResult combines the replies to all requests. Its ExistingJobIndexes contains line numbers instead of
	// indexes.
	combinedResult              control.EnqueueBatchResult
	requestStartMu              sync.Mutex // held while a request is started; after an abort, never unlocked
	inFlightRequestCommitsBatch bool       // the request in flight commits the batch; guarded by requestStartMu
	requestsInFlight            sync.WaitGroup
	lastRequestErr              error // error of the last request; read it only after requestsInFlight.Wait
}

// NewUpload returns an upload. commonSpec holds the fields that all jobs share.
func NewUpload(ctx context.Context, options UploadOptions, commonSpec *queue.Spec) *Upload {
	return &Upload{UploadOptions: options, ctx: ctx, files: input.CheckedFiles{},
		expiredJobs: ExpiredJobs{sharedExpiresAt: queue.ValueOr(commonSpec.ExpiresAt, 0)},
		sorter:      dependencySorter{idHashSeed: maphash.MakeSeed(), sentIDHashes: map[uint64]bool{}}}
}

// AddJob adds one job. When the collected jobs fill a request, Add sends that request. lineNumber is the number of the
// job's line, for errors.
func (u *Upload) AddJob(raw []byte, lineNumber int) error {
	j, err := u.prepareJob(raw)
	if err != nil {
		return fault.WithLineNumber(err, lineNumber)
	}
	u.expiredJobs.AddIfExpired(u.InputUnitName, lineNumber, j.expiresAt)
	j.lineNumber, j.jobIndexInFile = lineNumber, u.ReadJobCount
	err = u.addJobToRequest(j, u.sorter.takeReadyJobs)
	if u.ReadJobCount++; err != nil || len(u.sorter.delayedJobs) < maxDelayedJobs {
		return err
	}
	return u.addDelayedJobsToRequests()
}

// addDelayedJobsToRequests puts the jobs that were held back into requests, and sends the requests that are full.
func (u *Upload) addDelayedJobsToRequests() error {
	rest, err := u.sorter.sortRemainingJobs(u.request.jobs)
	if err != nil {
		return err
	}
	u.request = request{}
	for _, j := range rest {
		if err := u.addJobToRequest(j, u.sorter.recordSentIDs); err != nil {
			return err
		}
	}
	return nil
}

// addJobToRequest adds a job to the next request. If that request is full, addJobToRequest first sends it.
// selectReadyJobs returns the jobs of the full request that can be sent now.
func (u *Upload) addJobToRequest(j pendingJob, selectReadyJobs func([]pendingJob) []pendingJob) error {
	maxJobs, maxBytes := maxRequestJobs, maxRequestBytes
	if u.IdempotencyKey != "" {
		// With an idempotency key, all jobs must be in one request, because only a single request can be
		// repeated safely.
		maxJobs, maxBytes = queue.MaxJobsPerRequest, control.MaxLineBytes-64<<10
	}
	if u.request.isFullForJob(&j, maxJobs, maxBytes) {
		if u.IdempotencyKey != "" {
			return fault.Usagef("--key: the jobs do not fit in one request (at most %d jobs, %d bytes, and %d arguments and "+
				"environment variables); split the file, or leave out --key", maxJobs, maxBytes, control.MaxArgEnvCount)
		}
		if u.request.jobs = selectReadyJobs(u.request.jobs); len(u.request.jobs) > 0 {
			if err := u.sendRequest(false); err != nil {
				return err
			}
		}
		u.request.jsonBytes, u.request.argAndEnvCount = 0, 0
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
	if err := s.DecodeJSON(raw, nil); err != nil {
		return j, err
	}
	j.ID = queue.ValueOr(s.ID, "")
	j.parentIDs, j.expiresAt = dependencyIDs(&s), s.ExpiresAt
	if j.jobJSON, err = u.callerFields.addToJob(raw, &s, u.RunInHomeDir); err != nil {
		return j, err
	}
	u.files.WarnUnusableFiles(u.Output, u.Cmd, &s)
	j.argAndEnvCount = control.ArgAndEnvCount(&s)
	return j, nil
}

// connect connects to the service, and starts it if necessary.
func (u *Upload) connect() error {
	c, err := u.Finder.ClientWithAutostart(u.ctx)
	if err != nil {
		return err
	}
	u.Client = c
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	go func() { // this goroutine ends at a signal, or with the process
		<-interrupts
		u.abortBatchAndExit()
	}()
	return nil
}

// sendRequest sends the collected jobs. It first waits for the reply to the previous request. If commitBatch is true,
// the request also commits the batch.
func (u *Upload) sendRequest(commitBatch bool) error {
	if err := u.awaitInFlightRequest(); err != nil {
		return err
	}
	u.requestStartMu.Lock() // after abortBatchAndExit has locked this, no request starts before the process exits
	defer u.requestStartMu.Unlock()
	if u.Client == nil {
		if err := u.connect(); err != nil {
			return err
		}
	}
	u.inFlightRequestCommitsBatch = commitBatch
	if !commitBatch && u.batchID == "" {
		u.batchID = control.NewIdempotencyKey()
	}
	jobs := u.request.jobs
	p := control.EnqueueBatchParams{BatchName: u.batchID, JSONEncodedJobs: make([][]byte, len(jobs)), Commit: commitBatch,
		RequireEnforceableLimits: u.RequireEnforcedLimits, RunBeforeCallersJobs: u.StartBeforeOtherOwnJobs}
	if commitBatch {
		p.IdempotencyKey = u.IdempotencyKey
	}
	lines := make([]int, len(jobs))
	for i := range jobs {
		p.JSONEncodedJobs[i], lines[i] = jobs[i].jobJSON, jobs[i].lineNumber
		u.fileIndexesOfResultJobs = append(u.fileIndexesOfResultJobs, jobs[i].jobIndexInFile)
	}
	u.requestsInFlight.Go(func() {
		got, err := u.Client.EnqueueBatch(u.ctx, p)
		// no lock is needed: combinedResult is read only after awaitInFlightRequest
		mergeBatchResult(&u.combinedResult, &got, lines)
		u.lastRequestErr = errorWithJobLine(err, lines)
	})
	u.request = request{}
	u.showProgress(commitBatch)
	return nil
}

// showProgress shows how many jobs were sent, unless the request commits the batch.
func (u *Upload) showProgress(commitBatch bool) {
	switch p := &u.ReadProgress; {
	case commitBatch:
	case p.fileBytes > 0:
		u.Output.DrawProgressBar(term.ProgressBar{Current: p.bytesRead.Load(), Total: p.fileBytes, StartedAt: p.startedAt,
			TextAfterNumbers: present.JobCountText(u.ReadJobCount) + " sent", ValuesAreBytes: true})
	default:
		u.Output.ShowProgress("%s sent", present.JobCountText(u.ReadJobCount))
	}
}

// sortResultJobIDs sorts combinedResult.JobIDs by the order of the jobs in the file.
func (u *Upload) sortResultJobIDs() {
	if !u.sorter.jobsReordered || len(u.combinedResult.JobIDs) != len(u.fileIndexesOfResultJobs) {
		return
	}
	ids := make([]string, len(u.fileIndexesOfResultJobs))
	for i, at := range u.fileIndexesOfResultJobs {
		ids[at] = u.combinedResult.JobIDs[i]
	}
	u.combinedResult.JobIDs = ids
}

// abortBatch asks the service to discard the jobs of the batch.
func (u *Upload) abortBatch() error {
	_, err := u.Client.EnqueueBatch(context.WithoutCancel(u.ctx),
		control.EnqueueBatchParams{BatchName: u.batchID, Abort: true})
	return err
}

// abortBatchAndExit aborts the batch and exits. It locks u.requestStartMu and never unlocks this mutex, so that no
// other request can start.
func (u *Upload) abortBatchAndExit() {
	u.requestStartMu.Lock()
	u.Output.ShowProgress("")
	if u.inFlightRequestCommitsBatch {
		u.Output.PrintMessage("interrupted while the jobs were being stored: either all or none are in the queue; check " +
			"with: queuectl list")
		os.Exit(fault.ExitCodeDetached)
	}
	// Wait for the reply to the request in flight. If the service handled this request after the abort, the request would
	// begin the batch again.
	u.requestsInFlight.Wait()
	u.abortBatch() // ignore the error: in any case, the service drops the batch after ten minutes
	u.Output.PrintMessage("interrupted; nothing was stored")
	os.Exit(fault.ExitCodeDetached)
}

// awaitInFlightRequest waits for the request in flight and returns the error of the last request.
func (u *Upload) awaitInFlightRequest() error {
	u.requestsInFlight.Wait()
	return u.lastRequestErr
}

// FinishAndPrint commits the batch or, if err is not nil, aborts it. Then it prints the ids of the jobs. startTimeText
// describes when the jobs start, for example "; due …".
func (u *Upload) FinishAndPrint(uploadErr error, startTimeText string) error {
	uploadErr = u.CommitOrAbort(uploadErr)
	if e, ok := errors.AsType[*fault.LineError](uploadErr); ok {
		e.InputUnitName = u.InputUnitName
	}
	if u.Client != nil {
		defer u.Client.Close()
	}
	if uploadErr != nil {
		return uploadErr
	}
	u.sortResultJobIDs()
	if err := PrintEnqueuedJobs(u.ctx, u.Output, u.Client, u.combinedResult.JobIDs); err != nil {
		return err
	}
	if u.expiredJobs.UnrunnableJobCount == u.ReadJobCount {
		u.combinedResult.MaxAttempts = 0
	}
	return u.Output.PrintTerminalMessage("%s enqueued%s%s",
		present.JobCountText(len(u.combinedResult.JobIDs)-len(u.combinedResult.ExistingJobIndexes)), startTimeText,
		present.MaxAttemptsText(u.combinedResult.MaxAttempts))
}

// CommitOrAbort commits the batch or, if err is not nil, aborts it. It returns err, or the error of the commit.
func (u *Upload) CommitOrAbort(uploadErr error) error {
	defer u.Output.ShowProgress("")
	if uploadErr == nil {
		uploadErr = u.addDelayedJobsToRequests()
	}
	if uploadErr == nil {
		uploadErr = u.sendRequest(true)
	}
	if uploadErr == nil {
		uploadErr = u.awaitInFlightRequest()
	}
	if uploadErr == nil {
		got := &u.combinedResult
		WarnUnenforcedLimits(u.Output, got.UnenforcedLimits)
		PrintNewQueues(u.Output, got.CreatedQueues)
		PrintJobsNotEnqueued(u.Output, u.InputUnitName, got.ExistingJobIndexes, len(got.JobIDs))
		PrintServiceNotes(u.Output, u.Cmd, got.Notes)
		PrintExpiredJobs(u.Output, &u.expiredJobs)
	}
	if uploadErr == nil || u.batchID == "" {
		return uploadErr
	}
	u.requestsInFlight.Wait() // ignore the error of the request in flight, because uploadErr is the cause
	failed := u.abortBatch()
	switch {
	case isBatchLostError(uploadErr), !u.inFlightRequestCommitsBatch && errors.Is(uploadErr, queue.ErrUnavailable):
		return queue.Errorf(queue.CodeUnavailable, "the service stopped while the jobs were being sent, and nothing was "+
			"stored; run the same command again")
	case u.inFlightRequestCommitsBatch:
	case failed != nil:
		return fmt.Errorf("%w; nothing was stored\nthe service may keep the ids of these jobs reserved; "+
			"wait ten minutes before you repeat the command", uploadErr)
	}
	return uploadErr
}

// fileReadProgress tracks how much of a file was read, for the progress bar.
type fileReadProgress struct {
	file      *os.File
	startedAt time.Time
	fileBytes int64        // size of the file; 0 if unknown
	bytesRead atomic.Int64 // number of bytes read
}

// CountingReader returns a reader of a file that counts the bytes that are read.
func (p *fileReadProgress) CountingReader(f *os.File) io.Reader {
	p.file, p.startedAt = f, time.Now()
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		p.fileBytes = info.Size()
	}
	return p
}

// Read implements io.Reader.
func (p *fileReadProgress) Read(buffer []byte) (int, error) {
	n, err := p.file.Read(buffer)
	p.bytesRead.Add(int64(n))
	return n, err
}
