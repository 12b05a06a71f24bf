package reads

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
)

// MaxScreenLanes is the maximum number of lanes that are searched for the jobs that start next.
// See docs/decisions/0065.
const MaxScreenLanes = 500

// rankedJob is a job with its sort key.
type rankedJob struct{ rank, seq int64 }

func (a rankedJob) compare(b rankedJob) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.seq, b.seq))
}

// Screen implements store.Reader. It reads the jobs of each part of the screen through an index that is
// sorted in the order of that part.
func (s *Reads) Screen(ctx context.Context, f store.ScreenFilter) (screen store.Screen, err error) {
	if f.Rows < 1 || f.Rows > store.MaxScreen {
		return screen, queue.Invalid("rows", "the number of rows must be between 1 and %[2]d, not %[1]d", f.Rows,
			store.MaxScreen)
	}
	err = s.Read(ctx, func(r *Reader) error {
		reserved := s.reserved()
		screen = store.Screen{}
		for _, part := range []struct {
			into *[]queue.Job
			read func(r *Reader, rows int) ([]rankedJob, error)
		}{
			{&screen.Running, ofStates(`SELECT seq, seq FROM jobs INDEXED BY jobs_state WHERE state = ? ORDER BY seq LIMIT ?`,
				queue.Processing)},
			{&screen.Ready, s.readyJobs(reserved)},
			{&screen.Timed, timedJobs},
			{&screen.HeldOrBlocked, ofStates(
				`SELECT seq, seq FROM jobs INDEXED BY jobs_state WHERE state = ? ORDER BY seq LIMIT ?`, queue.Held, queue.Blocked)},
			{&screen.Dead, recentlyEnded(queue.Dead)},
			{&screen.Done, recentlyEnded(queue.Completed, queue.Cancelled)},
		} {
			list, err := part.read(r, f.Rows)
			if err != nil {
				return err
			}
			bytes := 0
			for _, one := range list {
				j, err := r.forScreen(reserved, one.seq, f.Submitter)
				if err != nil {
					return err
				}
				if bytes += store.TextSize(&j); bytes > store.MaxPartBytes && len(*part.into) > 0 {
					break
				}
				*part.into = append(*part.into, j)
			}
		}
		return nil
	})
	if err != nil {
		return store.Screen{}, err
	}
	return screen, nil
}

// forScreen reads a job. It omits the job's settings if submitter is set and the job belongs to another user.
func (r *Reader) forScreen(reserved map[int64]int64, seq int64, submitter *int) (j queue.Job, err error) {
	columns, args := records.JobColumns, []any{seq}
	if submitter != nil {
		columns, args = records.OwnColumns, []any{int64(*submitter), seq}
	}
	j, found, err := r.job(reserved, columns, `WHERE seq = ?`, args...)
	if err == nil && (!found || j.ID == "") { // damage: the same read has found this job before
		err = database.Damage(fmt.Sprintf("the row of the job with the number (seq) %d is damaged", seq))
	}
	return j, err
}

// recentlyEnded returns a function that reads the most recently ended jobs of some states, newest first.
// Among jobs with the same end time, the one with the highest number comes first.
func recentlyEnded(states ...queue.State) func(*Reader, int) ([]rankedJob, error) {
	var of [][]any
	for _, state := range states {
		of = append(of, []any{int64(0), int64(state)}, []any{int64(1), int64(state)})
	}
	return firstOf(`SELECT -ended_at, seq FROM jobs INDEXED BY jobs_ended WHERE kept = ? AND state = ? AND state > 5 ORDER BY ended_at DESC, seq DESC LIMIT ?`, of,
		func(a, b rankedJob) int { return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(b.seq, a.seq)) })
}

// ofStates returns a function that reads the first jobs of some states, in the order of the statement.
func ofStates(sql string, states ...queue.State) func(*Reader, int) ([]rankedJob, error) {
	var of [][]any
	for _, state := range states {
		of = append(of, []any{int64(state)})
	}
	return firstOf(sql, of, rankedJob.compare)
}

// firstOf returns a function that executes a statement with each list of arguments and merges the first jobs.
func firstOf(sql string, of [][]any, order func(a, b rankedJob) int) func(*Reader, int) ([]rankedJob, error) {
	return func(r *Reader, rows int) (list []rankedJob, err error) {
		for _, args := range of {
			part, err := r.rankedBy(sql, append(slices.Clip(args), int64(rows))...)
			if err != nil {
				return nil, err
			}
			list = append(list, part...)
		}
		slices.SortFunc(list, order)
		return list[:min(len(list), rows)], nil
	}
}

func timedJobs(r *Reader, rows int) ([]rankedJob, error) {
	return r.rankedBy(`SELECT due_at, seq FROM jobs INDEXED BY jobs_timed WHERE place = 2 ORDER BY due_at, seq LIMIT ?`,
		int64(rows))
}

// rankedBy returns the sort keys and numbers of the jobs that a statement selects.
func (r *Reader) rankedBy(sql string, args ...any) (list []rankedJob, err error) {
	err = r.Query(func(r database.Row) (bool, error) {
		list = append(list, rankedJob{r.Num(0), r.Num(1)})
		return true, nil
	}, sql, args...)
	return list, err
}
