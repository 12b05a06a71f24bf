package storetest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var enqueueTests = []contractTest{
	{name: "Enqueue stores a draft as a pending job", run: draftIsStored},
	{name: "a job's settings are returned unchanged", run: jobSettingsAreReturned},
	{name: "delay and run_at define when a job is due", run: delayAndRunAtSetDueTime},
	{name: "seqs rise and are never reused", run: jobSeqsOnlyRise},
	{name: "a seq that is the id of another job is skipped", run: seqUsedAsIDIsSkipped},
	{name: "the id of a removed job can be used again", run: removedJobsIDCanBeReused},
	{name: "the jobs of a request are stored in order", run: jobsOfRequestAreStoredInOrder},
	{name: "a request with a duplicate id stores nothing", run: requestIsStoredCompletelyOrNotAtAll},
	{name: "a request contains 1 to MaxJobsPerRequest drafts", run: requestSizeIsLimited},
	{name: "a full queue rejects new jobs", run: fullQueueRejectsJobs},
	{name: "a repeated key returns the same receipt", run: repeatedIdempotencyKeyReturnsSameReceipt},
	{name: "a key belongs to one user and one request", run: idempotencyKeyBelongsToUserAndRequest},
	{name: "a rejected request does not use up its key", run: rejectedRequestKeepsIdempotencyKeyUnused},
	{name: "a key is kept for IdempotencyKeyRetention and deleted eventually", run: idempotencyKeyExpiresAfterRetention},
}

func draftIsStored(r *storeTest) {
	d := newDraft(withPriority(7))
	receipt, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{d}, UID: testUID})
	r.must(err)
	if len(receipt.IDs) != 1 || len(receipt.Seqs) != 1 || receipt.Duplicate || receipt.Seqs[0] < 1 {
		r.Fatalf("got receipt %+v, want one new job", receipt)
	}
	checkEqual(r, "id", receipt.IDs[0], strconv.FormatInt(receipt.Seqs[0], 10))
	now := r.store.Now()
	want := d
	want.Seq, want.ID = receipt.Seqs[0], receipt.IDs[0]
	want.CreatedAt, want.UpdatedAt, want.RunAt, want.DueAt, want.AgingSince = now, now, now, now, now
	want.ArrivalNumber = 1
	checkEqual(r, "job", r.getJob(want.ID), want)
	checkEqual(r, "events", r.readNewEvents(), []queue.Event{r.expectedEvent(queue.EventEnqueued, want,
		queue.EventDetail{CausedByUID: new(testUID)})})
	counts := r.store.Counts()
	counts.DatabaseBytes = 0 // stores may count different sizes for an empty database
	checkEqual(r, "counts", counts, store.Counts{JobsByState: [...]int64{queue.Pending: 1, queue.Cancelled: 0},
		JobsEverEnqueued: 1})
	history, err := r.store.AttemptHistory(r.Context(), want.Seq, 0, store.MaxPageRows)
	r.must(err)
	checkEqual(r, "history", history, nil)
}

