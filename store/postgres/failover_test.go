package postgres

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/test/pgserver"
)

// applyCommitsOfOtherNodes begins a transaction on a node, which applies the commits of other nodes.
func applyCommitsOfOtherNodes(t *testing.T, s *Store) {
	t.Helper()
	if err := s.RunAndCommit(t.Context(), engine.UrgentClass, func(*engine.Tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
}

// saveAllTables saves the rows of all tables. The returned function restores them, so that the database has lost all
// later commits, like an asynchronous standby that was promoted too early.
func saveAllTables(t *testing.T, url string) (restore func()) {
	t.Helper()
	const eachTable = `DO $$ DECLARE name text; BEGIN
		FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'queuectl' LOOP %s END LOOP; END $$`
	pgserver.Query(t, url, `CREATE SCHEMA saved; `+fmt.Sprintf(eachTable,
		`EXECUTE format('CREATE TABLE saved.%1$I AS TABLE queuectl.%1$I', name);`))
	return func() {
		t.Helper()
		pgserver.Query(t, url, fmt.Sprintf(eachTable, `EXECUTE format('DELETE FROM queuectl.%1$I; INSERT INTO
			queuectl.%1$I OVERRIDING SYSTEM VALUE TABLE saved.%1$I', name);`))
	}
}

// The promotion of an asynchronous standby can lose the last commits. Later commits then get the same numbers. A node
// that has made or read a lost commit reloads its caches, even if its connection did not break because a pooler hides
// the failover. Otherwise it could claim a job that another node has leased.
func TestNodeReloadsCachesWhenItsLastCommitIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		commits   int // number of commits after the promotion
		connected bool
	}{
		"the same number":              {commits: 2},
		"the same number, by a pooler": {commits: 2, connected: true},
		"a higher number":              {commits: 3},
		"a higher number, by a pooler": {commits: 3, connected: true},
	} {
		t.Run(name, func(t *testing.T) {
			url := pgserver.SharedServer(t).CreateDatabase(t)
			a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
			a.StopListening()
			b.StopListening()
			enqueueOnNode(t, a, newDraft(), newDraft(), newDraft())
			applyCommitsOfOtherNodes(t, b)
			restore := saveAllTables(t, url)
			enqueueOnNode(t, a, newDraft())
			enqueueOnNode(t, b, newDraft())
			applyCommitsOfOtherNodes(t, a)
			known := a.DatabaseCounters().CommitCount
			restore()
			if !c.connected {
				pgserver.Query(t, url, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
					WHERE datname = current_database() AND pid <> pg_backend_pid()`)
			}
			first := seqsOfJobs(claimOnNode(t, b, 1))
			wanted := []int64{2, 3}
			for range c.commits - 1 {
				wanted = append(wanted, enqueueOnNode(t, b, newDraft(func(j *queue.Job) { j.Queue = "other" }))...)
			}
			if got, want := b.DatabaseCounters().CommitCount-known, int64(c.commits-2); got != want {
				t.Fatalf("node b is %d commits ahead of node a, want %d", got, want)
			}
			second := seqsOfJobs(claimOnNode(t, a, 9))
			slices.Sort(second)
			if !slices.Equal(first, []int64{1}) || !slices.Equal(second, wanted) {
				t.Errorf("node b claims %v, then node a %v; want [1] and %v", first, second, wanted)
			}
			if got, next := enqueueOnNode(t, a, newDraft()), wanted[len(wanted)-1]+1; !slices.Equal(got, []int64{next}) {
				t.Errorf("node a enqueues job %v, want %d", got, next)
			}
		})
	}
}

// An idle node notices that the database has lost commits, although the number of the newest commit has not risen.
func TestIdleNodeNoticesLostCommits(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
	enqueueOnNode(t, a, newDraft())
	restore := saveAllTables(t, url)
	enqueueOnNode(t, a, newDraft(), newDraft())
	applyCommitsOfOtherNodes(t, b)
	restore()
	for until := time.Now().Add(20 * time.Second); a.Counts().JobsByState[queue.Pending] != 1; {
		if time.Now().After(until) {
			t.Fatalf("an idle node still counts %d jobs, want 1", a.Counts().JobsByState[queue.Pending])
		}
		time.Sleep(minNotifyInterval)
	}
}

// A node that begins a transaction reads only the commits that it has missed, and reloads nothing.
func TestNodeAppliesMissedCommitsWithoutReload(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
	a.StopListening()
	applyCommitsOfOtherNodes(t, a) // a now knows of b, so it stores its changes for b
	for _, missed := range []int{0, 1, 6, 0, 11} {
		for range missed {
			enqueueOnNode(t, b, newDraft())
		}
		const want = 5 // the begin, the writer lock, two queries and the commit
		before := a.writer.StatementsSent
		applyCommitsOfOtherNodes(t, a)
		if got := a.writer.StatementsSent - before; got != want {
			t.Errorf("a transaction after %d commits of another node sends %d statements, want %d", missed, got, want)
		}
		if got, want := a.Counts().JobsByState[queue.Pending], b.Counts().JobsByState[queue.Pending]; got != want {
			t.Errorf("the node counts %d jobs, want %d", got, want)
		}
		enqueueOnNode(t, a, newDraft()) // b applies this commit, and its next one follows it
		applyCommitsOfOtherNodes(t, b)
	}
}
