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

// privateFlags are the flags of run that go with --private.
// See docs/decisions/0067.
type privateFlags struct {
	many
	private   bool
	workers   string
	retryDead bool
	addNew    bool
	log       string
}

func (p *privateFlags) add(f *pflag.FlagSet) {
	f.BoolVar(&p.private, "private", false, "run a list of jobs in the foreground, in a separate queue in --dir (default: .queuectl)")
	f.StringVar(&p.workers, "workers", "auto", "with --private: run `N` jobs at the same time")
	p.many.add(f)
	f.Var(NonEmpty(&p.log), "joblog", "with --private: write one line per ended job to `FILE`, in the format of GNU parallel; - is standard output")
	f.BoolVar(&p.addNew, "add-new", false, "with --private: also run jobs that were added to the end of the list since the first run")
	f.BoolVar(&p.retryDead, "retry-dead", false, "with --private: retry the dead jobs of an earlier run")
}

// check says whether the flags and words go together; count is the number of workers.
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

// private is one run of a file of jobs in a queue of its own.
type private struct {
	privateFlags
	a      *App
	c      *control.Client
	common queue.Spec // what the flags say of every job
	recipe *recipe    // all that makes a job of a line, beside the line
	salt   []byte     // of the lines' hashes, made of that
	known  map[int]string
	ids    map[string]string // of the lines so far that name one of their own, as they have it here
	resume bool              // an earlier run has stored the list
	last   int               // the number of the last line
	up     upload
	list   io.Reader // that lines are read of, nil if they are words of the command line
	wrong  []string  // lines that are not what they were
	added  int       // lines that are new, and not wanted
	from   int       // the first of them

	leaving atomic.Bool   // no more jobs are started
	presses int           // signals since then: the first ends what runs, the second leaves it
	follows chan struct{} // closed once all is stored: jobs run, and are followed
	quiet   chan struct{} // closed once no more of them run
}

// RunPrivate runs a file of jobs to their end. What was stored by an earlier run of
// the same file goes on from where it stands.
func (a *App) RunPrivate(ctx context.Context, f privateFlags, common *queue.Spec, noCwd bool, count int) error {
	if err := timerslack.Restart(func() {}); err != nil {
		return err
	}
	f.warnOfCode(a)
	PrivateFiles()
	a.Dir = a.privateDir()
	p := &private{privateFlags: f, a: a, common: *common, known: map[int]string{}, follows: make(chan struct{}), quiet: make(chan struct{})}
	var err error
	if p.recipe, err = p.recipeOf(); err != nil {
		return err
	}
	if p.salt, err = json.Marshal(p.recipe); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	storing, leave := context.WithCancel(ctx)
	defer leave()
	told := make(chan os.Signal, 2)
	signal.Notify(told, append(StopSignals, syscall.SIGHUP)...)
	a.warnExpired(common, true)
	p.up = upload{a: a, ctx: storing, noCwd: noCwd, expired: expiries{said: or(common.ExpiresAt, 0)}}
	if begins, err := p.openList(told); !begins || err != nil {
		return err
	}
	stop, ended, err := a.servePrivate(ctx, told)
	if stop == nil || err != nil {
		return err
	}
	p.c = control.NewClient(a.privateSocket())
	defer p.c.Close()
	p.up.c = p.c
	done := make(chan error, 1)
	go func() { done <- p.run(ctx, storing, count) }() // ends with the jobs, with ctx, with the service, or with the program if it waits for somebody
	select {
	case err = <-done:
	case err = <-ended:
		return fmt.Errorf("the service that this command started has ended: %w", err)
	case sig := <-told:
		a.Exit = exitDetached
		leave()
		p.finish(sig, told)
		if err = p.toldAll(done, told); errors.Is(err, context.Canceled) {
			err = nil
		}
	}
	stop()
	return errors.Join(err, p.end(ended, told))
}

// privateDir is the directory of a private run.
func (a *App) privateDir() string { return cmp.Or(a.Dir, ".queuectl") }

// openList opens the list of jobs; it stays open until this process ends. begins is false if the list
// is known to be empty, which needs no directory and is a success, as of any loop, or if a signal
// came: a list from a pipe may take any time.
func (p *private) openList(told <-chan os.Signal) (begins bool, err error) {
	dir, err := p.a.OwnDir()
	if err != nil {
		return false, err
	}
	f, err := p.open(p.a.in)
	switch {
	case err != nil:
		return false, err
	case p.noWords() && !exists(dir):
		p.sayNoJobs(p.a)
		return false, nil
	case f == nil:
		return true, nil
	}
	in := bufio.NewReaderSize(p.up.from(f), 64<<10)
	p.list = in
	if exists(dir) {
		return true, nil
	}
	empty := make(chan bool, 1)
	go func() { empty <- p.noneIn(in) }() // ends with the first byte that is no blank, or with the program
	select {
	case none := <-empty:
		if none {
			p.sayNoJobs(p.a)
		}
		return !none, nil
	case <-told:
		p.a.Exit = exitDetached
		return false, nil
	}
}

