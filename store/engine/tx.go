package engine

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/reads"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

var _ rules.Tx = (*Tx)(nil)

// Now implements rules.Clock. It returns the time at the start of the transaction.
func (t *Tx) Now() queue.UnixMillis { return t.startTime }

// Order implements rules.Settings. It returns the settings from which the ranks of jobs are computed. While
// reranking is true, some stored ranks still follow the previous settings.
func (t *Tx) RankOrder() (order queue.RankPolicy, isReranking bool) {
	return t.order, t.rerankProgress.stateBeingReranked != 0
}

// maxFenceIncrement is the maximum by which a claim raises a fence, the number of a lease. The names of an attempt's
// output and processes contain its fence, so the step is random: no user can predict these names. An int64
// suffices for a hundred million claims of one job.
const maxFenceIncrement = 1 << 36

// RandomFenceIncrement implements rules.Leases. It returns the random step by which a claim raises a fence.
func (t *Tx) RandomFenceIncrement() int64 { return 1 + t.engine.rng.Int64N(maxFenceIncrement) }

// Counts implements rules.Counters. It returns the counts of all jobs.
func (t *Tx) Counts() rules.JobCounts {
	return rules.JobCounts{WaitingJobs: t.counts().WaitingJobs() + t.unqueuedCommittedJobs,
		EnqueuedTotal: t.EnqueuedTotal}
}

// UserCounts implements rules.Counters. It returns the counts of one user.
func (t *Tx) UserCounts(uid int) rules.UserCounts {
	u := t.users[uid]
	return rules.UserCounts{WaitingJobs: u.WaitingJobs, StagedJobs: u.stagedJobs, WaitingHooks: u.waitingHooks,
		LeasedJobs: u.leasedJobs, UsedBytes: u.totalBytes(),
		OutputBytes: u.OutputBytes}
}

// Hooks implements rules.Settings. It returns the settings that decide after which jobs a hook is created.
func (t *Tx) Hooks() *store.HookSettings { return &t.hookSettings }

// FormerOwnerUID implements rules.Jobs. It returns 0 if the job keeps its uid. Otherwise it returns the
// negative uid that the job gets when its lease ends.
func (t *Tx) FormerOwnerUID(uid int, jobSeq int64) int {
	if d := t.disownmentOf(uid, jobSeq); d != nil {
		return d.formerOwnerUID
	}
	return 0
}

// Job implements rules.Jobs. It reads the part of a job that scope selects.
func (t *Tx) Job(seq int64, scope rules.ReadScope) (j rules.Job, err error) {
	columns := records.JobColumnsFor(scope)
	found, err := database.ReadFirstRow(t, func(r database.Row) {
		// Count the whole row, because SQLite moves the whole row when the row changes.
		t.readJobBytes += int(r.Int64(records.JobColumnCount(columns)))
		records.ReadRulesJob(r, columns, &j)
	}, `SELECT `+columns+`, octet_length(labels) + octet_length(terms) FROM jobs WHERE seq = ?`, seq)
	if err == nil && !found {
		err = reads.MissingJobError(t.Conn, seq)
	}
	return j, err
}

// readJobs reads up to limit jobs, without their settings. fromClause is the part of the query that follows FROM:
// the table, the condition and the order.
func (t *Tx) readJobs(limit int, fromClause string, args ...any) ([]rules.Job, error) {
	readJob := func(r database.Row) (j rules.Job) {
		records.ReadRulesJob(r, records.ShortJobColumns, &j)
		return j
	}
	return database.ReadRows(t, readJob, `SELECT `+records.ShortJobColumns+` FROM `+fromClause+` LIMIT ?`,
		append(slices.Clip(args), limit)...)
}

