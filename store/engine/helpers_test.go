package engine_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/store/postgres"
	"github.com/queuectl/queuectl/store/sqlite"
	"github.com/queuectl/queuectl/test/pgserver"
)

func TestMain(m *testing.M) {
	code := m.Run()
	pgserver.StopSharedServer()
	os.Exit(code)
}

func openStore(t *testing.T, dir string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), sqlite.Options{Dir: dir, RankOrder: engine.DefaultRankOrder})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// enqueue stores n jobs in one request.
func enqueue(t *testing.T, s *sqlite.Store, n int) store.Receipt {
	t.Helper()
	drafts := make([]queue.Job, n)
	for i := range drafts {
		drafts[i] = engine.NewDraft()
	}
	r, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// reusableDatabaseURLs holds the URLs of databases on the shared server that finished tests have used, so that later
// tests can use them.
var reusableDatabaseURLs = make(chan string, 64)

// createEmptyDatabase returns a database on the shared server that contains no queue. It empties a database that a
// finished test has used, or creates a new one.
func createEmptyDatabase(t *testing.T) (url string) {
	t.Helper()
	select {
	case url = <-reusableDatabaseURLs:
		resetTables(t, url)
	default:
		url = pgserver.SharedServer(t).CreateDatabase(t)
	}
	t.Cleanup(func() { reusableDatabaseURLs <- url })
	return url
}

// resetTables gives the tables of a database the contents that they have in a new database.
func resetTables(t *testing.T, url string) {
	t.Helper()
	var script strings.Builder
	for _, statement := range database.SchemaMigrations[0] {
		words := strings.Fields(statement)
		if words[0] != "CREATE" || words[1] != "TABLE" {
			continue
		}
		switch table := words[2]; table {
		// Truncate the large tables: deleted rows would slow down the scans of later tests.
		case "jobs", "attempts", "events", "edges", "lanes", "meta":
			script.WriteString("TRUNCATE " + table + ";")
		default:
			script.WriteString("DELETE FROM " + table + ";")
		}
	}
	for _, statement := range database.SchemaMigrations[0] {
		if strings.HasPrefix(statement, "INSERT") {
			script.WriteString(statement + ";")
		}
	}
	script.WriteString(
		`DELETE FROM nodes; DELETE FROM changes; DELETE FROM asks; DELETE FROM roles; DELETE FROM submissions;`)
	script.WriteString(`SELECT setval(s.oid::regclass, 1, false) FROM pg_class s WHERE relkind = 'S'`)
	config, err := pgdb.ParseDatabaseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c, err := pgdb.Connect(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.ExecScript(t.Context(), script.String()); err != nil {
		t.Fatal(err)
	}
}

// sharedServerOrSkip skips a slow test if QUEUECTL_SERVER is not set. Otherwise it returns the shared server.
func sharedServerOrSkip(t *testing.T) *pgserver.Server {
	if os.Getenv("QUEUECTL_SERVER") == "" {
		skip.MissingRequirement(t, "long", "takes long; make server-suite runs it, and .ci/run calls that")
	}
	return pgserver.SharedServer(t)
}

// openClusterNode opens a store as the node with the given name, with one unit of the resource gpu.
func openClusterNode(t *testing.T, url, name string) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), url, postgres.Options{RankOrder: queue.RankPolicy{Scheduling: "fifo",
		AgingUnit:     "time",
		AgingInterval: time.Minute}, Node: postgres.NodeConfig{NodeName: name, StateDirID: name, LeaseDuration: time.Hour}})
	if err == nil {
		err = s.SetThisNodeProperties(t.Context(), store.Node{Name: name, ResourceUnits: map[string]int{"gpu": 1}})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// enqueueOnNode enqueues jobs of user 7 on a node, and returns their seqs.
func enqueueOnNode(t *testing.T, s *postgres.Store, drafts ...queue.Job) []int64 {
	t.Helper()
	r, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts, UID: 7})
	if err != nil {
		t.Fatal(err)
	}
	return r.Seqs
}

// claimOnNode claims up to maxJobs jobs on a node.
func claimOnNode(t *testing.T, s *postgres.Store, maxJobs int) (jobs []queue.Job) {
	t.Helper()
	g, err := s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: maxJobs})
	if err != nil {
		t.Fatal(err)
	}
	return g.ClaimedJobs
}

func seqsOfJobs(jobs []queue.Job) (jobSeqs []int64) {
	for _, j := range jobs {
		jobSeqs = append(jobSeqs, j.Seq)
	}
	return jobSeqs
}

func draftWithDemand(d queue.Demand) queue.Job {
	j := engine.NewDraft()
	j.Demands = []queue.Demand{d}
	return j
}

// expireNodeLease makes a node's lease expire.
func expireNodeLease(t *testing.T, url, nodeName string) {
	t.Helper()
	pgserver.Query(t, url, fmt.Sprintf(
		`UPDATE queuectl.nodes SET until = clock_timestamp() - interval '1 s' WHERE name = '%s'`, nodeName))
}

func reportJobStarted(t *testing.T, s *postgres.Store, j *queue.Job) {
	t.Helper()
	if _, err := s.ReportAndClaim(t.Context(), store.LeaseReport{AttemptStarts: []store.AttemptStart{{Lease: j.Lease(),
		StartedAt: s.Now(),
		WorkerID:  "1/1", PID: 1}}}); err != nil {
		t.Fatal(err)
	}
}

// completedSettlementOnNode returns the settlement of a leased job that has completed.
func completedSettlementOnNode(s *postgres.Store, j *queue.Job) store.Settlement {
	return store.Settlement{Lease: j.Lease(), Decision: queue.AttemptDecision{NextState: queue.Completed,
		RecordsAttempt: true},
		Attempt: queue.Attempt{StartedAt: s.Now(), EndedAt: s.Now()}}
}

// openPriorityNode opens a store as the node with the given name, with 10,000 units of the resource gpu. The
// node claims jobs by priority.
func openPriorityNode(t *testing.T, url, name string) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), url, postgres.Options{
		RankOrder: queue.RankPolicy{Scheduling: queue.SchedulingByPriority, AgingUnit: "time", AgingInterval: time.Minute},
		Node:      postgres.NodeConfig{NodeName: name, StateDirID: name, LeaseDuration: time.Hour},
	})
	if err == nil {
		err = s.SetThisNodeProperties(t.Context(), store.Node{Name: name, ResourceUnits: map[string]int{"gpu": 10000}})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// enqueueForUsers enqueues jobs of the users with the uids 1 to userCount. Each user gets jobsPerDemandList jobs
// for each of the lists of demands (what a job needs to start, such as a lock).
func enqueueForUsers(t *testing.T, s *postgres.Store, userCount, jobsPerDemandList int, demands ...[]queue.Demand) {
	t.Helper()
	for uid := 1; uid <= userCount; uid++ {
		var drafts []queue.Job
		for range jobsPerDemandList {
			for _, d := range demands {
				drafts = append(drafts, engine.NewDraft(func(j *queue.Job) { j.UID, j.Demands = uid, d }))
			}
		}
		if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts, UID: uid}); err != nil {
			t.Fatal(err)
		}
	}
}

// lockDemands returns the list of demands of a job that needs only a lock. maxHolders is the limit of the lock.
func lockDemands(key string, maxHolders int) []queue.Demand {
	return []queue.Demand{{Kind: queue.GateLock, GateKey: key, Amount: maxHolders}}
}