// A job's settings are returned unchanged.
func jobSettingsAreReturned(r *storeTest) {
	full := newDraft(withID("a.b_c@d/e-f"), func(j *queue.Job) {
		j.UID, j.Priority, j.MaxAttempts = 4711, -queue.MaxPriority, queue.MaxAttempts
		j.ExpiresAt = r.store.Now().Add(time.Hour)
		j.ExecutionSettings = queue.ExecutionSettings{
			Argv: []string{"prog", "", "ä\n\"\\\x01\u2028<&>"}, Env: []string{"A=1", "B=x=y", "C="}, Cwd: "/tmp/ü", Umask: 0,
			Stdin: "line\nline\n", StdinFile: "/tmp/in", IdleTimeout: time.Minute,
			Timeout: 90*time.Second + 1, KillAfter: time.Nanosecond,
			Backoff: queue.Backoff{BaseSeconds: 1.5, Strategy: queue.BackoffLinear, MaxDelay: time.Minute, Jitter: new(0.0)},
			SpecialExitCodes: queue.SpecialExitCodes{OkCodes: []int{0, 3}, NoRetryCodes: []int{1<<32 - 1},
				DeferCodes: []int{75}},
			OnLost: queue.OnLostHold, AllowBackground: true, TTY: true,
			Labels: map[string]string{"k": "v", "leer": ""}, OutputLimitBytes: 1, RunAsUser: "alice",
			ResourceLimits: queue.ResourceLimits{MemoryBytes: 64 << 20, CPUs: 0.5, Tasks: 7, Nice: -3, MaxOpenFiles: 99,
				NoNewPrivileges: true},
		}
	})
	want := full
	want.Env = []string{"A=1", "B=x=y", "C="}
	want.Labels = map[string]string{"k": "v", "leer": ""}
	stored := r.enqueueAndGet(full)[0]
	full.Env[0], full.Labels["k"] = "A=changed", "changed" // this must not change the stored job
	checkEqual(r, "settings", stored.ExecutionSettings, want.ExecutionSettings)
	checkEqual(r, "settings read later", r.getJob(want.ID).ExecutionSettings, want.ExecutionSettings)
	claimed := r.claimJobs(1)
	checkEqual(r, "claimed job", claimed, r.expectedClaimedJobs(claimed, stored))
	checkEqual(r, "uid, priority and attempts", []int64{int64(stored.UID), stored.Priority, int64(stored.MaxAttempts)},
		[]int64{4711, -queue.MaxPriority, queue.MaxAttempts})
	large := newDraft(func(j *queue.Job) { j.Command = strings.Repeat("x", queue.MaxCommandBytes) })
	checkEqual(r, "largest command", r.enqueueAndGet(large)[0].ExecutionSettings, large.ExecutionSettings)
}

func delayAndRunAtSetDueTime(r *storeTest) {
	now := r.store.Now()
	for _, c := range []struct {
		name              string
		set               func(*queue.Job)
		runAt, agingSince queue.UnixMillis
	}{
		{"no delay", withDelay(0), now, now},
		{"a delay", withDelay(time.Minute), now + 60_000, now + 60_000},
		{"a fraction of a millisecond", withDelay(time.Nanosecond), now + 1, now + 1},
		{"a time in the future", func(j *queue.Job) { j.RunAt = now + 5000 }, now + 5000, now + 5000},
		{"a time in the past", func(j *queue.Job) { j.RunAt = now - 5000 }, now - 5000, now},
	} {
		j := r.enqueueOne(c.set)
		checkEqual(r, c.name+": RunAt, DueAt, Since, CreatedAt",
			[]queue.UnixMillis{j.RunAt, j.DueAt, j.AgingSince, j.CreatedAt},
			[]queue.UnixMillis{c.runAt, c.runAt, c.agingSince, now})
		checkEqual(r, c.name+": Delay", j.Delay, 0)
		checkEqual(r, c.name+": State", j.State, queue.Pending)
	}
}

// The numbers (seqs) that the store assigns to jobs rise and are never reused.
func jobSeqsOnlyRise(r *storeTest) {
	last := int64(0)
	for i := range 20 {
		set := []func(*queue.Job){}
		if i%3 == 0 {
			set = append(set, withID(fmt.Sprintf("name%d", i)))
		}
		j := r.enqueueOne(set...)
		if j.Seq <= last {
			r.Fatalf("got seq %d after %d, want it higher", j.Seq, last)
		}
		last = j.Seq
		r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRemove, UID: testUID}))
	}
	checkEqual(r, "jobs ever enqueued", r.store.Counts().JobsEverEnqueued, 20)
}

