package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/integrity"
	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

func withUID(uid int) func(*queue.Job) { return func(j *queue.Job) { j.UID = uid } }

// enqueueForUser enqueues n jobs of a user.
func enqueueForUser(t *testing.T, s *Store, uid, n int, changes ...func(*queue.Job)) []int64 {
	t.Helper()
	drafts := make([]queue.Job, n)
	for i := range drafts {
		drafts[i] = newDraft(append([]func(*queue.Job){withUID(uid)}, changes...)...)
	}
	r, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts, UID: uid})
	if err != nil {
		t.Fatal(err)
	}
	return r.Seqs
}

// setLowPriority gives a job a low priority, so that its user does not take turns with other users.
func setLowPriority(j *queue.Job) { j.Priority = -1 }

// setMaxLeasedPerUser limits how many jobs of each user may be leased.
func setMaxLeasedPerUser(t *testing.T, s *Store, n int) {
	t.Helper()
	if err := s.SetMaxRunningPerUser(t.Context(), n); err != nil {
		t.Fatal(err)
	}
}

// claimJobs passes a report to ReportAndClaim. It returns the claimed jobs and their seqs.
func claimJobs(t *testing.T, s *Store, report store.LeaseReport) (seqs []int64, jobs []queue.Job) {
	t.Helper()
	grant, err := s.ReportAndClaim(t.Context(), report)
	if err != nil || len(grant.StaleLeases) > 0 {
		t.Fatalf("stale %v, error %v", grant.StaleLeases, err)
	}
	for i := range grant.ClaimedJobs {
		seqs = append(seqs, grant.ClaimedJobs[i].Seq)
	}
	return seqs, grant.ClaimedJobs
}

// completedSettlement returns the settlement of a leased job that has completed.
func completedSettlement(j *queue.Job) store.Settlement {
	return store.Settlement{Lease: j.Lease(), Decision: queue.AttemptDecision{NextState: queue.Completed,
		CountsTowardMaxAttempts: true, RecordsAttempt: true}}
}

// queryNumber returns the integer result of a query.
func queryNumber(t *testing.T, s *Store, query string) (n int64) {
	t.Helper()
	err := s.RunAndCommit(t.Context(), UrgentClass, func(t *Tx) (err error) {
		n, err = t.QueryNumber(query)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// expectNoFaults checks that Verify finds no faults. testStep names the point in the test, for the error
// message.
func expectNoFaults(t *testing.T, s *Store, testStep string) {
	t.Helper()
	if got := findFaults(t, s); len(got) > 0 {
		t.Errorf("%s: %q", testStep, got)
	}
}

// findFaults returns the messages about the faults that Verify finds.
func findFaults(t *testing.T, s *Store) (messages []string) {
	t.Helper()
	list, err := s.Verify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		if f.Level != store.LevelOK {
			messages = append(messages, f.Message)
		}
	}
	return messages
}

// Jobs that wait because their user has too many running jobs run in their order after the store is opened
// again. It makes no difference whether the store was closed or the service died, and what the new limit is.
func TestJobsOverQuotaRunInOrderAfterReopening(t *testing.T) {
	for _, c := range []struct {
		bound int
		want  []int64
	}{{0, []int64{2, 12, 3, 4, 5, 6, 7, 8, 9, 10}}, {1, nil}, {2, []int64{2, 12}}, {4, []int64{2, 12, 3, 4}}} {
		dir := t.TempDir()
		s := openStore(t, dir)
		setMaxLeasedPerUser(t, s, 1)
		enqueueForUser(t, s, 1, 10)
		enqueueForUser(t, s, 2, 2)
		first, jobs := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 9})
		if !slices.Equal(first, []int64{1, 11}) {
			t.Fatalf("claimed %v", first)
		}
		// Start only one of the two claimed jobs, so that the other one is still reserved.
		claimJobs(t, s, store.LeaseReport{AttemptStarts: []store.AttemptStart{{Lease: jobs[0].Lease(), StartedAt: 1}}})
		s.Close()
		s = openStore(t, dir)
		setMaxLeasedPerUser(t, s, c.bound)
		if got, _ := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 20}); !slices.Equal(got, c.want) {
			t.Errorf("with %d a user: claimed %v, want %v", c.bound, got, c.want)
		}
		got, _ := claimJobs(t, s, store.LeaseReport{Settlements: []store.Settlement{completedSettlement(&jobs[0])},
			MaxJobsToClaim: 20})
		if c.bound == 1 && !slices.Equal(got, []int64{2}) {
			t.Errorf("after the end of a job: claimed %v, want the next job", got)
		}
		expectNoFaults(t, s, "at the end")
	}
}

