package reads

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
)

// selectJob reads the job that a WHERE clause selects. found is false if no job matches. fencesByReservedSeq holds, by
// seq, the fences of the leases that are not in the rows of the jobs yet.
func (r *ReadSnapshot) selectJob(fencesByReservedSeq map[int64]int64, columns, whereClause string, args ...any) (
	j queue.Job, found bool, err error) {
	found, err = database.ReadFirstRow(r, func(r database.Row) {
		records.ReadJob(r, columns, &j) // the Error of a damaged job describes the damage
	}, `SELECT `+columns+` FROM jobs `+whereClause, args...)
	if j.State.IsRunnable() {
		j.Fence = max(j.Fence, fencesByReservedSeq[j.Seq])
	}
	if err == nil && j.State == queue.Blocked {
		j.DependsOn, err = r.unresolvedDependenciesOf(j.Seq)
	}
	return j, found, err
}

// selectExistingJob reads a job that the same read has already found. args are the arguments of placeholders in
// columns.
func (r *ReadSnapshot) selectExistingJob(fencesByReservedSeq map[int64]int64, seq int64, columns string,
	args ...any) (queue.Job, error) {
	j, found, err := r.selectJob(fencesByReservedSeq, columns, `WHERE seq = ?`, append(args, seq)...)
	if err == nil && (!found || j.ID == "") {
		err = database.DamageError(fmt.Sprintf("the row of the job with the number (seq) %d is damaged", seq))
	}
	return j, err
}

// jobByID reads the given columns of a job by its id.
func (s *JobReader) jobByID(ctx context.Context, id, columns string) (j queue.Job, err error) {
	err = s.RunRead(ctx, func(r *ReadSnapshot) error {
		reserved := s.fencesByReservedSeq()
		got, found, err := r.selectJob(reserved, columns, `WHERE `+JobWithIDCondition, JobWithIDArgs(id)...)
		if err == nil && !found {
			if err = CheckJobIsMissing(r.Statements, id); err == nil {
				err = queue.JobNotFoundError(id)
			}
		}
		j = got
		return err
	})
	return j, err
}

// Get reads a job by its id, without env and stdin.
func (s *JobReader) GetJob(ctx context.Context, id string) (queue.Job, error) {
	return s.jobByID(ctx, id, records.JobColumns)
}

// GetWithEnvAndStdin reads a job by its id, with env and stdin.
func (s *JobReader) GetWithEnvAndStdin(ctx context.Context, id string) (queue.Job, error) {
	return s.jobByID(ctx, id, records.AllJobColumns)
}

// AttemptHistory reads a page of a job's attempts, without their output.
func (s *JobReader) AttemptHistory(ctx context.Context, jobSeq int64, beforeAttemptNumber,
	limit int) (attempts []queue.Attempt, err error) {
	if err := checkPageLimit(limit); err != nil {
		return nil, err
	}
	if beforeAttemptNumber <= 0 {
		beforeAttemptNumber = math.MaxInt64
	}
	err = s.RunRead(ctx, func(r *ReadSnapshot) error {
		last, plain, err := r.lastAttemptInJobRow(jobSeq)
		if err != nil {
			return err
		}
		if plain && last.Number < beforeAttemptNumber {
			if attempts = append(attempts, last); len(attempts) == limit {
				return nil
			}
		}
		bytes := 0
		return r.Query(func(r database.Row) (bool, error) {
			a := records.ReadAttempt(r)
			if bytes += store.AttemptTextBytes(&a); bytes > store.MaxHistoryTextBytes && len(attempts) > 0 {
				return false, nil
			}
			attempts = append(attempts, a)
			return len(attempts) < limit, nil
		}, `SELECT `+records.AttemptColumns+` FROM attempts WHERE seq = ? AND n < ? ORDER BY n DESC LIMIT ?`, jobSeq,
			int64(beforeAttemptNumber), int64(limit))
	})
	slices.Reverse(attempts)
	return attempts, err
}

