// Package private executes a list of jobs in the foreground, in a separate queue ("queuectl run --private"). If
// such a run is interrupted, the same command continues it.
//
// Start with Run.
package private

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/enqueue"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/files"
	"github.com/queuectl/queuectl/internal/tune"
	"github.com/queuectl/queuectl/queue"
)

// privateJobs is one execution of "queuectl run --private". It stores a list of jobs in a separate queue, runs
// them and follows them.
type privateJobs struct {
	cli.PrivateFlags
	*cli.App
	client            *control.Client
	serviceSocketPath string       // path of the socket of the service
	commonSpec        queue.Spec   // job settings from the flags, for every job
	manifest          *runManifest // everything that determines the jobs, except the lines of the list
	lineHashPrefix    []byte       // the manifest as JSON; each line is hashed together with it
	// ids of the jobs that earlier runs have stored, by the number of the job's line
	storedJobIDByLine map[int]string
	// ids of the jobs in the queue, by the ids that the lines of the list declare
	jobIDsByDeclaredID      map[string]string
	isResumed               bool // an earlier run has stored jobs in the queue
	lastReadLineNumber      int  // number of the last line that was read; see storeJobOfLine
	upload                  *enqueue.Upload
	storeCtx                context.Context // ends when the user asks to stop; then no more jobs are stored
	jobListReader           io.Reader       // file or pipe with the lines; nil if the arguments are on the command line
	changedLineDescriptions []string        // descriptions of lines that changed since the earlier run
	addedLineCount          int             // number of new lines; without --add-new, a new line is an error
	firstAddedLineNumber    int             // number of the first new line

	isStopping atomic.Bool // the user has asked to start no more jobs
	// signalCountAfterStop counts the signals after the one that set isStopping. The first counted signal stops the
	// running jobs. The second one makes the program exit without waiting for them.
	signalCountAfterStop int
	allJobsStored        chan struct{} // closed when all jobs are stored and can run
	noJobRunning         chan struct{} // closed when the user has stopped the run and no job is running
}

// Run runs a list of jobs to their end. It continues an earlier run of the same list.
func Run(ctx context.Context, a *cli.App, flags cli.PrivateFlags, commonSpec *queue.Spec, runInHomeDir bool,
	workerCount int) error {
	if err := tune.RestartWithTimerSlack(func() {}); err != nil {
		return err
	}
	flags.WarnPlaceholderInCode(&a.Output)
	files.RestrictUmaskToOwner()
	a.ServiceDir = a.PrivateQueueDir()
	p := &privateJobs{PrivateFlags: flags, App: a, commonSpec: *commonSpec, storedJobIDByLine: map[int]string{},
		allJobsStored: make(chan struct{}), noJobRunning: make(chan struct{})}
	var err error
	if p.manifest, err = p.newRunManifest(); err != nil {
		return err
	}
	if p.lineHashPrefix, err = json.Marshal(p.manifest); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	storing, leave := context.WithCancel(ctx)
	defer leave()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, append(cli.StopSignals, syscall.SIGHUP)...)
	enqueue.WarnIfJobExpired(&a.Output, commonSpec, true)
	p.storeCtx = storing
	p.upload = enqueue.NewUpload(storing, a.UploadOptions("line", "", runInHomeDir), commonSpec)
	if begins, err := p.openJobList(signals); !begins || err != nil {
		return err
	}
	stop, ended, err := startPrivateService(ctx, a, signals)
	if stop == nil || err != nil {
		return err
	}
	p.client = control.NewClient(p.serviceSocketPath)
	defer p.client.Close()
	p.upload.Client = p.client
	done := make(chan error, 1)
	// This goroutine ends when all jobs have ended, when ctx ends, or when the service ends. If it is still reading the
	// list from a pipe, it ends with the process.
	go func() { done <- p.storeAndFollowJobs(ctx, storing, workerCount) }()
	select {
	case err = <-done:
	case err = <-ended:
		return fmt.Errorf("the run stopped (the same command continues it): %w", err)
	case sig := <-signals:
		a.ExitCode = fault.ExitCodeDetached
		leave()
		p.drainRunningJobs(sig, signals)
		if err = p.awaitPrintedResults(done, signals); errors.Is(err, context.Canceled) {
			err = nil
		}
	}
	stop()
	return errors.Join(err, p.awaitServiceEnd(ended, signals))
}

