package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// This file uploads the jobs of a file. It reads the jobs one by one and collects them in requests
// of bounded size. While a request is in flight, it reads the jobs of the next one. All requests
// belong to one batch, and the last request commits it, so either all jobs are stored or none.

// eachJob reads a JSON array or JSON lines. For every job, it calls the function in the parameter
// each with the number of the job's first line. Its memory use is bounded by the longest job.
func eachJob(r io.Reader, each func(raw []byte, line int) error) error {
	in, err := afterMark(r)
	if err != nil {
		return err
	}
	line := 1
	for {
		c, _, err := in.ReadRune()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case c == '\n':
			line++
		case unicode.IsSpace(c):
		case c == '[':
			return eachElement(in, line, each)
		default:
			in.UnreadRune()
			return eachLine(in, line, '\n', func(raw []byte, line int) error { return each(bytes.TrimSpace(raw), line) })
		}
	}
}

// eachText passes every line that is not empty to the function in the parameter each. The parameter
// end is the byte that ends a line.
func eachText(r io.Reader, end byte, each func(raw []byte, line int) error) error {
	in, err := afterMark(r)
	if err != nil {
		return err
	}
	return eachLine(in, 1, end, each)
}

// afterMark returns a reader that skips a UTF-8 byte-order mark at the beginning of the text. It
// rejects UTF-16.
func afterMark(r io.Reader) (*bufio.Reader, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	begin, _ := in.Peek(3) // an error is ignored here, because the next read returns it
	switch {
	case bytes.HasPrefix(begin, []byte("\xef\xbb\xbf")):
		in.Discard(3) // this call cannot fail, because the bytes are in the buffer
	case bytes.HasPrefix(begin, []byte("\xff\xfe")), bytes.HasPrefix(begin, []byte("\xfe\xff")):
		return nil, queue.Errorf(queue.CodeInvalid, "the input is UTF-16; save it as UTF-8")
	}
	return in, nil
}

func eachLine(in *bufio.Reader, line int, end byte, each func([]byte, int) error) error {
	for ; ; line++ {
		var raw []byte
		for more := true; more; {
			part, err := in.ReadSlice(end)
			if raw = append(raw, part...); len(raw) > control.MaxLine {
				return withLine(queue.Errorf(queue.CodeTooLarge, "this line is longer than %d bytes; put large input in a file that the job reads", control.MaxLine), line)
			}
			more = err == bufio.ErrBufferFull
			if err != nil && !more {
				if err == io.EOF && !empty(raw, end) {
					err = each(withoutEnd(raw, end), line)
				} else if err == io.EOF {
					err = nil
				}
				return err
			}
		}
		raw = withoutEnd(raw, end)
		if empty(raw, end) {
			continue
		}
		if err := each(raw, line); err != nil {
			return err
		}
	}
}

// withoutEnd returns a line without its line ending, which may be \r\n.
func withoutEnd(raw []byte, end byte) []byte {
	raw = bytes.TrimSuffix(raw, []byte{end})
	if end == '\n' {
		raw = bytes.TrimSuffix(raw, []byte("\r"))
	}
	return raw
}

// empty reports whether a line is empty. A line that ends with \n may also contain white space.
func empty(raw []byte, end byte) bool {
	if end == '\n' {
		raw = bytes.TrimSpace(raw)
	}
	return len(raw) == 0
}

// eachElement passes every element of a JSON array to the function in the parameter each. The
// caller has already read the array's [.
func eachElement(in io.Reader, line int, each func([]byte, int) error) error {
	lines := &lineCounter{r: in, at: []int64{0}, first: line}
	d := json.NewDecoder(io.MultiReader(bytes.NewReader([]byte{'['}), lines))
	if _, err := d.Token(); err != nil {
		return err
	}
	wrong := func(err error) error {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			err = queue.Errorf(queue.CodeParse, "invalid JSON: %v", err)
			return withLine(err, lines.of(d.InputOffset()-1))
		}
		return err
	}
	for d.More() {
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return wrong(err)
		}
		if len(v) > control.MaxLine {
			return withLine(queue.Errorf(queue.CodeTooLarge, "the definition of this job is larger than %d bytes; put large input in a file that the job reads", control.MaxLine), lines.of(d.InputOffset()-1-int64(len(v))))
		}
		if err := each(v, lines.of(d.InputOffset()-1-int64(len(v)))); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return wrong(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return Usage("line %d: unexpected text after the end of the JSON array; remove it", lines.of(d.InputOffset()-1))
	}
	return nil
}

