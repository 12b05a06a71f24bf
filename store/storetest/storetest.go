// Package storetest tests implementations of store.Store against the comments of that interface. Start with
// RunContractTests.
package storetest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Fixture is a new, empty store. Its clock moves only when a test calls AdvanceClock, so tests know all times exactly.
// The function that creates the store closes it with t.Cleanup, but tests may close it earlier.
type Fixture struct {
	Store        store.Store
	AdvanceClock func(time.Duration)
}

// RunContractTests tests every promise that store.Store makes. openStore creates a new store for each test.
func RunContractTests(t *testing.T, openStore func(t *testing.T, order queue.RankPolicy) Fixture) {
	for _, p := range slices.Concat(enqueueTests, verbTests, batchTests, retentionTests, claimTests,
		settleTests, awaitTests, readerTests, upkeepTests, ownerTests, concurrencyTests, userLimitTests,
		byteQuotaTests, gateTests, queueTests, dependencyTests, pauseTests, hookTests, scheduleTests,
		identityReuseTests, statsTests, userTurnTests, bestWaitingPriorityTests, randomWalkTests) {
		t.Run(p.name, func(t *testing.T) {
			order := p.rankOrder
			if order == (queue.RankPolicy{}) {
				order = defaultRankOrder
			}
			f := openStore(t, order)
			p.run(&storeTest{T: t, store: f.Store, advanceClock: f.AdvanceClock, rankOrder: order})
		})
	}
}

// contractTest is one promise of store.Store, with the function that tests it. If rankOrder is zero, the test uses
// defaultRankOrder.
type contractTest struct {
	name      string
	run       func(r *storeTest)
	rankOrder queue.RankPolicy
}

// defaultRankOrder is the order of jobs that the default settings define.
var defaultRankOrder = queue.RankPolicy{Scheduling: queue.SchedulingByAging, AgingUnit: queue.AgingByTime,
	AgingInterval: time.Minute}

// testRetryPolicy delays the retries of a job by 2 s, then 4 s, then 8 s.
var testRetryPolicy = queue.RetryPolicy{BaseSeconds: 2, Strategy: queue.BackoffExponential, MaxDelay: time.Hour,
	FixedDelay: time.Minute}

const (
	testUID        = 1000             // uid of the user in tests where it does not matter
	maxReceiveWait = 30 * time.Second // maximum time to wait for another goroutine
)

// storeTest is a store under test, with the helper functions of the tests.
type storeTest struct {
	*testing.T
	store        store.Store
	advanceClock func(time.Duration)
	rankOrder    queue.RankPolicy
	lastEventSeq int64 // number of the last event that readNewEvents has returned
}

// newDraft returns a job as queue.ResolveSpec returns it: it is not stored yet. Each of the options then changes the
// job.
func newDraft(options ...func(*queue.Job)) queue.Job {
	j := queue.Job{
		Queue: queue.DefaultQueue, UID: testUID, Priority: 5, MaxAttempts: 4, State: queue.Pending, ExitCode: -1,
		ExecutionSettings: queue.ExecutionSettings{Command: "true", Shell: "/bin/sh -c", Umask: 0o022,
			KillAfter: 10 * time.Second,
			OnLost:    queue.OnLostRetry, OutputLimitBytes: 1 << 20},
	}
	for _, f := range options {
		f(&j)
	}
	return j
}

// withID and the functions like it return options for newDraft, each of which sets one field of the job.
func withID(id string) func(*queue.Job)          { return func(j *queue.Job) { j.ID = id } }
func withPriority(n int64) func(*queue.Job)      { return func(j *queue.Job) { j.Priority = n } }
func withDelay(d time.Duration) func(*queue.Job) { return func(j *queue.Job) { j.Delay = d } }
func withExpiry(expiresAt queue.UnixMillis) func(*queue.Job) {
	return func(j *queue.Job) { j.ExpiresAt = expiresAt }
}
func withOnLost(action queue.OnLost) func(*queue.Job) {
	return func(j *queue.Job) { j.OnLost = action }
}
func withLabels(m map[string]string) func(*queue.Job) { return func(j *queue.Job) { j.Labels = m } }
func withMaxAttempts(n int) func(*queue.Job)          { return func(j *queue.Job) { j.MaxAttempts = n } }

