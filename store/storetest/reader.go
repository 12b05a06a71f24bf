package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var readerTests = []contractTest{
	{name: "a new event closes the channels of all earlier LastEvent calls", run: newEventClosesEarlierEventChannels},
	{name: "List returns pages, newest jobs first", run: listReturnsPages},
	{name: "a page contains up to MaxPageRows jobs", run: pageHoldsUpToMaxPageRows},
	{name: "List applies every filter", run: listAppliesFilters},
	{name: "the time filters of List apply to the end of ended jobs", run: timeFiltersUseEndTime},
	{name: "Screen returns the first jobs of each part", run: screenReturnsFirstJobsPerSection},
	{name: "the size of a page is limited in bytes", run: pageBytesAreLimited},
	{name: "only GetFull and claims return a job's env and stdin", run: onlyGetWithEnvAndStdinReturnsInput},
	{name: "History returns pages", run: attemptHistoryIsReadInPages},
	{name: "the counts follow every change of state", run: jobCountsFollowChanges},
	{name: "Oldest returns when the longest wait began", run: oldestReadySinceFindsLongestWait},
	{name: "event numbers have no gaps, and events of removed jobs stay", run: eventNumbersHaveNoGaps},
	{name: "a watch reports every change of its jobs", run: jobWatchReportsEveryChange},
	{name: "watches are independent of each other", run: jobWatchesAreIndependent},
}

func (r *storeTest) listPage(f store.JobFilter) store.JobPage {
	r.Helper()
	page, err := r.store.ListJobs(r.Context(), f)
	r.must(err)
	return page
}

func listReturnsPages(r *storeTest) {
	checkEqual(r, "page of an empty store", r.listPage(store.JobFilter{Limit: 1}), store.JobPage{})
	drafts := make([]queue.Job, 7)
	for i := range drafts {
		drafts[i] = newDraft(withPriority(int64(i % 3)))
	}
	want := r.enqueueAndGet(drafts...)
	slices.Reverse(want)
	for limit := 1; limit <= 8; limit++ {
		checkEqual(r, fmt.Sprintf("pages of %d", limit), r.listAllJobs(store.JobFilter{Limit: limit}), want)
	}
	first := r.listPage(store.JobFilter{Limit: 3})
	checkEqual(r, "first page", first.Jobs, want[:3])
	r.enqueueOne() // lists begin with the newest job, so this job does not appear on later pages
	second := r.listPage(store.JobFilter{Limit: 3, BeforeSeq: first.NextBeforeSeq})
	checkEqual(r, "second page", second.Jobs, want[3:6])
	checkEqual(r, "last page", r.listPage(store.JobFilter{Limit: 3, BeforeSeq: second.NextBeforeSeq}),
		store.JobPage{Jobs: want[6:]})
	checkEqual(r, "a page that ends with the last job",
		r.listPage(store.JobFilter{Limit: 7, BeforeSeq: want[0].Seq + 1}), store.JobPage{Jobs: want})
	checkEqual(r, "before the first", r.listPage(store.JobFilter{Limit: 3, BeforeSeq: want[6].Seq}), store.JobPage{})
}

func pageHoldsUpToMaxPageRows(r *storeTest) {
	drafts := make([]queue.Job, store.MaxPageRows+1)
	for i := range drafts {
		drafts[i] = newDraft()
	}
	want := r.enqueueAndGet(drafts...)
	slices.Reverse(want)
	page := r.listPage(store.JobFilter{Limit: store.MaxPageRows})
	checkEqual(r, "seqs of the largest page", seqsOf(page.Jobs), seqsOf(want[:store.MaxPageRows]))
	checkEqual(r, "the rest", r.listPage(store.JobFilter{Limit: store.MaxPageRows, BeforeSeq: page.NextBeforeSeq}),
		store.JobPage{Jobs: want[store.MaxPageRows:]})
}