// InsertJob implements rules.Jobs. It stores a new job. draftNumber is the job's index in t.draftTexts, which holds the
// job's encoded texts.
func (t *Tx) InsertJob(j *rules.Job, draftNumber int) error {
	text := &t.draftTexts[draftNumber]
	demands, err := records.EncodeDemands(j.Demands)
	if err != nil {
		return err
	}
	t.discardPrefetchedRows()
	j.StoredBytes = text.StoredSize(j.ParentCount)
	t.WriteRow(`INSERT INTO jobs (seq, id, queue, uid, state, place, lane, rank, priority, max_attempts,
		created_at, updated_at, run_at, due_at, since, arrival, expires_at, hooks, hook_uid, parents, unique_for,
		stored, unique_key, demands, schedule, labels, terms, input)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		j.Seq, j.ID, j.Queue, j.UID, j.State, j.Slot, j.LaneID, j.Rank,
		j.Priority, j.MaxAttempts, j.CreatedAt, j.UpdatedAt, j.RunAt, j.DueAt,
		j.AgingSince, j.ArrivalNumber, j.ExpiresAt, j.HookEvents, j.HookUID,
		j.ParentCount, j.UniqueFor.Milliseconds(), j.StoredBytes,
		j.Unique, demands, j.Schedule, text.Labels, text.Settings, text.InlineInputValue())
	if text.InlineInputValue() == nil {
		t.Exec(`INSERT INTO inputs (seq, input) VALUES (?, ?)`, j.Seq, text.Input)
	}
	return t.statementErr
}

// PutJob implements rules.Jobs. It writes the parts of a stored job that j.WriteScope names. PutProgress writes the
// progress.
func (t *Tx) PutJob(j *rules.Job) error {
	const updateSQL = `UPDATE jobs SET uid = ?, state = ?, place = ?, lane = ?, rank = ?, priority = ?, max_attempts = ?,
		attempts = ?, runs = ?, deferred = ?, refunds = ?, crashes = ?, suspect = ?, fence = ?,
		updated_at = ?, run_at = ?, due_at = ?, since = ?, arrival = ?, expires_at = ?, started_at = ?, ended_at = ?,
		exit_code = ?, signal = ?, pid = ?, paused_at = ?, paused_by = ?, kept = ?, outputs = ?, node = ?, stored = ?,
		worker = ?, units = ?, reason = ?, ran = ?, error = coalesce(?, error)`
	if j.EncodedLastAttempt != "" && j.State != queue.Completed {
		t.insertLastAttemptRow(j)
	}
	if t.prewrite.confirmJob(j) {
		return nil
	}
	t.recordJobWrite(j)
	args := records.JobRowArgs(j)
	if j.WriteScope == rules.WriteScopeRowOnly {
		return t.WriteRow(updateSQL+` WHERE seq = ?`, append(args, j.Seq)...)
	}
	text, err := records.EncodeTexts(j.ExecutionSettings)
	if err != nil {
		return err
	}
	if j.WriteScope == rules.WriteScopeSettings {
		return t.Exec(updateSQL+`, terms = ? WHERE seq = ?`, append(args, text.Settings, j.Seq)...)
	}
	demands, err := records.EncodeDemands(j.Demands)
	if err != nil {
		return err
	}
	all := updateSQL + `, terms = ?, labels = ?, input = ?, queue = ?, demands = ?, unique_key = ?, unique_for = ?,
		hooks = ?, parents = ? WHERE seq = ?`
	t.Exec(all, append(args, text.Settings, text.Labels, text.InlineInputValue(), j.Queue, demands, j.Unique,
		j.UniqueFor.Milliseconds(), j.HookEvents, j.ParentCount, j.Seq)...)
	return t.writeInput(j.Seq, &text)
}

// PutProgress implements rules.Jobs. It writes the progress of a job. PutJob does not, because few jobs report
// progress.
func (t *Tx) PutProgress(j *rules.Job) error {
	text := ""
	if j.Progress != nil {
		raw, err := json.Marshal(j.Progress)
		if err != nil {
			return err
		}
		text = string(raw)
	}
	return t.Exec(`UPDATE jobs SET progress = ? WHERE seq = ?`, text, j.Seq)
}

// PutHookUID implements rules.Jobs. It writes the HookUID of a hook, which PutJob does not write, because it changes
// only when the uid gets another owner.
func (t *Tx) PutHookUID(j *rules.Job) error {
	return t.Exec(`UPDATE jobs SET hook_uid = ? WHERE seq = ?`, j.HookUID, j.Seq)
}

// subtractOutputSize subtracts the size of a removed output from a job, and from its queue if the queue's own
// retention applies to the job.
func (t *Tx) subtractOutputSize(jobSeq, outputBytes int64) {
	if l := t.Lease(jobSeq); l != nil {
		changed := *l
		changed.Job.OutputBytes -= outputBytes
		t.PutLease(&changed)
	}
	name, kept := "", false
	database.ReadFirstRow(t, func(r database.Row) { // if the job was removed, there is no row and nothing to change
		name, kept = r.Text(0), r.Int64(1) != 0
		t.AdjustUserBytes(int(r.Int64(2)), 0, -outputBytes)
	}, `SELECT queue, kept, uid FROM jobs WHERE seq = ?`, jobSeq)
	if kept {
		t.adjustRetainedCounts(name, 0, -outputBytes)
	}
	t.Exec(`UPDATE jobs SET outputs = outputs - ? WHERE seq = ?`, outputBytes, jobSeq)
}

// writeInput stores a job's env and stdin in the table inputs. If they are small enough for the row of the
// job, it deletes them from inputs instead.
func (t *Tx) writeInput(jobSeq int64, texts *records.EncodedTexts) error {
	if texts.InlineInputValue() != nil {
		return t.Exec(`DELETE FROM inputs WHERE seq = ?`, jobSeq)
	}
	return t.Exec(`INSERT INTO inputs (seq, input) VALUES (?, ?) ON CONFLICT (seq) DO UPDATE SET input = excluded.input`,
		jobSeq, texts.Input)
}

// removeStoredInput removes the input of a job from the table inputs, and subtracts its size from the job.
func (t *Tx) removeStoredInput(jobSeq, inputBytes int64, removedParts queue.InputParts) {
	t.Exec(`DELETE FROM inputs WHERE seq = ?`, jobSeq)
	t.Exec(`UPDATE jobs SET input = '', input_gone = ?, stored = stored - ? WHERE seq = ?`, removedParts,
		inputBytes, jobSeq)
}

// AddAttempt implements rules.History. It records an ended attempt of a job.
func (t *Tx) AddAttempt(j *rules.Job, settlement *store.Settlement) error {
	d, a := &settlement.Decision, &settlement.Attempt
	if j.EncodedLastAttempt = records.EncodeAttemptForJobRow(settlement); j.EncodedLastAttempt != "" {
		return nil
	}
	kept := store.AttemptOutputBytes(a)
	size := kept
	if a.OutputBytes < 0 {
		size = a.OutputBytes // a negative size encodes why the output was not kept
	}
	if t.prewrite.inProgress {
		t.prewrite.unconfirmedAttempts[settlement.Seq] = prewrittenAttempt{settlement, j.StartedAttempts}
	} else {
		t.OutputBytes += kept
		if there, err := t.prewrite.confirmAttempt(j, settlement); there || err != nil {
			return err
		}
	}
	row := settlement.Attempt
	row.Number, row.Fence, row.OutputBytes = j.StartedAttempts, settlement.Fence, size
	row.Reason, row.Error, row.CountsTowardMaxAttempts = d.Reason, d.Error, d.CountsTowardMaxAttempts
	return t.insertAttemptRow(settlement.Seq, &row)
}

// AddDeletableOutput implements rules.History. It adds an output file to the table garbage, which lists the
// files to delete.
func (t *Tx) AddDeletableOutput(outputRef, nodeName string) error {
	return t.Exec(`INSERT INTO garbage (ref, node) VALUES (?, ?) ON CONFLICT DO NOTHING`, outputRef, nodeName)
}

// AddEvent implements rules.History. It adds an event about a job.
func (t *Tx) AddEvent(kind queue.EventKind, j *queue.Job, state queue.State, detail []byte) error {
	n := t.NextEventNumber
	t.NextEventNumber++
	if j == nil {
		j = &noJobForEvent
	}
	return t.WriteRow(
		`INSERT INTO events (seq, at, kind, job, id, state, detail, private) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		n, t.startTime, string(kind), j.Seq, j.ID, state, string(detail), uidOrNull(j.RestrictedToUID()))
}