// exitOutcome returns the outcome of a command that exited with a code.
func exitOutcome(code int64) queue.AttemptOutcome {
	return queue.AttemptOutcome{EndCause: queue.EndExited, ExitCode: code}
}

// outcomeOfCause returns the outcome of an attempt that ended for the given cause.
func outcomeOfCause(cause queue.EndCause) queue.AttemptOutcome {
	return queue.AttemptOutcome{EndCause: cause}
}
func leasesOf(jobs []queue.Job) []queue.Lease { return mapJobs(jobs, (*queue.Job).Lease) }
func seqsOf(jobs []queue.Job) []int64 {
	return mapJobs(jobs, func(j *queue.Job) int64 { return j.Seq })
}

func mapJobs[T any](jobs []queue.Job, f func(*queue.Job) T) (list []T) {
	for i := range jobs {
		list = append(list, f(&jobs[i]))
	}
	return list
}

// must ends the test if err is not nil.
func (r *storeTest) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatalf("got error %v, want none", err)
	}
}

// checkError checks that err is a queue.Error with the wanted code and field, and returns it.
func (r *storeTest) checkError(description string, err error, wantCode queue.ErrorCode, wantField string) *queue.Error {
	r.Helper()
	var e *queue.Error
	if !errors.As(err, &e) || e.Code != wantCode || e.Field != wantField {
		r.Fatalf("%s: got error %v, want code %s, field %q", description, err, wantCode, wantField)
	}
	return e
}

// errorCodeOf returns the code of an error, or "" for nil.
func errorCodeOf(err error) queue.ErrorCode {
	var e *queue.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Code
	}
	return queue.CodeInternal
}

// checkErrLeased checks that err is ErrJobLeased.
func (r *storeTest) checkErrLeased(description string, err error) {
	r.Helper()
	if !errors.Is(err, store.ErrJobLeased) {
		r.Errorf("%s: got error %v, want %v", description, err, store.ErrJobLeased)
	}
}

// enqueueJobs enqueues drafts of a user, in as many requests as necessary. The receipt contains the ids of all
// jobs.
func (r *storeTest) enqueueJobs(uid int, drafts ...queue.Job) (receipt store.Receipt) {
	r.Helper()
	for part := range slices.Chunk(drafts, queue.MaxJobsPerRequest) {
		got, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: part, UID: uid})
		r.must(err)
		receipt.IDs, receipt.Seqs = append(receipt.IDs, got.IDs...), append(receipt.Seqs, got.Seqs...)
	}
	return receipt
}

// enqueueAndGet enqueues drafts and returns the stored jobs.
func (r *storeTest) enqueueAndGet(drafts ...queue.Job) []queue.Job {
	r.Helper()
	receipt := r.enqueueJobs(testUID, drafts...)
	jobs := make([]queue.Job, len(receipt.IDs))
	for i, id := range receipt.IDs {
		jobs[i] = r.getJob(id)
	}
	return jobs
}

// enqueueOne enqueues a draft, changed by the given functions, and returns the stored job.
func (r *storeTest) enqueueOne(options ...func(*queue.Job)) queue.Job {
	r.Helper()
	return r.enqueueAndGet(newDraft(options...))[0]
}

func (r *storeTest) getJob(id string) queue.Job {
	r.Helper()
	j, err := r.store.GetWithEnvAndStdin(r.Context(), id)
	if err != nil {
		r.Fatalf("get %s: got error %v, want none", id, err)
	}
	return j
}