// One claim changes a limited number of rows, even if a user has very many waiting jobs. So other users need
// not wait long for their changes.
func TestClaimChangesBoundedRows(t *testing.T) {
	const many, worker = 20 * rules.MaxLaneStepsPerTx, 4
	s := openStore(t, t.TempDir())
	most := countChangedRows(t, s)
	enqueueMany(t, s, many, withUID(1))
	other := enqueueForUser(t, s, 2, 1, setLowPriority)
	setMaxLeasedPerUser(t, s, worker)
	most()
	await := func(want int) (seqs []int64, jobs []queue.Job) {
		t.Helper()
		jobs, err := s.AwaitJobs(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		for i := range jobs {
			seqs = append(seqs, jobs[i].Seq)
		}
		return seqs, jobs
	}
	seqs, jobs := await(worker)
	if rows, _ := most(); !slices.Equal(seqs, []int64{1, 2, 3, 4}) || rows > 10 {
		t.Errorf("claimed %v in a transaction of %d rows", seqs, rows)
	}
	if got, _ := await(worker); !slices.Equal(got, other) {
		t.Errorf("with many waiting jobs of another user: claimed %v, want %v", got, other)
	}
	if rows, n := most(); rows > 10 || n > 1 {
		t.Errorf("with many waiting jobs of another user, a claim took %d transactions of up to %d rows", n, rows)
	}
	next := int64(worker)
	for range 20 { // from now on, the number of waiting jobs must make no difference
		got, more := claimJobs(t, s, store.LeaseReport{Settlements: []store.Settlement{completedSettlement(&jobs[0])},
			MaxJobsToClaim: worker})
		if next++; !slices.Equal(got, []int64{next}) {
			t.Fatalf("claimed %v, want %d", got, next)
		}
		jobs = append(jobs[1:], more...)
	}
	if rows, _ := most(); rows > 10 {
		t.Errorf("%d rows were changed to end a job and claim one", rows)
	}
	for range 20 {
		enqueueForUser(t, s, 1, 1)
	}
	if rows, _ := most(); rows > 10 {
		t.Errorf("%d rows were changed to enqueue a job that is kept back", rows)
	}
	setMaxLeasedPerUser(t, s, 0)
	if got, _ := await(2 * rules.MaxLaneStepsPerTx); len(got) != 2*rules.MaxLaneStepsPerTx || got[0] != next+1 ||
		!slices.IsSorted(got) {
		t.Errorf("without a bound %d were claimed, from %d on", len(got), got[0])
	}
	if rows, _ := most(); rows > 10 {
		t.Errorf("%d rows were changed when the bound was lifted", rows)
	}
}

// If a user enqueues very many jobs while no worker is free, only as many of them as the user may run at a
// time start before the jobs of other users.
func TestRunningJobLimitHoldsForFloodingUser(t *testing.T) {
	s := openStore(t, t.TempDir())
	setMaxLeasedPerUser(t, s, 3)
	enqueueMany(t, s, 5000, withUID(1))
	other := enqueueForUser(t, s, 2, 1, setLowPriority)
	want := []int64{1, 2, 3, other[0]}
	got, jobs := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 9})
	if !slices.Equal(got, want) {
		t.Errorf("claimed %v, want %v", got, want)
	}
	better := enqueueForUser(t, s, 1, 2, func(j *queue.Job) { j.Priority = 9 })
	if got, _ := claimJobs(t, s, store.LeaseReport{Settlements: []store.Settlement{completedSettlement(&jobs[0]),
		completedSettlement(&jobs[1]), completedSettlement(&jobs[2])}, MaxJobsToClaim: 9}); !slices.Equal(got,
		append(better, 4)) {
		t.Errorf("claimed %v, want the better ones and the next", got)
	}
}

// A claim that waits for a job may take too many steps for one transaction. It is then cut short, and
// continues by itself in another transaction.
func TestInterruptedClaimContinuesInNextTransaction(t *testing.T) {
	s := openStore(t, t.TempDir())
	setMaxLeasedPerUser(t, s, 1)
	const users = 2 * rules.MaxLaneStepsPerTx
	for uid := range users { // a later claim finds that these users have no more jobs
		enqueueForUser(t, s, uid, 2)
	}
	other := enqueueForUser(t, s, users, 2)
	for n := 0; n < users+1; {
		got, _ := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 2 * users})
		if n += len(got); len(got) == 0 {
			t.Fatalf("claimed %d", n)
		}
	}
	for seq := int64(2); seq < other[0]; seq += 2 {
		if err := s.ChangeJob(t.Context(), seq, store.JobChange{Verb: queue.VerbCancel}); err != nil {
			t.Fatal(err)
		}
	}
	result := make(chan []queue.Job, 1)
	go func() {
		jobs, err := s.AwaitJobs(t.Context(), 1)
		if err != nil {
			t.Error(err)
		}
		result <- jobs
	}()
	for waits := false; !waits; {
		s.mu.Lock()
		waits = s.waitingClaim != nil
		s.mu.Unlock()
	}
	setMaxLeasedPerUser(t, s, 0) // lets jobs of all users start again
	select {
	case jobs := <-result:
		if len(jobs) != 1 || jobs[0].Seq != other[1] {
			t.Errorf("got %+v, want the other user's job", jobs)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the claim does not continue")
	}
}

