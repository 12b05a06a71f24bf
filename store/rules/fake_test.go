package rules

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// The files fake_*_test.go implement in memory the interfaces that Tx combines, with one fake type for each
// interface. The fakes share plain maps and search them for each read, without counts or indexes. They are
// slow but simple, so that a failed test points to an error in the rules.

// fakeTx implements Tx with one fake for each interface.
type fakeTx struct {
	fakeClock
	fakeSettings
	fakeJobs
	fakeHistory
	fakeCounters
	fakeLeases
	fakeQueues
	fakeLanes
	fakeUserTurns
	fakeGates
	fakeDependencies
	fakeSchedules
	fakeSavepoints
}

var _ Tx = fakeTx{}

// fakeData is the data that the fakes share.
type fakeData struct {
	currentTime    queue.UnixMillis
	earliestWakeAt queue.UnixMillis // earliest time passed to WakeServiceAt; 0 if none
	lastRowID      int64            // last number given to a lane, gate, edge or note

	order            queue.RankPolicy
	isReranking      bool
	maxLeasedPerUser int // maximum number of leased jobs per user; 0 means unlimited
	node             store.Node
	hooks            store.HookSettings

	fakeJobTables
	fakeLaneTables
	fakeDependencyTables
}

// fakeJobTables stores jobs, their history, and the counts that the rules report.
type fakeJobTables struct {
	jobs            map[int64]Job
	leases          map[int64]*Lease
	nextSeq         int64
	enqueuedTotal   int64
	formerOwnerUIDs map[int]int // by uid that has a new owner: the uid for jobs of the former owner
	notifiedJobSeqs []int64     // jobs passed to NotifyJobWatches

	events              []fakeEvent
	settlementsByJobSeq map[int64][]store.Settlement
	deletableOutputs    []string // output files passed to AddDeletableOutput
	measurements        []AttemptMeasurement

	stateCounts      map[queue.State]int   // number of jobs by state, as counted by CountStateTransition
	retainedJobCount int                   // number of retained jobs, as counted by AdjustRetainedCounts
	bytesByUID       map[int]fakeUserBytes // bytes of each user, as counted by AdjustUserBytes
}

type fakeEvent struct {
	kind   queue.EventKind
	seq    int64
	state  queue.State
	detail string
}

// fakeUserBytes holds the bytes of a user's jobs. outputs is the part of total that outputs take.
type fakeUserBytes struct{ storedAndOutputBytes, outputBytes int64 }

func newFakeData() *fakeData {
	d := &fakeData{currentTime: 1_000_000, node: store.Node{Name: "here"}}
	d.order = queue.RankPolicy{Scheduling: queue.SchedulingByAging, AgingUnit: queue.AgingByTime,
		AgingInterval: time.Second}
	d.jobs, d.leases, d.nextSeq, d.formerOwnerUIDs = map[int64]Job{}, map[int64]*Lease{}, 1, map[int]int{}
	d.settlementsByJobSeq, d.stateCounts, d.bytesByUID = map[int64][]store.Settlement{}, map[queue.State]int{},
		map[int]fakeUserBytes{}
	d.queueRules, d.nextQueueTurns = map[string]store.QueueRule{}, map[string]int64{}
	d.lanes, d.lastUserTurns, d.gates = map[int64]fakeLane{}, map[ClosedLaneListKey]int64{}, map[int64]fakeGate{}
	d.schedules, d.occurrenceRecords = map[string]store.Schedule{}, map[string][]store.OccurrenceRecord{}
	return d
}

