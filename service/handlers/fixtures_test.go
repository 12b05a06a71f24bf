package handlers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/sqlite"
)

// ownerUID is the uid of the user who enqueued the jobs of these tests.
const ownerUID = 61300

// newSQLiteTestAPI returns an API under test with default options and a new SQLite store.
func newSQLiteTestAPI(t testing.TB) *testAPI {
	t.Helper()
	return newSQLiteTestAPIWith(t, testAPIOptions{})
}

// newSQLiteTestAPIWith returns an API under test with the given options and a new SQLite store.
func newSQLiteTestAPIWith(t testing.TB, o testAPIOptions) *testAPI {
	t.Helper()
	o.runnerLocation = runner.RunnersLocation{RunnersDir: t.TempDir()}
	o.store = openSQLiteStore(t)
	return newTestAPI(t, o)
}

// openSQLiteStore opens a new SQLite store.
func openSQLiteStore(t testing.TB) store.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), sqlite.Options{Dir: t.TempDir(),
		RankOrder: queue.RankPolicy{Scheduling: queue.SchedulingByPriority}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// contextAsPeer returns the context of a request of a user with a right.
func contextAsPeer(t testing.TB, uid int, right control.Right) context.Context {
	return control.WithPeer(t.Context(), *newPeer(uid, right))
}

// draftWithID returns a draft (a job to be enqueued) with this id. It belongs to the user ownerUID.
func draftWithID(id string) queue.Job {
	return queue.Job{ID: id, UID: ownerUID, State: queue.Pending, ExitCode: -1, MaxAttempts: 1_000_000,
		ExecutionSettings: queue.ExecutionSettings{Command: "true", OutputLimitBytes: 1 << 30}}
}

// enqueueJobs enqueues jobs that belong to the user ownerUID.
func (s *testAPI) enqueueJobs(t testing.TB, jobs ...queue.Job) {
	t.Helper()
	for len(jobs) > 0 {
		n := min(len(jobs), 1000)
		if _, err := s.Store.Enqueue(t.Context(), store.EnqueueRequest{UID: ownerUID, Drafts: jobs[:n]}); err != nil {
			t.Fatal(err)
		}
		jobs = jobs[n:]
	}
}

// claimJobs claims the first n waiting jobs.
func (s *testAPI) claimJobs(t testing.TB, n int) []queue.Job {
	t.Helper()
	turned, err := s.Store.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: n})
	if err != nil || len(turned.ClaimedJobs) != n {
		t.Fatalf("%d jobs were claimed, %v, want %d", len(turned.ClaimedJobs), err, n)
	}
	return turned.ClaimedJobs
}

// endJobs ends the attempts of these leased jobs, and moves the jobs to endState. The parameter attempt describes how
// each attempt ended.
func (s *testAPI) endJobs(t testing.TB, jobs []queue.Job, endState queue.State, attempt queue.Attempt) {
	t.Helper()
	if attempt.OutputFileRef != "" && attempt.OutputBytes == 0 {
		attempt.OutputBytes = runner.CappedOutputFileBytes(s.RunnerLocation.RunnersDir, attempt.OutputFileRef, 1<<40)
	}
	var report store.LeaseReport
	for i := range jobs {
		a := attempt
		a.Fence, a.StartedAt, a.EndedAt = jobs[i].Lease().Fence, s.Store.Now(), s.Store.Now()
		report.Settlements = append(report.Settlements, store.Settlement{Lease: jobs[i].Lease(), Attempt: a,
			Decision: queue.AttemptDecision{NextState: endState, CountsTowardMaxAttempts: true, RecordsAttempt: true}})
	}
	if turned, err := s.Store.ReportAndClaim(t.Context(), report); err != nil || len(turned.StaleLeases) > 0 {
		t.Fatalf("%+v, %v", turned, err)
	}
}

// draftsWithPrefix returns the given number of jobs to be enqueued. Their ids consist of idPrefix and a number.
func draftsWithPrefix(idPrefix string, jobCount int) []queue.Job {
	jobs := make([]queue.Job, jobCount)
	for i := range jobs {
		jobs[i] = draftWithID(fmt.Sprint(idPrefix, i))
	}
	return jobs
}

// writeOutputFile writes an output file. The callback writes the chunks of the file.
func (s *testAPI) writeOutputFile(t testing.TB, ref string, writeChunks func(write func(output.Chunk))) {
	t.Helper()
	path := runner.OutputPath(s.RunnerLocation.RunnersDir, ref)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l := output.NewLog(1<<30, func() (*os.File, error) { return os.CreateTemp(t.TempDir(), "spill") })
	defer l.Discard()
	writeChunks(func(c output.Chunk) { l.Append(c.Stream, c.ReadTimeMillis, c.Data) })
	l.Close()
	if err := l.EncodeFile(f); err != nil {
		t.Fatal(err)
	}
}

// readOutputFile returns the content of an output file.
func (s *testAPI) readOutputFile(t *testing.T, ref string) []byte {
	t.Helper()
	raw, err := os.ReadFile(runner.OutputPath(s.RunnerLocation.RunnersDir, ref))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