// Attempt reads one attempt with its output. attemptNumber is the attempt's number, or 0 for the last attempt.
func (s *JobReader) Attempt(ctx context.Context, jobSeq int64, attemptNumber int) (attempt queue.Attempt, err error) {
	err = s.RunRead(ctx, func(r *ReadSnapshot) error {
		last, plain, err := r.lastAttemptInJobRow(jobSeq)
		if err != nil {
			return err
		}
		if plain && (attemptNumber == 0 || attemptNumber == last.Number) {
			attempt = last
			return nil
		}
		where, args := `seq = ? AND n = ?`, []any{jobSeq, int64(attemptNumber)}
		if attemptNumber == 0 {
			where, args = `seq = ? ORDER BY n DESC LIMIT 1`, args[:1]
		}
		found, err := database.ReadFirstRow(r, func(r database.Row) {
			attempt = records.ReadAttempt(r)
			attempt.Output, attempt.OutputFileRef, attempt.Result = bytes.Clone(r.BytesView(records.AttemptColumnCount)), r.Text(
				records.AttemptColumnCount+1),
				bytes.Clone(r.BytesView(records.AttemptColumnCount+2))
		}, `SELECT `+records.AttemptColumns+`, output, output_ref, result FROM attempts WHERE `+where, args...)
		if err == nil && !found {
			err = queue.Errorf(queue.CodeNotFound, "attempt %d was removed or does not exist; see: queuectl show ID",
				attemptNumber)
		}
		return err
	})
	return attempt, err
}

// lastAttemptInJobRow reads the last attempt of a job from the job's own row. found is false if the attempt has a row
// in the table attempts instead. If the job does not exist, lastAttemptInJobRow returns an error.
func (r *ReadSnapshot) lastAttemptInJobRow(jobSeq int64) (attempt queue.Attempt, found bool, err error) {
	there, err := database.ReadFirstRow(r, func(r database.Row) { attempt, found = records.ReadLastAttempt(r) },
		`SELECT `+records.LastAttemptColumns+` FROM jobs WHERE seq = ?`, jobSeq)
	if err == nil && !there {
		err = MissingJobError(r.Statements, jobSeq)
	}
	return attempt, found, err
}

// maxJobsScannedPerPage limits the jobs that are read for one page if no index matches the filter. A page that reaches
// the limit ends early, and its field NextBeforeSeq says where the next page continues.
const maxJobsScannedPerPage = 10_000

func checkPageLimit(limit int) error {
	if limit < 1 || limit > store.MaxPageRows {
		return queue.InvalidFieldError("limit", "the limit must be between 1 and %[2]d, not %[1]d", limit, store.MaxPageRows)
	}
	return nil
}

// List reads a page of jobs, the newest first.
func (s *JobReader) ListJobs(ctx context.Context, f store.JobFilter) (page store.JobPage, err error) {
	err = s.withSelectedRefs(ctx, f, func(r *ReadSnapshot, selected store.JobRefPage) error {
		reserved := s.fencesByReservedSeq()
		page = store.JobPage{NextBeforeSeq: selected.NextBeforeSeq}
		bytes := 0
		for _, ref := range selected.Refs {
			j, err := r.selectExistingJob(reserved, ref.Seq, records.JobColumns)
			if err != nil {
				return err
			}
			if bytes += store.JobTextBytes(&j); bytes > store.MaxPageTextBytes && len(page.Jobs) > 0 {
				page.NextBeforeSeq = page.Jobs[len(page.Jobs)-1].Seq
				return nil
			}
			page.Jobs = append(page.Jobs, j)
		}
		return nil
	})
	return page, err
}

// ListJobRefs reads a page of references to the jobs that a filter selects.
func (s *JobReader) ListJobRefs(ctx context.Context, f store.JobFilter) (refPage store.JobRefPage, err error) {
	err = s.withSelectedRefs(ctx, f, func(_ *ReadSnapshot, page store.JobRefPage) error {
		refPage = page
		return nil
	})
	return refPage, err
}

