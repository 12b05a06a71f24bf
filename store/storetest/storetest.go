// Package storetest tests implementations of store.Store against the comments of that
// interface. Start with Run.
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

// Fixture is a new, empty store. Its clock moves only when a test calls Advance, so tests know all times
// exactly. The function that creates the store closes it with t.Cleanup, but tests may close it earlier.
type Fixture struct {
	Store   store.Store
	Advance func(time.Duration)
}

// Run tests every promise that store.Store makes. open creates the store for one test.
func Run(t *testing.T, open func(t *testing.T, order queue.Order) Fixture) {
	for _, p := range slices.Concat(enqueuePromises, verbPromises, batchPromises, retentionPromises, claimPromises,
		settlePromises, awaitPromises, readerPromises, upkeepPromises, ownerPromises, concurrencyPromises, quotaPromises,
		bytePromises, gatePromises, queuePromises, dependencyPromises, pausePromises, hookPromises, schedulePromises,
		reusePromises, statsPromises, turnPromises, bestWaitingPromises, walkPromises) {
		t.Run(p.name, func(t *testing.T) {
			order := p.order
			if order == (queue.Order{}) {
				order = defaultOrder
			}
			f := open(t, order)
			p.check(&rig{T: t, s: f.Store, advance: f.Advance, order: order})
		})
	}
}

// promise is one promise of store.Store, with the function that tests it. A zero order means defaultOrder.
type promise struct {
	name  string
	check func(r *rig)
	order queue.Order
}

// defaultOrder is the order of jobs that the default settings define.
var defaultOrder = queue.Order{Scheduling: queue.ByAging, AgingUnit: queue.AgingByTime, AgingInterval: time.Minute}

// retryPolicy delays the retries of a job by 2 s, then 4 s, then 8 s.
var retryPolicy = queue.RetryPolicy{Base: 2, Strategy: queue.Exponential, Max: time.Hour, RetryDelay: time.Minute}

const (
	testUID = 1000             // uid of the user in tests where it does not matter
	maxWait = 30 * time.Second // maximum time to wait for another goroutine
)

// rig is a store under test, with the helper functions of the tests.
type rig struct {
	*testing.T
	s            store.Store
	advance      func(time.Duration)
	order        queue.Order
	lastEventSeq int64 // number of the last event that newEvents has returned
}

// draft returns a new job that is not stored yet, as queue.Resolve returns it. The functions in
// set then change the job.
func draft(set ...func(*queue.Job)) queue.Job {
	j := queue.Job{
		Queue: queue.DefaultQueue, UID: testUID, Priority: 5, MaxAttempts: 4, State: queue.Pending, ExitCode: -1,
		Execution: queue.Execution{Command: "true", Shell: "/bin/sh -c", Umask: 0o022, KillAfter: 10 * time.Second,
			OnLost: queue.OnLostRetry, OutputLimit: 1 << 20},
	}
	for _, f := range set {
		f(&j)
	}
	return j
}

// withID and the functions like it return arguments for draft, each of which sets one field of the job.
func withID(id string) func(*queue.Job)           { return func(j *queue.Job) { j.ID = id } }
func withPriority(n int64) func(*queue.Job)       { return func(j *queue.Job) { j.Priority = n } }
func withDelay(d time.Duration) func(*queue.Job)  { return func(j *queue.Job) { j.Delay = d } }
func withExpiry(at queue.Millis) func(*queue.Job) { return func(j *queue.Job) { j.ExpiresAt = at } }
func withOnLost(action queue.OnLost) func(*queue.Job) {
	return func(j *queue.Job) { j.OnLost = action }
}
func withLabels(m map[string]string) func(*queue.Job) { return func(j *queue.Job) { j.Labels = m } }
func withMaxAttempts(n int) func(*queue.Job)          { return func(j *queue.Job) { j.MaxAttempts = n } }

// exitOutcome returns the outcome of a command that exited with a code.
func exitOutcome(code int64) queue.Outcome {
	return queue.Outcome{EndCause: queue.EndExited, ExitCode: code}
}

