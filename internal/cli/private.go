package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/timerslack"
	"github.com/queuectl/queuectl/queue"
)

// This file implements run --private: it executes a list of jobs in a separate queue, with a
// service inside this process. RunPrivate starts the service without workers, stores the jobs of
// all new lines in one batch, and then sets the number of workers. The jobs start, and RunPrivate
// follows them until none is left.
//
// A run can be interrupted and repeated. The id of a job consists of the number of its line, a hash
// of the line and the flags, and the id that the line declares. For example, line 3 with the id
// "build" is stored as job 3-0123456789-build. When the run is repeated, the ids show which lines
// are stored already. A line with another hash has changed, which is an error.

// privateFlags are the flags of run that belong to --private.
// See docs/decisions/0067.
type privateFlags struct {
	source
	enabled   bool
	workers   string
	retryDead bool
	addNew    bool
	log       string
}

func (p *privateFlags) add(f *pflag.FlagSet) {
	f.BoolVar(&p.enabled, "private", false, "run a list of jobs in the foreground, in a separate queue in --dir (default: .queuectl)")
	f.StringVar(&p.workers, "workers", "auto", "with --private: run `N` jobs at the same time; auto means one per processor")
	p.source.add(f)
	f.Var(NonEmpty(&p.log), "joblog", "with --private: write one line per ended job to `FILE`, in the format of GNU parallel; - is standard output")
	f.BoolVar(&p.addNew, "add-new", false, "with --private: also run jobs that were added to the end of the list since the first run")
	f.BoolVar(&p.retryDead, "retry-dead", false, "with --private: retry the dead jobs of an earlier run")
}

// check validates the combination of flags and arguments. It returns the number of workers.
func (p *privateFlags) check(f *pflag.FlagSet, args []string, dash int) (count int, err error) {
	count = runtime.NumCPU()
	if p.workers != "auto" {
		if count, err = strconv.Atoi(p.workers); err != nil || count < 1 {
			return 0, Usage("--workers: %q is not a number of workers; use 1 or more, or auto", p.workers)
		}
	}
	for _, name := range []string{"detach", "cancel-on-exit", "stdin", "socket"} {
		if f.Changed(name) {
			return 0, Usage("--%s: cannot be combined with --private; leave one of them out", name)
		}
	}
	if err := p.take("run --private", f, args, dash); err != nil {
		return 0, err
	}
	if !p.given() {
		return 0, Usage("--private: no jobs given; use --file FILE, --lines FILE, --arg-file FILE -- PROGRAM {}, or -- PROGRAM {} ::: WORDS")
	}
	return count, nil
}

// privateJobs is one execution of run --private: it stores a list of jobs in a separate queue, runs
// them and follows them.
type privateJobs struct {
	privateFlags
	a            *App
	c            *control.Client
	common       queue.Spec   // job settings from the flags, for every job
	manifest     *runManifest // everything that determines a job, except its line
	salt         []byte       // prefix of each line's hash: the manifest as JSON
	storedLines  map[int]string
	ids          map[string]string // maps each id that a previous line declares to the job's id in the queue
	resume       bool              // an earlier run has stored the list
	lastLine     int               // number of the last line that was read
	upload       *upload
	storing      context.Context // ends when the user has asked to leave
	list         io.Reader       // the file or pipe with the lines; nil if the command line holds the arguments
	changedLines []string        // descriptions of lines that changed since the earlier run
	added        int             // number of new lines; without --add-new, a new line is an error
	firstNew     int             // number of the first new line

	stopping atomic.Bool // the user has asked to start no more jobs
	// signalCount counts the signals since stopping was set: the first stops running jobs, the
	// second exits without waiting.
	signalCount int
	allStored   chan struct{} // closed once all jobs are stored; from then on they run and are followed
	noneRunning chan struct{} // closed once no job runs any more
}

