package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// reading runs f with a deadline, so that no reader pins the WAL for long.
func (s *Store) reading(ctx context.Context, f func(context.Context) error) error {
	budget := s.readBudget()
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	err := f(ctx)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return s.late(budget)
	case errors.Is(err, sql.ErrConnDone) || err != nil && strings.Contains(err.Error(), "database is closed"):
		return errClosed
	}
	return err
}

// jobs reads whole jobs; each row goes to take until it says no.
func (s *Store) jobs(ctx context.Context, take func(queue.Job) bool, where string, args ...any) error {
	rows, err := s.read.QueryContext(ctx, `SELECT `+jobColumns+` FROM jobs `+where, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	s.mu.Lock()
	reserved, err := numbers(s.reserved)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	values, into := make(values, jobWidth), make([]any, jobWidth)
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		j, _ := readJob(values) // a damaged one says so
		if fence, ok := reserved[j.Seq]; ok && j.State.Runnable() {
			j.Fence = max(j.Fence, fence)
		}
		if !take(j) {
			break
		}
	}
	return rows.Err()
}

// Get reads one job by id.
func (s *Store) Get(ctx context.Context, id string) (j queue.Job, err error) {
	found := false
	err = s.reading(ctx, func(ctx context.Context) error {
		return s.jobs(ctx, func(got queue.Job) bool { j, found = got, true; return false }, `WHERE id = ?`, id)
	})
	if err == nil && !found {
		err = queue.Errorf(queue.CodeNotFound, "there is no job %q", id)
	}
	return j, err
}

// History lists a job's attempts without output.
func (s *Store) History(ctx context.Context, seq int64) (list []queue.Attempt, err error) {
	err = s.reading(ctx, func(ctx context.Context) error {
		rows, err := s.read.QueryContext(ctx, `SELECT `+attemptColumns+`, NULL, NULL FROM attempts WHERE seq = ? ORDER BY n`, seq)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			a, err := scanAttempt(rows)
			if err != nil {
				return err
			}
			list = append(list, a)
		}
		if err := rows.Err(); err != nil || len(list) > 0 {
			return err
		}
		var one int
		err = s.read.QueryRowContext(ctx, `SELECT 1 FROM jobs WHERE seq = ?`, seq).Scan(&one)
		if errors.Is(err, sql.ErrNoRows) {
			return queue.Errorf(queue.CodeNotFound, "there is no job with seq %d", seq)
		}
		return err
	})
	return list, err
}