// outcomeOfCause returns the outcome of an attempt that ended for the given cause.
func outcomeOfCause(end queue.EndCause) queue.Outcome { return queue.Outcome{EndCause: end} }
func leases(jobs []queue.Job) []queue.Lease           { return mapJobs(jobs, (*queue.Job).Lease) }
func seqs(jobs []queue.Job) []int64 {
	return mapJobs(jobs, func(j *queue.Job) int64 { return j.Seq })
}

func mapJobs[T any](jobs []queue.Job, f func(*queue.Job) T) (list []T) {
	for i := range jobs {
		list = append(list, f(&jobs[i]))
	}
	return list
}

// must ends the test if err is not nil.
func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatalf("got error %v, want none", err)
	}
}

// wantError checks that err is a queue.Error with the code and the field, and returns it.
func (r *rig) wantError(subject string, err error, code queue.Code, field string) *queue.Error {
	r.Helper()
	var e *queue.Error
	if !errors.As(err, &e) || e.Code != code || e.Field != field {
		r.Fatalf("%s: got error %v, want code %s, field %q", subject, err, code, field)
	}
	return e
}

// wantErrLeased checks that err is ErrLeased.
func (r *rig) wantErrLeased(subject string, err error) {
	r.Helper()
	if !errors.Is(err, store.ErrLeased) {
		r.Errorf("%s: got error %v, want %v", subject, err, store.ErrLeased)
	}
}

// enqueue enqueues drafts of a user, in as many requests as necessary. The receipt contains the ids of all
// jobs.
func (r *rig) enqueue(uid int, drafts ...queue.Job) (receipt store.Receipt) {
	r.Helper()
	for part := range slices.Chunk(drafts, queue.MaxJobsPerRequest) {
		got, err := r.s.Enqueue(r.Context(), store.Request{Drafts: part, UID: uid})
		r.must(err)
		receipt.IDs, receipt.Seqs = append(receipt.IDs, got.IDs...), append(receipt.Seqs, got.Seqs...)
	}
	return receipt
}

// enqueueAndGet enqueues drafts and returns the stored jobs.
func (r *rig) enqueueAndGet(drafts ...queue.Job) []queue.Job {
	r.Helper()
	receipt := r.enqueue(testUID, drafts...)
	jobs := make([]queue.Job, len(receipt.IDs))
	for i, id := range receipt.IDs {
		jobs[i] = r.getJob(id)
	}
	return jobs
}

// enqueueOne enqueues a draft, changed by the given functions, and returns the stored job.
func (r *rig) enqueueOne(set ...func(*queue.Job)) queue.Job {
	r.Helper()
	return r.enqueueAndGet(draft(set...))[0]
}

func (r *rig) getJob(id string) queue.Job {
	r.Helper()
	j, err := r.s.GetFull(r.Context(), id)
	if err != nil {
		r.Fatalf("get %s: got error %v, want none", id, err)
	}
	return j
}

func (r *rig) exchange(report store.Report) store.Grant {
	r.Helper()
	grant, err := r.s.Exchange(r.Context(), report)
	r.must(err)
	r.checkRanks(grant.Jobs)
	return grant
}

// checkRanks checks the ranks of leased jobs. Then it sets them to zero, because other methods of the store
// return no ranks.
func (r *rig) checkRanks(leased []queue.Job) {
	r.Helper()
	order := r.s.Order()
	for i := range leased {
		j := &leased[i]
		checkEqual(r, "rank of the leased job "+j.ID, j.Rank, order.Rank(j.Priority, j.AgingSince, j.ArrivalNumber))
		j.Rank, j.StartPosition = 0, queue.StartPosition{}
	}
}

func (r *rig) claim(want int) []queue.Job {
	r.Helper()
	return r.exchange(store.Report{WantedJobs: want}).Jobs
}

// claimOne claims the job that is next in order. The test fails if no job can start.
func (r *rig) claimOne() queue.Job {
	r.Helper()
	jobs := r.claim(1)
	if len(jobs) != 1 {
		r.Fatalf("got %d jobs claimed, want 1", len(jobs))
	}
	return jobs[0]
}