// lineCounter records where lines begin, so that an error can name the line of a byte offset.
type lineCounter struct {
	r     io.Reader
	read  int64
	at    []int64 // offsets at which lines begin; offsets that are no longer needed are dropped
	first int     // number of the first line in at
}

// Read implements io.Reader.
func (l *lineCounter) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	for i, c := range p[:n] {
		if c == '\n' {
			l.at = append(l.at, l.read+int64(i)+1)
		}
	}
	l.read += int64(n)
	return n, err
}

// of returns the line that contains a byte. The offsets must not decrease from call to call.
func (l *lineCounter) of(offset int64) int {
	for len(l.at) > 1 && l.at[1] <= offset {
		l.at, l.first = l.at[1:], l.first+1
	}
	return l.first
}

// These constants bound one request of a batch. Jobs that fit these bounds are sent in a single
// request.
const (
	partJobs  = control.BatchStep
	partBytes = control.MaxLine / 2
)

// uploadOptions say how a command enqueues several jobs.
type uploadOptions struct {
	out    *Output
	cmd    *cobra.Command // the command that is running; messages name its flags
	finder *Finder

	key           string // idempotency key of the request; "" for none
	noCwd         bool   // run the jobs in the home directory
	requireLimits bool   // reject jobs with limits that the service cannot enforce
	next          bool   // start the jobs before the user's other waiting jobs
}

// upload enqueues the jobs of a file: in one request if they fit, otherwise in several requests of
// one batch. It sends each request while it reads the jobs of the next one.
type upload struct {
	uploadOptions
	ctx    context.Context
	client *control.Client // nil until the first request, which connects it

	source   readProgress
	jobsRead int // number of jobs read until now
	caller   callerFields
	files    namedFiles
	expired  expiries

	request request // jobs of the next request
	sorter  depSorter
	indexes []int // the index in the file of the job with answers.ids[i]

	batch    string
	sent     chan error // receives the result of the request in flight; nil if no request is in flight
	answers  answers
	starting sync.Mutex // held while a request is started
	commits  bool       // the request in flight commits the batch; guarded by starting
	inFlight sync.WaitGroup
}

// newUpload returns an upload. The fields in common are those that all jobs share.
func newUpload(ctx context.Context, options uploadOptions, common *queue.Spec) *upload {
	expired := expiries{expiry: orDefault(common.ExpiresAt, 0)}
	return &upload{uploadOptions: options, ctx: ctx, files: namedFiles{}, expired: expired}
}

// request holds the jobs of one request.
type request struct {
	jobs    []pendingJob
	bytes   int // size of the jobs as JSON
	entries int // number of arguments and environment variables of the jobs
}

// add adds a job.
func (r *request) add(j pendingJob) {
	r.jobs, r.bytes, r.entries = append(r.jobs, j), r.bytes+len(j.raw)+1, r.entries+j.entries
}

// isFull reports whether the request has jobs, and would exceed the bounds with one more.
func (r *request) isFull(j *pendingJob, maxJobs, maxBytes int) bool {
	return len(r.jobs) > 0 &&
		(len(r.jobs) == maxJobs || r.bytes+len(j.raw) > maxBytes || r.entries+j.entries > control.MaxEntries)
}

// answers collects what the service has answered to the requests of a batch.
type answers struct {
	ids         []string
	found       []int    // lines of jobs that were not enqueued, because a job with their unique key exists
	unenforced  []string // names of the jobs' limits that the service does not enforce
	newQueues   []control.NewQueue
	notes       []string // notes of the service about these jobs
	maxAttempts int      // the highest max_attempts of the jobs
}