func (r *storeTest) sendLeaseReport(report store.LeaseReport) store.ReportAndClaimResult {
	r.Helper()
	grant, err := r.store.ReportAndClaim(r.Context(), report)
	r.must(err)
	r.checkAndClearRanks(grant.ClaimedJobs)
	return grant
}

// checkAndClearRanks checks the ranks of leased jobs. Then it sets these ranks to zero, so that tests can compare the
// jobs with the results of other methods, which contain no ranks.
func (r *storeTest) checkAndClearRanks(leasedJobs []queue.Job) {
	r.Helper()
	order := r.store.RankOrder()
	for i := range leasedJobs {
		j := &leasedJobs[i]
		checkEqual(r, "rank of the leased job "+j.ID, j.Rank, order.Rank(j.Priority, j.AgingSince, j.ArrivalNumber))
		j.Rank, j.StartPosition = 0, queue.StartPosition{}
	}
}

func (r *storeTest) claimJobs(maxJobs int) []queue.Job {
	r.Helper()
	return r.sendLeaseReport(store.LeaseReport{MaxJobsToClaim: maxJobs}).ClaimedJobs
}

// claimOne claims the job that is next in order. The test fails if no job can start.
func (r *storeTest) claimOne() queue.Job {
	r.Helper()
	jobs := r.claimJobs(1)
	if len(jobs) != 1 {
		r.Fatalf("got %d jobs claimed, want 1", len(jobs))
	}
	return jobs[0]
}

// expectedClaimedJobs returns jobsBefore as they must be after a claim: with the fences (lease numbers) of the jobs in
// claimedJobs. It checks that each fence is higher than the old fence of its job.
func (r *storeTest) expectedClaimedJobs(claimedJobs []queue.Job, jobsBefore ...queue.Job) []queue.Job {
	r.Helper()
	jobsBefore = slices.Clone(jobsBefore)
	for i := range min(len(claimedJobs), len(jobsBefore)) {
		if claimedJobs[i].Fence <= jobsBefore[i].Fence {
			r.Errorf("job %s was claimed with fence %d after fence %d, want a higher one", claimedJobs[i].ID,
				claimedJobs[i].Fence,
				jobsBefore[i].Fence)
		}
		jobsBefore[i].Fence = claimedJobs[i].Fence
	}
	return jobsBefore
}

// startJob reports that a claimed job starts now, and returns the stored job.
func (r *storeTest) startJob(j queue.Job) queue.Job {
	r.Helper()
	grant := r.sendLeaseReport(store.LeaseReport{AttemptStarts: []store.AttemptStart{{Lease: j.Lease(),
		StartedAt: r.store.Now(),
		WorkerID:  "w1", PID: 4242}}})
	checkEqual(r, "stale leases", grant.StaleLeases, nil)
	return r.getJob(j.ID)
}

// newSettlement returns a report that an attempt of job j has started and ended at the
// current time, with outcome o.
func (r *storeTest) newSettlement(j queue.Job, o queue.AttemptOutcome) store.Settlement {
	now := r.store.Now()
	d := queue.DecideAfterAttempt(&j, o, testRetryPolicy)
	e := store.Settlement{Lease: j.Lease(), Decision: d, Attempt: queue.Attempt{ExitCode: -1}}
	if d.RecordsAttempt {
		e.Attempt = queue.Attempt{
			Fence: j.Fence, Worker: "w1", Node: "n1", PID: 4242, StartedAt: now, EndedAt: now, ExitCode: -1, Signal: o.Signal,
			Reason: d.Reason, Error: d.Error, CountsTowardMaxAttempts: d.CountsTowardMaxAttempts,
			CPUTime:      1500 * time.Microsecond,
			PeakRSSBytes: 1 << 20,
		}
	}
	if o.EndCause == queue.EndExited {
		e.Attempt.ExitCode = o.ExitCode
	}
	return e
}

