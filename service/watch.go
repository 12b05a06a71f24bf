package service

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
)

// maxWaits bounds how many jobs one wait may name.
const maxWaits = 1000

// Wait implements control.API.
func (s *Service) Wait(ctx context.Context, p control.Wait, each func(control.Ended) error) (control.Waited, error) {
	p.IDs = control.Selection{ID: p.ID, IDs: p.IDs}.Names()
	if len(p.IDs) == 0 || len(p.IDs) > maxWaits {
		return control.Waited{}, queue.Invalid("ids", "has %d entries; 1 to %d are taken", len(p.IDs), maxWaits)
	}
	peer := control.PeerFrom(ctx)
	jobs := make([]queue.Job, len(p.IDs))
	for i, id := range p.IDs {
		var err error
		if jobs[i], err = s.store.Get(ctx, id); err != nil {
			return control.Waited{}, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type ended struct {
		i   int
		job queue.Job
		err error
	}
	ends := make(chan ended, len(jobs))
	open := make(map[int]bool, len(jobs))
	for i := range jobs {
		open[i] = true
		if jobs[i].State.Ended() {
			ends <- ended{i, jobs[i], nil}
			continue
		}
		go func() { // ends with its job, or ctx
			j, err := s.awaitEnd(ctx, jobs[i].ID, jobs[i].Seq)
			ends <- ended{i, j, err}
		}()
	}
	var timeout <-chan time.Time
	if p.Timeout > 0 {
		timer := time.NewTimer(time.Duration(p.Timeout))
		defer timer.Stop()
		timeout = timer.C
	}
	answer := func(timedOut bool) control.Waited {
		w := control.Waited{Open: []string{}, TimedOut: timedOut}
		for i, id := range p.IDs {
			if open[i] {
				w.Open = append(w.Open, id)
			}
		}
		return w
	}
	for len(open) > 0 {
		select {
		case e := <-ends:
			if e.err != nil {
				return control.Waited{}, e.err
			}
			delete(open, e.i)
			if err := each(control.Ended{Job: s.viewTo(&peer, &e.job)}); err != nil {
				return control.Waited{}, err
			}
			if p.Any {
				return answer(false), nil
			}
		case <-timeout:
			if len(ends) == 0 {
				return answer(true), nil
			}
			timeout = time.After(0) // what has ended by now is told first
		}
	}
	return answer(false), nil
}

// awaitEnd waits until a job has ended. One that is held has not.
func (s *Service) awaitEnd(ctx context.Context, id string, seq int64) (queue.Job, error) {
	watching := s.store.Watch([]int64{seq})
	defer watching.Stop()
	defer s.pool.Watch(seq)()
	for {
		j, err := s.again(ctx, id, seq)
		if err != nil || j.State.Ended() {
			return j, err
		}
		select {
		case <-watching.C:
		case <-ctx.Done():
			return j, ctx.Err()
		}
	}
}

// again reads a job that was read before. One that has its name since it was removed is
// another.
func (s *Service) again(ctx context.Context, id string, seq int64) (queue.Job, error) {
	j, err := s.store.Get(ctx, id)
	if err == nil && j.Seq != seq {
		return j, queue.Errorf(queue.CodeNotFound, "there is no job %q any more, but another one by its name", id)
	}
	return j, err
}

// showTail is how much of the last attempt's output a job is shown with, in
// bytes of each stream.
const showTail = 4 << 10

// maxHistory is how many attempts a job is shown with: the newest.
const maxHistory = 100

// named reads the job that a request names, by Get or Whole.
func named(ctx context.Context, id control.Name, read func(context.Context, string) (queue.Job, error)) (queue.Job, error) {
	if id == "" {
		return queue.Job{}, queue.Invalid("id", "is missing; give the id of a job")
	}
	return read(ctx, string(id))
}

// Show implements control.API.
func (s *Service) Show(ctx context.Context, p control.Show) (control.JobDetail, error) {
	j, err := named(ctx, p.ID, s.store.Whole)
	if err != nil {
		return control.JobDetail{}, err
	}
	history, err := s.store.History(ctx, j.Seq, 0, maxHistory)
	if err != nil {
		return control.JobDetail{}, err
	}
	d := control.JobDetail{Job: s.view(&j), Spec: queue.SpecOf(&j).Given(), History: []control.Attempt{}, Env: map[string]string{}}
	for _, e := range j.Env {
		name, value, _ := strings.Cut(e, "=")
		d.Env[name] = value
	}
	for i := range history {
		d.History = append(d.History, control.ViewAttempt(&history[i]))
	}
	if j.State == queue.Processing {
		d.History = append(d.History, control.ViewAttempt(&queue.Attempt{
			N: j.Runs + 1, Worker: j.WorkerID, Node: s.node, PID: j.PID, StartedAt: j.StartedAt, ExitCode: -1,
		}))
	}
	sight := s.sight(ctx, &j)
	var tails [2][]byte
	if n := len(d.History); n > 0 && sight >= control.Inside { // else nothing is read of it
		err = s.readAttempt(ctx, &j, d.History[n-1].Attempt, func(c output.Chunk) error {
			tail := append(tails[c.Stream], c.Data...)
			tails[c.Stream] = tail[max(0, len(tail)-showTail):]
			return nil
		})
	}
	d.Output, d.Stderr = strings.ToValidUTF8(string(tails[0]), "\uFFFD"), strings.ToValidUTF8(string(tails[1]), "\uFFFD")
	d.Hide(sight)
	return d, err
}

// sight is how much of a job is shown to who asks. That another's environment is read
// is recorded; where it cannot be, it is not shown.
func (s *Service) sight(ctx context.Context, j *queue.Job) control.Sight {
	p := control.PeerFrom(ctx)
	own := j.UID == p.UID
	sees := control.Sees(p.Right, own)
	if own || sees != control.Whole || len(j.Env) == 0 {
		return sees
	}
	if err := s.audit(ctx, "show", "environment", j); err != nil {
		s.log.Warn("an environment was not shown, for that could not be recorded", "job", j.ID, "error", err)
		return control.Inside
	}
	s.log.Info("an environment is shown", "job", j.ID, "uid", p.UID, "pid", p.PID)
	return sees
}

// readAttempt reads what there is of an attempt's output now.
func (s *Service) readAttempt(ctx context.Context, j *queue.Job, n int, each func(output.Chunk) error) error {
	var c output.Cursor
	if n > j.Runs && s.pool.Running(j.Seq) == n {
		_, err := s.readLive(ctx, j.Seq, &c, false, each)
		return err
	}
	err := s.readStored(ctx, j.Seq, n, &c, each)
	if errors.Is(err, queue.ErrNotFound) {
		return nil // it has ended, and is about to be recorded
	}
	return err
}

// readLive reads a running attempt's output after the cursor; ok is false when
// it does not run here any more, or all has been read.
func (s *Service) readLive(ctx context.Context, seq int64, c *output.Cursor, follow bool, each func(output.Chunk) error) (ok bool, err error) {
	for {
		chunk, ok, err := s.pool.Read(ctx, seq, *c, follow)
		if err != nil || !ok {
			return false, err
		}
		if err := output.Decode(bytes.NewReader(chunk.Data), each); err != nil {
			return false, err
		}
		before := *c
		*c = chunk.Cursor
		if chunk.Done || before == *c && !follow {
			return false, nil
		}
		if follow {
			return true, nil
		}
	}
}

// readStored reads an ended attempt's output after the cursor.
func (s *Service) readStored(ctx context.Context, seq int64, n int, c *output.Cursor, each func(output.Chunk) error) error {
	a, err := s.store.Attempt(ctx, seq, n)
	if err != nil {
		return err
	}
	if a.OutputBytes == queue.OutputForgotten {
		return queue.Errorf(queue.CodeNotFound, "the output of attempt %d was removed to make room (retention_output)", a.N)
	}
	after := func(chunk output.Chunk) error {
		length := max(int64(len(chunk.Data)), chunk.Dropped)
		skip := min(c[chunk.Stream], length)
		c[chunk.Stream] -= skip
		if skip == length {
			return nil
		}
		if chunk.Dropped > 0 {
			chunk.Dropped -= skip
		} else {
			chunk.Data = chunk.Data[skip:]
		}
		return each(chunk)
	}
	if a.OutputRef == "" {
		return output.Decode(bytes.NewReader(a.Output), after)
	}
	f, err := s.openOutput(a.OutputRef)
	if errors.Is(err, os.ErrNotExist) {
		return queue.Errorf(queue.CodeNotFound, "the output of attempt %d is gone", a.N)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return output.Decode(f, after)
}

// Logs implements control.API.
func (s *Service) Logs(ctx context.Context, p control.Logs, each func(control.Piece) error) (control.LogsEnd, error) {
	if p.Attempt < 0 {
		return control.LogsEnd{}, queue.Invalid("attempt", "must not be negative; the first is 1")
	}
	if p.N != nil && *p.N < 0 {
		return control.LogsEnd{}, queue.Invalid("n", "must not be negative")
	}
	j, err := named(ctx, p.ID, s.store.Get)
	if err != nil {
		return control.LogsEnd{}, err
	}
	peer := control.PeerFrom(ctx)
	if err := s.mayAct(&peer, "logs", &j); err != nil {
		return control.LogsEnd{}, err
	}
	n := p.Attempt
	if n == 0 {
		n = max(j.Runs, s.pool.Running(j.Seq), 1)
	}
	if p.Attempt > max(j.Runs, s.pool.Running(j.Seq)) {
		return control.LogsEnd{}, queue.Errorf(queue.CodeNotFound, "job %s has %d attempts so far", j.ID, j.Runs)
	}
	f := &follower{s: s, p: p, each: each, n: n}
	if p.N != nil {
		if err := f.tail(ctx, &j, *p.N); err != nil {
			return control.LogsEnd{}, err
		}
	}
	return f.run(ctx, j)
}

// follower tells one job's output, attempt after attempt.
type follower struct {
	s      *Service
	p      control.Logs
	each   func(control.Piece) error
	n      int           // the attempt
	cursor output.Cursor // in it
}

// run tells what is left of the attempt and, when following, of those after it.
func (f *follower) run(ctx context.Context, j queue.Job) (control.LogsEnd, error) {
	watching := f.s.store.Watch([]int64{j.Seq})
	defer watching.Stop()
	if f.p.Follow {
		defer f.s.pool.Watch(j.Seq)()
	}
	for {
		var err error
		if j, err = f.s.again(ctx, j.ID, j.Seq); err != nil {
			return control.LogsEnd{}, err
		}
		end := control.LogsEnd{State: j.State.String()}
		switch {
		case j.Runs >= f.n:
			if err := f.s.readStored(ctx, j.Seq, f.n, &f.cursor, f.tell); err != nil {
				return end, err
			}
			f.n, f.cursor = f.n+1, output.Cursor{}
			if !f.p.Follow || f.p.Attempt != 0 {
				return end, nil
			}
			continue
		case f.s.pool.Running(j.Seq) == f.n:
			more, err := f.s.readLive(ctx, j.Seq, &f.cursor, f.p.Follow, f.tell)
			if err != nil || !f.p.Follow {
				return end, err
			}
			if more {
				continue
			}
		case !f.p.Follow || j.State.Ended():
			return end, nil
		}
		select {
		case <-watching.C:
		case <-ctx.Done():
			return end, ctx.Err()
		}
	}
}

// tail tells the last lines of what there is of the attempt now.
func (f *follower) tail(ctx context.Context, j *queue.Job, lines int) error {
	var chunks []output.Chunk
	keep := func(c output.Chunk) error {
		if f.wanted(c) {
			chunks = append(chunks, c)
		}
		f.cursor[c.Stream] += max(int64(len(c.Data)), c.Dropped)
		return nil
	}
	if err := f.s.readAttempt(ctx, j, f.n, keep); err != nil {
		return err
	}
	first, seen := len(chunks), 0
	for i := len(chunks) - 1; i >= 0 && seen <= lines; i-- {
		data := chunks[i].Data
		for k := len(data) - 1; k >= 0; k-- {
			atEnd := i == len(chunks)-1 && k == len(data)-1
			if data[k] != '\n' || atEnd {
				continue
			}
			if seen++; seen == lines {
				chunks[i].Data = data[k+1:]
				break
			}
		}
		first = i
		if seen == lines {
			break
		}
	}
	if lines == 0 {
		first = len(chunks)
	}
	for _, c := range chunks[first:] {
		if err := f.tell(c); err != nil {
			return err
		}
	}
	return nil
}

func (f *follower) wanted(c output.Chunk) bool {
	if c.At < int64(f.p.Since) {
		return false
	}
	only := f.p.Stdout != f.p.Stderr // both or neither is all
	return !only || f.p.Stdout == (c.Stream == output.Stdout)
}

func (f *follower) tell(c output.Chunk) error {
	if !f.wanted(c) {
		return nil
	}
	p := control.Piece{ID: string(f.p.ID), Attempt: f.n, Stream: "stdout", At: control.Time(c.At), Dropped: c.Dropped}
	if c.Stream == output.Stderr {
		p.Stream = "stderr"
	}
	if utf8.Valid(c.Data) {
		p.Text = string(c.Data)
	} else {
		p.Base64 = c.Data
	}
	return f.each(p)
}