// The time filters of List compare the end times of ended jobs.
func timeFiltersUseEndTime(r *storeTest) {
	begin := r.store.Now()
	r.enqueueOne()
	leased := r.claimOne()
	quick := r.runJob(exitOutcome(0))
	r.advanceClock(2 * time.Second)
	slow := r.settleJob(leased, exitOutcome(0))
	waits := r.enqueueOne()
	for _, c := range []struct {
		filter store.JobFilter
		want   []queue.Job
	}{
		{store.JobFilter{Since: begin + 1000}, []queue.Job{waits, slow}},
		{store.JobFilter{Since: begin + 1000, States: []queue.State{queue.Completed}}, []queue.Job{slow}},
		{store.JobFilter{Since: begin, Until: begin + 1000}, []queue.Job{quick}},
		{store.JobFilter{Since: begin + 2001}, nil},
	} {
		checkEqual(r, "jobs that ended since, or unfinished jobs created since", r.listAllJobs(c.filter), c.want)
	}
}

func screenReturnsFirstJobsPerSection(r *storeTest) {
	read := func(rows int) store.Screen {
		r.Helper()
		got, err := r.store.ReadScreen(r.Context(), store.ScreenFilter{RowsPerPart: rows})
		r.must(err)
		return got
	}
	checkEqual(r, "a screen of an empty store", read(5), store.Screen{})
	done := r.runJob(exitOutcome(0))
	r.advanceClock(time.Second)
	dead := r.runJob(exitOutcome(1), withMaxAttempts(1))
	r.advanceClock(time.Second)
	dead2 := r.runJob(exitOutcome(2), withMaxAttempts(1))
	cancelled := r.enqueueOne()
	r.must(r.store.ChangeJob(r.Context(), cancelled.Seq, store.JobChange{Verb: queue.VerbCancel, UID: testUID}))
	r.enqueueOne()
	running := r.startJob(r.claimOne())
	low, high := r.enqueueOne(withPriority(1)), r.enqueueOne(withPriority(9))
	other := r.enqueueOne(withPriority(5), func(j *queue.Job) { j.UID = 7 })
	late, soon := r.enqueueOne(withDelay(time.Hour)), r.enqueueOne(withDelay(time.Minute))
	held := r.enqueueOne()
	r.must(r.store.ChangeJob(r.Context(), held.Seq, store.JobChange{Verb: queue.VerbHold, UID: testUID}))
	get := func(jobs ...queue.Job) (list []queue.Job) {
		for _, j := range jobs {
			list = append(list, r.getJob(j.ID))
		}
		return list
	}
	checkEqual(r, "a screen", read(5), store.Screen{
		Running: get(running), Ready: get(high, other, low), NotYetDue: get(soon, late), HeldOrBlocked: get(held),
		Dead: get(dead2, dead), CompletedOrCancelled: get(cancelled, done),
	})
	checkEqual(r, "a screen with one row per part", read(1), store.Screen{
		Running: get(running), Ready: get(high), NotYetDue: get(soon), HeldOrBlocked: get(held), Dead: get(dead2),
		CompletedOrCancelled: get(cancelled),
	})
	mine, err := r.store.ReadScreen(r.Context(), store.ScreenFilter{RowsPerPart: 5, DetailsForUID: new(7)})
	r.must(err)
	hidden := get(high, other, low)
	for _, i := range []int{0, 2} {
		hidden[i].ExecutionSettings = queue.ExecutionSettings{Labels: hidden[i].Labels}
	}
	checkEqual(r, "a screen for one user", mine.Ready, hidden)
	large := func(j *queue.Job) {
		j.Command, j.Argv, j.Shell = "", []string{strings.Repeat("x", store.MaxScreenPartTextBytes)}, ""
	}
	big, big2 := r.enqueueOne(withPriority(10), large), r.enqueueOne(withPriority(10), large)
	checkEqual(r, "a part that the byte limit ends", read(5).Ready, get(big))
	checkEqual(r, "a part after it", read(5).Dead, get(dead2, dead))
	mine, err = r.store.ReadScreen(r.Context(), store.ScreenFilter{RowsPerPart: 5, DetailsForUID: new(7)})
	r.must(err)
	checkEqual(r, "large jobs of other users do not shorten the part", seqsOf(mine.Ready),
		seqsOf([]queue.Job{big, big2, high, other, low}))
	for _, j := range []queue.Job{big, big2} {
		r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbCancel, UID: testUID}))
	}
	r.claimOne() // the job is leased, but was not reported as started
	checkEqual(r, "next jobs, leased or not", read(5).Ready, get(high, other, low))
	for _, rows := range []int{-1, 0, store.MaxScreenRowsPerPart + 1} {
		_, err := r.store.ReadScreen(r.Context(), store.ScreenFilter{RowsPerPart: rows})
		r.checkError("screen", err, queue.CodeInvalid, "rows")
	}
}