// clone returns a copy that shares no map and no slice with d.
func (d *fakeData) clone() fakeData {
	c := *d
	c.jobs, c.formerOwnerUIDs, c.notifiedJobSeqs = maps.Clone(d.jobs), maps.Clone(d.formerOwnerUIDs),
		slices.Clone(d.notifiedJobSeqs)
	c.events, c.measurements = slices.Clone(d.events), slices.Clone(d.measurements)
	c.deletableOutputs = slices.Clone(d.deletableOutputs)
	c.stateCounts, c.bytesByUID, c.leases = maps.Clone(d.stateCounts), maps.Clone(d.bytesByUID), maps.Clone(d.leases)
	c.queueRules, c.nextQueueTurns = maps.Clone(d.queueRules), maps.Clone(d.nextQueueTurns)
	c.lanes, c.lastUserTurns = maps.Clone(d.lanes), maps.Clone(d.lastUserTurns)
	c.edges, c.parentChanges, c.schedules = slices.Clone(d.edges), slices.Clone(d.parentChanges), maps.Clone(d.schedules)
	c.settlementsByJobSeq, c.occurrenceRecords, c.gates = cloneLists(d.settlementsByJobSeq),
		cloneLists(d.occurrenceRecords), maps.Clone(d.gates)
	for id, g := range c.gates {
		g.rateStartTimes = slices.Clone(g.rateStartTimes)
		c.gates[id] = g
	}
	return c
}

func cloneLists[K comparable, V any](m map[K][]V) map[K][]V {
	c := map[K][]V{}
	for k, list := range m {
		c[k] = slices.Clone(list)
	}
	return c
}

func (d *fakeData) nextRowID() int64 {
	d.lastRowID++
	return d.lastRowID
}