// Attempt reads one attempt with its output; n = 0 is the last one.
func (s *Store) Attempt(ctx context.Context, seq int64, n int) (a queue.Attempt, err error) {
	where := ` FROM attempts WHERE seq = ? AND n = ?`
	args := []any{seq, n}
	if n == 0 {
		where, args = ` FROM attempts WHERE seq = ? ORDER BY n DESC LIMIT 1`, args[:1]
	}
	err = s.reading(ctx, func(ctx context.Context) error {
		rows, err := s.read.QueryContext(ctx, `SELECT `+attemptColumns+`, output, output_ref`+where, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		if !rows.Next() {
			return errors.Join(rows.Err(), queue.Errorf(queue.CodeNotFound, "the job has no attempt %d", n))
		}
		a, err = scanAttempt(rows)
		return err
	})
	return a, err
}

func scanAttempt(rows *sql.Rows) (a queue.Attempt, err error) {
	var cpu int64
	var ref sql.NullString
	err = rows.Scan(&a.N, &a.Fence, &a.Worker, &a.Node, &a.PID, &a.StartedAt, &a.EndedAt, &a.ExitCode, &a.Signal,
		&a.Reason, &a.Error, &a.Counted, &cpu, &a.PeakRSS, &a.Leftovers, &a.Dropped, &a.OutputBytes, &a.Output, &ref)
	a.CPU, a.OutputRef = time.Duration(cpu)*time.Microsecond, ref.String
	return a, err
}

// maxLooked bounds how many jobs one page looks at for a filter that no index
// serves; the page's Next goes on from there.
const maxLooked = 10_000

// List reads a page of jobs, newest first.
func (s *Store) List(ctx context.Context, f store.Filter) (page store.Page, err error) {
	if f.Limit < 1 || f.Limit > store.MaxPage {
		return page, queue.Invalid("limit", "%d is not between 1 and %d", f.Limit, store.MaxPage)
	}
	states := f.States
	if len(states) == 0 {
		states = []queue.State{0}
	}
	err = s.reading(ctx, func(ctx context.Context) error {
		page = store.Page{}
		for _, state := range states {
			if err := s.listState(ctx, f, state, &page); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return store.Page{}, err
	}
	slices.SortFunc(page.Jobs, func(a, b queue.Job) int { return int(b.Seq - a.Seq) })
	// A state that stopped early ends the page there for all of them.
	page.Jobs = slices.DeleteFunc(page.Jobs, func(j queue.Job) bool { return j.Seq < page.Next })
	if len(page.Jobs) > f.Limit {
		page.Jobs = page.Jobs[:f.Limit]
		page.Next = page.Jobs[f.Limit-1].Seq
	}
	return page, nil
}

// listState adds one state's jobs to the page (state 0: of every state), and
// raises page.Next to where it stopped, if it did before the end.
func (s *Store) listState(ctx context.Context, f store.Filter, state queue.State, page *store.Page) error {
	where, args := `WHERE seq < ?`, []any{f.Before}
	if f.Before == 0 {
		args[0] = int64(1<<63 - 1)
	}
	if state != 0 {
		where, args = `INDEXED BY jobs_state WHERE state = ? AND seq < ?`, []any{int64(state), args[0]}
	}
	looked, kept := 0, 0
	return s.jobs(ctx, func(j queue.Job) bool {
		if f.Since != 0 && j.CreatedAt < f.Since {
			return false
		}
		looked++
		if matches(f, &j) {
			page.Jobs = append(page.Jobs, j)
			kept++
		}
		if kept > f.Limit || looked >= maxLooked {
			page.Next = max(page.Next, j.Seq)
			return false
		}
		return true
	}, where+` ORDER BY seq DESC`, args...)
}

func matches(f store.Filter, j *queue.Job) bool {
	for k, v := range f.Labels {
		if got, ok := j.Labels[k]; !ok || got != v {
			return false
		}
	}
	return (f.UID == nil || *f.UID == j.UID) && (f.Match == nil || f.Match(j))
}

// oldestAmong is how many jobs of a state are looked at for the oldest one: those
// that were enqueued first. So many delayed ones may stand before it.
const oldestAmong = 1000

// Oldest is when the job that waits longest became runnable.
func (s *Store) Oldest(ctx context.Context) (oldest queue.Millis, err error) {
	err = s.reading(ctx, func(ctx context.Context) error {
		oldest = 0
		for _, state := range []queue.State{queue.Pending, queue.Failed} {
			var first sql.NullInt64
			err := s.read.QueryRowContext(ctx, `SELECT min(since) FROM (SELECT since FROM jobs INDEXED BY jobs_state WHERE state = ? ORDER BY seq LIMIT ?) WHERE since <= ?`,
				int64(state), oldestAmong, int64(s.now())).Scan(&first)
			if err != nil {
				return err
			}
			if m := queue.Millis(first.Int64); first.Valid && (oldest == 0 || m < oldest) {
				oldest = m
			}
		}
		return nil
	})
	return oldest, err
}

// Events lists events after a sequence number.
func (s *Store) Events(ctx context.Context, after int64, limit int) (list []queue.Event, err error) {
	err = s.reading(ctx, func(ctx context.Context) error {
		list = nil
		rows, err := s.read.QueryContext(ctx, `SELECT seq, at, kind, job, id, state, detail FROM events WHERE seq > ? ORDER BY seq LIMIT ?`, after, limit)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var e queue.Event
			var detail string
			if err := rows.Scan(&e.Seq, &e.At, &e.Kind, &e.Job, &e.ID, &e.State, &detail); err != nil {
				return err
			}
			if err := json.Unmarshal([]byte(detail), &e.Detail); err != nil {
				return fmt.Errorf("read event %d: %w", e.Seq, err)
			}
			list = append(list, e)
		}
		return rows.Err()
	})
	return list, err
}
