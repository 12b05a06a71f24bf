// Package records converts rows of the database's tables to jobs, attempts, lanes, schedules and counts, and
// back.
//
// Start with ReadJob and JobRowArgs.
package records

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	// This JSON package decodes in half the time of encoding/json, which matters because every claimed job is
	// decoded.
	quick "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	compatible "github.com/go-json-experiment/json/v1"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// ShortJobColumns are the short columns of a job, in the order in which readShortJobColumns reads them. JobColumns also
// contain the labels, the error and the settings. AllJobColumns also contain the input, which is the
// environment and the standard input.
const (
	ShortJobColumns = `seq, id, queue, uid, state, priority, max_attempts, attempts, runs, fence,
	created_at, updated_at, run_at, due_at, since, arrival, expires_at, started_at, ended_at,
	exit_code, signal, pid, worker, reason, deferred, suspect, crashes, refunds, place, rank, lane, demands, progress,
	schedule, unique_key, unique_for, units, paused_at, paused_by, hooks, parents, kept, outputs, hook_uid, node, ran,
	stored, input_gone`
	JobColumns = ShortJobColumns + `, labels, error, terms`
	// RestrictedJobColumns are like JobColumns, but only the jobs of one user, whose uid is the argument of the
	// placeholder, have settings: the caller may not see the settings of other users.
	RestrictedJobColumns = ShortJobColumns + `, labels, error, CASE uid WHEN ? THEN terms ELSE '{}' END`
	AllJobColumns        = JobColumns + `, coalesce(input, (SELECT input FROM inputs WHERE inputs.seq = jobs.seq), '` +
		missingInputMarker +
		`')`
)

// JobColumnCount returns the number of columns in one of the lists ShortJobColumns, JobColumns and AllJobColumns.
func JobColumnCount(columns string) int {
	switch columns {
	case ShortJobColumns:
		return shortJobColumnCount
	case JobColumns, RestrictedJobColumns:
		return shortJobColumnCount + 3
	}
	return shortJobColumnCount + 4
}

// shortJobColumnCount is the number of ShortJobColumns.
var shortJobColumnCount = strings.Count(ShortJobColumns, ",") + 1

// missingInputMarker is read for an input that is lost. It is not valid JSON, so reading the job fails.
const missingInputMarker = `{`

// Indexes of some columns in ShortJobColumns, counted from 0.
const (
	UIDColumnIndex      = 3
	StateColumnIndex    = 4
	PriorityColumnIndex = 5
	ExpiresColumnIndex  = 16
	RankColumnIndex     = 29
	LaneColumnIndex     = 30
	HookUIDColumnIndex  = 43
)

// MaxInlineInputBytes is the longest input, in bytes, that is stored in its job's row. Longer ones are in the table
// inputs.
const MaxInlineInputBytes = store.MaxKeptInputBytes

// errDamagedText marks the error of a row whose texts cannot be decoded.
var errDamagedText = errors.New("damaged")

// EncodedTexts holds a job's labels, settings and input, encoded as the tables jobs and inputs store them.
type EncodedTexts struct{ Labels, Settings, Input string }

// StoredSize returns how many bytes a job with these texts and this number of dependencies adds to the usage of its
// user.
func (t *EncodedTexts) StoredSize(dependencyCount int) int64 {
	return int64(len(t.Labels)+len(t.Settings)+len(t.Input)+dependencyCount*store.QuotaBytesPerDependency) +
		store.QuotaBytesPerJob
}

// StoredSizeOfDrafts returns how many bytes the jobs made of some drafts add to the usage of their user. texts holds
// the encoded texts of each draft.
func StoredSizeOfDrafts(drafts []queue.Job, texts []EncodedTexts) (totalBytes int64) {
	for i := range texts {
		totalBytes += texts[i].StoredSize(len(drafts[i].DependsOn))
	}
	return totalBytes
}

