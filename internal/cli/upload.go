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

// upload enqueues the jobs of a file: in one request if they fit, otherwise in several requests of
// one batch. It sends each request while it reads the jobs of the next one.
type upload struct {
	a     *App
	ctx   context.Context
	key   string
	noCwd bool
	due   string // "; due …" if a flag sets the start time of all jobs

	began     time.Time
	fileSize  int64        // size of the file in bytes; 0 if unknown
	bytesRead atomic.Int64 // bytes read until now

	c        *control.Client
	batch    string
	jobsRead int          // number of jobs read until now
	part     []pendingJob // jobs of the next request
	bytes    int
	entries  int // number of arguments and environment variables in part
	sorter   depSorter
	// defaults holds the fields that the method complete adds to a job that sets none of them. It is
	// nil until needed.
	defaults *queue.Spec
	defJSON  []byte     // defaults as JSON, without the closing brace, so that a job's own fields can follow
	sent     chan error // receives the result of the request in flight; nil if no request is in flight
	ids      []string
	indexes  []int // the index in the file of the job with ids[i]

	unenforced []string // names of the jobs' limits that the service does not enforce
	newQueues  []control.NewQueue
	notes      []string // notes of the service about these jobs

	maxAttempts int // the highest max_attempts of the jobs
	files       namedFiles
	found       []int // lines of jobs that were not enqueued, because a job with their unique key exists
	expired     expiries

	starting sync.Mutex // held while a request is started
	commits  bool       // the request in flight commits the batch; guarded by starting
	inFlight sync.WaitGroup
}

// reader returns a reader of f that counts the bytes read, for the progress bar.
func (u *upload) reader(f *os.File) io.Reader {
	u.began = time.Now()
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		u.fileSize = info.Size()
	}
	return &byteCounter{f, &u.bytesRead}
}

// byteCounter is a reader that counts the bytes read.
type byteCounter struct {
	r io.Reader
	n *atomic.Int64
}

// Read implements io.Reader.
func (c *byteCounter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
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
	rest, err := u.sorter.flush(u.part)
	if err != nil {
		return err
	}
	u.part, u.bytes, u.entries = nil, 0, 0
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
	full := len(u.part) == maxJobs || u.bytes+len(j.raw) > maxBytes || u.entries+j.entries > control.MaxEntries
	if len(u.part) > 0 && full {
		if u.key != "" {
			return Usage("--key: the jobs do not fit in one request (at most %d jobs, %d bytes, and %d arguments and environment variables); split the file, or leave out --key", maxJobs, maxBytes, control.MaxEntries)
		}
		if u.part = ready(u.part); len(u.part) > 0 {
			if err := u.send(false); err != nil {
				return err
			}
		}
		u.bytes, u.entries = 0, 0
	}
	u.part, u.bytes, u.entries = append(u.part, j), u.bytes+len(j.raw)+1, u.entries+j.entries
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
	j.raw, err = u.complete(raw, &s)
	j.entries = control.Entries(&s)
	return j, err
}

// complete returns the JSON of a job, completed with the caller's working directory, umask and
// environment. The parameter s is the job as decoded from raw.
func (u *upload) complete(raw []byte, s *queue.Spec) (json.RawMessage, error) {
	if u.files == nil {
		u.files = namedFiles{}
	}
	plain := len(bytes.TrimSpace(raw)) > 2
	// A job that may contain one of these fields, even with the value null, takes the slower path. So
	// does a job with \u, because this search would not find a name that is written with it.
	for _, name := range []string{`"cwd"`, `"umask"`, `"env"`, `"env_pass"`, `"stdin_file"`, `"tty"`, `\u`} {
		plain = plain && !bytes.Contains(raw, []byte(name))
	}
	if !plain {
		if err := Prepare(s, u.noCwd); err != nil {
			return nil, err
		}
		u.files.warn(u.a, s)
		return json.Marshal(s)
	}
	if u.defaults == nil {
		if err := u.findDefaults(); err != nil {
			return nil, err
		}
	}
	s.Cwd, s.Umask, s.Env = u.defaults.Cwd, u.defaults.Umask, u.defaults.Env
	if err := checkSpec(s); err != nil {
		return nil, err
	}
	u.files.warn(u.a, s)
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
	return append(u.defJSON[:len(u.defJSON):len(u.defJSON)], raw...), nil
}

// findDefaults determines the caller's working directory, umask and environment once for all jobs.
func (u *upload) findDefaults() error {
	u.defaults = &queue.Spec{}
	if err := complete(u.defaults, u.noCwd); err != nil {
		return err
	}
	head, err := json.Marshal(u.defaults)
	if err != nil {
		return err
	}
	u.defJSON = append(head[:len(head)-1], ',')
	if len(head) == 2 { // the method complete has set no field
		u.defJSON = []byte{'{'}
	}
	return nil
}