// RunPrivate runs a list of jobs to their end. It continues an earlier run of the same list.
func RunPrivate(ctx context.Context, a *App, f privateFlags, common *queue.Spec, noCwd bool, count int) error {
	if err := timerslack.Restart(func() {}); err != nil {
		return err
	}
	f.warnOfCode(&a.Output)
	PrivateFiles()
	a.Dir = a.privateDir()
	p := &privateJobs{privateFlags: f, a: a, common: *common, storedLines: map[int]string{}, allStored: make(chan struct{}), noneRunning: make(chan struct{})}
	var err error
	if p.manifest, err = p.newManifest(); err != nil {
		return err
	}
	if p.salt, err = json.Marshal(p.manifest); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	storing, leave := context.WithCancel(ctx)
	defer leave()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, append(StopSignals, syscall.SIGHUP)...)
	warnExpired(&a.Output, common, true)
	p.storing = storing
	p.upload = newUpload(storing, a.uploadOptions("", noCwd), common)
	if begins, err := p.openList(signals); !begins || err != nil {
		return err
	}
	stop, ended, err := servePrivate(ctx, a, signals)
	if stop == nil || err != nil {
		return err
	}
	p.c = control.NewClient(privateSocket(a))
	defer p.c.Close()
	p.upload.client = p.c
	done := make(chan error, 1)
	// This goroutine ends when the jobs, ctx or the service end. If it waits for input, it ends with
	// the process.
	go func() { done <- p.run(ctx, storing, count) }()
	select {
	case err = <-done:
	case err = <-ended:
		return fmt.Errorf("the service that this command started has ended: %w", err)
	case sig := <-signals:
		a.Exit = exitDetached
		leave()
		p.finish(sig, signals)
		if err = p.awaitResults(done, signals); errors.Is(err, context.Canceled) {
			err = nil
		}
	}
	stop()
	return errors.Join(err, p.end(ended, signals))
}

// privateDir returns the directory of a private run.
func (a *App) privateDir() string { return cmp.Or(a.Dir, ".queuectl") }

// openList opens the list of jobs. The list stays open until the process ends.
//
// begins is false if the list is known to be empty. An empty list is a success, like a loop without
// iterations, and needs no directory. begins is also false if a signal arrives before the first
// job. A list that comes from a pipe may take any time.
func (p *privateJobs) openList(signals <-chan os.Signal) (begins bool, err error) {
	dir, err := p.a.OwnDir()
	if err != nil {
		return false, err
	}
	f, err := p.open(p.a.In)
	switch {
	case err != nil:
		return false, err
	case p.hasNoWords() && !exists(dir):
		p.sayNoJobs(&p.a.Output)
		return false, nil
	case f == nil:
		return true, nil
	}
	in := bufio.NewReaderSize(p.upload.source.open(f), 64<<10)
	p.list = in
	if exists(dir) {
		return true, nil
	}
	empty := make(chan bool, 1)
	// This goroutine ends at the first byte that is not blank, or with the process.
	go func() { empty <- p.isEmptyList(in) }()
	select {
	case none := <-empty:
		if none {
			p.sayNoJobs(&p.a.Output)
		}
		return !none, nil
	case <-signals:
		p.a.Exit = exitDetached
		return false, nil
	}
}

// isEmptyList reports whether a list contains no jobs. It reads only the beginning that fits the
// buffer, and only peeks, so the caller can still read the list.
func (p *privateJobs) isEmptyList(in *bufio.Reader) bool {
	const mark = "\xef\xbb\xbf"
	blanks := " \t\r\n"
	switch {
	case p.null:
		blanks = "\x00"
	case p.file != "":
		blanks += "[]"
	}
	for n := 1; ; n = in.Buffered() + 1 {
		begin, err := in.Peek(n)
		text := strings.TrimPrefix(string(begin), mark)
		switch blank := strings.Trim(text, blanks) == ""; {
		case err == io.EOF && p.file != "":
			list := strings.Join(strings.Fields(text), "")
			return list == "" || list == "[]"
		case err != nil: // the buffer is full of blanks, or reading failed; the next read reports that
			return blank && err == io.EOF
		case !blank && !strings.HasPrefix(mark, text):
			return false
		}
	}
}