// The stored counts of users are correct after a restart, for any number of users. A transaction that is
// rolled back does not change them.
func TestUserCountsSurviveRestart(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	want := map[int]int64{}
	for uid := range 3*maxMetaListEntries + 5 {
		n := uid%4 + 1
		want[uid] = int64(n)
		for _, seq := range enqueueForUser(t, s, uid, n)[:uid%2] {
			if err := s.ChangeJob(t.Context(), seq, store.JobChange{Verb: queue.VerbCancel}); err != nil {
				t.Fatal(err)
			}
			want[uid]--
		}
	}
	maps.DeleteFunc(want, func(_ int, n int64) bool { return n == 0 })
	check := func(when string) {
		t.Helper()
		got := map[int]int64{}
		for uid, u := range s.cache.users {
			got[uid] = u.WaitingJobs
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", when, got, want)
		}
		if len(s.cache.metaUserUIDs) > maxMetaListEntries {
			t.Errorf("%s: %d are listed", when, len(s.cache.metaUserUIDs))
		}
		expectNoFaults(t, s, when)
	}
	check("after the enqueues")
	if n := queryNumber(t, s, `SELECT count(*) FROM users`); n == 0 {
		t.Error("no user has a row in the table users")
	}
	err := s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
		for uid := range 2 * maxMetaListEntries {
			j := newDraft(withUID(uid))
			tx.draftTexts = []records.EncodedTexts{{Settings: "{}"}}
			if err := tx.rules.InsertJob(&j, 0, uid, tx.engine.cache.NextJobSeq, fmt.Sprint("undone ", uid)); err != nil {
				t.Error(err)
			}
			tx.engine.cache.NextJobSeq++
		}
		if _, _, err := tx.rules.Claim(9); err != nil {
			t.Error(err)
		}
		tx.updateMetaUserList()
		if tx.statementErr != nil {
			t.Error(tx.statementErr)
		}
		err := tx.Exec(`INSERT INTO jobs (seq) VALUES ('no number')`)
		return err
	})
	if err == nil {
		t.Fatal("the database accepted an invalid row")
	}
	check("after a transaction that was undone")
	if _, err := s.AdvanceEpoch(t.Context()); err != nil {
		t.Fatal(err)
	}
	for uid, u := range s.cache.users {
		if u.leasedJobs != 0 {
			t.Errorf("uid %d has %d jobs leased", uid, u.leasedJobs)
		}
	}
	s.Close()
	s = openStore(t, dir)
	check("opened again")
}