// sortedJobs returns the jobs for which matches returns true, ordered by seq.
func (d *fakeData) sortedJobs(matches func(*Job) bool) (jobs []Job) {
	for _, seq := range slices.Sorted(maps.Keys(d.jobs)) {
		if j := d.jobs[seq]; matches(&j) {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

type fakeClock struct{ data *fakeData }

func (f fakeClock) Now() queue.UnixMillis { return f.data.currentTime }

func (f fakeClock) WakeServiceAt(at queue.UnixMillis) {
	if at != 0 && (f.data.earliestWakeAt == 0 || at < f.data.earliestWakeAt) {
		f.data.earliestWakeAt = at
	}
}

type fakeSettings struct{ data *fakeData }

func (f fakeSettings) RankOrder() (o queue.RankPolicy, isReranking bool) {
	return f.data.order, f.data.isReranking
}
func (f fakeSettings) MaxLeasedPerUser() int      { return f.data.maxLeasedPerUser }
func (f fakeSettings) ThisNode() *store.Node      { return &f.data.node }
func (f fakeSettings) Hooks() *store.HookSettings { return &f.data.hooks }

type fakeJobs struct{ data *fakeData }

func (f fakeJobs) Job(seq int64, scope ReadScope) (Job, error) {
	j, found := f.data.jobs[seq]
	if !found {
		return j, queue.ErrNotFound
	}
	return limitToReadScope(j, scope), nil
}

// limitToReadScope returns a job without the fields that a read with this scope leaves out.
func limitToReadScope(j Job, scope ReadScope) Job {
	if scope < ReadScopeFull {
		j.Env, j.Stdin = nil, ""
	}
	if scope < ReadScopeSettings {
		j.ExecutionSettings = queue.ExecutionSettings{}
	}
	return j
}

func (f fakeJobs) FindJobSeqByID(_ int, id string) (jobSeq int64, err error) {
	for _, j := range f.data.jobs {
		if j.ID == id {
			jobSeq = j.Seq
		}
	}
	return jobSeq, nil
}

func (f fakeJobs) IsJobInCommittedFrame(int64) (bool, error) { return false, nil }

func (f fakeJobs) IsJobIDTaken(id string) (bool, error) {
	seq, err := f.FindJobSeqByID(0, id)
	return seq != 0, err
}

func (f fakeJobs) UniqueKeyHolder(uid int, uniqueKey string) (holder Job, found bool, err error) {
	for _, j := range f.data.sortedJobs(func(j *Job) bool { return j.UID == uid && j.Unique == uniqueKey }) {
		if !found || !j.State.HasEnded() || holder.State.HasEnded() && j.EndedAt > holder.EndedAt {
			holder, found = limitToReadScope(j, ReadScopeSummary), true
		}
	}
	return holder, found, nil
}

func (f fakeJobs) FormerOwnerUID(uid int, _ int64) int { return f.data.formerOwnerUIDs[uid] }

func (f fakeJobs) RegisterDraft(draft *queue.Job) (draftNumber int, seq int64, id string, err error) {
	seq = f.data.nextSeq
	f.data.nextSeq++
	return 0, seq, cmp.Or(draft.ID, strconv.FormatInt(seq, 10)), nil
}

func (f fakeJobs) InsertJob(j *Job, _ int) error {
	j.StoredBytes, _ = f.StoredJobBytes(&j.Job)
	stored := *j
	stored.DependsOn = nil
	f.data.jobs[j.Seq] = stored
	return nil
}

func (f fakeJobs) StoredJobBytes(j *queue.Job) (int64, error) {
	dependencies := j.ParentCount
	if j.DependsOn != nil {
		dependencies = len(j.DependsOn)
	}
	return int64(store.QuotaBytesPerJob + len(j.Command) + len(j.Stdin) + dependencies*store.QuotaBytesPerDependency), nil
}

// PutJob stores a job. Like package store/engine, it leaves the stored values of those parts unchanged that
// j.WriteScope does not include.
func (f fakeJobs) PutJob(j *Job) error {
	old, stored := f.data.jobs[j.Seq], *j
	if old.Seq == 0 {
		return queue.ErrNotFound
	}
	switch j.WriteScope {
	case WriteScopeRowOnly:
		stored.ExecutionSettings, stored.IsDamaged = old.ExecutionSettings, old.IsDamaged
	case WriteScopeSettings:
		stored.Env, stored.Stdin, stored.Labels = old.Env, old.Stdin, old.Labels
	}
	if stored.Error = old.Error; j.NewError != nil {
		stored.Error = *j.NewError
	}
	stored.Progress, stored.DependsOn, stored.NewError, stored.WriteScope = old.Progress, nil, nil, WriteScopeRowOnly
	f.data.jobs[j.Seq] = stored
	return nil
}

func (f fakeJobs) PutHookUID(j *Job) error {
	stored := f.data.jobs[j.Seq]
	stored.HookUID = j.HookUID
	f.data.jobs[j.Seq] = stored
	return nil
}

func (f fakeJobs) PutProgress(j *Job) error {
	stored := f.data.jobs[j.Seq]
	stored.Progress = j.Progress
	f.data.jobs[j.Seq] = stored
	return nil
}

func (f fakeJobs) RemoveJob(seq int64) error {
	delete(f.data.jobs, seq)
	delete(f.data.settlementsByJobSeq, seq)
	return fakeDependencies(f).DeleteEdges(seq)
}

func (f fakeJobs) NotifyJobWatches(jobSeq int64) {
	f.data.notifiedJobSeqs = append(f.data.notifiedJobSeqs, jobSeq)
}

type fakeHistory struct{ data *fakeData }

func (f fakeHistory) AddEvent(kind queue.EventKind, j *queue.Job, state queue.State, detail []byte) error {
	f.data.events = append(f.data.events, fakeEvent{kind, j.Seq, state, string(detail)})
	return nil
}

func (f fakeHistory) AddAttempt(j *Job, settlement *store.Settlement) error {
	f.data.settlementsByJobSeq[j.Seq] = append(f.data.settlementsByJobSeq[j.Seq], *settlement)
	return nil
}

func (f fakeHistory) DeleteOldestAttempt(jobSeq int64) error {
	f.data.settlementsByJobSeq[jobSeq] = f.data.settlementsByJobSeq[jobSeq][min(1,
		len(f.data.settlementsByJobSeq[jobSeq])):]
	return nil
}

func (f fakeHistory) AddDeletableOutput(outputRef, _ string) error {
	f.data.deletableOutputs = append(f.data.deletableOutputs, outputRef)
	return nil
}

// TrimUserData removes outputs of ended jobs. It does not remove inputs, because no test of the rules needs
// that.
func (f fakeHistory) TrimUserData(uid int, maxUserBytes int64) error {
	list := f.data.sortedJobs(func(j *Job) bool { return j.UID == uid && j.State.HasEnded() })
	slices.SortStableFunc(list, func(a, b Job) int { return cmp.Compare(a.EndedAt, b.EndedAt) })
	for i := 0; i < len(list) && f.data.bytesByUID[uid].storedAndOutputBytes > maxUserBytes; i++ {
		j := list[i]
		for k := range f.data.settlementsByJobSeq[j.Seq] {
			f.data.settlementsByJobSeq[j.Seq][k].Attempt.Output = nil
		}
		fakeCounters(f).AdjustUserBytes(uid, 0, -j.OutputBytes)
		j.OutputBytes = 0
		f.data.jobs[j.Seq] = j
	}
	return nil
}

func (f fakeHistory) AddMeasurement(m AttemptMeasurement) {
	f.data.measurements = append(f.data.measurements, m)
}

type fakeCounters struct{ data *fakeData }

func (f fakeCounters) Counts() JobCounts {
	waiting := f.data.sortedJobs(func(j *Job) bool { return j.State.IsWaiting() })
	return JobCounts{WaitingJobs: int64(len(waiting)), EnqueuedTotal: f.data.enqueuedTotal}
}

func (f fakeCounters) UserCounts(uid int) (u UserCounts) {
	for _, j := range f.data.sortedJobs(func(j *Job) bool { return j.State.IsWaiting() }) {
		u.WaitingJobs += int64(boolToInt(j.UID == uid))
		u.WaitingHooks += int64(boolToInt(j.HookEvents&queue.HookJobFlag != 0 && j.HookUID == uid))
	}
	for _, l := range f.data.leases {
		u.LeasedJobs += boolToInt(l.Job.UID == uid)
	}
	u.UsedBytes, u.OutputBytes = f.data.bytesByUID[uid].storedAndOutputBytes, f.data.bytesByUID[uid].outputBytes
	return u
}

func (f fakeCounters) CountEnqueuedJob() { f.data.enqueuedTotal++ }

func (f fakeCounters) CountStateTransition(_ *Job, oldState, newState queue.State) {
	f.data.stateCounts[oldState]--
	f.data.stateCounts[newState]++
}

func (f fakeCounters) AdjustRetainedCounts(_ *Job, sign int) { f.data.retainedJobCount += sign }

func (f fakeCounters) AdjustUserBytes(uid int, storedBytesDelta, outputBytesDelta int64) {
	b := f.data.bytesByUID[uid]
	f.data.bytesByUID[uid] = fakeUserBytes{b.storedAndOutputBytes + storedBytesDelta + outputBytesDelta, b.outputBytes +
		outputBytesDelta}
}

type fakeLeases struct{ data *fakeData }

func (f fakeLeases) Lease(jobSeq int64) *Lease   { return f.data.leases[jobSeq] }
func (f fakeLeases) PutLease(l *Lease)           { f.data.leases[l.Job.Seq] = l }
func (f fakeLeases) DeleteLease(l *Lease)        { delete(f.data.leases, l.Job.Seq) }
func (f fakeLeases) RandomFenceIncrement() int64 { return 1 }

// fakeSavepoints undoes a part of a transaction: it restores all data and the state of the rules.
type fakeSavepoints struct {
	data     *fakeData
	rules    *Rules
	rechecks *GateRecheckState
}

func (f fakeSavepoints) WithSavepoint(operation func() error) error {
	data, rules, restoreGates := f.data.clone(), *f.rules, f.rechecks.SaveDirtyGates()
	err := operation()
	if err != nil {
		*f.data, *f.rules = data, rules
		f.rules.ClearRateCache()
		restoreGates()
	}
	return err
}