// recordEvent adds an event about the job j. If j is nil, the event concerns no job.
func (t *Tx) recordEvent(kind queue.EventKind, j *queue.Job, d queue.EventDetail) error {
	raw, err := json.Marshal(d)
	t.statementErr = cmp.Or(t.statementErr, err)
	return t.AddEvent(kind, j, 0, raw)
}

// noJobForEvent is the job of events that concern no job.
var noJobForEvent queue.Job

// CountEnqueuedJob implements rules.Counters. It counts an enqueued job.
func (t *Tx) CountEnqueuedJob() { t.EnqueuedTotal++ }

// CountStateTransition implements rules.Counters. It counts the change of a job from one state to another.
func (t *Tx) CountStateTransition(j *rules.Job, oldState, newState queue.State) {
	// A damaged row may have another state than the one that was counted. So the count may already be 0.
	t.JobCountByState[oldState] = max(0, t.JobCountByState[oldState]-1)
	t.JobCountByState[newState]++
	t.JobCountByState[0] = 0
	if oldState.IsWaiting() != newState.IsWaiting() {
		n := records.BoolToInt(newState.IsWaiting()) - records.BoolToInt(oldState.IsWaiting())
		t.changeUserCounts(j.UID, func(u *userCounts) { u.WaitingJobs += n })
		if j.HookEvents&queue.HookJobFlag != 0 {
			t.changeUserCounts(j.HookUID, func(u *userCounts) { u.waitingHooks += n })
		}
		t.addToWaitingCount(j.Queue, j.UID, n)
	}
	t.NotifyJobWatches(j.Seq)
}

// AddMeasurement implements rules.History. It adds the start or end of an attempt to the statistics.
func (t *Tx) AddMeasurement(m rules.AttemptMeasurement) {
	t.attemptMeasurements = append(t.attemptMeasurements, m)
}

// NotifyJobWatches implements rules.Jobs. It notifies the watches of a job after the commit.
func (t *Tx) NotifyJobWatches(jobSeq int64) { t.changedJobSeqs = append(t.changedJobSeqs, jobSeq) }