// noneIn reports whether a list holds no jobs, as far as its beginning tells: it takes nothing out of
// the buffer.
func (p *private) noneIn(in *bufio.Reader) bool {
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
		case err != nil: // the buffer is full of blanks, or it cannot be read: whoever reads on is told
			return blank && err == io.EOF
		case !blank && !strings.HasPrefix(mark, text):
			return false
		}
	}
}

// end waits for the service to stop. A signal ends what still runs; another one does not
// wait for anything, like a disk that is full: the runner keeps what has ended.
func (p *private) end(ended <-chan error, told <-chan os.Signal) error {
	for p.presses < 2 {
		select {
		case err := <-ended:
			return err
		case <-told:
		}
		p.a.Exit = exitDetached
		if p.presses++; p.presses < 2 {
			go p.endJobs() // ends with the jobs, or with the program
		}
	}
	fmt.Fprintln(p.a.Err, "queuectl: exiting without waiting for running jobs; to continue, run the same command again")
	return nil
}

func (a *App) privateSocket() string {
	dir, err := filepath.Abs(a.Dir)
	if err != nil {
		dir = a.Dir
	}
	return config.In(dir).Socket
}

// servePrivate starts the service in this process, with nobody to run jobs yet. It
// tells when it ended, which stop makes. If it is told to end before the service is ready,
// stop is nil.
func (a *App) servePrivate(ctx context.Context, told <-chan os.Signal) (stop func(), ended <-chan error, err error) {
	ready := make(chan struct{})
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- a.private(run, a, func() { close(ready) }) }() // ends with cancel
	select {
	case <-ready:
		return cancel, done, nil
	case err := <-done:
		cancel()
		return nil, nil, err
	case <-told:
		cancel()
		a.Exit = exitDetached
		return nil, nil, <-done
	}
}

// finish has what runs come to its end, for which a person may wait any time and a
// system that stops not; a second signal gives it back instead.
func (p *private) finish(sig os.Signal, told <-chan os.Signal) {
	p.leaving.Store(true)
	p.a.Progress("")
	var how control.WorkerStop
	if sig == os.Interrupt {
		how.Timeout = new(control.Span(anyTime))
	}
	c := control.NewClient(p.a.privateSocket()) // the other one may be busy with a request
	defer c.Close()
	soon, cancel := context.WithTimeout(context.Background(), leaveWithin)
	c.WorkerScale(soon, control.WorkerScale{}) // so that what is said next is true; stopping asks for it again
	cancel()
	fmt.Fprintln(p.a.Err, "queuectl: starting no more jobs; running jobs may finish (press Ctrl-C again to stop them); to continue later, run the same command again")
	stopped := make(chan struct{})
	go func() { // ends with the jobs, or with finish
		c.WorkerStop(context.Background(), how) // what it cannot do, stopping the service does
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-told:
		p.presses++
		fmt.Fprintln(p.a.Err, "queuectl: stopping running jobs (Ctrl-C again exits without waiting for them)")
		ended := make(chan struct{})
		go func() { // ends with the jobs, or with the program
			p.endJobs()
			close(ended)
		}()
		select {
		case <-ended:
		case <-told:
			p.presses++
		}
	}
	close(p.quiet)
}

// anyTime is longer than anybody waits.
const anyTime = 10_000 * time.Hour

// endJobs gives back what runs. What it cannot do, stopping the service does.
func (p *private) endJobs() {
	c := control.NewClient(p.a.privateSocket())
	defer c.Close()
	c.WorkerStop(context.Background(), control.WorkerStop{Force: true})
}

// leaveWithin bounds how long it takes to give up what is not stored yet: who reads a
// file may wait for somebody to write it, for ever.
const leaveWithin = 500 * time.Millisecond

// toldAll waits until what has ended is printed, or for a signal if nobody reads that.
func (p *private) toldAll(done <-chan error, told <-chan os.Signal) error {
	var late <-chan time.Time
	select {
	case <-p.follows:
	default:
		late = time.After(leaveWithin)
	}
	select {
	case err := <-done:
		return err
	case <-told:
		p.presses++
	case <-late:
	}
	return nil
}