func listAppliesFilters(r *storeTest) {
	begin := r.store.Now()
	done := r.runJob(exitOutcome(0), withLabels(map[string]string{"app": "x", "tier": "1"}))
	r.advanceClock(time.Second)
	dead := r.runJob(exitOutcome(1), withMaxAttempts(1), withLabels(map[string]string{"app": "x", "tier": "2"}))
	other := r.enqueueOne(func(j *queue.Job) { j.UID = 7 })
	r.advanceClock(time.Second)
	quoted := r.enqueueOne(withLabels(map[string]string{`a"b.c'd$`: `x%_"'`, "app": "y"}))
	empty := r.enqueueOne(withLabels(map[string]string{"app": ""}))
	for _, c := range []struct {
		name   string
		filter store.JobFilter
		want   []queue.Job
	}{
		{"no criterion", store.JobFilter{}, []queue.Job{empty, quoted, other, dead, done}},
		{"a state", store.JobFilter{States: []queue.State{queue.Dead}}, []queue.Job{dead}},
		{"states", store.JobFilter{States: []queue.State{queue.Completed, queue.Pending}},
			[]queue.Job{empty, quoted, other, done}},
		{"a state of no job", store.JobFilter{States: []queue.State{queue.Blocked}}, nil},
		{"a label", store.JobFilter{Labels: map[string]string{"app": "x"}}, []queue.Job{dead, done}},
		{"labels", store.JobFilter{Labels: map[string]string{"app": "x", "tier": "1"}}, []queue.Job{done}},
		{"labels of different jobs", store.JobFilter{Labels: map[string]string{"app": "y", "tier": "1"}}, nil},
		{"a label with special signs", store.JobFilter{Labels: map[string]string{`a"b.c'd$`: `x%_"'`}}, []queue.Job{quoted}},
		{"an empty label", store.JobFilter{Labels: map[string]string{"app": ""}}, []queue.Job{empty}},
		{"a label that no job has", store.JobFilter{Labels: map[string]string{"zone": ""}}, nil},
		{"a uid", store.JobFilter{UID: new(7)}, []queue.Job{other}},
		{"root's uid", store.JobFilter{UID: new(0)}, nil},
		{"a time", store.JobFilter{Since: begin + 1000}, []queue.Job{empty, quoted, other, dead}},
		{"a time just after", store.JobFilter{Since: begin + 1001}, []queue.Job{empty, quoted}},
		{"an end before a time", store.JobFilter{Until: begin + 1000, States: []queue.State{queue.Completed, queue.Dead}},
			[]queue.Job{done}},
		{"an end, or a creation, before a time", store.JobFilter{Until: begin + 2000}, []queue.Job{other, dead, done}},
		{"a pattern", store.JobFilter{IDGlob: "*" + quoted.ID[len(quoted.ID)-1:]}, []queue.Job{quoted}},
		{"a pattern of no job", store.JobFilter{IDGlob: "[!0-9]*"}, nil},
		{"a label with a similar name", store.JobFilter{Labels: map[string]string{`k"`: "v"}}, nil},
		{"before a seq", store.JobFilter{BeforeSeq: other.Seq}, []queue.Job{dead, done}},
		{"all criteria together", store.JobFilter{States: []queue.State{queue.Dead, queue.Pending},
			Labels: map[string]string{"app": "x"}, UID: new(testUID), Since: begin + 1, BeforeSeq: empty.Seq},
			[]queue.Job{dead}},
	} {
		checkEqual(r, "filtered by "+c.name, r.listAllJobs(c.filter), c.want)
		c.filter.Limit = 1
		checkEqual(r, "filtered in pages of one job by "+c.name, r.listAllJobs(c.filter), c.want)
		checkEqual(r, "selected in pages of one job by "+c.name, r.listAllJobRefs(c.filter), jobRefsOf(c.want))
	}
	for _, f := range []store.JobFilter{{Limit: 0}, {Limit: -1}, {Limit: store.MaxPageRows + 1}} {
		_, err := r.store.ListJobs(r.Context(), f)
		r.checkError("list", err, queue.CodeInvalid, "limit")
		_, err = r.store.ListJobRefs(r.Context(), f)
		r.checkError("select", err, queue.CodeInvalid, "limit")
	}
	_, err := r.store.ListJobs(r.Context(), store.JobFilter{Limit: 1, IDGlob: "["})
	r.checkError("list by a bad pattern", err, queue.CodeInvalid, "id_glob")
	_, err = r.store.ListJobRefs(r.Context(), store.JobFilter{Limit: 1, IDGlob: strings.Repeat("*", queue.MaxGlobBytes+1)})
	r.checkError("select by a long pattern", err, queue.CodeInvalid, "id_glob")
}