// The store skips a number (seq) that a user has given to another job as its id.
func seqUsedAsIDIsSkipped(r *storeTest) {
	first := r.enqueueOne()
	number := strconv.FormatInt(first.Seq+2, 10)
	holder := r.enqueueOne(withID(number))
	checkEqual(r, "seq of the job with a numeric id", holder.Seq, first.Seq+1)
	next := r.enqueueOne()
	checkEqual(r, "seq after the skipped seq", next.Seq, first.Seq+3)
	checkEqual(r, "id after the skipped seq", next.ID, strconv.FormatInt(first.Seq+3, 10))
	checkEqual(r, "job with the numeric id", r.getJob(number), holder)
	_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withID(next.ID))},
		UID: testUID})
	r.checkError("the generated id of another job", err, queue.CodeExists, "id")

	receipt, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: testUID, IdempotencyKey: "k",
		Drafts: []queue.Job{
			newDraft(withID(strconv.FormatInt(first.Seq+6, 10))), newDraft(), newDraft(),
		}})
	r.must(err)
	checkEqual(r, "seqs of a request with a numeric id", receipt.Seqs,
		[]int64{first.Seq + 4, first.Seq + 5, first.Seq + 7})
	receipt.Duplicate = true
	again, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: testUID, IdempotencyKey: "k",
		Drafts: []queue.Job{newDraft()}})
	r.must(err)
	checkEqual(r, "receipt of the same key", again, receipt)

	own := strconv.FormatInt(first.Seq+8, 10)
	checkEqual(r, "seq of the job with its own seq as its id", r.enqueueOne(withID(own)).Seq, first.Seq+8)
	_, err = r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(), newDraft(withID(own))},
		UID: testUID})
	r.checkError("the same numeric id again", err, queue.CodeExists, "id")
}

// The id of a removed job can be used again.
func removedJobsIDCanBeReused(r *storeTest) {
	first := r.enqueueOne(withID("nightly"))
	_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withID("nightly"))},
		UID: testUID})
	if e := r.checkError("the same id", err, queue.CodeExists, "id"); !strings.Contains(e.Message, "nightly") {
		r.Errorf("got message %q, want it to name nightly", e.Message)
	}
	r.must(r.store.ChangeJob(r.Context(), first.Seq, store.JobChange{Verb: queue.VerbRemove, UID: testUID}))
	second := r.enqueueOne(withID("nightly"))
	if second.Seq <= first.Seq {
		r.Errorf("got seq %d after %d, want it higher", second.Seq, first.Seq)
	}
	checkEqual(r, "job of the id", r.getJob("nightly"), second)
}

func jobsOfRequestAreStoredInOrder(r *storeTest) {
	r.enqueueOne()
	var drafts []queue.Job
	for i := range 50 {
		set := withPriority(int64(i % 7))
		if i%5 == 0 {
			drafts = append(drafts, newDraft(set, withID(fmt.Sprintf("n%d", i))))
			continue
		}
		drafts = append(drafts, newDraft(set))
	}
	jobs := r.enqueueAndGet(drafts...)
	now := r.store.Now()
	for i, got := range jobs {
		want := drafts[i]
		want.Seq, want.ID = jobs[0].Seq+int64(i), firstNonEmpty(want.ID, strconv.FormatInt(jobs[0].Seq+int64(i), 10))
		want.CreatedAt, want.UpdatedAt, want.RunAt, want.DueAt, want.AgingSince = now, now, now, now, now
		want.ArrivalNumber = int64(i) + 2
		checkEqual(r, fmt.Sprintf("job %d of the batch", i+1), got, want)
	}
	var want []queue.Event
	for _, j := range jobs {
		want = append(want, r.expectedEvent(queue.EventEnqueued, j, queue.EventDetail{CausedByUID: new(testUID)}))
	}
	checkEqual(r, "events", r.readNewEvents()[1:], want)
	r.checkJobCounts()
}