// run stores the jobs that are not there yet, which ends with storing too, has all of
// them run and follows them.
func (p *private) run(ctx, storing context.Context, count int) error {
	if err := p.recall(storing); err != nil {
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
			shareFile(p.log) // an error leaves it to its owner alone
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
	f := &following{log: log, a: p.a, c: p.c, began: time.Now(), quiet: p.quiet, leaving: &p.leaving}
	if err := f.start(storing); err != nil {
		return err
	}
	if err := storing.Err(); err != nil {
		return err
	}
	close(p.follows) // jobs run from the next request on, whether its answer is waited for or not
	if _, err := p.c.WorkerScale(ctx, control.WorkerScale{Count: count}); err != nil {
		return err
	}
	return errors.Join(f.run(ctx), log.failure())
}

// reviveDead has all dead jobs run again.
func (p *private) reviveDead(ctx context.Context) error {
	for cursor := ""; ; {
		v, err := p.c.DLQRetry(ctx, control.DLQRetry{All: true, Cursor: cursor})
		if err != nil || v.Next == nil {
			return err
		}
		cursor = *v.Next
	}
}

// recall reads which lines earlier runs have stored.
func (p *private) recall(ctx context.Context) error {
	for cursor := ""; ; {
		page, err := p.c.List(ctx, control.List{Cursor: cursor})
		if err != nil {
			return err
		}
		for _, j := range page.Jobs {
			number, _, ours := strings.Cut(j.ID, "-")
			n, err := strconv.Atoi(number)
			if err != nil || !ours {
				return queue.Errorf(queue.CodeWrongState, "the queue in %s contains jobs that run --private did not add, such as %s; choose another directory with --dir", p.a.Dir, j.ID)
			}
			p.known[n] = j.ID
		}
		if page.Next == nil {
			p.resume = len(p.known) > 0
			return nil
		}
		cursor = *page.Next
	}
}

// sameFlags refuses other flags than the list was stored with, which are kept for that.
func (p *private) sameFlags() error {
	if !p.resume {
		return p.recipe.keep(p.a.Dir)
	}
	was, err := readRecipe(p.a.Dir)
	if err != nil || was == nil {
		return err
	}
	list := was.changes(p.recipe)
	if len(list) == 0 {
		return nil
	}
	if more := len(list) - maxNamed; more > 0 {
		list = append(list[:maxNamed], fmt.Sprintf("%d more differences", more))
	}
	return queue.Errorf(queue.CodeWrongState, "%s contains a run that was started with other flags: %s; use the same flags as before, or start a new run with another --dir", p.a.Dir, strings.Join(list, "; "))
}

// store stores the jobs of all lines that are new, unless a line has changed.
func (p *private) store() error {
	err := p.each(p.list, p.line)
	if err == nil && p.up.jobs == 0 && !p.resume {
		p.sayNoJobs(p.a)
	}
	for _, n := range slices.Sorted(maps.Keys(p.known)) { // not seen in the file
		if n > p.last && len(p.wrong) < maxNamed {
			p.wrong = append(p.wrong, fmt.Sprintf("line %d is missing: its command was %s (job %s)", n, p.was(p.known[n]), p.known[n]))
		}
	}
	switch {
	case err != nil:
	case len(p.wrong) > 0:
		err = queue.Errorf(queue.CodeWrongState, "%s contains a run of another list of jobs: %s; restore the list, or start a new run with another --dir", p.a.Dir, strings.Join(p.wrong, "; "))
	case p.added > 0:
		err = queue.Errorf(queue.CodeWrongState, "the list has %s more than before, from line %d on; run these too with --add-new, or remove them from the list", Jobs(p.added), p.from)
	}
	if err != nil || p.up.jobs > 0 {
		return p.up.finish(err)
	}
	return nil
}

// maxNamed is how many changed lines are named.
const maxNamed = 5

// was is what a stored job runs, for a person.
func (p *private) was(id string) string {
	j, err := p.c.Show(p.up.ctx, control.Show{ID: control.Name(id)})
	if err != nil {
		return "a different one"
	}
	return fmt.Sprintf("%q", cut(oneLine(title(&j.Job)), 60))
}

// changed tells how a line differs from what it was.
func (p *private) changed(line int, was string, now *queue.Spec) string {
	before := p.was(was)
	is := fmt.Sprintf("%q", cut(oneLine(queue.CommandText(or(now.Command, ""), now.Argv)), 60))
	if is == before {
		return fmt.Sprintf("line %d has changed: its command is still %s, but other fields of the job differ", line, before)
	}
	return fmt.Sprintf("line %d has changed: its command was %s, now it is %s", line, before, is)
}

// nameParents has a job wait for jobs of the file by the ids that they have here.
func (p *private) nameParents(spec *queue.Spec) error {
	spec.DependsOn = slices.Clone(spec.DependsOn) // those of the flags are all lines'
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

// line stores the job of one line, if it is not there.
func (p *private) line(raw []byte, line int) error {
	p.last = max(line, p.last+1) // several elements of an array may stand on one line
	spec, err := p.spec(&p.common, raw)
	if err != nil {
		return atLine(err, line)
	}
	sum := p.a.hash()
	sum.Write(p.salt) // which never fails
	sum.Write(raw)
	id := strconv.Itoa(p.last) + "-" + hex.EncodeToString(sum.Sum(nil)[:5])
	if spec.ID != nil {
		id += "-" + *spec.ID
		if p.ids == nil {
			p.ids = map[string]string{}
		}
		p.ids[*spec.ID] = id
	}
	if err := p.nameParents(spec); err != nil {
		return atLine(err, line)
	}
	was, stored := p.known[p.last]
	delete(p.known, p.last)
	switch {
	case stored && was != id && len(p.wrong) < maxNamed:
		p.wrong = append(p.wrong, p.changed(line, was, spec))
		return nil
	case stored || len(p.wrong) > 0:
		return nil
	case p.resume && !p.addNew:
		if p.added++; p.added == 1 {
			p.from = line
		}
		return nil
	}
	spec.ID = &id
	encoded, err := json.Marshal(spec)
	if err != nil {
		return atLine(err, line)
	}
	return p.up.add(encoded, line)
}