// StoredJobBytes implements rules.Jobs. It returns how many bytes a job's row, input and dependencies take.
func (t *Tx) StoredJobBytes(j *queue.Job) (int64, error) {
	text, err := records.EncodeTexts(j.ExecutionSettings)
	dependencies := j.ParentCount
	if j.DependsOn != nil {
		dependencies = len(j.DependsOn)
	}
	return text.StoredSize(dependencies), err
}

// AdjustUserBytes implements rules.Counters. It adds to the counted bytes of a user's jobs and schedules. Both numbers
// may be negative.
func (t *Tx) AdjustUserBytes(uid int, storedBytesDelta, outputBytesDelta int64) {
	if storedBytesDelta != 0 || outputBytesDelta != 0 {
		t.changeUserCounts(uid, func(u *userCounts) {
			u.StoredBytes, u.OutputBytes = u.StoredBytes+storedBytesDelta+outputBytesDelta, u.OutputBytes+outputBytesDelta
		})
	}
}

// Lease implements rules.Leases. It returns the lease of a job, or nil.
func (t *Tx) Lease(jobSeq int64) *rules.Lease {
	l, err := t.loadFullLease(t.leases[jobSeq])
	t.statementErr = cmp.Or(t.statementErr, err)
	return l
}

// PutLease implements rules.Leases. It stores a lease, and replaces an earlier one of the same job.
func (t *Tx) PutLease(l *rules.Lease) {
	t.reservationsChanged = true
	seq := l.Job.Seq
	restoreOnRollback(t, t.leases, seq)
	old := t.leases[seq]
	t.leases[seq] = l
	t.changedLeaseJobSeqs = append(t.changedLeaseJobSeqs, seq)
	t.recordReservedLeaseChange(l)
	if old != nil {
		t.recordReservedLeaseChange(old)
	}
	t.adjustUsedGateUnits(old, -1)
	t.adjustUsedGateUnits(l, 1)
	if old == nil {
		t.adjustLeasedJobCounts(&l.Job, 1)
	}
}

// DeleteLease implements rules.Leases. It deletes a lease.
func (t *Tx) DeleteLease(l *rules.Lease) {
	t.reservationsChanged = t.reservationsChanged || !l.AttemptStarted
	restoreOnRollback(t, t.leases, l.Job.Seq)
	delete(t.leases, l.Job.Seq)
	t.changedLeaseJobSeqs = append(t.changedLeaseJobSeqs, l.Job.Seq)
	t.recordReservedLeaseChange(l)
	t.adjustUsedGateUnits(l, -1)
	t.adjustLeasedJobCounts(&l.Job, -1)
}

// recordReservedLeaseChange records the node of a changed lease, if the attempt is not known to have started.
func (t *Tx) recordReservedLeaseChange(l *rules.Lease) {
	if node := l.Job.LastLeasingNodeID; node != 0 && !l.AttemptStarted &&
		!slices.Contains(t.nodesWithChangedReservations, node) {
		t.nodesWithChangedReservations = append(t.nodesWithChangedReservations, node)
	}
}

// adjustUsedGateUnits changes the used units of the gates (locks and other limits) by the units that a lease holds: it
// adds them if sign is 1, and subtracts them if sign is -1. It skips rates if the attempt has started, because then the
// recorded start counts instead. It skips resources if the job runs on another node, because each node counts only its
// own resources.
func (t *Tx) adjustUsedGateUnits(l *rules.Lease, sign int) {
	if l == nil {
		return
	}
	used := t.gates.UsedUnitsByGate
	for _, n := range l.HeldGateUnits {
		if n.Kind == queue.GateRate && l.AttemptStarted || n.Kind == queue.GateResource &&
			l.Job.LastLeasingNodeID != t.engine.nodeID {
			continue
		}
		restoreOnRollback(t, used, n.GateID)
		if used[n.GateID] += sign * n.Units; used[n.GateID] == 0 {
			delete(used, n.GateID)
		}
	}
}

// estimateJobBytes estimates how many bytes of memory a job takes when it is read.
func estimateJobBytes(j *queue.Job) int {
	n := len(j.Command) + len(j.Stdin)
	for _, list := range [][]string{j.Argv, j.Env} {
		for _, text := range list {
			n += len(text)
		}
	}
	return n
}

// uidOrNull returns a uid as an argument of a statement, or NULL if uid is nil.
func uidOrNull(uid *int) any {
	if uid == nil {
		return nil
	}
	return *uid
}

// textOrNull returns a text or blob as an argument of a statement, or NULL if it is empty.
func textOrNull[T string | []byte](v T) any {
	if len(v) == 0 {
		return nil
	}
	return v
}