func firstNonEmpty(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// If the id of one job in a request is already used, no job of the request is stored.
func requestIsStoredCompletelyOrNotAtAll(r *storeTest) {
	r.enqueueOne(withID("taken"))
	for _, c := range []struct {
		name   string
		drafts []queue.Job
		prefix string
		id     string
	}{
		{"twice in the batch", []queue.Job{newDraft(withID("x")), newDraft(), newDraft(withID("x"))}, "entry 3: ", "x"},
		{"already stored", []queue.Job{newDraft(), newDraft(withID("taken"))}, "entry 2: ", "taken"},
	} {
		r.checkStoreUnchanged(func() {
			_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: c.drafts, UID: testUID})
			e := r.checkError(c.name, err, queue.CodeExists, "id")
			if !strings.HasPrefix(e.Error(), c.prefix) || !strings.Contains(e.Error(), c.id) {
				r.Errorf("%s: got message %q, want it to begin with %q and to name %s", c.name, e.Error(), c.prefix, c.id)
			}
		})
	}
	r.checkStoreUnchanged(func() {
		_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withID("taken"))},
			UID: testUID})
		if e := r.checkError("one draft", err, queue.CodeExists, "id"); e.BatchIndex != 0 {
			r.Errorf("got message %q for a single draft, want no number of the draft", e.Error())
		}
	})
	checkEqual(r, "jobs ever enqueued", r.store.Counts().JobsEverEnqueued, 1)
	checkEqual(r, "arrival after the rejections", r.enqueueOne(withID("x")).ArrivalNumber, 2)
}

// A request may enqueue 1 to queue.MaxJobsPerRequest jobs.
func requestSizeIsLimited(r *storeTest) {
	drafts := make([]queue.Job, queue.MaxJobsPerRequest+1)
	for i := range drafts {
		drafts[i] = newDraft()
	}
	for _, n := range []int{0, queue.MaxJobsPerRequest + 1} {
		_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: drafts[:n], UID: testUID})
		r.checkErrorCode(fmt.Sprintf("%d drafts", n), err, queue.CodeInvalid)
	}
	checkEqual(r, "jobs ever enqueued", r.store.Counts().JobsEverEnqueued, 0)
	receipt, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: drafts[:queue.MaxJobsPerRequest],
		UID: testUID})
	r.must(err)
	checkEqual(r, "ids in the receipt", len(receipt.IDs), queue.MaxJobsPerRequest)
	checkEqual(r, "jobs ever enqueued", r.store.Counts().JobsEverEnqueued, queue.MaxJobsPerRequest)
	r.checkJobCounts()
}

// checkErrorCode checks the code of err. It does not check the field that err names, because two stores may name
// different fields for the same error.
func (r *storeTest) checkErrorCode(description string, err error, wantCode queue.ErrorCode) {
	r.Helper()
	if !errors.Is(err, &queue.Error{Code: wantCode}) {
		r.Errorf("%s: got error %v, want code %s", description, err, wantCode)
	}
}

func fullQueueRejectsJobs(r *storeTest) {
	ask := func(n int, limit int64) error {
		drafts := make([]queue.Job, n)
		for i := range drafts {
			drafts[i] = newDraft()
		}
		_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: drafts, UID: testUID, MaxPendingJobs: limit})
		return err
	}
	r.checkStoreUnchanged(func() { r.checkErrorCode("4 jobs with a limit of 3", ask(4, 3), queue.CodeQueueFull) })
	r.must(ask(3, 3))
	jobs := r.claimJobs(3)
	r.checkErrorCode("a reserved job still waits", ask(1, 3), queue.CodeQueueFull)
	r.settleJob(jobs[0], exitOutcome(1))
	r.checkErrorCode("a failed job still waits", ask(1, 3), queue.CodeQueueFull)
	r.startJob(jobs[1])
	r.must(ask(1, 3))
	r.checkErrorCode("one more job", ask(1, 3), queue.CodeQueueFull)
	r.settleJob(jobs[2], exitOutcome(0))
	r.must(ask(1, 3))
	r.must(ask(5, 0))
	r.must(ask(5, -1))
}