// withSelectedRefs calls handlePage with a page of references to the jobs that a filter selects. handlePage uses the
// read transaction in which the references were read.
func (s *JobReader) withSelectedRefs(ctx context.Context, f store.JobFilter,
	handlePage func(*ReadSnapshot, store.JobRefPage) error) error {
	m, err := newJobMatcher(f)
	if err != nil {
		return err
	}
	states := f.States
	if len(states) == 0 {
		states = []queue.State{0}
		// Read the jobs of each state separately: for a state of unfinished jobs, the read can stop at the
		// first job that is too old.
		if f.Since > 0 {
			states = queue.States()
		}
	}
	return s.RunRead(ctx, func(r *ReadSnapshot) error {
		var selected store.JobRefPage
		for _, state := range states {
			if err := m.addMatchesInState(r, state, &selected); err != nil {
				return err
			}
		}
		slices.SortFunc(selected.Refs, func(a, b store.JobRef) int { return cmp.Compare(b.Seq, a.Seq) })
		// If the read for one state stopped at a job before the end, the page ends at this job for all
		// states.
		selected.Refs = slices.DeleteFunc(selected.Refs,
			func(ref store.JobRef) bool { return ref.Seq < selected.NextBeforeSeq })
		if len(selected.Refs) > f.Limit {
			selected.Refs = selected.Refs[:f.Limit]
			selected.NextBeforeSeq = selected.Refs[f.Limit-1].Seq
		}
		return handlePage(r, selected)
	})
}

// jobMatcher is a prepared filter. It reads no column that contains settings of jobs. So large jobs cost no more
// than small ones, and jobs with damaged settings are found too.
type jobMatcher struct {
	store.JobFilter
	idMatches     func(id string) bool
	encodedLabels [][]byte // each label in the form that it has in a job's JSON
}

func newJobMatcher(f store.JobFilter) (m jobMatcher, err error) {
	m.JobFilter = f
	if err := checkPageLimit(f.Limit); err != nil {
		return m, err
	}
	if m.BeforeSeq == 0 {
		m.BeforeSeq = math.MaxInt64
	}
	m.idMatches = func(string) bool { return true }
	if f.IDGlob != "" {
		if m.idMatches, err = queue.CompileGlob(f.IDGlob); err != nil {
			return m, err
		}
	}
	for name, value := range f.Labels {
		raw, err := json.Marshal(map[string]string{name: value})
		if err != nil {
			return m, err
		}
		m.encodedLabels = append(m.encodedLabels, raw[1:len(raw)-1])
	}
	return m, nil
}

// addMatchesInState adds the selected jobs of one state to the result; 0 means all states. If it stops before the last
// job, it raises result.NextBeforeSeq to the seq of the job at which it stopped.
func (m *jobMatcher) addMatchesInState(r *ReadSnapshot, state queue.State, result *store.JobRefPage) error {
	from, args := `WHERE`, []any{records.BoolToInt(len(m.encodedLabels) > 0)}
	if state != 0 {
		from, args = `INDEXED BY jobs_state WHERE state = ? AND`, append(args, int64(state))
	}
	scanned, selected, more := 0, 0, true
	for piece, before := min(maxJobsScannedPerPage, max(r.QueryRowLimit(0, 0), m.Limit+1)), m.BeforeSeq; more; piece *= 4 {
		rows := 0
		err := r.Query(func(r database.Row) (bool, error) {
			if queue.UnixMillis(r.Int64(4)) < m.Since && !state.HasEnded() {
				more = false
				return false, nil
			}
			rows++
			scanned++
			before = r.Int64(0)
			if m.matchesRow(r) {
				result.Refs = append(result.Refs, store.JobRef{Seq: before, ID: r.Text(1), State: queue.State(r.Int64(2)),
					UID: int(r.Int64(3))})
				selected++
			}
			if more = selected <= m.Limit && scanned < maxJobsScannedPerPage; !more {
				result.NextBeforeSeq = max(result.NextBeforeSeq, before)
			}
			return more, nil
		}, `SELECT seq, id, state, uid, created_at, ended_at, CASE WHEN ? <> 0 THEN labels ELSE '' END, queue, hooks
			FROM jobs `+from+` seq < ? ORDER BY seq DESC LIMIT ?`, append(slices.Clip(args), before, int64(piece))...)
		if err != nil {
			return err
		}
		more = more && rows == piece
	}
	return nil
}