// A queue that has neither a rule nor jobs leaves no row in the table queues.
func TestUnusedQueueLeavesNoRow(t *testing.T) {
	s := openStore(t, t.TempDir())
	for _, rule := range []store.QueueRule{{Weight: 2}, store.DefaultQueueRule} {
		if err := s.SetQueue(t.Context(), "q", rule); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := s.conn.QueryNumber(`SELECT count(*) FROM queues`); n != 0 || err != nil {
		t.Errorf("the table queues has %d rows (%v), want none", n, err)
	}
}

// If the stored counts of users contradict the jobs, Verify reports this, and restoring a backup computes the
// counts again.
func TestVerifyChecksUserCounts(t *testing.T) {
	s := openStore(t, t.TempDir())
	setMaxLeasedPerUser(t, s, 1)
	enqueueForUser(t, s, 7, 3)
	claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 9})
	gone := enqueueForUser(t, s, 7, 1)
	if err := s.ChangeJob(t.Context(), gone[0], store.JobChange{Verb: queue.VerbCancel}); err != nil {
		t.Fatal(err)
	}
	plan := store.SchedulePutRequest{Schedule: store.Schedule{Name: "nightly", OwnerUID: 7, JobDraft: newDraft(),
		SpecJSON: "{}"}}
	if _, err := s.PutSchedule(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	expectNoFaults(t, s, "at first")
	must := func(q string) {
		t.Helper()
		err := s.RunAndCommit(t.Context(), UrgentClass, func(t *Tx) error {
			err := t.Exec(q)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	must(`UPDATE meta SET users = '7/2/9/4 '`)
	must(`INSERT INTO users VALUES (8, 1, 0, 0)`)
	must(`UPDATE jobs SET place = 2 WHERE seq = 4`)
	must(`UPDATE meta SET queues = 'default=2/7/1/5 '`)
	got := strings.Join(findFaults(t, s), "\n")
	for _, want := range []string{"uid 7: the counter of waiting jobs is 2, but should be 3",
		"uid 8: the counter of waiting jobs is 1, but should be 0",
		"uid 7: the counter of bytes used by its jobs and schedules is 9, but should be ",
		"uid 7: the counter of output bytes is 4, but should be 0",
		`queue "default": the counter of waiting jobs is 2, but should be 3`,
		`queue "default": the counter of jobs kept after their end is 1, but should be 0`,
		`queue "default": the counter of output bytes of jobs kept after their end is 5, but should be 0`,
		"1 jobs have a place in the queue that contradicts their state, for example job 4"} {
		if !strings.Contains(got, want) {
			t.Errorf("got %q, want %q in it", got, want)
		}
	}
	must(`UPDATE jobs SET place = 0 WHERE seq = 4`)
	if err := integrity.RepairBackup(s.conn); err != nil {
		t.Fatal(err)
	}
	must(`UPDATE schedules SET stored = stored + 1`)
	if got := strings.Join(findFaults(t, s), "\n"); !strings.Contains(got,
		"uid 7: the counter of bytes used by its jobs and schedules") {
		t.Errorf("a schedule with another size: got %q", got)
	}
	must(`UPDATE schedules SET stored = stored - 1`)
	expectNoFaults(t, s, "after correcting the count")
}

// However many groups of a user's jobs wait for the same lock, the start and the end of a job read the same
// number of rows.
func TestClaimReadsIndependentOfClosedLanes(t *testing.T) {
	lock := queue.Demand{Kind: queue.GateLock, GateKey: "k", Amount: 1}
	read := map[int]int64{}
	for _, n := range []int{50, 2000} {
		s := openStore(t, t.TempDir())
		for i := range n { // each job has different demands, so each is in a separate lane
			enqueueForUser(t, s, 1, 1, withDemands(lock, queue.Demand{Kind: queue.GateRate, GateKey: fmt.Sprint("r", i),
				Amount: 9, RatePeriod: time.Second}))
		}
		_, jobs := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 1})
		for range 3 * n / rules.MaxLaneStepsPerTx { // enough claims to find out, for all jobs, that the lock is taken
			claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 1})
		}
		enqueueForUser(t, s, 2, 20, withDemands(lock))
		enqueueForUser(t, s, 2, 20)
		countSQLiteInstructions(t, s)
		for range 20 {
			_, next := claimJobs(t, s, store.LeaseReport{Settlements: []store.Settlement{completedSettlement(&jobs[0])},
				MaxJobsToClaim: 1})
			jobs = next
		}
		read[n] = countSQLiteInstructions(t, s)
	}
	if read[2000] > 2*read[50] {
		t.Errorf("20 starts and ends took %d steps of SQLite with 50 lanes, and %d with 2000", read[50], read[2000])
	}
}

// A lane holds the waiting jobs of one queue and user with the same demands, such as a lock. An empty lane
// can be removed even if its list of demanded locks was lost through damage. The lane of the same queue and
// user for jobs without demands is not removed instead.
func TestDamagedLaneRemovalKeepsDemandFreeLane(t *testing.T) {
	s := openStore(t, t.TempDir())
	enqueueForUser(t, s, 1, 1, withDemands(lockDemand("k", 1)))
	_, jobs := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 2})
	// This claim finds that no job that needs this lock waits any more.
	claimJobs(t, s, store.LeaseReport{Settlements: []store.Settlement{completedSettlement(&jobs[0])}, MaxJobsToClaim: 2})
	enqueueForUser(t, s, 1, 1)
	name := lanes.DemandFreeLaneKey{Queue: "default", UID: 1}
	plain := s.cache.lanes.DemandFreeLanes[name]
	damageRow(t, s, `UPDATE lanes SET needs = '' WHERE demands <> ''`)
	s.maxEmptyLanes = 0
	err := s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
		_, err := tx.removeEmptyLanes()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := queryNumber(t, s, `SELECT count(*) FROM lanes WHERE demands <> ''`); n != 0 {
		t.Errorf("%d empty lanes are still stored, want none", n)
	}
	if got := s.cache.lanes.DemandFreeLanes[name]; plain == nil || got != plain {
		t.Errorf("the cached plain lane is %p, want %p", got, plain)
	}
}