// listAllJobRefs lists all jobs that match a filter, over all pages.
func (r *storeTest) listAllJobRefs(f store.JobFilter) (refs []store.JobRef) {
	r.Helper()
	for {
		page, err := r.store.ListJobRefs(r.Context(), f)
		r.must(err)
		if len(page.Refs) > f.Limit {
			r.Fatalf("a page contains %d jobs, want %d at most", len(page.Refs), f.Limit)
		}
		refs = append(refs, page.Refs...)
		if page.NextBeforeSeq == 0 {
			return refs
		}
		f.BeforeSeq = page.NextBeforeSeq
	}
}

// jobRefsOf returns the references that ListRefs must return for the given jobs.
func jobRefsOf(jobs []queue.Job) []store.JobRef {
	return mapJobs(jobs, func(j *queue.Job) store.JobRef {
		return store.JobRef{Seq: j.Seq, ID: j.ID, State: j.State, UID: j.UID}
	})
}

// Only GetWithEnvAndStdin and claims return a job with its environment and standard input.
func onlyGetWithEnvAndStdinReturnsInput(r *storeTest) {
	small := func(j *queue.Job) { j.Env, j.Stdin = []string{"A=1"}, "in\n" }
	large := func(j *queue.Job) {
		j.Env, j.Stdin = []string{"A=" + strings.Repeat("<", 2000)}, strings.Repeat("x", queue.MaxStdinBytes)
	}
	for _, set := range []func(*queue.Job){small, large, func(*queue.Job) {}} {
		want := r.enqueueOne(set)
		shown := want
		shown.Env, shown.Stdin = nil, ""
		got, err := r.store.GetJob(r.Context(), want.ID)
		r.must(err)
		checkEqual(r, "got", got, shown)
		checkEqual(r, "listed", r.listAllJobs(store.JobFilter{}), []queue.Job{shown})
		r.must(r.applyVerb(want, queue.VerbHold))
		r.must(r.applyVerb(want, queue.VerbRelease))
		claimed := r.claimOne()
		checkEqual(r, "settings of the claimed job", claimed.ExecutionSettings, want.ExecutionSettings)
		leased, err := r.leasedJobs()
		r.must(err)
		checkEqual(r, "settings of the leased job", leased[0].ExecutionSettings, want.ExecutionSettings)
		r.settleJob(claimed, exitOutcome(1))
		for _, edit := range []func(*queue.Job){large, small} {
			r.must(r.editJob(want, func(j *queue.Job) error { edit(j); return nil }))
			edit(&want)
			checkEqual(r, "settings of the edited job", r.getJob(want.ID).ExecutionSettings, want.ExecutionSettings)
		}
		r.must(r.applyVerb(want, queue.VerbRemove))
	}
}