func (m *jobMatcher) matchesRow(r database.Row) bool {
	if m.ViewerUID != nil && queue.HookEvents(r.Int64(8))&queue.SettingsHookFlag != 0 &&
		int64(*m.ViewerUID) != r.Int64(3) {
		return false
	}
	if m.UID != nil && int64(*m.UID) != r.Int64(3) || m.Queue != "" && r.Text(7) != m.Queue {
		return false
	}
	if at := queue.UnixMillis(cmp.Or(r.Int64(5), r.Int64(4))); at < m.Since || m.Until != 0 && at >= m.Until {
		return false
	}
	return m.hasAllLabels(r.BytesView(6)) && m.idMatches(r.Text(1))
}

// hasAllLabels reports whether the JSON of a job's labels contains all labels of the filter. It first searches
// the encoded labels in the JSON, so that most jobs that lack a label are excluded without decoding.
func (m *jobMatcher) hasAllLabels(labelsJSON []byte) bool {
	if len(m.encodedLabels) == 0 {
		return true
	}
	for _, part := range m.encodedLabels {
		if !bytes.Contains(labelsJSON, part) {
			return false
		}
	}
	var labels map[string]string
	if json.Unmarshal(labelsJSON, &labels) != nil {
		return false
	}
	for name, value := range m.Labels {
		if got, ok := labels[name]; !ok || got != value {
			return false
		}
	}
	return true
}

// maxJobsScannedForOldestReady limits how many jobs of a state OldestReadySince searches, in the order in which they
// were enqueued. If this many jobs that are not due yet were enqueued before the oldest ready job, OldestReadySince
// does not find that job.
const maxJobsScannedForOldestReady = 1000

// OldestReadySince returns since when the job that has waited longest could have started, or 0 if no job is
// ready.
func (s *JobReader) OldestReadySince(ctx context.Context) (oldestSince queue.UnixMillis, err error) {
	err = s.RunRead(ctx, func(r *ReadSnapshot) error {
		for _, state := range []queue.State{queue.Pending, queue.Failed} {
			first, err := r.QueryNumber(`SELECT min(since) FROM (SELECT since FROM jobs INDEXED BY jobs_state
				WHERE state = ? ORDER BY seq LIMIT ?) AS firsts WHERE since <= ?`,
				int64(state), int64(maxJobsScannedForOldestReady), int64(s.Now()))
			if err != nil {
				return err
			}
			if m := queue.UnixMillis(first); m != 0 && (oldestSince == 0 || m < oldestSince) {
				oldestSince = m
			}
		}
		return nil
	})
	return oldestSince, err
}

// Events returns up to limit events whose number is above afterSeq, oldest first. See docs/decisions/0019.
func (s *JobReader) Events(ctx context.Context, afterSeq int64, limit int) (events []queue.Event, err error) {
	// Leave out the events after the last published one: the counts do not include them yet.
	last, _ := s.LastEventSeq()
	err = s.RunRead(ctx, func(r *ReadSnapshot) error {
		return r.Query(func(r database.Row) (bool, error) {
			var e queue.Event
			database.ScanRow(r, &e.Seq, &e.Time, &e.Kind, &e.JobSeq, &e.JobID, &e.State)
			if err := json.Unmarshal(r.BytesView(6), &e.Detail); err != nil {
				return false, fmt.Errorf("event %d is damaged: %w; see: queuectl doctor --verify", e.Seq, err)
			}
			if r.Int64(8) != 0 {
				e.RestrictedToUID = new(int(r.Int64(7)))
			}
			events = append(events, e)
			return true, nil
		}, `SELECT seq, at, kind, job, id, state, detail, private, private IS NOT NULL FROM events
			WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?`, afterSeq, last, int64(limit))
	})
	return events, err
}

// unresolvedDependenciesOf returns the unresolved dependencies of a job, at most store.MaxLoadedDependencies of them.
func (r *ReadSnapshot) unresolvedDependenciesOf(childSeq int64) ([]queue.Dependency, error) {
	return database.ReadRows(r, func(r database.Row) (d queue.Dependency) {
		database.ScanRow(r, &d.ParentSeq, &d.ParentID, &d.Condition)
		return d
	}, `SELECT parent, coalesce(jobs.id, ''), how FROM edges INDEXED BY edges_child LEFT JOIN jobs ON seq = parent
		WHERE child = ? AND met = 0 ORDER BY edges.id LIMIT ?`, childSeq, int64(store.MaxLoadedDependencies))
}