// EncodeTexts encodes the labels, the settings and the input of a job.
func EncodeTexts(execution queue.ExecutionSettings) (t EncodedTexts, err error) {
	var labels []byte
	if len(execution.Labels) > 0 {
		labels, err = json.Marshal(execution.Labels)
	}
	t.Labels, t.Input = string(labels), EncodeInput(&execution)
	execution.Labels, execution.Env, execution.Stdin = nil, nil, ""
	raw, err2 := json.Marshal(&execution)
	if err = errors.Join(err, err2); err != nil {
		return EncodedTexts{},
			fmt.Errorf("cannot store the settings of a job: %w; this is a bug in queuectl, please report it", err)
	}
	t.Settings = string(raw)
	return t, nil
}

// EncodeInput encodes env and stdin as a JSON object. If the job has neither, it returns "".
func EncodeInput(execution *queue.ExecutionSettings) string {
	if len(execution.Env) == 0 && execution.Stdin == "" {
		return ""
	}
	raw, err := quick.Marshal(jobInput{execution.Env, execution.Stdin}, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		panic("records: cannot encode a text as JSON: " + err.Error())
	}
	return string(raw)
}

// jobInput is the stored form of a job's input.
type jobInput struct {
	Env   []string `json:"env,omitempty"`
	Stdin string   `json:"stdin,omitempty"`
}

// InlineInputValue returns the value for the column input of the job's row, or nil if the input is too long for
// this row.
func (t *EncodedTexts) InlineInputValue() any {
	if len(t.Input) > MaxInlineInputBytes {
		return nil
	}
	return t.Input
}

// readTexts decodes a job's labels and settings and, if withInput is set, its input.
func readTexts(r database.Row, withInput bool, execution *queue.ExecutionSettings) error {
	err := decodeExecutionObject(r.BytesView(shortJobColumnCount+2), execution)
	if withInput && err == nil {
		if input := r.BytesView(shortJobColumnCount + 3); len(input) > 0 {
			err = decodeExecutionObject(input, execution)
		}
	}
	if labels := r.BytesView(shortJobColumnCount); err == nil && len(labels) > 0 {
		err = json.Unmarshal(labels, &execution.Labels)
	}
	return err
}

// decodeExecutionObject decodes settings or an input, which are stored as JSON objects. It rejects null: Unmarshal
// would accept it and leave execution unchanged.
func decodeExecutionObject(text []byte, execution *queue.ExecutionSettings) error {
	if len(text) == 0 || text[0] != '{' {
		return errors.New("the stored text is not a JSON object")
	}
	return quick.Unmarshal(text, execution, durationsAsNanosOption)
}

// durationsAsNanosOption decodes durations from numbers of nanoseconds, the form in which encoding/json stores
// them.
var durationsAsNanosOption = compatible.FormatDurationAsNano(true)

// readShortJobColumns reads a job from a row of ShortJobColumns.
func readShortJobColumns(r database.Row) queue.Job {
	n, t := r.Int64, r.Text
	m := func(i int) queue.UnixMillis { return queue.UnixMillis(n(i)) }
	return queue.Job{
		Seq: n(0), ID: t(1), Queue: t(2), UID: int(n(3)), State: queue.State(n(4)),
		Priority: n(5), MaxAttempts: int(n(6)), Attempts: int(n(7)), StartedAttempts: int(n(8)), Fence: n(9),
		CreatedAt: m(10), UpdatedAt: m(11), RunAt: m(12), DueAt: m(13), AgingSince: m(14), ArrivalNumber: n(15),
		ExpiresAt: m(16), StartedAt: m(17), EndedAt: m(18),
		ExitCode: n(19), Signal: int(n(20)), PID: int(n(21)), WorkerID: t(22), Reason: queue.Reason(t(23)),
		Deferrals: int(n(24)), NeedsIsolation: n(25) != 0, RunnerCrashes: int(n(26)), Shortages: int(n(27)),
		Demands: DecodeDemands(r.BytesView(31)), Progress: decodeProgress(r.BytesView(32)), Schedule: t(33),
		Unique: t(34), UniqueFor: time.Duration(n(35)) * time.Millisecond, HeldUnits: t(36),
		PausedAt: m(37), PausedBy: int(n(38)), HookEvents: queue.HookEvents(n(39)),
		ParentCount: int(n(40)), UsesQueueRetention: n(41) != 0, OutputBytes: n(42), HookUID: int(n(43)),
		InputRemoved: queue.InputParts(n(47)),
	}
}