// settleJob records that a leased job ends now with outcome o. It returns the stored job.
func (r *storeTest) settleJob(j queue.Job, o queue.AttemptOutcome) queue.Job {
	r.Helper()
	grant := r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{r.newSettlement(j, o)}})
	checkEqual(r, "stale leases", grant.StaleLeases, nil)
	return r.getJob(j.ID)
}

// runJob enqueues a job, claims it and ends it with outcome o. It returns the stored job.
func (r *storeTest) runJob(o queue.AttemptOutcome, options ...func(*queue.Job)) queue.Job {
	r.Helper()
	r.enqueueOne(options...)
	return r.settleJob(r.claimOne(), o)
}

// applyDueChangesUntilDone calls ApplyDueChanges until nothing is due. It returns the time until the next change is
// due.
func (r *storeTest) applyDueChangesUntilDone() time.Duration {
	r.Helper()
	for range 1000 {
		next, err := r.store.ApplyDueChanges(r.Context())
		r.must(err)
		if next > 0 {
			return next
		}
	}
	r.Fatal("Promote still finds due jobs after 1000 calls")
	return 0
}

// advanceAndApplyDueChanges advances the clock by d and promotes the jobs that are then due.
func (r *storeTest) advanceAndApplyDueChanges(d time.Duration) {
	r.Helper()
	r.advanceClock(d)
	r.applyDueChangesUntilDone()
}

// readNewEvents returns the events since its last call, and checks that no event number is missing. It sets the
// numbers to zero, so that tests can compare events.
func (r *storeTest) readNewEvents() (events []queue.Event) {
	r.Helper()
	for {
		page, err := r.store.Events(r.Context(), r.lastEventSeq, 1000)
		r.must(err)
		if len(page) == 0 {
			return events
		}
		for _, e := range page {
			r.lastEventSeq++
			if e.Seq != r.lastEventSeq {
				r.Fatalf("got event %d, want %d, because the sequence must have no gap", e.Seq, r.lastEventSeq)
			}
			e.Seq = 0
			events = append(events, e)
		}
	}
}

// expectedEvent returns an event about the job j at the current time. j is the job after the event.
func (r *storeTest) expectedEvent(kind queue.EventKind, j queue.Job, d queue.EventDetail) queue.Event {
	return queue.Event{Time: r.store.Now(), Kind: kind, JobSeq: j.Seq, JobID: j.ID, State: j.State, Detail: d}
}

// listAllJobs lists all jobs that match a filter, newest first.
func (r *storeTest) listAllJobs(f store.JobFilter) (jobs []queue.Job) {
	r.Helper()
	if f.Limit == 0 {
		f.Limit = store.MaxPageRows
	}
	for {
		page, err := r.store.ListJobs(r.Context(), f)
		r.must(err)
		jobs = append(jobs, page.Jobs...)
		if page.NextBeforeSeq == 0 {
			return jobs
		}
		if f.BeforeSeq != 0 && page.NextBeforeSeq >= f.BeforeSeq {
			r.Fatalf("the page before job %d has next %d, want it lower", f.BeforeSeq, page.NextBeforeSeq)
		}
		f.BeforeSeq = page.NextBeforeSeq
	}
}

// checkJobCounts compares the counts that the store keeps with the list of all jobs.
func (r *storeTest) checkJobCounts() {
	r.Helper()
	var want [queue.Cancelled + 1]int64
	kept := map[string]store.OwnRetentionQueue{}
	for _, j := range r.listAllJobs(store.JobFilter{}) {
		want[j.State]++
		if q := kept[j.Queue]; j.UsesQueueRetention {
			kept[j.Queue] = store.OwnRetentionQueue{Name: j.Queue, EndedJobCount: q.EndedJobCount + 1,
				OutputBytes: q.OutputBytes +
					j.OutputBytes}
		}
	}
	checkEqual(r, "counts by state, compared with a recount", r.store.Counts().JobsByState, want)
	r.checkQueuesWithOwnRetention(slices.SortedFunc(maps.Values(kept),
		func(a, b store.OwnRetentionQueue) int { return cmp.Compare(a.Name, b.Name) })...)
}