// send sends the collected jobs, after the previous request has been answered.
func (u *upload) send(commit bool) error {
	if err := u.await(); err != nil {
		return err
	}
	u.starting.Lock() // the method interrupted locks it and never unlocks it
	defer u.starting.Unlock()
	if u.c == nil {
		c, err := u.a.clientStarting(u.ctx)
		if err != nil {
			return err
		}
		u.c = c
		interrupts := make(chan os.Signal, 1)
		signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
		go func() { // this goroutine waits for a signal until the process ends
			<-interrupts
			u.interrupted()
		}()
	}
	u.commits = commit
	if !commit && u.batch == "" {
		u.batch = control.NewKey()
	}
	p := control.EnqueueBatch{Batch: u.batch, Encoded: make([]json.RawMessage, len(u.part)), Commit: commit, RequireLimits: u.a.requireLimits, Next: u.a.next}
	if commit {
		p.Key = u.key
	}
	lines := make([]int, len(u.part))
	for i := range u.part {
		p.Encoded[i], lines[i] = u.part[i].raw, u.part[i].line
		u.indexes = append(u.indexes, u.part[i].index)
	}
	u.sent = make(chan error, 1)
	sent := u.sent
	u.inFlight.Go(func() {
		got, err := u.c.EnqueueBatch(u.ctx, p)
		for _, at := range got.Found {
			if at < len(lines) {
				u.found = append(u.found, lines[at])
			}
		}
		u.ids = append(u.ids, got.IDs...) // the sender's goroutine reads these fields only after the answer
		for _, name := range got.Unenforced {
			if !slices.Contains(u.unenforced, name) {
				u.unenforced = append(u.unenforced, name)
			}
		}
		for _, q := range got.NewQueues {
			if !slices.Contains(u.newQueues, q) {
				u.newQueues = append(u.newQueues, q)
			}
		}
		u.maxAttempts = max(u.maxAttempts, got.MaxAttempts)
		if len(u.notes) == 0 { // every answer contains the same notes
			u.notes = got.Notes
		}
		switch e, ok := errors.AsType[*queue.Error](err); {
		case !ok:
		case e.Index > 0 && e.Index <= len(lines):
			err = withLine(err, lines[e.Index-1])
		case e.Field != "" && len(lines) == 1:
			err = withLine(err, lines[0])
		}
		sent <- err
	})
	u.part, u.bytes, u.entries = nil, 0, 0
	switch {
	case commit:
	case u.fileSize > 0:
		u.a.Draw(Bar{Done: u.bytesRead.Load(), Of: u.fileSize, Since: u.began, Note: Jobs(u.jobsRead) + " sent", Bytes: true})
	default:
		u.a.Progress("%s sent", Jobs(u.jobsRead))
	}
	return nil
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

// inOrder sorts the ids by the jobs' order in the file.
func (u *upload) inOrder() {
	if !u.sorter.reordered || len(u.ids) != len(u.indexes) {
		return
	}
	ids := make([]string, len(u.ids))
	for i, at := range u.indexes {
		ids[at] = u.ids[i]
	}
	u.ids = ids
}

// interrupted aborts the batch and exits. It never unlocks u.starting, so that no request can
// follow.
func (u *upload) interrupted() {
	u.starting.Lock()
	u.a.Progress("")
	if u.commits {
		fmt.Fprintln(u.a.Err, "queuectl: interrupted while the jobs were being stored: either all or none are in the queue; check with: queuectl list")
		os.Exit(exitDetached)
	}
	// Wait for the request in flight: if it arrived after the abort, it would start the batch again.
	u.inFlight.Wait()
	// If the abort fails, the service drops the batch after ten minutes.
	u.c.EnqueueBatch(context.WithoutCancel(u.ctx), control.EnqueueBatch{Batch: u.batch, Abort: true})
	fmt.Fprintln(u.a.Err, "queuectl: interrupted; nothing was stored")
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

// end finishes the batch and prints the ids of its jobs.
func (u *upload) end(err error) error {
	err = u.finish(err)
	if u.c != nil {
		defer u.c.Close()
	}
	if err != nil {
		return err
	}
	u.inOrder()
	if err := u.a.printStored(u.ctx, u.c, u.ids); err != nil {
		return err
	}
	if u.expired.never == u.jobsRead {
		u.maxAttempts = 0
	}
	u.a.Say("%s enqueued%s%s", Jobs(len(u.ids)-len(u.found)), u.due, attempts(u.maxAttempts))
	return nil
}

// finish commits the batch or, after an error, aborts it.
func (u *upload) finish(err error) error {
	defer u.a.Progress("")
	if err == nil {
		err = u.sendLast()
	}
	if err == nil {
		u.a.warnUnenforced(u.unenforced)
		u.a.printNewQueues(u.newQueues)
		u.a.printFound("line", u.found, len(u.ids))
		u.a.printNotes(u.notes)
		u.a.printExpired(&u.expired)
	}
	if err == nil || u.batch == "" {
		return err
	}
	u.await() // an error of the request in flight is ignored, because err is the cause
	_, failed := u.c.EnqueueBatch(context.WithoutCancel(u.ctx), control.EnqueueBatch{Batch: u.batch, Abort: true})
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
