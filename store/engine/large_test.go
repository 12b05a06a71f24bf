package engine

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// countPagesRead returns how many database pages a connection reads while f runs.
func countPagesRead(t *testing.T, c *sqlitedb.Conn, f func()) (n int) {
	t.Helper()
	result := libc.Xmalloc(c.TLS, 8)
	defer libc.Xfree(c.TLS, result)
	count := func() int {
		if rc := sqlite3.Xsqlite3_db_status(c.TLS, c.DBHandle, sqlite3.SQLITE_DBSTATUS_CACHE_MISS, result, result+4,
			0); rc != sqlite3.SQLITE_OK {
			t.Fatalf("the count of pages: SQLite's result %d", rc)
		}
		return int(**(**int32)(unsafe.Pointer(&result)))
	}
	before := count()
	f()
	return count() - before
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// onlyReadConn returns the only connection that the test has used for reading.
func onlyReadConn(t *testing.T, s *Store) *sqlitedb.Conn {
	t.Helper()
	if _, err := s.OldestReadySince(t.Context()); err != nil || len(s.readConns) != 1 {
		t.Fatalf("%d connections were opened, %v", len(s.readConns), err)
	}
	return s.readConns[0]
}

// withLargeInput gives a job 760 KB of env and stdin.
func withLargeInput(j *queue.Job) {
	j.Stdin = strings.Repeat("x", queue.MaxStdinBytes)
	for i := range 4 {
		j.Env = append(j.Env, string(rune('A'+i))+"="+strings.Repeat("y", 125_000))
	}
}

// withLargeArgs gives a job 500 KB of arguments.
func withLargeArgs(j *queue.Job) {
	j.Command, j.Argv = "", slices.Repeat([]string{strings.Repeat("z", 125_000)}, 4)
}

// A list or selection that leaves out other users' jobs reads almost nothing of these jobs, however large
// they are. If a list includes large jobs, its page contains fewer jobs.
func TestListsSkipOtherUsersLargeJobs(t *testing.T) {
	const many = 30 // number of jobs of each kind, in total 38 MB
	s := openStore(t, t.TempDir())
	labelled := func(j *queue.Job) { j.Labels = map[string]string{"app": "x"} }
	mine := enqueueForUser(t, s, 3, 2, labelled)
	for range many {
		enqueueForUser(t, s, 1, 1, withLargeInput)
		enqueueForUser(t, s, 2, 1, withLargeArgs)
	}
	mine = append(mine, enqueueForUser(t, s, 3, 2, labelled)...)
	slices.Reverse(mine)
	reader := onlyReadConn(t, s)
	for name, f := range map[string]store.JobFilter{
		"user":       {UID: new(3)},
		"state":      {UID: new(3), States: []queue.State{queue.Pending, queue.Held}},
		"label":      {Labels: map[string]string{"app": "x"}},
		"glob":       {UID: new(3), IDGlob: "*"},
		"older than": {UID: new(3), Until: s.clock() + 1},
	} {
		f.Limit = store.MaxPageRows
		var listed, selected []int64
		pages := countPagesRead(t, reader, func() {
			page, err := s.ListJobs(t.Context(), f)
			if err != nil || page.NextBeforeSeq != 0 {
				t.Errorf("%s: list: next %d, %v", name, page.NextBeforeSeq, err)
			}
			for i := range page.Jobs {
				listed = append(listed, page.Jobs[i].Seq)
			}
			refs, err := s.ListJobRefs(t.Context(), f)
			if err != nil || refs.NextBeforeSeq != 0 {
				t.Errorf("%s: select: next %d, %v", name, refs.NextBeforeSeq, err)
			}
			for _, ref := range refs.Refs {
				selected = append(selected, ref.Seq)
			}
		})
		if !slices.Equal(listed, mine) || !slices.Equal(selected, mine) {
			t.Errorf("%s: listed %v, selected %v, want %v", name, listed, selected, mine)
		}
		if pages > 3*2*many { // two pages per job, one for each query, with some more for interior pages of the index
			t.Errorf("%s: %d pages were read to find %d jobs among %d", name, pages, len(mine), 2*many)
		}
	}
	// Lists contain no inputs, so one page has room for all jobs with large inputs. But a page has room for
	// only one job with large arguments, because it contains the arguments twice.
	pages := countPagesRead(t, reader, func() {
		page, err := s.ListJobs(t.Context(), store.JobFilter{UID: new(1), Limit: store.MaxPageRows})
		if err != nil || len(page.Jobs) != many || page.NextBeforeSeq != 0 {
			t.Errorf("with large input: %d jobs, next %d, %v", len(page.Jobs), page.NextBeforeSeq, err)
		}
	})
	if pages > 4*2*many {
		t.Errorf("%d pages were read for a list without inputs", pages)
	}
	pages = countPagesRead(t, reader, func() {
		page, err := s.ListJobs(t.Context(), store.JobFilter{UID: new(2), Limit: store.MaxPageRows})
		if err != nil || len(page.Jobs) != 1 || page.NextBeforeSeq != page.Jobs[0].Seq {
			t.Errorf("with large terms: %d jobs, next %d, %v", len(page.Jobs), page.NextBeforeSeq, err)
		}
	})
	if pages > 3*2*many+4*125 {
		t.Errorf("%d pages were read for a page of jobs with large terms", pages)
	}
}

// A job's large input is written once. It is not written again when an attempt ends or when a change does not
// affect it. It is removed together with the job.
func TestLargeJobInputIsWrittenOnce(t *testing.T) {
	s := openStore(t, t.TempDir())
	seq := enqueueForUser(t, s, 1, 1, withLargeInput)[0]
	_, jobs := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 1})
	if len(jobs) != 1 || len(jobs[0].Stdin) != queue.MaxStdinBytes || len(jobs[0].Env) != 4 {
		t.Fatalf("claimed %d jobs, want one with its stdin and environment", len(jobs))
	}
	change := func(verb queue.Verb) func() error {
		return func() error {
			return s.ChangeJob(t.Context(), seq, store.JobChange{Verb: verb, NewTimeout: new(time.Second)})
		}
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"end", func() error {
			_, err := s.ReportAndClaim(t.Context(),
				store.LeaseReport{Settlements: []store.Settlement{completedSettlement(&jobs[0])}})
			return err
		}},
		{"retry", change(queue.VerbRetry)},
		{"hold", change(queue.VerbHold)},
		{"release", change(queue.VerbRelease)},
		{"cancel", change(queue.VerbCancel)},
	} {
		wal := fileSize(t, s.path+"-wal")
		pages := countPagesRead(t, s.conn, func() {
			if err := step.do(); err != nil {
				t.Errorf("%s: %v", step.name, err)
			}
		})
		if grown := fileSize(t, s.path+"-wal") - wal; pages > 20 || grown > 20*sqlitedb.PageSize {
			t.Errorf("%s: %d pages were read and %d bytes written", step.name, pages, grown)
		}
	}
	if n := queryNumber(t, s, `SELECT count(*) FROM inputs`); n != 1 {
		t.Errorf("%d inputs are stored, want one", n)
	}
	if err := change(queue.VerbRemove)(); err != nil {
		t.Error(err)
	}
	if n := queryNumber(t, s, `SELECT count(*) FROM inputs`); n != 0 {
		t.Errorf("%d inputs remain, want none", n)
	}
}

// countStatementStarts returns how often a statement was started.
func countStatementStarts(c *sqlitedb.Conn, sql string) int64 {
	if c.PreparedStmts[sql] == 0 {
		return 0 // the statement was never prepared
	}
	return int64(sqlite3.Xsqlite3_stmt_status(c.TLS, c.PreparedStmts[sql], sqlite3.SQLITE_STMTSTATUS_RUN, 0))
}