// add adds the answer to a request whose jobs are on these lines of the file.
func (a *answers) add(got *control.EnqueuedBatch, lines []int) {
	for _, at := range got.Found {
		if at < len(lines) {
			a.found = append(a.found, lines[at])
		}
	}
	a.ids = append(a.ids, got.IDs...)
	for _, name := range got.Unenforced {
		if !slices.Contains(a.unenforced, name) {
			a.unenforced = append(a.unenforced, name)
		}
	}
	for _, q := range got.NewQueues {
		if !slices.Contains(a.newQueues, q) {
			a.newQueues = append(a.newQueues, q)
		}
	}
	a.maxAttempts = max(a.maxAttempts, got.MaxAttempts)
	if len(a.notes) == 0 { // every answer contains the same notes
		a.notes = got.Notes
	}
}

// readProgress tracks how much of a file was read, for the progress bar.
type readProgress struct {
	file      *os.File
	began     time.Time
	size      int64        // size of the file in bytes; 0 if unknown
	bytesRead atomic.Int64 // bytes read until now
}

// open starts to track a file.
func (p *readProgress) open(f *os.File) io.Reader {
	p.file, p.began = f, time.Now()
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

// add adds one job, and sends a request when enough jobs are collected.
func (u *upload) add(raw []byte, line int) error {
	j, err := u.encode(raw)
	if err != nil {
		return withLine(err, line)
	}
	u.expired.add("line", line, j.expires)
	j.line, j.index = line, u.jobsRead
	if u.sorter.sent == nil {
		u.sorter.seed, u.sorter.sent = maphash.MakeSeed(), map[uint64]bool{}
	}
	err = u.put(j, u.sorter.ready)
	if u.jobsRead++; err != nil || len(u.sorter.held) < maxHeld {
		return err
	}
	return u.putHeld()
}

// putHeld adds the jobs that were held back to the next requests, and sends the full ones.
func (u *upload) putHeld() error {
	rest, err := u.sorter.flush(u.request.jobs)
	if err != nil {
		return err
	}
	u.request = request{}
	for _, j := range rest {
		if err := u.put(j, u.sorter.note); err != nil {
			return err
		}
	}
	return nil
}

// put adds a job to the next request. If the request is full, put first sends it. The function
// ready decides which of its jobs can be sent.
func (u *upload) put(j pendingJob, ready func([]pendingJob) []pendingJob) error {
	maxJobs, maxBytes := partJobs, partBytes
	if u.key != "" { // a key makes a single request safe to repeat, so all jobs must fit in one request
		maxJobs, maxBytes = queue.MaxBatch, control.MaxLine-64<<10
	}
	if u.request.isFull(&j, maxJobs, maxBytes) {
		if u.key != "" {
			return Usage("--key: the jobs do not fit in one request (at most %d jobs, %d bytes, and %d arguments and environment variables); split the file, or leave out --key", maxJobs, maxBytes, control.MaxEntries)
		}
		if u.request.jobs = ready(u.request.jobs); len(u.request.jobs) > 0 {
			if err := u.send(false); err != nil {
				return err
			}
		}
		u.request.bytes, u.request.entries = 0, 0
	}
	u.request.add(j)
	return nil
}

// encode validates a job and adds the caller's working directory, umask and environment.
func (u *upload) encode(raw []byte) (j pendingJob, err error) {
	if err := queue.CheckJSON(raw); err != nil {
		return j, err
	}
	var s queue.Spec
	if err := s.Decode(raw, nil); err != nil {
		return j, err
	}
	if s.ID != nil {
		j.id = *s.ID
	}
	j.parents, j.expires = namesOf(&s), s.ExpiresAt
	if j.raw, err = u.caller.complete(raw, &s, u.noCwd); err != nil {
		return j, err
	}
	u.files.warn(u.out, u.cmd, &s)
	j.entries = control.Entries(&s)
	return j, nil
}

// callerFields holds the fields that the method complete adds to a job that sets none of them. They
// are determined once for all jobs.
type callerFields struct {
	spec *queue.Spec // nil until needed
	json []byte      // the spec as JSON, without the closing brace, so that a job's own fields can follow
}

// complete returns the JSON of a job, completed with the caller's working directory, umask and
// environment. The parameter s is the job as decoded from raw; complete sets the same fields in it.
func (f *callerFields) complete(raw []byte, s *queue.Spec, noCwd bool) (json.RawMessage, error) {
	plain := len(bytes.TrimSpace(raw)) > 2
	// A job that may contain one of these fields, even with the value null, takes the slower path. So
	// does a job with \u, because this search would not find a name that is written with it.
	for _, name := range []string{`"cwd"`, `"umask"`, `"env"`, `"env_pass"`, `"stdin_file"`, `"tty"`, `\u`} {
		plain = plain && !bytes.Contains(raw, []byte(name))
	}
	if !plain {
		if err := Prepare(s, noCwd); err != nil {
			return nil, err
		}
		return json.Marshal(s)
	}
	if f.spec == nil {
		if err := f.find(noCwd); err != nil {
			return nil, err
		}
	}
	s.Cwd, s.Umask, s.Env = f.spec.Cwd, f.spec.Umask, f.spec.Env
	if err := checkSpec(s); err != nil {
		return nil, err
	}
	raw = bytes.TrimLeft(raw, " \t\r\n")[1:]
	// Only an element of an array can contain line breaks, and a JSON string never does.
	if bytes.ContainsAny(raw, "\r\n") {
		raw = bytes.Map(func(c rune) rune {
			if c == '\r' || c == '\n' {
				return ' '
			}
			return c
		}, raw)
	}
	return append(f.json[:len(f.json):len(f.json)], raw...), nil
}

// find determines the caller's working directory, umask and environment.
func (f *callerFields) find(noCwd bool) error {
	f.spec = &queue.Spec{}
	if err := complete(f.spec, noCwd); err != nil {
		return err
	}
	head, err := json.Marshal(f.spec)
	if err != nil {
		return err
	}
	f.json = append(head[:len(head)-1], ',')
	if len(head) == 2 { // the method complete has set no field
		f.json = []byte{'{'}
	}
	return nil
}

// connect connects to the service, and starts it if necessary.
func (u *upload) connect() error {
	c, err := u.finder.clientStarting(u.ctx)
	if err != nil {
		return err
	}
	u.client = c
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	go func() { // this goroutine waits for a signal until the process ends
		<-interrupts
		u.interrupted()
	}()
	return nil
}

// send sends the collected jobs, after the previous request has been answered.
func (u *upload) send(commit bool) error {
	if err := u.await(); err != nil {
		return err
	}
	u.starting.Lock() // the method interrupted locks it and never unlocks it
	defer u.starting.Unlock()
	if u.client == nil {
		if err := u.connect(); err != nil {
			return err
		}
	}
	u.commits = commit
	if !commit && u.batch == "" {
		u.batch = control.NewKey()
	}
	jobs := u.request.jobs
	p := control.EnqueueBatch{Batch: u.batch, Encoded: make([]json.RawMessage, len(jobs)), Commit: commit, RequireLimits: u.requireLimits, Next: u.next}
	if commit {
		p.Key = u.key
	}
	lines := make([]int, len(jobs))
	for i := range jobs {
		p.Encoded[i], lines[i] = jobs[i].raw, jobs[i].line
		u.indexes = append(u.indexes, jobs[i].index)
	}
	sent := make(chan error, 1)
	u.sent = sent
	u.inFlight.Go(func() {
		got, err := u.client.EnqueueBatch(u.ctx, p)
		u.answers.add(&got, lines) // the sender's goroutine reads the answers only after await
		sent <- lineOf(err, lines)
	})
	u.request = request{}
	u.showSent(commit)
	return nil
}

// lineOf returns an error of a request with the line of the job that it is about, if that is known.
func lineOf(err error, lines []int) error {
	switch e, ok := errors.AsType[*queue.Error](err); {
	case !ok:
	case e.Index > 0 && e.Index <= len(lines):
		return withLine(err, lines[e.Index-1])
	case e.Field != "" && len(lines) == 1:
		return withLine(err, lines[0])
	}
	return err
}

// showSent shows how many jobs were sent, unless the request commits the batch.
func (u *upload) showSent(commit bool) {
	switch p := &u.source; {
	case commit:
	case p.size > 0:
		u.out.Draw(Bar{Done: p.bytesRead.Load(), Of: p.size, Since: p.began, Note: Jobs(u.jobsRead) + " sent", Bytes: true})
	default:
		u.out.Progress("%s sent", Jobs(u.jobsRead))
	}
}

// sendLast sends the remaining jobs and commits the batch.
func (u *upload) sendLast() error {
	if err := u.putHeld(); err != nil {
		return err
	}
	if err := u.send(true); err != nil {
		return err
	}
	return u.await()
}

// sortIDs sorts the ids by the jobs' order in the file.
func (u *upload) sortIDs() {
	if !u.sorter.reordered || len(u.answers.ids) != len(u.indexes) {
		return
	}
	ids := make([]string, len(u.indexes))
	for i, at := range u.indexes {
		ids[at] = u.answers.ids[i]
	}
	u.answers.ids = ids
}

// abort asks the service to drop the batch.
func (u *upload) abort() error {
	_, err := u.client.EnqueueBatch(context.WithoutCancel(u.ctx), control.EnqueueBatch{Batch: u.batch, Abort: true})
	return err
}

// interrupted aborts the batch and exits. It never unlocks u.starting, so that no request can
// follow.
func (u *upload) interrupted() {
	u.starting.Lock()
	u.out.Progress("")
	if u.commits {
		fmt.Fprintln(u.out.Err, "queuectl: interrupted while the jobs were being stored: either all or none are in the queue; check with: queuectl list")
		os.Exit(exitDetached)
	}
	// Wait for the request in flight: if it arrived after the abort, it would start the batch again.
	u.inFlight.Wait()
	u.abort() // if this fails, the service drops the batch after ten minutes
	fmt.Fprintln(u.out.Err, "queuectl: interrupted; nothing was stored")
	os.Exit(exitDetached)
}

// await waits for the request in flight and returns its error.
func (u *upload) await() error {
	if u.sent == nil {
		return nil
	}
	err := <-u.sent
	u.sent = nil
	return err
}

// end finishes the batch and prints the ids of its jobs. The parameter due describes when they start,
// like "; due …".
func (u *upload) end(err error, due string) error {
	err = u.finish(err)
	if u.client != nil {
		defer u.client.Close()
	}
	if err != nil {
		return err
	}
	u.sortIDs()
	if err := printStored(u.ctx, u.out, u.client, u.answers.ids); err != nil {
		return err
	}
	if u.expired.never == u.jobsRead {
		u.answers.maxAttempts = 0
	}
	u.out.Say("%s enqueued%s%s", Jobs(len(u.answers.ids)-len(u.answers.found)), due, attempts(u.answers.maxAttempts))
	return nil
}

// finish commits the batch or, after an error, aborts it.
func (u *upload) finish(err error) error {
	defer u.out.Progress("")
	if err == nil {
		err = u.sendLast()
	}
	if err == nil {
		got := &u.answers
		warnUnenforced(u.out, got.unenforced)
		printNewQueues(u.out, got.newQueues)
		printFound(u.out, "line", got.found, len(got.ids))
		printNotes(u.out, u.cmd, got.notes)
		printExpired(u.out, &u.expired)
	}
	if err == nil || u.batch == "" {
		return err
	}
	u.await() // an error of the request in flight is ignored, because err is the cause
	failed := u.abort()
	switch {
	case batchLost(err), !u.commits && errors.Is(err, queue.ErrUnavailable):
		return queue.Errorf(queue.CodeUnavailable, "the service stopped while the jobs were being sent, and nothing was stored; run the same command again")
	case u.commits:
	case failed != nil:
		return fmt.Errorf("%w; nothing was stored, but the job ids stay reserved for ten minutes, because cancelling the upload failed: %v", err, failed)
	}
	return err
}

// batchLost reports whether err means that the service no longer has the batch, for example after
// its restart.
func batchLost(err error) bool {
	e, ok := errors.AsType[*queue.Error](err)
	return ok && e.Code == queue.CodeWrongState && e.Field == ""
}