// asClaimed returns the jobs in before as they must be after a claim: with the fences (lease numbers) of the
// jobs in claimed. It checks that each fence is higher than the old fence of its job.
func (r *rig) asClaimed(claimed []queue.Job, before ...queue.Job) []queue.Job {
	r.Helper()
	before = slices.Clone(before)
	for i := range min(len(claimed), len(before)) {
		if claimed[i].Fence <= before[i].Fence {
			r.Errorf("job %s was claimed with fence %d after fence %d, want a higher one", claimed[i].ID, claimed[i].Fence,
				before[i].Fence)
		}
		before[i].Fence = claimed[i].Fence
	}
	return before
}

// startJob reports that a claimed job starts now, and returns the stored job.
func (r *rig) startJob(j queue.Job) queue.Job {
	r.Helper()
	grant := r.exchange(store.Report{Starts: []store.AttemptStart{{Lease: j.Lease(), StartedAt: r.s.Now(), Worker: "w1",
		PID: 4242}}})
	checkEqual(r, "stale leases", grant.StaleLeases, nil)
	return r.getJob(j.ID)
}

// settlement returns a report that an attempt of job j has started and ended at the
// current time, with outcome o.
func (r *rig) settlement(j queue.Job, o queue.Outcome) store.Settlement {
	now := r.s.Now()
	d := queue.Decide(&j, o, retryPolicy)
	e := store.Settlement{Lease: j.Lease(), Decision: d, Attempt: queue.Attempt{ExitCode: -1}}
	if d.RecordsAttempt {
		e.Attempt = queue.Attempt{
			Fence: j.Fence, Worker: "w1", Node: "n1", PID: 4242, StartedAt: now, EndedAt: now, ExitCode: -1, Signal: o.Signal,
			Reason: d.Reason, Error: d.Error, Counted: d.UsesAttempt, CPUTime: 1500 * time.Microsecond, PeakRSSBytes: 1 << 20,
		}
	}
	if o.EndCause == queue.EndExited {
		e.Attempt.ExitCode = o.ExitCode
	}
	return e
}

// settle records that a leased job ends now with outcome o. It returns the stored job.
func (r *rig) settle(j queue.Job, o queue.Outcome) queue.Job {
	r.Helper()
	grant := r.exchange(store.Report{Settlements: []store.Settlement{r.settlement(j, o)}})
	checkEqual(r, "stale leases", grant.StaleLeases, nil)
	return r.getJob(j.ID)
}

// runJob enqueues a job, claims it and ends it with outcome o. It returns the stored job.
func (r *rig) runJob(o queue.Outcome, set ...func(*queue.Job)) queue.Job {
	r.Helper()
	r.enqueueOne(set...)
	return r.settle(r.claimOne(), o)
}

// promote calls Promote until nothing is due. It returns the time until the next change is due.
func (r *rig) promote() time.Duration {
	r.Helper()
	for range 1000 {
		next, err := r.s.Promote(r.Context())
		r.must(err)
		if next > 0 {
			return next
		}
	}
	r.Fatal("Promote still finds due jobs after 1000 calls")
	return 0
}

// advanceAndPromote advances the clock by d and promotes the jobs that are then due.
func (r *rig) advanceAndPromote(d time.Duration) {
	r.Helper()
	r.advance(d)
	r.promote()
}

