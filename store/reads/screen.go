package reads

import (
	"cmp"
	"context"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// MaxScreenLanes is how many lanes, lists of waiting jobs that need the same locks and other limits, are searched for
// the jobs that start next. See docs/decisions/0065.
const MaxScreenLanes = 500

// ReadScreen implements store.Reader. It reads each part of the screen with an index that has the order of that part.
func (s *JobReader) ReadScreen(ctx context.Context, f store.ScreenFilter) (screen store.Screen, err error) {
	if f.RowsPerPart < 1 || f.RowsPerPart > store.MaxScreenRowsPerPart {
		return screen, queue.InvalidFieldError("rows", "the number of rows must be between 1 and %[2]d, not %[1]d",
			f.RowsPerPart,
			store.MaxScreenRowsPerPart)
	}
	err = s.RunRead(ctx, func(r *ReadSnapshot) error {
		reserved, columns, args := s.fencesByReservedSeq(), records.JobColumns, []any(nil)
		if f.DetailsForUID != nil { // leave out the settings of other users' jobs
			columns, args = records.RestrictedJobColumns, []any{int64(*f.DetailsForUID)}
		}
		for _, part := range []struct {
			dest *[]queue.Job
			read positionReader
		}{
			{&screen.Running, firstJobsOfStates(queue.Processing)},
			{&screen.Ready, s.readyJobsReader(reserved)},
			{&screen.NotYetDue, mergeFirstJobs(`SELECT due_at, seq FROM jobs INDEXED BY jobs_timed WHERE place = 2
				ORDER BY due_at, seq LIMIT ?`, [][]any{nil}, rules.Position.Compare)},
			{&screen.HeldOrBlocked, firstJobsOfStates(queue.Held, queue.Blocked)},
			{&screen.Dead, recentlyEndedJobs(queue.Dead)},
			{&screen.CompletedOrCancelled, recentlyEndedJobs(queue.Completed, queue.Cancelled)},
		} {
			list, err := part.read(r, f.RowsPerPart)
			if err != nil {
				return err
			}
			bytes := 0
			for _, one := range list {
				j, err := r.selectExistingJob(reserved, one.Seq, columns, args...)
				if err != nil {
					return err
				}
				if bytes += store.JobTextBytes(&j); bytes > store.MaxScreenPartTextBytes && len(*part.dest) > 0 {
					break
				}
				*part.dest = append(*part.dest, j)
			}
		}
		return nil
	})
	return screen, err
}

// positionReader reads the positions of up to maxRows jobs.
type positionReader func(r *ReadSnapshot, maxRows int) ([]rules.Position, error)

// recentlyEndedJobs returns a function that reads the most recently ended jobs of some states, newest first.
// Of jobs with the same end time, the one with the highest seq comes first.
func recentlyEndedJobs(states ...queue.State) positionReader {
	var argLists [][]any
	for _, state := range states {
		argLists = append(argLists, []any{int64(0), int64(state)}, []any{int64(1), int64(state)})
	}
	return mergeFirstJobs(`SELECT -ended_at, seq FROM jobs INDEXED BY jobs_ended WHERE kept = ? AND state = ? AND state > 5
		ORDER BY ended_at DESC, seq DESC LIMIT ?`, argLists,
		func(a, b rules.Position) int { return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(b.Seq, a.Seq)) })
}

// firstJobsOfStates returns a function that reads those jobs of some states that were enqueued first.
func firstJobsOfStates(states ...queue.State) positionReader {
	var argLists [][]any
	for _, state := range states {
		argLists = append(argLists, []any{int64(state)})
	}
	return mergeFirstJobs(`SELECT seq, seq FROM jobs INDEXED BY jobs_state WHERE state = ? ORDER BY seq LIMIT ?`,
		argLists, rules.Position.Compare)
}

// mergeFirstJobs returns a function that executes a statement once with each list in argLists, and merges the
// jobs in the order of compare. The statement selects a sort key and the seq of each job. The sort key is
// returned as the Rank.
func mergeFirstJobs(sql string, argLists [][]any, compare func(a, b rules.Position) int) positionReader {
	return func(r *ReadSnapshot, rows int) (list []rules.Position, err error) {
		for _, args := range argLists {
			part, err := database.ReadRows(r, func(r database.Row) rules.Position {
				return rules.Position{Rank: r.Int64(0), Seq: r.Int64(1)}
			}, sql, append(slices.Clip(args), int64(rows))...)
			if err != nil {
				return nil, err
			}
			list = append(list, part...)
		}
		slices.SortFunc(list, compare)
		return list[:min(len(list), rows)], nil
	}
}