// decodeProgress decodes the progress that PutProgress has written. It returns nil if the text is damaged.
func decodeProgress(text []byte) *queue.Progress {
	if len(text) == 0 {
		return nil
	}
	p := &queue.Progress{}
	if json.Unmarshal(text, p) != nil {
		return nil
	}
	return p
}

// DecodeDemands decodes demands that EncodeDemands has encoded. If the text is damaged, the job must not
// start, so it returns a demand for a lock that is never free.
func DecodeDemands(text []byte) (demands []queue.Demand) {
	if len(text) == 0 {
		return nil
	}
	if err := json.Unmarshal(text, &demands); err != nil || len(demands) == 0 || queue.CheckDemands(demands) != nil {
		return []queue.Demand{{Kind: queue.GateLock}}
	}
	return demands
}

// ReadJob reads a job from a row of columns that begin with ShortJobColumns, and stores it in *j. If the settings
// are damaged, it returns an error, and stores the job without its settings. The job's field Error then contains the
// message of this error.
func ReadJob(r database.Row, columns string, j *queue.Job) error {
	*j = readShortJobColumns(r)
	if columns == ShortJobColumns {
		return nil
	}
	j.Error = r.Text(shortJobColumnCount + 1)
	if err := readTexts(r, columns == AllJobColumns, &j.ExecutionSettings); err != nil {
		j.ExecutionSettings = queue.ExecutionSettings{}
		err = fmt.Errorf("the settings of job %s are %w: %w; enqueue the job again", j.ID, errDamagedText, err)
		j.Error = err.Error()
		return err
	}
	return nil
}

// ReadRulesJob reads a job for the package rules, with its slot and its lane, from a row of columns that
// begin with ShortJobColumns, and stores it in *j. If the settings are damaged, it sets the field IsDamaged.
func ReadRulesJob(r database.Row, columns string, j *rules.Job) {
	err := ReadJob(r, columns, &j.Job)
	j.Slot, j.Rank, j.LaneID = rules.Slot(r.Int64(28)), r.Int64(29), r.Int64(30)
	j.LastLeasingNodeID, j.EncodedLastAttempt = r.Int64(44), r.Text(45)
	j.StoredBytes, j.IsDamaged = r.Int64(46), err != nil
	j.NewError, j.WriteScope = nil, rules.WriteScopeRowOnly
}

// AttemptColumns are the columns of an attempt, in the order in which ReadAttempt reads them.
const AttemptColumns = `n, fence, worker, node, pid, started_at, ended_at, exit_code, signal,
	reason, error, counted, cpu_us, peak_rss, leftovers, dropped, output_bytes, result_error, peak_tasks`

// AttemptColumnCount is the number of AttemptColumns.
var AttemptColumnCount = strings.Count(AttemptColumns, ",") + 1

// ReadAttempt reads an attempt without its output from a row of AttemptColumns.
func ReadAttempt(r database.Row) (a queue.Attempt) {
	var cpuMicros int64
	database.ScanRow(r, &a.Number, &a.Fence, &a.Worker, &a.Node, &a.PID, &a.StartedAt, &a.EndedAt, &a.ExitCode, &a.Signal,
		&a.Reason, &a.Error, &a.CountsTowardMaxAttempts, &cpuMicros, &a.PeakRSSBytes, &a.LeftoverProcesses, &a.DroppedBytes,
		&a.OutputBytes, &a.ResultError, &a.PeakTasks)
	a.CPUTime = time.Duration(cpuMicros) * time.Microsecond
	return a
}
