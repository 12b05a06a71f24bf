package postgres

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/noderequests"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/test/pgserver"
)

func reportJobStarted(t *testing.T, s *Store, j *queue.Job) {
	t.Helper()
	if _, err := s.ReportAndClaim(t.Context(), store.LeaseReport{AttemptStarts: []store.AttemptStart{{Lease: j.Lease(),
		StartedAt: s.Now(),
		WorkerID:  "1/1", PID: 1}}}); err != nil {
		t.Fatal(err)
	}
}

// completedSettlementOn returns the report that a job has completed, with the times of the store's clock.
func completedSettlementOn(s *Store, j *queue.Job) store.Settlement {
	return store.Settlement{Lease: j.Lease(), Decision: queue.AttemptDecision{NextState: queue.Completed,
		RecordsAttempt: true},
		Attempt: queue.Attempt{StartedAt: s.Now(), EndedAt: s.Now()}}
}

// rejoinWithNewStateDir opens a node with the name of an existing node, but with another state directory.
func rejoinWithNewStateDir(t *testing.T, url, name string) *Store {
	t.Helper()
	s, err := Open(t.Context(), url, Options{RankOrder: queue.RankPolicy{Scheduling: "fifo", AgingUnit: "time",
		AgingInterval: time.Minute}, Node: NodeConfig{NodeName: name, StateDirID: "another", LeaseDuration: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// If the server rejects a statement because its disk is full, the store stays usable. When there is free
// space, the same report succeeds: statements that the server had not prepared are prepared then.
func TestStoreRecoversFromFullServerDisk(t *testing.T) {
	a := openNodeWithGPU(t, pgserver.SharedServer(t).CreateDatabase(t), "a")
	enqueueOnNode(t, a, newDraft(), newDraft())
	jobs := claimOnNode(t, a, 2)
	end := func(j *queue.Job) error {
		_, err := a.ReportAndClaim(t.Context(), store.LeaseReport{
			AttemptStarts: []store.AttemptStart{{Lease: j.Lease(), StartedAt: a.Now(), WorkerID: "1/1", PID: 1}},
			Settlements:   []store.Settlement{completedSettlementOn(a, j)}})
		return err
	}
	if err := end(&jobs[0]); err != nil {
		t.Fatal(err)
	}
	sql := func(text string) {
		if err := a.NodeMessenger.Conn.UseConn(t.Context(), func(c *pgdb.Conn) error {
			return c.ExecScript(t.Context(), text)
		}); err != nil {
			t.Fatal(err)
		}
	}
	sql(`CREATE FUNCTION queuectl.full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no space' USING ERRCODE = '53100'; END $$; CREATE TRIGGER full_disk BEFORE UPDATE ON queuectl.jobs FOR EACH ROW EXECUTE FUNCTION queuectl.full()`)
	if err := end(&jobs[1]); !errors.Is(err, queue.ErrNoSpace) {
		t.Errorf("without space: %v", err)
	}
	sql(`DROP TRIGGER full_disk ON queuectl.jobs`)
	if err := end(&jobs[1]); err != nil || a.Err() != nil {
		t.Errorf("with space: %v, and the store has %v", err, a.Err())
	}
}

// A node sends a hint on SharedDataChangeHints when another node has made changes. It does so while it is idle, and
// also while it applies the changes in its own transactions.
func TestNodeSignalsChangesByOtherNodes(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
	for range 5 {
		for len(b.sharedChangeHints) > 0 {
			<-b.sharedChangeHints
		}
		enqueueOnNode(t, a, newDraft())
		if err := b.RunAndCommit(t.Context(), engine.UrgentClass, func(*engine.Tx) error { return nil }); err != nil {
			t.Fatal(err)
		}
		select {
		case <-b.SharedDataChangeHints():
		case <-time.After(20 * time.Second):
			t.Fatal("no notification of a change within 20 s")
		}
	}
}

// When a node changes a lease, watchers on another node see the change, and so does a node that takes over
// the job.
func TestWatchersSeeLeaseChangesOfAnotherNode(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a := openNodeWithGPU(t, url, "a")
	enqueueOnNode(t, a, newDraft())
	held := claimOnNode(t, a, 1)
	reportJobStarted(t, a, &held[0])
	b := openNodeWithGPU(t, url, "b") // b is opened after the claim, so it reads the complete lease from the database
	watching := b.WatchJobs([]int64{1})
	defer watching.Stop()
	if err := a.RecordJobPause(t.Context(), store.JobPauseRequest{Lease: held[0].Lease(), Paused: true,
		RequesterUID: 7}); err != nil {
		t.Fatal(err)
	}
	for paused := false; !paused; {
		select {
		case <-watching.C:
			j, err := b.GetJob(t.Context(), "1")
			if err != nil {
				t.Fatal(err)
			}
			paused = j.PausedAt != 0
			watching.ChangedJobs()
		case <-time.After(20 * time.Second):
			t.Fatal("a watcher on another node does not see that the job was paused")
		}
	}
	expireNodeLease(t, b, "a")
	lost, err := b.TakeOverLeases(t.Context())
	if err != nil || len(lost) != 1 || lost[0].Job.PausedAt == 0 {
		t.Errorf("the paused job is taken over as %+v, %v", lost, err)
	}
	if j, err := b.GetJob(t.Context(), "1"); err != nil || j.PausedAt == 0 || j.PausedBy != 7 {
		t.Errorf("after the takeover, the job is paused at %v by %d, %v", j.PausedAt, j.PausedBy, err)
	}
}

// If a node returns with another state directory, any node can take over its old leases, even the node
// itself. Jobs that other nodes have claimed stay with those nodes.
func TestLeasesOfLostStateDirAreTakenOver(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
	enqueueOnNode(t, a, newDraft(), newDraft(), newDraft())
	held := claimOnNode(t, a, 2)
	reportJobStarted(t, a, &held[0])
	theirs := claimOnNode(t, b, 1)
	expireNodeLease(t, b, "a")
	again := rejoinWithNewStateDir(t, url, "a")
	if m, err := again.RenewNodeLease(t.Context(), store.NodeLoad{WorkerCount: 1}); err != nil || !m.HasLeasesToTakeOver {
		t.Errorf("membership %+v, %v; want HasOrphans, because leases without a node exist", m, err)
	}
	lost, err := again.TakeOverLeases(t.Context())
	if err != nil || len(lost) != 2 {
		t.Errorf("%d leases are taken over, %v", len(lost), err)
	}
	if _, err := b.ReportAndClaim(t.Context(), store.LeaseReport{Settlements: []store.Settlement{completedSettlementOn(b,
		&theirs[0])}}); err != nil {
		t.Fatal(err)
	}
	var ends []store.Settlement
	for i := range lost {
		ends = append(ends, completedSettlementOn(again, &lost[i].Job))
	}
	if _, err := again.ReportAndClaim(t.Context(), store.LeaseReport{Settlements: ends}); err != nil {
		t.Fatal(err)
	}
	if err := openNodeWithGPU(t, url, "c").RunAndCommit(t.Context(), engine.UrgentClass, func(tx *engine.Tx) error {
		if n := len(tx.Leases()); n != 0 {
			t.Errorf("all jobs have ended, but %d are leased", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if m, err := again.RenewNodeLease(t.Context(), store.NodeLoad{WorkerCount: 1}); err != nil || m.HasLeasesToTakeOver {
		t.Errorf("membership %+v, %v; want no orphans, because no lease remains", m, err)
	}
}

// A node receives notifications of requests immediately, even while it reads the changes of another node.
func TestNodeReceivesRequestNotifications(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
	late := 0
	for i := range 60 {
		for len(b.RequestHints()) > 0 {
			<-b.RequestHints()
		}
		began := time.Now()
		err := a.NodeMessenger.Conn.UseConn(t.Context(), func(c *pgdb.Conn) error {
			_, err := c.QueryNumber(`SELECT 1 FROM pg_notify(?, ?::bigint::text)`, commitsNotifyChannel, a.NodeNumber())
			for until := began.Add(time.Duration(i*8) * time.Microsecond); time.Now().Before(until); {
			}
			_, err2 := c.QueryNumber(`SELECT 1 FROM pg_notify(?, ?::bigint::text)`, noderequests.RequestsNotifyChannel,
				b.NodeNumber())
			return errors.Join(err, err2)
		})
		if err != nil {
			t.Fatal(err)
		}
		<-b.RequestHints()
		if time.Since(began) > minPollInterval*3/4 { // the notification was lost, and the node polled
			late++
		}
	}
	if late > 2 { // on a busy machine, some notifications are late
		t.Errorf("%d of 60 hints were missed", late)
	}
}

// TakeRequests returns each request to a node once, and a second time only if the node's service was
// restarted. AwaitedRequestNumbers lists the requests whose callers are still waiting.
func TestNodeRequestsAreTakenOnce(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
	for range 70 {
		go a.SendRequest(t.Context(), b.NodeNumber(), []byte(`{}`), false)
	}
	seen := map[int64]bool{}
	for len(seen) < 70 {
		list, err := b.TakeRequests(t.Context(), false, 64)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range list {
			if seen[one.Number] {
				t.Errorf("request %d was returned twice", one.Number)
			}
			seen[one.Number] = true
		}
	}
	if wanted, err := b.AwaitedRequestNumbers(t.Context()); err != nil || len(wanted) != 70 {
		t.Errorf("%d requests are wanted, %v; want 70", len(wanted), err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if list, err := openNodeWithGPU(t, url, "b").TakeRequests(t.Context(), false, 99); err != nil || len(list) != 70 {
		t.Errorf("after a restart, the node gets %d requests, %v; want 70", len(list), err)
	}
}

// A database whose encoding cannot store every text is rejected when it is opened, before any job is stored.
func TestDatabaseWithUnsupportedEncodingIsRejected(t *testing.T) {
	p := pgserver.SharedServer(t)
	pgserver.Query(t, p.DatabaseURL(
		"postgres"), `CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0`)
	if _, err := Open(t.Context(), p.DatabaseURL("latin"), Options{Node: NodeConfig{NodeName: "a",
		StateDirID: "a"}}); !errors.Is(err,
		queue.ErrInvalid) || !strings.Contains(err.Error(), "UTF8") {
		t.Errorf("%v", err)
	}
}