func repeatedIdempotencyKeyReturnsSameReceipt(r *storeTest) {
	first := store.EnqueueRequest{Drafts: []queue.Job{newDraft(withID("a")), newDraft()}, UID: testUID,
		IdempotencyKey: "once", RequestChecksum: [32]byte{1}}
	want, err := r.store.Enqueue(r.Context(), first)
	r.must(err)
	checkEqual(r, "duplicate", want.Duplicate, false)
	want.Duplicate = true
	repeat := func(when string, change func(*store.EnqueueRequest)) {
		request := first
		change(&request)
		r.checkStoreUnchanged(func() {
			got, err := r.store.Enqueue(r.Context(), request)
			r.must(err)
			checkEqual(r, "receipt "+when, got, want)
		})
	}
	repeat("of the same request", func(*store.EnqueueRequest) {})
	repeat("with a full queue", func(q *store.EnqueueRequest) { q.MaxPendingJobs = 1 })
	repeat("with other drafts and the same sum", func(q *store.EnqueueRequest) { q.Drafts = []queue.Job{newDraft()} })
	for _, seq := range want.Seqs {
		r.must(r.store.ChangeJob(r.Context(), seq, store.JobChange{Verb: queue.VerbRemove, UID: testUID}))
	}
	repeat("after the jobs were removed", func(*store.EnqueueRequest) {})
}

func idempotencyKeyBelongsToUserAndRequest(r *storeTest) {
	ask := func(uid int, key string, checksumByte byte) (store.Receipt, error) {
		return r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft()}, UID: uid,
			IdempotencyKey: key, RequestChecksum: [32]byte{31: checksumByte}})
	}
	_, err := ask(1, "k", 1)
	r.must(err)
	r.checkStoreUnchanged(func() {
		_, err := ask(1, "k", 2)
		r.checkError("another sum", err, queue.CodeExists, "key")
	})
	for _, c := range []struct {
		uid int
		key string
	}{{2, "k"}, {1, "K"}, {1, "k "}, {1, ""}, {1, ""}} {
		receipt, err := ask(c.uid, c.key, 2)
		r.must(err)
		checkEqual(r, fmt.Sprintf("uid %d key %q is a duplicate", c.uid, c.key), receipt.Duplicate, false)
	}
	checkEqual(r, "jobs ever enqueued", r.store.Counts().JobsEverEnqueued, 6)
}

func rejectedRequestKeepsIdempotencyKeyUnused(r *storeTest) {
	r.enqueueOne(withID("taken"))
	request := store.EnqueueRequest{Drafts: []queue.Job{newDraft(withID("taken"))}, UID: testUID, IdempotencyKey: "k",
		RequestChecksum: [32]byte{1}}
	_, err := r.store.Enqueue(r.Context(), request)
	r.checkError("an id in use", err, queue.CodeExists, "id")
	request.Drafts, request.RequestChecksum, request.MaxPendingJobs = []queue.Job{newDraft()}, [32]byte{2}, 1
	_, err = r.store.Enqueue(r.Context(), request)
	r.checkErrorCode("a full queue", err, queue.CodeQueueFull)
	request.MaxPendingJobs, request.RequestChecksum = 0, [32]byte{3}
	receipt, err := r.store.Enqueue(r.Context(), request)
	r.must(err)
	checkEqual(r, "duplicate", receipt.Duplicate, false)
}

// An idempotency key is kept for store.IdempotencyKeyRetention and then deleted.
func idempotencyKeyExpiresAfterRetention(r *storeTest) {
	request := store.EnqueueRequest{Drafts: []queue.Job{newDraft()}, UID: testUID, IdempotencyKey: "k",
		RequestChecksum: [32]byte{1}}
	want, err := r.store.Enqueue(r.Context(), request)
	r.must(err)
	want.Duplicate = true
	r.advanceAndApplyDueChanges(store.IdempotencyKeyRetention - time.Millisecond)
	got, err := r.store.Enqueue(r.Context(), request)
	r.must(err)
	checkEqual(r, "receipt just before IdempotencyKeyRetention ends", got, want)
	r.advanceAndApplyDueChanges(100 * store.IdempotencyKeyRetention)
	request.RequestChecksum = [32]byte{2}
	receipt, err := r.store.Enqueue(r.Context(), request)
	r.must(err)
	checkEqual(r, "duplicate long after", receipt.Duplicate, false)
}