// openJobList opens the list of jobs. The list stays open until the process ends.
//
// canBegin is false if the list is empty. This is a success, and the run then needs no directory. canBegin is also
// false if a signal arrives before the first job, because a pipe may not deliver the list for any length of time.
func (p *privateJobs) openJobList(signals <-chan os.Signal) (canBegin bool, err error) {
	dir, err := p.AbsServiceDir()
	if err != nil {
		return false, err
	}
	p.serviceSocketPath = config.PathsInDir(dir).SocketPath
	f, err := p.OpenFile(p.Stdin)
	switch {
	case err != nil:
		return false, err
	case p.HasEmptyArgumentList() && !files.Exists(dir):
		p.PrintNoJobs(&p.Output)
		return false, nil
	case f == nil:
		return true, nil
	}
	in := bufio.NewReaderSize(p.upload.ReadProgress.CountingReader(f), 64<<10)
	p.jobListReader = in
	if files.Exists(dir) {
		return true, nil
	}
	empty := make(chan bool, 1)
	// This goroutine ends when it has read the beginning of the first job, or the end of the list. If a pipe never sends
	// data, the goroutine ends with the process.
	go func() { empty <- p.isEmptyJobList(in) }()
	select {
	case none := <-empty:
		if none {
			p.PrintNoJobs(&p.Output)
		}
		return !none, nil
	case <-signals:
		p.ExitCode = fault.ExitCodeDetached
		return false, nil
	}
}

// isEmptyJobList reports whether a list contains no jobs. It only peeks at the beginning of the list, so the
// caller can still read the whole list.
func (p *privateJobs) isEmptyJobList(in *bufio.Reader) bool {
	const byteOrderMark = "\xef\xbb\xbf"
	for n := 1; ; n = in.Buffered() + 1 {
		begin, err := in.Peek(n)
		text := strings.TrimPrefix(string(begin), byteOrderMark)
		if p.NullSeparated {
			text = strings.Trim(text, "\x00")
		} else {
			text = strings.Join(strings.Fields(text), "")
		}
		switch isJSON := p.JobsFile != ""; {
		case err != nil: // the list ended, the buffer is full, or reading failed; the next read reports an error
			return err == io.EOF && (text == "" || isJSON && text == "[]")
		case !strings.HasPrefix(byteOrderMark, text) && !(isJSON && strings.HasPrefix("[]", text)):
			return false
		}
	}
}

// startPrivateService starts a service without workers in this process. stop ends the service. serviceEnd receives the
// service's error when it ends. If a signal arrives before the service is ready, stop is nil.
func startPrivateService(ctx context.Context, a *cli.App, signals <-chan os.Signal) (
	stop func(), serviceEnd <-chan error, err error,
) {
	ready := make(chan struct{})
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	// This goroutine ends when the service ends. A call of cancel ends the service.
	go func() { done <- a.Program.ServePrivate(run, a, func() { close(ready) }) }()
	select {
	case <-ready:
		return cancel, done, nil
	case err := <-done:
		cancel()
		return nil, nil, err
	case <-signals:
		cancel()
		a.ExitCode = fault.ExitCodeDetached
		return nil, nil, <-done
	}
}

// storeAndFollowJobs stores the jobs that are not in the queue yet, starts all jobs and follows them. When storeCtx
// ends, because the user asked to stop, it stores no more jobs.
func (p *privateJobs) storeAndFollowJobs(ctx, storeCtx context.Context, workerCount int) error {
	if err := p.loadStoredJobLines(storeCtx); err != nil {
		return err
	}
	if err := p.checkAndSaveManifest(); err != nil {
		return err
	}
	var jobLog *cli.JobLog
	if p.JobLogPath != "" {
		var err error
		fresh := p.JobLogPath != "-" && !files.Exists(p.JobLogPath)
		if jobLog, err = cli.OpenJobLog(p.JobLogPath, p.Stdout, true); err != nil {
			return err
		}
		if fresh && files.Exists(p.JobLogPath) {
			files.ApplyCallerUmask(p.JobLogPath) // if this fails, only the owner can read the file
		}
	}
	if err := p.storeAddedLines(); err != nil {
		return err
	}
	if p.RetryDeadJobs {
		if err := p.retryDeadJobs(storeCtx); err != nil {
			return err
		}
	}
	f := &runFollower{jobLog: jobLog, App: p.App, client: p.client, startedAt: time.Now(), noJobRunning: p.noJobRunning,
		isStopping: &p.isStopping}
	if err := f.readInitialStatus(storeCtx); err != nil {
		return err
	}
	if err := storeCtx.Err(); err != nil {
		return err
	}
	close(p.allJobsStored) // WorkerScale starts jobs, so the program must follow the jobs even if the reply is lost
	if _, err := p.client.ScaleWorkers(ctx, control.WorkerScaleParams{TargetWorkers: workerCount}); err != nil {
		return err
	}
	return errors.Join(f.followJobs(ctx), jobLog.FirstWriteError())
}