// A page of a list ends before the job with which it would exceed the size limit. It always contains at least
// one job, even if this job alone exceeds the limit.
func pageBytesAreLimited(r *storeTest) {
	text := func(n int) queue.Job {
		return newDraft(func(j *queue.Job) { j.Argv, j.Command = slices.Repeat([]string{strings.Repeat("x", n/4-3)}, 4), "" })
	}
	jobs := r.enqueueAndGet(text(250_000), text(200_000), text(150_000))
	last := newDraft(withID("last"), func(j *queue.Job) { j.Command = "" })
	fits := store.MaxPageTextBytes - store.JobTextBytes(&last)
	for i := range jobs {
		fits -= store.JobTextBytes(&jobs[i])
	}
	last.Command = strings.Repeat("x", fits)
	last = r.enqueueAndGet(last)[0]
	all := append([]int64{last.Seq}, jobs[2].Seq, jobs[1].Seq, jobs[0].Seq)
	page := r.listPage(store.JobFilter{Limit: 9})
	checkEqual(r, "a full page", seqsOf(page.Jobs), all)
	checkEqual(r, "next page after it", page.NextBeforeSeq, 0)
	r.must(r.editJob(last, func(j *queue.Job) error { j.Command += "x"; return nil }))
	page = r.listPage(store.JobFilter{Limit: 9})
	checkEqual(r, "one byte too many", seqsOf(page.Jobs), all[:3])
	page = r.listPage(store.JobFilter{Limit: 9, BeforeSeq: page.NextBeforeSeq})
	checkEqual(r, "the rest", seqsOf(page.Jobs), all[3:])
	checkEqual(r, "next page after the rest", page.NextBeforeSeq, 0)
	// A character that JSON escapes counts with the size of its escape sequence.
	huge := r.enqueueOne(func(j *queue.Job) {
		j.Argv, j.Command = slices.Repeat([]string{strings.Repeat("\x01", 100_000)}, 4), ""
	})
	checkEqual(r, "a job larger than a page", seqsOf(r.listPage(store.JobFilter{Limit: 9}).Jobs), []int64{huge.Seq})
	checkEqual(r, "all", len(r.listAllJobs(store.JobFilter{})), 5)
	checkEqual(r, "selected", len(r.listAllJobRefs(store.JobFilter{Limit: 9})), 5)
}

// A history begins with the newest attempts. Each page of it is limited to a number of
// attempts and a number of bytes.
func attemptHistoryIsReadInPages(r *storeTest) {
	j := r.enqueueOne()
	for n := range 7 {
		e := r.newSettlement(r.claimOne(), outcomeOfCause(queue.EndStopped))
		if n >= 4 {
			e.Decision.Error = strings.Repeat("\"", store.MaxHistoryTextBytes/4-100)
			e.Attempt.Error = e.Decision.Error
		}
		r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
	}
	page := func(before, limit int) (numbers []int) {
		r.Helper()
		list, err := r.store.AttemptHistory(r.Context(), j.Seq, before, limit)
		r.must(err)
		for i := range list {
			numbers = append(numbers, list[i].Number)
		}
		return numbers
	}
	checkEqual(r, "the newest", page(0, 1), []int{7})
	checkEqual(r, "attempts that fit into a page", page(0, 9), []int{6, 7})
	checkEqual(r, "the attempts before", page(6, 9), []int{1, 2, 3, 4, 5})
	checkEqual(r, "some of the attempts before", page(5, 3), []int{2, 3, 4})
	checkEqual(r, "the first", page(2, 3), []int{1})
	checkEqual(r, "before the first", page(1, 3), nil)
	checkEqual(r, "before an attempt that does not exist", page(100, 1), []int{7})
	for _, limit := range []int{0, -1, store.MaxPageRows + 1} {
		_, err := r.store.AttemptHistory(r.Context(), j.Seq, 0, limit)
		r.checkError("a page with an invalid limit", err, queue.CodeInvalid, "limit")
	}
}