// end waits for the service to stop. The first signal stops the running jobs. After the second, end
// returns without waiting; the runner keeps the results of jobs that have ended.
func (p *privateJobs) end(ended <-chan error, signals <-chan os.Signal) error {
	for p.signalCount < 2 {
		select {
		case err := <-ended:
			return err
		case <-signals:
		}
		p.a.Exit = exitDetached
		if p.signalCount++; p.signalCount < 2 {
			go p.endJobs() // this goroutine ends when the jobs have ended, or with the process
		}
	}
	fmt.Fprintln(p.a.Err, "queuectl: exiting without waiting for running jobs; to continue, run the same command again")
	return nil
}

// privateSocket returns the socket of the service of a private run.
func privateSocket(a *App) string {
	dir, err := filepath.Abs(a.Dir)
	if err != nil {
		dir = a.Dir
	}
	return config.In(dir).Socket
}

// servePrivate starts the service in this process, without workers. The caller stops the service
// with stop and gets its error from ended. If a signal arrives before the service is ready, stop is
// nil.
func servePrivate(ctx context.Context, a *App, signals <-chan os.Signal) (stop func(), ended <-chan error, err error) {
	ready := make(chan struct{})
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	// This goroutine ends when stop is called.
	go func() { done <- a.program.Private(run, a, func() { close(ready) }) }()
	select {
	case <-ready:
		return cancel, done, nil
	case err := <-done:
		cancel()
		return nil, nil, err
	case <-signals:
		cancel()
		a.Exit = exitDetached
		return nil, nil, <-done
	}
}

// finish starts no more jobs and waits until the running ones end. After Ctrl-C it waits without a
// limit; after another signal, such as that of a system shutdown, it uses the service's timeout. A
// second signal puts the running jobs back in the queue instead.
func (p *privateJobs) finish(sig os.Signal, signals <-chan os.Signal) {
	p.stopping.Store(true)
	p.a.Progress("")
	var how control.WorkerStop
	if sig == os.Interrupt {
		how.Timeout = new(control.Span(forever))
	}
	// The connection p.c may be busy with a request, so this request gets its own connection.
	c := control.NewClient(privateSocket(p.a))
	defer c.Close()
	soon, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	// This makes the next message true. An error is harmless, because WorkerStop below stops the
	// workers too.
	c.WorkerScale(soon, control.WorkerScale{})
	cancel()
	fmt.Fprintln(p.a.Err, "queuectl: starting no more jobs; running jobs may finish (press Ctrl-C again to stop them); to continue later, run the same command again")
	stopped := make(chan struct{})
	go func() { // this goroutine ends when the jobs have ended, or when finish returns and closes c
		// An error is ignored, because stopping the service stops the jobs too.
		c.WorkerStop(context.Background(), how)
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-signals:
		p.signalCount++
		fmt.Fprintln(p.a.Err, "queuectl: stopping running jobs (Ctrl-C again exits without waiting for them)")
		ended := make(chan struct{})
		go func() { // this goroutine ends when the jobs have ended, or with the process
			p.endJobs()
			close(ended)
		}()
		select {
		case <-ended:
		case <-signals:
			p.signalCount++
		}
	}
	close(p.noneRunning)
}

// forever is a timeout that is longer than any user waits.
const forever = 10_000 * time.Hour

// endJobs stops the running jobs and puts them back in the queue. If the request fails, they return
// to the queue when the service stops.
func (p *privateJobs) endJobs() {
	c := control.NewClient(privateSocket(p.a))
	defer c.Close()
	c.WorkerStop(context.Background(), control.WorkerStop{Force: true})
}

// leaveTimeout bounds the wait for the goroutine that stores the jobs when the user leaves. That
// goroutine may be reading a pipe that never ends.
const leaveTimeout = 500 * time.Millisecond