// newEvents returns the events since its last call, and checks that no event number is missing. It sets the
// numbers to zero, so that tests can compare events.
func (r *rig) newEvents() (events []queue.Event) {
	r.Helper()
	for {
		page, err := r.s.Events(r.Context(), r.lastEventSeq, 1000)
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

// event returns an event about the job j at the current time. j is the job after the event.
func (r *rig) event(kind queue.EventKind, j queue.Job, d queue.EventDetail) queue.Event {
	return queue.Event{Time: r.s.Now(), Kind: kind, JobSeq: j.Seq, JobID: j.ID, State: j.State, Detail: d}
}

// listAll lists all jobs that match a filter, newest first.
func (r *rig) listAll(f store.Filter) (jobs []queue.Job) {
	r.Helper()
	if f.Limit == 0 {
		f.Limit = store.MaxPageRows
	}
	for {
		page, err := r.s.List(r.Context(), f)
		r.must(err)
		jobs = append(jobs, page.Jobs...)
		if page.Next == 0 {
			return jobs
		}
		if f.BeforeSeq != 0 && page.Next >= f.BeforeSeq {
			r.Fatalf("the page before job %d has next %d, want it lower", f.BeforeSeq, page.Next)
		}
		f.BeforeSeq = page.Next
	}
}

// checkCounts compares the counts that the store keeps with the list of all jobs.
func (r *rig) checkCounts() {
	r.Helper()
	var want [queue.Cancelled + 1]int64
	kept := map[string]store.OwnRetentionQueue{}
	for _, j := range r.listAll(store.Filter{}) {
		want[j.State]++
		if q := kept[j.Queue]; j.OwnRetention {
			kept[j.Queue] = store.OwnRetentionQueue{Name: j.Queue, Jobs: q.Jobs + 1, OutputBytes: q.OutputBytes + j.OutputBytes}
		}
	}
	checkEqual(r, "counts by state, compared with a recount", r.s.Counts().States, want)
	r.checkOwnRetentionQueues(slices.SortedFunc(maps.Values(kept),
		func(a, b store.OwnRetentionQueue) int { return cmp.Compare(a.Name, b.Name) })...)
}

// checkOwnRetentionQueues checks the list of queues that have jobs which ended while their queue had a separate
// retention. For each queue, the store counts these jobs and the bytes of their outputs.
func (r *rig) checkOwnRetentionQueues(want ...store.OwnRetentionQueue) {
	r.Helper()
	got, err := r.s.OwnRetentionQueues(r.Context())
	r.must(err)
	checkEqual(r, "queues with their own retention", got, want)
	jobs := int64(0)
	for _, q := range want {
		jobs += q.Jobs
	}
	checkEqual(r, "jobs under the retention of their queue", r.s.Counts().UnderOwnRetention, jobs)
}

// checkUnchanged calls f and checks that f changes no job, count or event.
func (r *rig) checkUnchanged(f func()) {
	r.Helper()
	r.newEvents()
	before, counts := r.listAll(store.Filter{}), r.s.Counts()
	f()
	checkEqual(r, "jobs after an operation that must not change them", r.listAll(store.Filter{}), before)
	checkEqual(r, "counts after an operation that must not change them", r.s.Counts().States, counts.States)
	checkEqual(r, "events of an operation that must not change anything", r.newEvents(), nil)
}

func sortedLeases(list []queue.Lease) []queue.Lease {
	slices.SortFunc(list, func(a, b queue.Lease) int {
		return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Fence, b.Fence))
	})
	return list
}

func sortedByJob(events []queue.Event) []queue.Event {
	slices.SortStableFunc(events, func(a, b queue.Event) int { return cmp.Compare(a.JobSeq, b.JobSeq) })
	return events
}

// receive returns the value that another goroutine sends to c. The test fails if no value arrives within
// maxWait.
func receive[T any](r *rig, subject string, c <-chan T) (v T) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), maxWait)
	defer cancel()
	select {
	case v = <-c:
	case <-ctx.Done():
		r.Fatalf("%s: received nothing within %s", subject, maxWait)
	}
	return v
}

// checkEqual checks that got and want are deeply equal. A nil slice and an empty slice count as equal.
func checkEqual[T any](r *rig, subject string, got, want T) {
	r.Helper()
	g, w := reflect.ValueOf(&got).Elem(), reflect.ValueOf(&want).Elem()
	if g.Kind() == reflect.Slice && g.Len()+w.Len() == 0 || reflect.DeepEqual(got, want) {
		return
	}
	r.Errorf("%s:\n%s", subject, diffLines(jsonLines(got), jsonLines(want)))
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
func (r *rig) leasedJobs() ([]queue.Job, error) {
	session, err := r.s.PreviousSession(r.Context())
	r.checkRanks(session.LeasedJobs)
	return session.LeasedJobs, err
}

// walkSteps returns the number of steps of a random walk: the given number, or a quarter of it in short mode.
func walkSteps(fullSteps int) int {
	if testing.Short() {
		return fullSteps / 4
	}
	return fullSteps
}
