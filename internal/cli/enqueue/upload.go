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

// These constants bound one request of a batch. If all jobs fit into one request, no batch is needed.
const (
	maxRequestJobs  = control.MaxBatchRequestJobs
	maxRequestBytes = control.MaxLineBytes / 2
)

// UploadOptions say how a command enqueues several jobs.
type UploadOptions struct {
	Output *term.Output
	Cmd    *cobra.Command // the command that is running; messages name its flags
	Finder *connect.Finder

	Part          string // word for the part of the input that is one job: "line", "entry" or "argument"
	Key           string // idempotency key of the request; "" for none
	NoCwd         bool   // run the jobs in the home directory
	RequireLimits bool   // reject jobs with limits that the service cannot enforce
	StartNext     bool   // start the jobs before the user's other waiting jobs
}

// Upload enqueues the jobs of a file. It uses one request if they fit, otherwise several requests of
// one batch. It sends each request while it reads the jobs of the next one.
type Upload struct {
	UploadOptions
	ctx    context.Context
	Client *control.Client // client of the service; nil until the first request is sent

	ReadProgress readProgress
	JobsRead     int // number of jobs read
	caller       callerFields
	files        input.NamedFiles
	expiries     ExpiredJobs

	request request // jobs of the next request
	sorter  depSorter
	indexes []int // indexes[i] is the index in the file of the job with the id answers.IDs[i]

	batch      string                     // id of the batch; "" while one request holds all jobs
	sendResult chan error                 // receives the result of the request in flight; nil if no request is in flight
	answers    control.EnqueueBatchResult // answers to all requests; FoundIndexes contains line numbers instead of indexes
	startMu    sync.Mutex                 // held while a request is started, and forever after an abort
	commits    bool                       // the request in flight commits the batch; guarded by startMu
	inFlight   sync.WaitGroup
}

// NewUpload returns an upload. common holds the fields that all jobs share.
func NewUpload(ctx context.Context, options UploadOptions, common *queue.Spec) *Upload {
	expired := ExpiredJobs{sharedExpiry: queue.ValueOr(common.ExpiresAt, 0)}
	return &Upload{UploadOptions: options, ctx: ctx, files: input.NamedFiles{}, expiries: expired}
}

// Add adds one job, and sends a request when the collected jobs fill one. line is the number of the job's line,
// for errors.
func (u *Upload) Add(raw []byte, line int) error {
	j, err := u.encode(raw)
	if err != nil {
		return fault.AtLine(err, line)
	}
	u.expiries.Add(u.Part, line, j.expiresAt)
	j.line, j.index = line, u.JobsRead
	if u.sorter.sentIDs == nil {
		u.sorter.seed, u.sorter.sentIDs = maphash.MakeSeed(), map[uint64]bool{}
	}
	err = u.addToRequest(j, u.sorter.readyJobs)
	if u.JobsRead++; err != nil || len(u.sorter.delayedJobs) < maxDelayedJobs {
		return err
	}
	return u.putDelayed()
}