// awaitResults waits until the results of all ended jobs are printed. It returns earlier if a
// signal arrives, or after leaveTimeout if the jobs are not stored yet.
func (p *privateJobs) awaitResults(done <-chan error, signals <-chan os.Signal) error {
	var timeout <-chan time.Time
	select {
	case <-p.allStored:
	default:
		timeout = time.After(leaveTimeout)
	}
	select {
	case err := <-done:
		return err
	case <-signals:
		p.signalCount++
	case <-timeout:
	}
	return nil
}

// run stores the jobs that are not in the queue yet, starts all jobs and follows them. Cancelling
// storing ends only the first step.
func (p *privateJobs) run(ctx, storing context.Context, count int) error {
	if err := p.loadStored(storing); err != nil {
		return err
	}
	if err := p.sameFlags(); err != nil {
		return err
	}
	var log *jobLog
	if p.log != "" {
		var err error
		fresh := p.log != "-" && !exists(p.log)
		if log, err = openJobLog(p.log, p.a.Out, true); err != nil {
			return err
		}
		if fresh && exists(p.log) {
			shareFile(p.log) // an error is ignored; then only the owner can read the file
		}
		defer log.close()
	}
	if err := p.store(); err != nil {
		return err
	}
	if p.retryDead {
		if err := p.reviveDead(storing); err != nil {
			return err
		}
	}
	f := &runFollower{log: log, a: p.a, c: p.c, began: time.Now(), quiet: p.noneRunning, stopping: &p.stopping}
	if err := f.start(storing); err != nil {
		return err
	}
	if err := storing.Err(); err != nil {
		return err
	}
	close(p.allStored) // from the next request on the jobs may run, even if its answer does not arrive
	if _, err := p.c.WorkerScale(ctx, control.WorkerScale{Count: count}); err != nil {
		return err
	}
	return errors.Join(f.run(ctx), log.failure())
}

// reviveDead retries all dead jobs.
func (p *privateJobs) reviveDead(ctx context.Context) error {
	for cursor := ""; ; {
		v, err := p.c.DLQRetry(ctx, control.DLQRetry{All: true, Cursor: cursor})
		if err != nil || v.Next == nil {
			return err
		}
		cursor = *v.Next
	}
}

// loadStored reads which lines earlier runs have stored.
func (p *privateJobs) loadStored(ctx context.Context) error {
	for cursor := ""; ; {
		page, err := p.c.List(ctx, control.List{Cursor: cursor})
		if err != nil {
			return err
		}
		for _, j := range page.Jobs {
			number, _, ours := strings.Cut(j.ID, "-")
			n, err := strconv.Atoi(number)
			if err != nil || !ours {
				return queue.Errorf(queue.CodeWrongState, "the queue in %s contains jobs that were not added by run --private, such as %s; choose another directory with --dir", p.a.Dir, j.ID)
			}
			p.storedLines[n] = j.ID
		}
		if page.Next == nil {
			p.resume = len(p.storedLines) > 0
			return nil
		}
		cursor = *page.Next
	}
}

// sameFlags stores the manifest for later runs. If an earlier run stored one, sameFlags returns an
// error if the flags differ.
func (p *privateJobs) sameFlags() error {
	if !p.resume {
		return p.manifest.save(p.a.Dir)
	}
	was, err := readManifest(p.a.Dir)
	if err != nil || was == nil {
		return err
	}
	list := was.changes(p.manifest)
	if len(list) == 0 {
		return nil
	}
	if more := len(list) - maxNamed; more > 0 {
		list = append(list[:maxNamed], fmt.Sprintf("%d more differences", more))
	}
	return queue.Errorf(queue.CodeWrongState, "%s contains a run that was started with other flags: %s; use the same flags as before, or start a new run with another --dir", p.a.Dir, strings.Join(list, "; "))
}