func jobCountsFollowChanges(r *storeTest) {
	states := func(subject string, want map[queue.State]int64) {
		r.Helper()
		var stateCounts [queue.Cancelled + 1]int64
		for s, n := range want {
			stateCounts[s] = n
		}
		checkEqual(r, "counts after "+subject, r.store.Counts().JobsByState, stateCounts)
		r.checkJobCounts()
	}
	states("the start", nil)
	r.enqueueAndGet(newDraft(), newDraft(), newDraft(withDelay(time.Hour)))
	states("three enqueues", map[queue.State]int64{queue.Pending: 3})
	jobs := r.claimJobs(2)
	states("two claims", map[queue.State]int64{queue.Pending: 3})
	r.startJob(jobs[0])
	states("a start", map[queue.State]int64{queue.Pending: 2, queue.Processing: 1})
	r.settleJob(jobs[0], exitOutcome(1))
	states("a failure", map[queue.State]int64{queue.Pending: 2, queue.Failed: 1})
	r.settleJob(jobs[1], exitOutcome(0))
	states("a success", map[queue.State]int64{queue.Pending: 1, queue.Failed: 1, queue.Completed: 1})
	r.must(r.store.ChangeJob(r.Context(), jobs[1].Seq, store.JobChange{Verb: queue.VerbRetry, UID: testUID}))
	states("a revival", map[queue.State]int64{queue.Pending: 2, queue.Failed: 1})
	r.must(r.store.ChangeJob(r.Context(), jobs[0].Seq, store.JobChange{Verb: queue.VerbCancel, UID: testUID}))
	states("a cancel", map[queue.State]int64{queue.Pending: 2, queue.Cancelled: 1})
	r.must(r.store.ChangeJob(r.Context(), jobs[0].Seq, store.JobChange{Verb: queue.VerbRemove, UID: testUID}))
	states("a removal", map[queue.State]int64{queue.Pending: 2})
	checkEqual(r, "jobs ever enqueued", r.store.Counts().JobsEverEnqueued, 3)
}

// OldestReadySince returns the time at which the longest-waiting job started to wait.
func oldestReadySinceFindsLongestWait(r *storeTest) {
	oldest := func(subject string, want queue.UnixMillis) {
		r.Helper()
		got, err := r.store.OldestReadySince(r.Context())
		r.must(err)
		checkEqual(r, "oldest "+subject, got, want)
	}
	oldest("of an empty store", 0)
	begin := r.store.Now()
	first := r.enqueueOne(withDelay(time.Minute))
	oldest("while the only job is not due", 0)
	r.advanceAndApplyDueChanges(time.Second)
	r.enqueueOne(withPriority(9))
	oldest("of a waiting job and a job that is not due", begin+1000)
	r.advanceAndApplyDueChanges(time.Minute)
	oldest("of a waiting job and a job that was due later", begin+1000)
	r.settleJob(r.startJob(r.claimOne()), exitOutcome(0))
	oldest("when only the job that was due later waits", first.RunAt)
	r.startJob(r.claimOne())
	oldest("when all run", 0)
}

