package top

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// verb is an action that the user starts with a key. It acts on rows or on the service.
type verb struct {
	key, name        string
	objectKind       string              // kind of the objects to which the action applies
	resultParticiple string              // word for the result in messages, such as "cancelled"
	apiMethod        string              // API method whose required right the user must have
	asksForNumber    bool                // ask for a number first; if false, an action on rows asks for a confirmation
	appliesTo        func(*listRow) bool // selects the rows of that kind; nil if the action acts on the service
	execute          verbFunc
}

// verbFunc is a function that executes a verb (an action of the user) on the objects whose ids a contains.
type verbFunc func(ctx context.Context, c Client, a *actionEffect) (control.BulkResult, error)

// verbs returns the table of actions. If several actions have the same key, the first one that applies to the
// row is used.
func verbs() []verb {
	cancellable := append([]queue.State{queue.Processing}, queue.VerbCancel.StatesWithEffect()...)
	notPaused, paused := pauseFilter(false), pauseFilter(true)
	anyRow := func(*listRow) bool { return true }
	return []verb{
		{"r", "retry", "job", "pending again", "retry", false, jobStateFilter(queue.VerbRetry.StatesWithEffect()...),
			retryJobs},
		{"c", "cancel", "job", "cancelled", "cancel", false, jobStateFilter(cancellable...),
			bulkJobAction(control.API.CancelJobs)},
		{"p", "pause", "job", "paused", "pause", false, notPaused, bulkJobAction(control.API.PauseJobs)},
		{"p", "resume", "job", "resumed", "resume", false, paused, bulkJobAction(control.API.ResumeJobs)},
		{"h", "hold", "job", "held", "hold", false, jobStateFilter(queue.VerbHold.StatesWithEffect()...),
			bulkJobAction(control.API.HoldJobs)},
		{"h", "release", "job", "released", "release", false, jobStateFilter(queue.VerbRelease.StatesWithEffect()...),
			bulkJobAction(control.API.ReleaseJobs)},
		{"P", "priority", "job", "changed", "edit", true, jobStateFilter(queue.VerbEdit.StatesWithEffect()...), setPriority},
		{"p", "pause", "queue", "paused", "queue.pause", false, notPaused, actionPerName(control.API.PauseQueues,
			func(name string) control.QueuePauseParams { return control.QueuePauseParams{Name: name} })},
		{"p", "resume", "queue", "resumed", "queue.resume", false, paused, actionPerName(control.API.ResumeQueues,
			func(name string) control.QueueResumeParams { return control.QueueResumeParams{Name: name} })},
		{"p", "pause", "schedule", "paused", "schedule.pause", false, notPaused,
			actionPerName(control.API.PauseSchedule, scheduleNameParams)},
		{"p", "resume", "schedule", "resumed", "schedule.resume", false, paused,
			actionPerName(control.API.ResumeSchedule, scheduleNameParams)},
		{"r", "run", "schedule", "job enqueued", "schedule.run", false, anyRow,
			actionPerName(control.API.RunScheduleNow, scheduleNameParams)},
		{key: "+", name: "add a worker", apiMethod: "worker.start", execute: addWorker},
		{key: "-", name: "remove a worker", apiMethod: "worker.scale", execute: removeWorker},
	}
}

// jobStateFilter returns a filter for rows of jobs. It accepts jobs in one of the states.
func jobStateFilter(states ...queue.State) func(*listRow) bool {
	return func(r *listRow) bool { return slices.Contains(queue.StateNames(states), r.job.State) }
}

// pauseFilter returns a filter for rows of any kind. It accepts running jobs, queues and schedules that are paused or,
// if paused is false, those that are not paused.
func pauseFilter(paused bool) func(*listRow) bool {
	return func(r *listRow) bool {
		return r.isPaused == paused && (r.job == nil || r.job.State == queue.Processing.String())
	}
}

func retryJobs(ctx context.Context, c Client, a *actionEffect) (control.BulkResult, error) {
	return c.RetryJobs(ctx, control.JobRetryParams{JobSelection: a.jobSelection()})
}

// setPriority sets the priority of jobs to the number that the user has entered.
func setPriority(ctx context.Context, c Client, a *actionEffect) (control.BulkResult, error) {
	return c.EditJobs(ctx, control.JobEditParams{JobSelection: a.jobSelection(),
		FieldsToSet: fmt.Appendf(nil, `{"priority":%d}`, a.newPriority)})
}

// bulkJobAction returns an action that calls a method once for all jobs.
func bulkJobAction(method func(control.API, context.Context, control.JobSelection) (control.BulkResult,
	error)) verbFunc {
	return func(ctx context.Context, c Client, a *actionEffect) (control.BulkResult, error) {
		return method(c, ctx, a.jobSelection())
	}
}

// actionPerName returns an action that calls a method for one name after another. The first error ends the
// action. The function params returns the method's parameters for a name.
func actionPerName[P, R any](
	method func(control.API, context.Context, P) (R, error), params func(name string) P,
) verbFunc {
	return func(ctx context.Context, c Client, a *actionEffect) (r control.BulkResult, err error) {
		for _, name := range a.objectIDs {
			if _, err := method(c, ctx, params(name)); err != nil {
				return r, err
			}
			r.ChangedJobIDs = append(r.ChangedJobIDs, name)
		}
		return r, nil
	}
}