// store stores the jobs of all new lines. It returns an error if a line has changed.
func (p *privateJobs) store() error {
	err := p.each(p.list, p.line)
	if err == nil && p.upload.jobsRead == 0 && !p.resume {
		p.sayNoJobs(&p.a.Output)
	}
	// Only lines that this list no longer contains are left in storedLines.
	for _, n := range slices.Sorted(maps.Keys(p.storedLines)) {
		if n > p.lastLine && len(p.changedLines) < maxNamed {
			p.changedLines = append(p.changedLines, fmt.Sprintf("line %d is missing: its command was %s (job %s)", n, p.storedCommand(p.storedLines[n]), p.storedLines[n]))
		}
	}
	switch {
	case err != nil:
	case len(p.changedLines) > 0:
		err = queue.Errorf(queue.CodeWrongState, "%s contains a run of another list of jobs: %s; restore the list, or start a new run with another --dir", p.a.Dir, strings.Join(p.changedLines, "; "))
	case p.added > 0:
		err = queue.Errorf(queue.CodeWrongState, "the list has %s more than before, from line %d on; run these too with --add-new, or remove them from the list", Jobs(p.added), p.firstNew)
	}
	if err != nil || p.upload.jobsRead > 0 {
		return p.upload.finish(err)
	}
	return nil
}

// maxNamed is the highest number of differences that an error lists.
const maxNamed = 5

// storedCommand returns the quoted command of a stored job, for an error.
func (p *privateJobs) storedCommand(id string) string {
	j, err := p.c.Show(p.storing, control.Show{ID: control.Name(id)})
	if err != nil {
		return "a different one"
	}
	return fmt.Sprintf("%q", Cut(oneLine(Title(&j.Job)), 60))
}

// changed describes how a line differs from the stored job.
func (p *privateJobs) changed(line int, was string, now *queue.Spec) string {
	stored := p.storedCommand(was)
	current := fmt.Sprintf("%q", Cut(oneLine(queue.CommandText(orDefault(now.Command, ""), now.Argv)), 60))
	if current == stored {
		return fmt.Sprintf("line %d has changed: its command is still %s, but other fields of the job differ", line, stored)
	}
	return fmt.Sprintf("line %d has changed: its command was %s, now it is %s", line, stored, current)
}

// nameParents replaces the job ids in depends_on, as written in the list, with the ids in the
// queue.
func (p *privateJobs) nameParents(spec *queue.Spec) error {
	// All lines share the slice from the flags, so it must not be changed.
	spec.DependsOn = slices.Clone(spec.DependsOn)
	for i, text := range spec.DependsOn {
		name, _, err := queue.ParseDependency(text)
		if err != nil {
			return err
		}
		id, known := p.ids[name]
		if !known {
			return queue.Invalid("depends_on", "no line above this one has the job id %q; in a private run, a job can only depend on jobs above it in the list", queue.Clip(name))
		}
		spec.DependsOn[i] = id + strings.TrimPrefix(text, name)
	}
	return nil
}

// line stores the job of one line, unless the queue has it.
func (p *privateJobs) line(raw []byte, line int) error {
	// In a JSON array, several jobs may be on one line of the file, but each needs its own number.
	p.lastLine = max(line, p.lastLine+1)
	spec, err := p.spec(&p.common, raw)
	if err != nil {
		return withLine(err, line)
	}
	sum := p.a.program.Hash()
	sum.Write(p.salt) // Write of a hash never fails
	sum.Write(raw)
	id := strconv.Itoa(p.lastLine) + "-" + hex.EncodeToString(sum.Sum(nil)[:5])
	if spec.ID != nil {
		id += "-" + *spec.ID
		if p.ids == nil {
			p.ids = map[string]string{}
		}
		p.ids[*spec.ID] = id
	}
	if err := p.nameParents(spec); err != nil {
		return withLine(err, line)
	}
	was, stored := p.storedLines[p.lastLine]
	delete(p.storedLines, p.lastLine)
	switch {
	case stored && was != id && len(p.changedLines) < maxNamed:
		p.changedLines = append(p.changedLines, p.changed(line, was, spec))
		return nil
	case stored || len(p.changedLines) > 0:
		return nil
	case p.resume && !p.addNew:
		if p.added++; p.added == 1 {
			p.firstNew = line
		}
		return nil
	}
	spec.ID = &id
	encoded, err := json.Marshal(spec)
	if err != nil {
		return withLine(err, line)
	}
	return p.upload.add(encoded, line)
}
