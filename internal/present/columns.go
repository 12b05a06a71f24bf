package present

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// JobColumn is a column of a list of jobs. A list can be sorted by a column.
type JobColumn struct {
	Name    string
	Heading string
	CellOf  func(*control.Job) Cell
}

// Cell is the value of a column for one job: its text and its two sort keys. Cells with the same sortNumber are sorted
// by sortText.
type Cell struct {
	Text       string
	sortNumber int64
	sortText   string
}

// CompareCells compares two cells of a column by their sort keys.
func CompareCells(a, b Cell) int {
	return cmp.Or(cmp.Compare(a.sortNumber, b.sortNumber), strings.Compare(a.sortText, b.sortText))
}

// textCell returns a cell that is sorted by its text.
func textCell(text string) Cell { return Cell{Text: text, sortText: text} }

// textOrDashCell returns a cell that is sorted by its text and shows "-" for an empty text.
func textOrDashCell(text string) Cell { return Cell{Text: DashIfEmpty(text), sortText: text} }

// cellSortedByNumber returns a cell that shows a text but is sorted by a number.
func cellSortedByNumber[N ~int | ~int64](text string, n N) Cell {
	return Cell{Text: text, sortNumber: int64(n)}
}

// optionalNumberCell returns a cell that shows a text but is sorted by a number. A nil number comes first.
func optionalNumberCell[N ~int | ~int64](text string, n *N) Cell {
	return cellSortedByNumber(text, queue.ValueOr(n, -1))
}

// timeCell returns a cell that is sorted by its time. A cell without a time shows "-" and comes first.
func timeCell(t control.Time) Cell { return Cell{Text: LocalTimeText(t), sortNumber: int64(t)} }

// JobSignalName returns the name of the signal that ended a job, or noSignalText if no signal ended it.
func JobSignalName(j *control.Job, noSignalText string) string {
	return cmp.Or(formatIfNotNil(j.Signal, queue.SignalName), noSignalText)
}