// putDelayed puts the jobs that were held back into requests, and sends the requests that are full.
func (u *Upload) putDelayed() error {
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

// addToRequest adds a job to the next request. If that request is full, addToRequest first passes its jobs to the
// function ready, and sends those that can be sent: the jobs that ready returns.
func (u *Upload) addToRequest(j pendingJob, ready func([]pendingJob) []pendingJob) error {
	maxJobs, maxBytes := maxRequestJobs, maxRequestBytes
	if u.Key != "" { // with a key, one request contains all jobs, because only a single request is safe to repeat
		maxJobs, maxBytes = queue.MaxJobsPerRequest, control.MaxLineBytes-64<<10
	}
	if u.request.isFull(&j, maxJobs, maxBytes) {
		if u.Key != "" {
			return fault.Usagef("--key: the jobs do not fit in one request (at most %d jobs, %d bytes, and %d arguments and "+
				"environment variables); split the file, or leave out --key", maxJobs, maxBytes, control.MaxArgEnvCount)
		}
		if u.request.jobs = ready(u.request.jobs); len(u.request.jobs) > 0 {
			if err := u.send(false); err != nil {
				return err
			}
		}
		u.request.bytes, u.request.argEnvCount = 0, 0
	}
	u.request.add(j)
	return nil
}

// encode validates a job and adds the caller's working directory, umask and environment.
func (u *Upload) encode(raw []byte) (j pendingJob, err error) {
	if err := queue.CheckJSON(raw); err != nil {
		return j, err
	}
	var s queue.Spec
	if err := s.Decode(raw, nil); err != nil {
		return j, err
	}
	j.ID = queue.ValueOr(s.ID, "")
	j.parents, j.expiresAt = dependencyIDs(&s), s.ExpiresAt
	if j.raw, err = u.caller.addTo(raw, &s, u.NoCwd); err != nil {
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

// send sends the collected jobs. It first waits for the answer to the previous request. If commit is true, the
// request also commits the batch.
func (u *Upload) send(commit bool) error {
	if err := u.awaitReply(); err != nil {
		return err
	}
	u.startMu.Lock() // abortAndExit locks startMu and never unlocks it
	defer u.startMu.Unlock()
	if u.Client == nil {
		if err := u.connect(); err != nil {
			return err
		}
	}
	u.commits = commit
	if !commit && u.batch == "" {
		u.batch = control.NewIdempotencyKey()
	}
	jobs := u.request.jobs
	p := control.EnqueueBatch{Batch: u.batch, EncodedJobs: make([][]byte, len(jobs)), Commit: commit,
		RequireLimits: u.RequireLimits, RunNext: u.StartNext}
	if commit {
		p.Key = u.Key
	}
	lines := make([]int, len(jobs))
	for i := range jobs {
		p.EncodedJobs[i], lines[i] = jobs[i].raw, jobs[i].line
		u.indexes = append(u.indexes, jobs[i].index)
	}
	sent := make(chan error, 1)
	u.sendResult = sent
	u.inFlight.Go(func() {
		got, err := u.Client.EnqueueBatch(u.ctx, p)
		addAnswer(&u.answers, &got, lines) // send and its callers read answers only after awaitReply
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
	case p.size > 0:
		u.Output.DrawBar(term.ProgressBar{Current: p.bytesRead.Load(), Total: p.size, StartedAt: p.startedAt,
			Suffix:  present.JobsText(u.JobsRead) + " sent",
			InBytes: true})
	default:
		u.Output.ShowProgress("%s sent", present.JobsText(u.JobsRead))
	}
}

// sortIDs sorts answers.IDs by the order of the jobs in the file.
func (u *Upload) sortIDs() {
	if !u.sorter.reordered || len(u.answers.IDs) != len(u.indexes) {
		return
	}
	ids := make([]string, len(u.indexes))
	for i, at := range u.indexes {
		ids[at] = u.answers.IDs[i]
	}
	u.answers.IDs = ids
}

// abort asks the service to drop the batch.
func (u *Upload) abort() error {
	_, err := u.Client.EnqueueBatch(context.WithoutCancel(u.ctx), control.EnqueueBatch{Batch: u.batch, Abort: true})
	return err
}

// abortAndExit aborts the batch and exits. It keeps u.startMu locked, so no other request can start.
func (u *Upload) abortAndExit() {
	u.startMu.Lock()
	u.Output.ShowProgress("")
	if u.commits {
		u.Output.Say("interrupted while the jobs were being stored: either all or none are in the queue; check with: " +
			"queuectl list")
		os.Exit(fault.ExitDetached)
	}
	// Wait for the request in flight, because if it arrived after the abort, it would start the batch again.
	u.inFlight.Wait()
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

// FinishAndPrint commits the batch or, if err is not nil, aborts it. Then it prints the ids of the jobs. due
// describes when the jobs start, for example "; due …".
func (u *Upload) FinishAndPrint(err error, due string) error {
	err = u.CommitOrAbort(err)
	if e, ok := errors.AsType[*fault.LineError](err); ok {
		e.Part = u.Part
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
	if u.expiries.NotRunCount == u.JobsRead {
		u.answers.MaxAttempts = 0
	}
	return u.Output.PrintInfo("%s enqueued%s%s", present.JobsText(len(u.answers.IDs)-len(u.answers.FoundIndexes)), due,
		present.MaxAttemptsText(u.answers.MaxAttempts))
}

// CommitOrAbort commits the batch or, if err is not nil, aborts it. It returns err, or the error of the commit.
func (u *Upload) CommitOrAbort(err error) error {
	defer u.Output.ShowProgress("")
	if err == nil {
		err = u.putDelayed()
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
		PrintNotEnqueued(u.Output, u.Part, got.FoundIndexes, len(got.IDs))
		PrintNotes(u.Output, u.Cmd, got.Notes)
		PrintExpired(u.Output, &u.expiries)
	}
	if err == nil || u.batch == "" {
		return err
	}
	u.awaitReply() // ignore the error of the request in flight, because err is the cause
	failed := u.abort()
	switch {
	case isBatchLost(err), !u.commits && errors.Is(err, queue.ErrUnavailable):
		return queue.Errorf(queue.CodeUnavailable, "the service stopped while the jobs were being sent, and nothing was "+
			"stored; run the same command again")
	case u.commits:
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
	size      int64        // size of the file in bytes; 0 if unknown
	bytesRead atomic.Int64 // number of bytes read
}

// Track returns a reader of a file that counts the bytes that are read.
func (p *readProgress) Track(f *os.File) io.Reader {
	p.file, p.startedAt = f, time.Now()
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		p.size = info.Size()
	}
	return p
}

// Read implements io.Reader.
func (p *readProgress) Read(buffer []byte) (int, error) {
	n, err := p.file.Read(buffer)
	p.bytesRead.Add(int64(n))
	return n, err
}