// scheduleNameParams returns parameters that name a schedule.
func scheduleNameParams(name string) control.ScheduleNameParams {
	return control.ScheduleNameParams{Name: name}
}

func addWorker(ctx context.Context, c Client, _ *actionEffect) (control.BulkResult, error) {
	_, err := c.StartWorkers(ctx, control.WorkerStartParams{})
	return control.BulkResult{}, err
}

func removeWorker(ctx context.Context, c Client, _ *actionEffect) (control.BulkResult, error) {
	// The displayed number of workers may be outdated, so query the service.
	st, err := c.Status(ctx, control.NoParams{})
	if err == nil {
		_, err = c.ScaleWorkers(ctx, control.WorkerScaleParams{TargetWorkers: max(st.Workers.Total-1, 0)})
	}
	return control.BulkResult{}, err
}

func (a *actionEffect) jobSelection() control.JobSelection {
	return control.JobSelection{IDs: a.objectIDs}
}

// describeObjects returns the number of the action's objects and the first few of their names.
func (a *actionEffect) describeObjects() string {
	n := len(a.objectIDs)
	names := termtext.TerminalSafeText(strings.Join(a.objectIDs[:min(n, maxDescribedNames)], ", "))
	switch {
	case n == 0:
		return ""
	case n == 1:
		return a.verb.objectKind + " " + names
	case n > maxDescribedNames:
		names += termtext.TextForLocale(" …")
	}
	return fmt.Sprintf("%d %ss, %s", n, a.verb.objectKind, names)
}

// maxDescribedNames is the maximum number of names in the text that describeObjects returns.
const maxDescribedNames = 3

// resultText describes the result of an action. If objects were rejected, the text gives the reason for the first of
// them.
func (a *actionResult) resultText() string {
	done := actionEffect{verb: a.verb, objectIDs: a.result.ChangedJobIDs}
	switch {
	case a.err != nil:
		return errorText(a.err)
	case len(a.result.Refusals) > 0:
		text := ""
		if len(done.objectIDs) > 0 {
			text = done.describeObjects() + ": " + a.verb.resultParticiple + "; "
		}
		if n := len(a.result.Refusals); n > 1 {
			text += fmt.Sprintf("%d %ss refused, such as ", n, a.verb.objectKind)
		}
		first := a.result.Refusals[0]
		name, reason := a.verb.objectKind+" "+termtext.TerminalSafeText(first.JobID), errorText(first.AsError())
		if !strings.Contains(reason, name) {
			reason = name + ": " + reason
		}
		return text + reason
	case len(done.objectIDs) > 0:
		return done.describeObjects() + ": " + a.verb.resultParticiple
	}
	return a.verb.name
}

// verbForKey returns the action of a key for the selected row. It returns nil if the key has no action for this
// row, or if the user may not use it.
func (m *model) verbForKey(keyName string) *verb {
	r := m.selectedRow()
	for _, v := range verbs() {
		if v.key == keyName && (v.appliesTo == nil || r != nil && r.objectKind == v.objectKind && v.appliesTo(r)) &&
			m.mayCallMethod(v.apiMethod, v.appliesTo == nil || r.isOwn) {
			return &v
		}
	}
	return nil
}

// confirmOrStartVerb handles the key of an action. An action on the service starts immediately. An action on rows first
// asks the user for a confirmation or a number. Such an action applies to the marked rows or, if no rows are marked, to
// the selected row.
func (m *model) confirmOrStartVerb(v *verb) []effect {
	a := actionEffect{verb: v}
	if v.appliesTo == nil {
		return m.addPendingAction(a)
	}
	for _, r := range m.currentTable().rows {
		if m.markedIDs[r.id] {
			a.objectIDs = append(a.objectIDs, r.id)
		}
	}
	if len(a.objectIDs) == 0 {
		a.objectIDs = []string{m.selectedRow().id}
	}
	m.question = &question{kind: askConfirmation, pendingAction: a}
	if v.asksForNumber {
		m.question.kind = askNumber
	}
	return nil
}

// maxPendingActions is how many actions may be running or waiting. If a user holds a key down, further actions are
// refused.
const maxPendingActions = 8

// addPendingAction queues an action. Actions are executed one at a time.
func (m *model) addPendingAction(a actionEffect) []effect {
	if len(m.pendingActions) == maxPendingActions {
		m.notice = "too many actions pending; wait until the service has answered"
		return nil
	}
	clear(m.markedIDs)
	if m.pendingActions = append(m.pendingActions, a); len(m.pendingActions) > 1 {
		return nil
	}
	return []effect{a}
}

// handleActionResult handles the result of an action and starts the next one. It also requests a fetch, because the
// displayed state is outdated.
func (m *model) handleActionResult(msg *actionResult) []effect {
	m.pendingActions, m.notice = m.pendingActions[1:], msg.resultText()
	m.mustFetchAgain = true
	todo := m.requestFetch()
	if len(m.pendingActions) > 0 {
		todo = append(todo, m.pendingActions[0])
	}
	return todo
}