// JobColumns returns all columns that a list of jobs can have, in the order in which the help lists them.
func JobColumns() []JobColumn {
	return []JobColumn{
		{"id", "ID", func(j *control.Job) Cell { return textCell(j.ID) }},
		{"seq", "SEQ", func(j *control.Job) Cell { return cellSortedByNumber(PlainNumberText(j.Seq), j.Seq) }},
		{"state", "STATE", func(j *control.Job) Cell { return Cell{Text: stateTextWithPause(j), sortText: j.State} }},
		{"queue", "QUEUE", func(j *control.Job) Cell { return textCell(j.Queue) }},
		{"when", "WHEN", func(j *control.Job) Cell {
			return cellSortedByNumber(timeTextForState(j, time.Now()), max(j.FinishedAt, j.StartedAt, j.RunAt))
		}},
		{"reason", "REASON", func(j *control.Job) Cell { return textOrDashCell(endOrWaitReason(j)) }},
		{"priority", "PRIORITY", func(j *control.Job) Cell {
			return cellSortedByNumber(PriorityWithBonusText(j), j.EffectivePriority)
		}},
		{"attempts", "ATTEMPTS", func(j *control.Job) Cell {
			return cellSortedByNumber(AttemptsText(j), UsedAttemptCount(j))
		}},
		{"created", "CREATED" + termtext.HeadingZonePlaceholder, func(j *control.Job) Cell { return timeCell(j.CreatedAt) }},
		{"updated", "UPDATED" + termtext.HeadingZonePlaceholder, func(j *control.Job) Cell { return timeCell(j.UpdatedAt) }},
		{"run_at", "RUN_AT" + termtext.HeadingZonePlaceholder, func(j *control.Job) Cell { return timeCell(j.RunAt) }},
		{"retry", "RETRY" + termtext.HeadingZonePlaceholder, func(j *control.Job) Cell { return timeCell(j.NextRetryAt) }},
		{"started", "STARTED" + termtext.HeadingZonePlaceholder, func(j *control.Job) Cell { return timeCell(j.StartedAt) }},
		{"finished", "FINISHED" + termtext.HeadingZonePlaceholder,
			func(j *control.Job) Cell { return timeCell(j.FinishedAt) }},
		{"waited", "WAITED", func(j *control.Job) Cell {
			return cellSortedByNumber(MillisecondsText(j.QueueTimeMS), j.QueueTimeMS)
		}},
		{"ran", "RAN", func(j *control.Job) Cell {
			return optionalNumberCell(DashIfEmpty(RunTimeText(j.RunTimeMS)), j.RunTimeMS)
		}},
		{"typical", "TYPICAL", func(j *control.Job) Cell {
			return optionalNumberCell(TypicalRuntimeOrDash(j), j.TypicalRuntimeMS)
		}},
		{"progress", "PROGRESS", func(j *control.Job) Cell {
			unknown := control.JobProgress{Percent: -1} // -1 sorts a job without progress before all others
			return cellSortedByNumber(DashIfEmpty(ProgressText(j)), queue.ValueOr(j.Progress, unknown).Percent)
		}},
		{"exit_code", "EXIT", func(j *control.Job) Cell { return optionalNumberCell(DashIfNil(j.ExitCode), j.ExitCode) }},
		{"signal", "SIGNAL", func(j *control.Job) Cell { return optionalNumberCell(JobSignalName(j, "-"), j.Signal) }},
		{"worker", "WORKER", func(j *control.Job) Cell {
			return textOrDashCell(EmptyIfNil(j.WorkerID))
		}},
		{"node", "NODE", func(j *control.Job) Cell { return textCell(j.Node) }},
		{"pid", "PID", func(j *control.Job) Cell { return optionalNumberCell(DashIfNil(j.PID), j.PID) }},
		{"user", "USER", func(j *control.Job) Cell { return textCell(j.User) }},
		{"labels", "LABELS", func(j *control.Job) Cell { return textOrDashCell(LabelsText(j.Labels)) }},
		{"error", "ERROR", func(j *control.Job) Cell {
			return textOrDashCell(EmptyIfNil(j.Error))
		}},
		{"command", "COMMAND", func(j *control.Job) Cell { return textCell(JobTitle(j)) }},
	}
}

// endOrWaitReason returns why a job has ended or, if it has not, what it waits for.
func endOrWaitReason(j *control.Job) string {
	r := queue.ValueOr(j.MainWaitReason, control.WaitReason{})
	return cmp.Or(queue.ValueOr(j.Reason, ""), strings.TrimSpace(r.Kind+" "+r.CauseKey))
}

// TypicalRuntimeOrDash returns the typical run time of a job's command, or "-" if it is unknown.
func TypicalRuntimeOrDash(j *control.Job) string {
	return DashIfEmpty(DurationText(j.TypicalRuntimeMS))
}

// JobColumnNames returns the names of all columns.
func JobColumnNames() (names []string) {
	for _, c := range JobColumns() {
		names = append(names, c.Name)
	}
	return names
}

// DropUninformativeColumns removes columns that say nothing: QUEUE if every job is in the default queue, and NODE and
// TYPICAL if they contain no values. It modifies rows.
func DropUninformativeColumns(headings []string, rows [][]string) ([]string, [][]string) {
	for name, plain := range map[string][]string{"QUEUE": {queue.DefaultQueue, ""}, "NODE": {"", "-"}, "TYPICAL": {"-"}} {
		at := slices.Index(headings, name)
		if at < 0 || slices.ContainsFunc(rows, func(row []string) bool { return !slices.Contains(plain, row[at]) }) {
			continue
		}
		for i := range rows {
			rows[i] = slices.Delete(rows[i], at, at+1)
		}
		headings = slices.Delete(slices.Clone(headings), at, at+1)
	}
	return headings, rows
}
