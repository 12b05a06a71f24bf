package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/test/pgserver"
)

// reopenNode opens a node that was open before, and checks that it has exactly one lease, with the given
// fence (the number of the lease).
func reopenNode(t *testing.T, url string, options Options, wantFence int64) *Store {
	t.Helper()
	s, err := Open(t.Context(), url, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	left, err := s.PreviousSession(t.Context())
	if err != nil || len(left.LeasedJobs) != 1 || left.LeasedJobs[0].Fence != wantFence {
		t.Errorf("the restarted service has the leases %+v, %v", left.LeasedJobs, err)
	}
	return s
}

// A service that restarts before its node lease expires keeps the leases of its jobs. Another service of the
// same name is rejected.
func TestRestartedNodeKeepsItsLeases(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a := openNodeWithGPU(t, url, "a")
	enqueueOnNode(t, a, newDraft())
	held := claimOnNode(t, a, 1)
	options := Options{RankOrder: a.RankOrder(), Node: NodeConfig{NodeName: "a", StateDirID: "another",
		LeaseDuration: time.Hour}}
	if _, err := Open(t.Context(), url, options); !errors.Is(err, queue.ErrExists) {
		t.Errorf("another service of the same name: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	options.Node.StateDirID = "a"
	reopenNode(t, url, options, held[0].Fence)
}

// While a node's service runs, a service with a copy of the node's directory cannot join. With another node
// name, it gets ErrStateDirCopied. With the same name, it waits for the node lease to expire, and is rejected if
// the lease is renewed.
func TestCopiedStateDirCannotJoin(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	const lease = 500 * time.Millisecond
	open := func(name, place string) (*Store, error) {
		return Open(t.Context(), url, Options{RankOrder: queue.RankPolicy{Scheduling: "fifo", AgingUnit: "time",
			AgingInterval: time.Minute}, Node: NodeConfig{NodeName: name, StateDirID: "one", StateDirLocation: place,
			LeaseDuration: lease}})
	}
	a, err := open("a", "here")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	prolong := func() error { _, err := a.RenewNodeLease(t.Context(), store.NodeLoad{WorkerCount: 1}); return err }
	enqueueOnNode(t, a, newDraft(), newDraft())
	held := claimOnNode(t, a, 1)
	if err := prolong(); err != nil {
		t.Fatal(err)
	}
	if _, err := open("b", "there"); !errors.Is(err, ErrStateDirCopied) {
		t.Errorf("a copy of another name: %v, want %v", err, ErrStateDirCopied)
	}
	ctx, end := context.WithCancel(t.Context())
	var renewals sync.WaitGroup
	renewals.Go(func() {
		for range time.Tick(lease / 5) {
			if ctx.Err() != nil || prolong() != nil {
				return
			}
		}
	})
	_, err = open("a", "there")
	end()
	renewals.Wait()
	if !errors.Is(err, queue.ErrExists) || !strings.Contains(err.Error(), "copy") {
		t.Errorf("a copy of the same name: %v", err)
	}
	if err := prolong(); err != nil {
		t.Fatalf("the node is disturbed: %v", err)
	}
	again, err := open("a", "there") // open the same directory in another place, as after a reboot
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if left, err := again.PreviousSession(t.Context()); err != nil || len(left.LeasedJobs) != 1 ||
		left.LeasedJobs[0].Fence != held[0].Fence {
		t.Errorf("the restarted service has the leases %+v, %v", left.LeasedJobs, err)
	}
	if _, err := again.RenewNodeLease(t.Context(), store.NodeLoad{WorkerCount: 1}); err != nil {
		t.Error(err)
	}
	if err := prolong(); err == nil {
		t.Error("the previous service can still renew its node lease")
	}
}

// A renamed node keeps the leases of its jobs, even if the new name belonged to a node that is gone.
func TestRenamedNodeKeepsItsLeases(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, z := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "z")
	enqueueOnNode(t, a, newDraft(), newDraft())
	held, other := claimOnNode(t, a, 1), claimOnNode(t, z, 1)
	expireNodeLease(t, a, "z")
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	again := reopenNode(t, url, Options{RankOrder: a.RankOrder(), Node: NodeConfig{NodeName: "z", StateDirID: "a",
		LeaseDuration: time.Hour}},
		held[0].Fence)
	lost, err := again.TakeOverLeases(t.Context())
	if err != nil || len(lost) != 1 || lost[0].Job.Seq != other[0].Seq {
		t.Errorf("the renamed node takes over %+v, %v from the other node", lost, err)
	}
}

// While nodes are upgraded one by one, two versions use the same database. The first upgraded node changes
// the tables, and the old nodes keep running. A program that is too old for the tables is rejected.
func TestNodesOfTwoVersionsShareDatabase(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	old := openNodeWithGPU(t, url, "old")
	enqueueOnNode(t, old, newDraft(), newDraft())
	run := claimOnNode(t, old, 1)
	steps := append(slices.Clone(database.SchemaMigrations),
		[]string{`ALTER TABLE jobs ADD COLUMN colour TEXT NOT NULL DEFAULT ''`})
	own := append(slices.Clone(pgdb.PostgresMigrations),
		[]string{`ALTER TABLE nodes ADD COLUMN colour TEXT NOT NULL DEFAULT ''`})
	fresh := openNodeWithGPU(t, url, "new")
	pgserver.Query(
		t, url, `CREATE OR REPLACE FUNCTION queuectl.enqueue(spec jsonb) RETURNS text LANGUAGE sql AS 'SELECT ''older'''`)
	together := make(chan error)
	for range 2 { // two nodes upgrade at the same time: one waits for the other
		go func() {
			c, err := pgdb.Connect(t.Context(), fresh.connConfig)
			if err == nil {
				defer c.Close()
				err = pgdb.EnsureTables(c, steps, own)
			}
			together <- err
		}()
	}
	if err := errors.Join(<-together, <-together); err != nil {
		t.Fatal(err)
	}
	if got := pgserver.Query(
		t, url,
		`SELECT version, (SELECT count(*) FROM pg_attribute WHERE attname = 'colour' AND attrelid IN ('queuectl.jobs'::regclass, 'queuectl.nodes'::regclass)), (SELECT prosrc LIKE '%may not enqueue%' FROM pg_proc WHERE proname = 'enqueue' AND pronamespace = 'queuectl'::regnamespace) FROM queuectl.schema`); got != "2|2|t" {
		t.Errorf("version, number of new columns, and whether the function is new: %s", got)
	}
	if _, err := old.ReportAndClaim(t.Context(),
		store.LeaseReport{Settlements: []store.Settlement{completedSettlementOn(old,
			&run[0])}}); err != nil {
		t.Fatal(err)
	}
	enqueueOnNode(t, old, newDraft())
	if got := seqsOfJobs(claimOnNode(t, fresh, 9)); !slices.Equal(got, []int64{2, 3}) {
		t.Errorf("the new node claims %v, want jobs 2 and 3", got)
	}
	for oldest, want := range map[int64]error{1: nil, 2: store.ErrNewerSchema} { // restart the old program
		pgserver.Query(t, url, fmt.Sprintf(`UPDATE queuectl.meta SET min_reader = %d`, oldest))
		c, err := pgdb.Connect(t.Context(), fresh.connConfig)
		if err != nil {
			t.Fatal(err)
		}
		if err := pgdb.EnsureTables(c, database.SchemaMigrations, pgdb.PostgresMigrations); !errors.Is(err, want) {
			t.Errorf("version 1 opens tables of version 2 with min_reader %d: got %v, want %v", oldest, err, want)
		}
		c.Close()
	}
}

// A service that cannot join because the queue is being moved gets an error that names the session which
// holds the lock.
func TestJoinErrorNamesMoveLockHolder(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a := openNodeWithGPU(t, url, "a")
	c, err := pgdb.Connect(t.Context(), a.connConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := c.QueryNumber(`SELECT pg_try_advisory_lock(` + fmt.Sprint(pgdb.QueueAdvisoryLockID) +
		`)`); err != nil ||
		got != 1 {
		t.Fatal(got, err)
	}
	_, err = Open(t.Context(), url, Options{RankOrder: a.RankOrder(), Node: NodeConfig{NodeName: "b", StateDirID: "b"}})
	if want := fmt.Sprintf("by PostgreSQL session %d of the role queuectl", c.PID()); err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("a service that joins while the queue is locked: %v, want %q", err, want)
	}
}

// When a node with a new state directory takes the name of a node that is gone, the roles that the old node
// had set for submissions are removed.
func TestRolesOfReplacedNodeAreRemoved(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	x, b := openNodeWithGPU(t, url, "x"), openNodeWithGPU(t, url, "b")
	if err := x.SetAcceptedDatabaseRoles(t.Context(), []string{"app"}); err != nil {
		t.Fatal(err)
	}
	x.Close()
	b.Close()
	s, err := Open(t.Context(), url, Options{RankOrder: queue.RankPolicy{Scheduling: "fifo", AgingUnit: "time",
		AgingInterval: time.Minute}, Node: NodeConfig{NodeName: "x", StateDirID: "b", LeaseDuration: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	n, _ := s.writer.QueryNumber(`SELECT count(*) FROM nodes`)
	left, _ := s.writer.QueryNumber(`SELECT count(*) FROM roles WHERE node NOT IN (SELECT id FROM nodes)`)
	if n != 1 || left != 0 {
		t.Errorf("%d nodes, %d roles without a node", n, left)
	}
}