// awaitServiceEnd waits until the service has stopped. The first signal makes it stop the running jobs, and the second
// one makes it return immediately. Signals that drainRunningJobs has received are included in this count.
//
// If awaitServiceEnd returns early, no result is lost: the runner keeps the results of jobs that end later, and the
// next run records them.
func (p *privateJobs) awaitServiceEnd(serviceEnd <-chan error, signals <-chan os.Signal) error {
	for p.signalCountAfterStop < 2 {
		select {
		case err := <-serviceEnd:
			return err
		case <-signals:
		}
		p.ExitCode = fault.ExitCodeDetached
		if p.signalCountAfterStop++; p.signalCountAfterStop < 2 {
			p.stopWorkers(context.Background(), control.WorkerStopParams{StopJobsImmediately: true})
		}
	}
	p.PrintMessage("exiting before all running jobs have stopped; to continue, run the same command again, which " +
		"also runs the stopped jobs again")
	return nil
}

// drainRunningJobs makes the service start no more jobs, and waits until the running jobs end. After Ctrl-C it
// waits without a limit. After another signal, such as that of a system shutdown, it waits for at most the
// service's timeout. A second signal makes it put the running jobs back in the queue.
func (p *privateJobs) drainRunningJobs(sig os.Signal, signals <-chan os.Signal) {
	p.isStopping.Store(true)
	p.ShowProgress("")
	var stopRequest control.WorkerStopParams
	if sig == os.Interrupt {
		stopRequest.JobFinishTimeout = new(control.Duration(noTimeout))
	}
	// The connection of p.client may be busy with another request.
	c := control.NewClient(p.serviceSocketPath)
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	soon, cancelSoon := context.WithTimeout(ctx, storeStopTimeout)
	// Set the number of workers to 0, so that no more jobs start. Ignore an error, because WorkerStop below
	// stops the workers too.
	c.ScaleWorkers(soon, control.WorkerScaleParams{})
	cancelSoon()
	p.PrintMessage("starting no more jobs; running jobs may finish (press Ctrl-C again to stop them); to continue " +
		"later, run the same command again")
	select {
	case <-p.stopWorkers(ctx, stopRequest):
	case <-signals:
		p.signalCountAfterStop++
		p.PrintMessage("stopping running jobs (Ctrl-C again exits without waiting for them)")
		select {
		case <-p.stopWorkers(context.Background(), control.WorkerStopParams{StopJobsImmediately: true}):
		case <-signals:
			p.signalCountAfterStop++
		}
	}
	close(p.noJobRunning)
}

// noTimeout is a time that is longer than any user waits. With it, the service waits for running jobs without a limit.
const noTimeout = 10_000 * time.Hour

// stopWorkers removes all workers. It closes the returned channel when the workers' jobs have ended, or when the
// context ends. With stopRequest.Force, the running jobs return to the queue instead of finishing. stopWorkers ignores
// errors, because the jobs also end or return to the queue when the service stops.
func (p *privateJobs) stopWorkers(ctx context.Context, stopRequest control.WorkerStopParams) <-chan struct{} {
	stopped := make(chan struct{})
	go func() { // this goroutine ends when the jobs have ended, with the context, or with the process
		defer close(stopped)
		c := control.NewClient(p.serviceSocketPath)
		defer c.Close()
		c.StopWorkers(ctx, stopRequest)
	}()
	return stopped
}

// storeStopTimeout bounds how long the program waits for the goroutine that stores the jobs, after the user asked
// to stop. That goroutine may be reading a pipe that never ends.
const storeStopTimeout = 500 * time.Millisecond

// awaitPrintedResults waits until storeAndFollowJobs has printed the results of all jobs that have ended. It returns
// earlier if a signal arrives, or after storeStopTimeout if not all jobs are stored yet. done receives the result of
// storeAndFollowJobs.
func (p *privateJobs) awaitPrintedResults(storeAndFollowErr <-chan error, signals <-chan os.Signal) error {
	var timeout <-chan time.Time
	select {
	case <-p.allJobsStored:
	default:
		timeout = time.After(storeStopTimeout)
	}
	select {
	case err := <-storeAndFollowErr:
		return err
	case <-signals:
		p.signalCountAfterStop++
	case <-timeout:
	}
	return nil
}