// checkQueuesWithOwnRetention checks the result of QueuesWithOwnRetention: the queues with jobs that ended while the
// queue had its own retention settings. For each queue, the store counts these jobs and the bytes of their outputs.
func (r *storeTest) checkQueuesWithOwnRetention(want ...store.OwnRetentionQueue) {
	r.Helper()
	got, err := r.store.QueuesWithOwnRetention(r.Context())
	r.must(err)
	checkEqual(r, "queues with their own retention", got, want)
	jobs := int64(0)
	for _, q := range want {
		jobs += q.EndedJobCount
	}
	checkEqual(r, "jobs under the retention of their queue", r.store.Counts().JobsUnderQueueRetention, jobs)
}

// checkStoreUnchanged calls f, and checks that the call changes no job, count or event.
func (r *storeTest) checkStoreUnchanged(f func()) {
	r.Helper()
	r.readNewEvents()
	before, counts := r.listAllJobs(store.JobFilter{}), r.store.Counts()
	f()
	checkEqual(r, "jobs after an operation that must not change them", r.listAllJobs(store.JobFilter{}), before)
	checkEqual(r, "counts after an operation that must not change them", r.store.Counts().JobsByState, counts.JobsByState)
	checkEqual(r, "events of an operation that must not change anything", r.readNewEvents(), nil)
}

func sortedLeases(list []queue.Lease) []queue.Lease {
	slices.SortFunc(list, func(a, b queue.Lease) int {
		return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Fence, b.Fence))
	})
	return list
}

func eventsSortedByJob(events []queue.Event) []queue.Event {
	slices.SortStableFunc(events, func(a, b queue.Event) int { return cmp.Compare(a.JobSeq, b.JobSeq) })
	return events
}

// receive returns the value that another goroutine sends to c. The test fails if no value arrives within
// maxReceiveWait.
func receive[T any](r *storeTest, description string, c <-chan T) (v T) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), maxReceiveWait)
	defer cancel()
	select {
	case v = <-c:
	case <-ctx.Done():
		r.Fatalf("%s: received nothing within %s", description, maxReceiveWait)
	}
	return v
}

// checkEqual checks that got and want are deeply equal. A nil slice and an empty slice count as equal.
func checkEqual[T any](r *storeTest, description string, got, want T) {
	r.Helper()
	g, w := reflect.ValueOf(&got).Elem(), reflect.ValueOf(&want).Elem()
	if g.Kind() == reflect.Slice && g.Len()+w.Len() == 0 || reflect.DeepEqual(got, want) {
		return
	}
	r.Errorf("%s:\n%s", description, diffLines(jsonLines(got), jsonLines(want)))
}

// jsonLines returns v as lines of indented JSON.
func jsonLines(v any) []string {
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return []string{err.Error()}
	}
	return strings.Split(string(text), "\n")
}

// diffLines returns the lines in which got and want differ. If the numbers of lines differ, it
// returns all lines.
func diffLines(got, want []string) string {
	var b strings.Builder
	for i := range min(len(got), len(want)) {
		if len(got) == len(want) && got[i] != want[i] {
			b.WriteString("  got " + got[i] + "\n want " + want[i] + "\n")
		}
	}
	if b.Len() == 0 {
		b.WriteString("  got " + strings.Join(got, "") + "\n want " + strings.Join(want, ""))
	}
	return b.String()
}

// leasedJobs returns all leased jobs and checks their ranks.
func (r *storeTest) leasedJobs() ([]queue.Job, error) {
	session, err := r.store.PreviousSession(r.Context())
	r.checkAndClearRanks(session.LeasedJobs)
	return session.LeasedJobs, err
}

// walkSteps returns the number of steps of a random walk: the given number, or a quarter of it in short mode.
func walkSteps(fullSteps int) int {
	if testing.Short() {
		return fullSteps / 4
	}
	return fullSteps
}