func eventNumbersHaveNoGaps(r *storeTest) {
	r.enqueueAndGet(newDraft(), newDraft(), newDraft())
	for _, j := range r.claimJobs(3) {
		r.settleJob(r.startJob(j), exitOutcome(0))
		r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRemove, UID: testUID}))
	}
	checkEqual(r, "events in all", len(r.readNewEvents()), 3+3+3+3)
	all, err := r.store.Events(r.Context(), 0, 100)
	r.must(err)
	for _, c := range []struct {
		afterEvent            int64
		limit                 int
		firstEvent, lastEvent int
	}{{0, 100, 0, 12}, {0, 5, 0, 5}, {5, 5, 5, 10}, {11, 5, 11, 12}, {12, 5, 12, 12}, {1000, 5, 12, 12}, {0, 1, 0, 1},
		{-5, 2, 0, 2}} {
		got, err := r.store.Events(r.Context(), c.afterEvent, c.limit)
		r.must(err)
		checkEqual(r, fmt.Sprintf("up to %d events after %d", c.limit, c.afterEvent), got, all[c.firstEvent:c.lastEvent])
	}
}

// tryReceiveChange receives a value from a watch without waiting. It reports whether it received a value.
func tryReceiveChange(w *store.JobWatch) bool {
	select {
	case <-w.C:
		return true
	default:
		return false
	}
}

func jobWatchReportsEveryChange(r *storeTest) {
	j := r.enqueueOne(withExpiry(r.store.Now() + 60_000))
	late := r.enqueueOne(withDelay(time.Hour), withExpiry(r.store.Now()+60_001))
	w := r.store.WatchJobs([]int64{j.Seq, late.Seq})
	defer w.Stop()
	receive(r, "first value of a watch", w.C)
	checkEqual(r, "jobs reported first", w.ChangedJobs(), []int64{j.Seq, late.Seq})
	hinted := func(subject string, want queue.Job) {
		r.Helper()
		receive(r, "hint of "+subject, w.C)
		checkEqual(r, "changed by "+subject, w.ChangedJobs(), []int64{want.Seq})
		for tryReceiveChange(w) { // the same change may have sent a second value
			checkEqual(r, "changed since "+subject, w.ChangedJobs(), nil)
		}
	}
	claimed := r.claimOne()
	r.startJob(claimed)
	hinted("a start", j)
	r.settleJob(claimed, exitOutcome(1))
	hinted("an end", j)
	r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbCancel, UID: testUID}))
	hinted("a cancel", j)
	r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRetry, UID: testUID}))
	hinted("a retry", j)
	r.settleJob(r.claimOne(), exitOutcome(0))
	hinted("an end of a reserved job", j)
	r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRemove, UID: testUID}))
	hinted("a removal", j)
	r.advanceAndApplyDueChanges(time.Minute + time.Millisecond)
	hinted("an expiry", late)
}

func jobWatchesAreIndependent(r *storeTest) {
	j := r.enqueueOne()
	first, second := r.store.WatchJobs([]int64{j.Seq}), r.store.WatchJobs([]int64{j.Seq})
	other := r.store.WatchJobs([]int64{1 << 40}) // no job has this number (seq), so this watch never sends a value
	for _, w := range []*store.JobWatch{first, second, other} {
		defer w.Stop()
		w.ChangedJobs()
		tryReceiveChange(w)
	}
	r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbCancel, UID: testUID}))
	receive(r, "first watch", first.C)
	receive(r, "second watch", second.C)
	second.ChangedJobs()
	first.Stop()
	r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRetry, UID: testUID}))
	receive(r, "watch after another one has stopped", second.C)
	checkEqual(r, "changed", second.ChangedJobs(), []int64{j.Seq})
	checkEqual(r, "value of a watch without jobs", tryReceiveChange(other), false)
}

func newEventClosesEarlierEventChannels(r *storeTest) {
	r.enqueueOne()
	last, first := r.store.LastEventSeq()
	again, second := r.store.LastEventSeq()
	checkEqual(r, "number of the newest event", []int64{last, again}, []int64{1, 1})
	r.checkStoreUnchanged(func() {
		select {
		case <-first:
			r.Error("the channel was closed without a new event")
		default:
		}
	})
	r.enqueueOne()
	for _, newer := range []<-chan struct{}{first, second} {
		select {
		case <-newer:
		default:
			r.Error("an event was stored, but the channel was not closed")
		}
	}
	last, _ = r.store.LastEventSeq()
	checkEqual(r, "number of the newest event", last, 2)
}
