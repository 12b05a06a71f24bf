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
	key, name   string
	objectKind  string          // kind of the objects to which the action applies
	resultWord  string          // word for the result in messages, such as "cancelled"
	method      string          // API method whose right the user needs
	needsNumber bool            // ask for a number first; if false, an action on rows asks for a confirmation
	appliesTo   func(*row) bool // selects the rows for the action; nil if it acts on the service
	run         verbFunc
}

// verbFunc is a function that executes a verb on the objects whose ids are in a.
type verbFunc func(ctx context.Context, c Client, a *actEffect) (control.BulkResult, error)

// verbs returns the table of actions. If several actions have the same key, the first one that applies to the
// row is used.
func verbs() []verb {
	cancellable := append([]queue.State{queue.Processing}, queue.VerbCancel.ActsIn()...)
	queueWith := func(paused bool) func(*row) bool {
		return func(r *row) bool { return r.queue != nil && r.queue.Paused == paused }
	}
	scheduleWith := func(paused bool) func(*row) bool {
		return func(r *row) bool { return r.schedule != nil && r.schedule.Paused == paused }
	}
	anySchedule := func(r *row) bool { return r.schedule != nil }
	return []verb{
		{"r", "retry", "job", "pending again", "retry", false, inStates(queue.VerbRetry.ActsIn()...), retryJobs},
		{"c", "cancel", "job", "cancelled", "cancel", false, inStates(cancellable...), jobsAction(control.API.Cancel)},
		{"p", "pause", "job", "paused", "pause", false, runningRows(false), jobsAction(control.API.Pause)},
		{"p", "resume", "job", "resumed", "resume", false, runningRows(true), jobsAction(control.API.Resume)},
		{"h", "hold", "job", "held", "hold", false, inStates(queue.VerbHold.ActsIn()...), jobsAction(control.API.Hold)},
		{"h", "release", "job", "released", "release", false, inStates(queue.VerbRelease.ActsIn()...),
			jobsAction(control.API.Release)},
		{"P", "priority", "job", "changed", "edit", true, inStates(queue.VerbEdit.ActsIn()...), setPriority},
		{"p", "pause", "queue", "paused", "queue.pause", false, queueWith(false), eachNameAction(control.API.QueuePause,
			func(name string) control.QueuePause { return control.QueuePause{Name: name} })},
		{"p", "resume", "queue", "resumed", "queue.resume", false, queueWith(true), eachNameAction(control.API.QueueResume,
			func(name string) control.QueueResumeParams { return control.QueueResumeParams{Name: name} })},
		{"p", "pause", "schedule", "paused", "schedule.pause", false, scheduleWith(false),
			eachNameAction(control.API.SchedulePause, scheduleName)},
		{"p", "resume", "schedule", "resumed", "schedule.resume", false, scheduleWith(true),
			eachNameAction(control.API.ScheduleResume, scheduleName)},
		{"r", "run", "schedule", "job enqueued", "schedule.run", false, anySchedule,
			eachNameAction(control.API.ScheduleRun, scheduleName)},
		{key: "+", name: "add a worker", method: "worker.start", run: addWorker},
		{key: "-", name: "remove a worker", method: "worker.scale", run: removeWorker},
	}
}

// inStates returns a filter for jobs in one of the states.
func inStates(states ...queue.State) func(*row) bool {
	return func(r *row) bool {
		return r.job != nil && slices.ContainsFunc(states, func(s queue.State) bool { return s.String() == r.job.State })
	}
}

// runningRows returns a filter for running jobs. It accepts only paused jobs if paused is true, and otherwise
// only those that are not paused.
func runningRows(paused bool) func(*row) bool {
	return func(r *row) bool {
		return r.job != nil && r.job.State == queue.Processing.String() && (r.job.PausedAt != 0) == paused
	}
}

func retryJobs(ctx context.Context, c Client, a *actEffect) (control.BulkResult, error) {
	return c.Retry(ctx, control.Retry{Selection: a.selection()})
}

// setPriority sets the priority of jobs to the number that the user has entered.
func setPriority(ctx context.Context, c Client, a *actEffect) (control.BulkResult, error) {
	return c.Edit(ctx, control.Edit{Selection: a.selection(), Set: fmt.Appendf(nil, `{"priority":%d}`, a.number)})
}

// jobsAction returns an action that calls a method once for all jobs.
func jobsAction(method func(control.API, context.Context, control.Selection) (control.BulkResult, error)) verbFunc {
	return func(ctx context.Context, c Client, a *actEffect) (control.BulkResult, error) {
		return method(c, ctx, a.selection())
	}
}

// eachNameAction returns an action that calls a method for one name after another. The first error ends the
// action. The function params returns the method's parameters for a name.
func eachNameAction[P, R any](
	method func(control.API, context.Context, P) (R, error), params func(name string) P,
) verbFunc {
	return func(ctx context.Context, c Client, a *actEffect) (r control.BulkResult, err error) {
		for _, name := range a.ids {
			if _, err := method(c, ctx, params(name)); err != nil {
				return r, err
			}
			r.DoneIDs = append(r.DoneIDs, name)
		}
		return r, nil
	}
}

// scheduleName returns parameters that name a schedule.
func scheduleName(name string) control.ScheduleNameParams {
	return control.ScheduleNameParams{Name: name}
}

func addWorker(ctx context.Context, c Client, _ *actEffect) (control.BulkResult, error) {
	_, err := c.WorkerStart(ctx, control.WorkerStart{})
	return control.BulkResult{}, err
}

func removeWorker(ctx context.Context, c Client, _ *actEffect) (control.BulkResult, error) {
	// The displayed number of workers may be outdated, so query the service.
	st, err := c.Status(ctx, control.NoParams{})
	if err == nil {
		_, err = c.WorkerScale(ctx, control.WorkerScale{Count: max(st.Workers.Total-1, 0)})
	}
	return control.BulkResult{}, err
}

func (a *actEffect) selection() control.Selection { return control.Selection{IDs: a.ids} }

// describe returns the number of the action's objects and the first few of their names.
func (a *actEffect) describe() string {
	switch n := len(a.ids); n {
	case 0:
		return ""
	case 1:
		return a.verb.objectKind + " " + termtext.SafeText(a.ids[0])
	default:
		text := fmt.Sprintf("%d %ss, %s", n, a.verb.objectKind,
			termtext.SafeText(strings.Join(a.ids[:min(n, maxDescribedNames)], ", ")))
		if n > maxDescribedNames {
			text += termtext.LocaleText(" …")
		}
		return text
	}
}

// maxDescribedNames is the maximum number of names in the text of describe.
const maxDescribedNames = 3

// text describes the result of an action. If objects were rejected, the text gives the reason for the first of
// them.
func (a *actResult) text() string {
	done := actEffect{verb: a.verb, ids: a.result.DoneIDs}
	switch {
	case a.err != nil:
		return errorText(a.err)
	case len(a.result.Refusals) > 0:
		text := ""
		if len(done.ids) > 0 {
			text = done.describe() + ": " + a.verb.resultWord + "; "
		}
		if n := len(a.result.Refusals); n > 1 {
			text += fmt.Sprintf("%d %ss refused, such as ", n, a.verb.objectKind)
		}
		first := a.result.Refusals[0]
		name, reason := a.verb.objectKind+" "+termtext.SafeText(first.ID), errorText(first.Err())
		if !strings.Contains(reason, name) {
			reason = name + ": " + reason
		}
		return text + reason
	case len(done.ids) > 0:
		return done.describe() + ": " + a.verb.resultWord
	}
	return a.verb.name
}

// verbForKey returns the action of a key for the selected row. It returns nil if the key has no action for this
// row, or if the user may not use it.
func (m *model) verbForKey(name string) *verb {
	r := m.selectedRow()
	for _, v := range verbs() {
		if v.key == name && (v.appliesTo == nil || r != nil && v.appliesTo(r)) &&
			m.isAllowed(v.method, v.appliesTo == nil || m.ownsRow(r)) {
			return &v
		}
	}
	return nil
}

func (m *model) ownsRow(r *row) bool {
	switch {
	case r.job != nil:
		return m.owns(r.job)
	case r.schedule != nil:
		return r.schedule.User == m.whoami.User
	}
	return true
}

// askOrStart is called when the user presses the key of an action. An action on the service starts
// immediately. An action on rows first asks the user for a confirmation or a number. It applies to the marked
// rows or, without marked rows, to the selected row.
func (m *model) askOrStart(v *verb) []effect {
	a := actEffect{verb: v}
	if v.appliesTo == nil {
		return m.startAct(a)
	}
	for _, r := range m.table().rows {
		if m.markedIDs[r.id] {
			a.ids = append(a.ids, r.id)
		}
	}
	if len(a.ids) == 0 {
		a.ids = []string{m.selectedRow().id}
	}
	m.question = &question{kind: askConfirmation, act: a}
	if v.needsNumber {
		m.question.kind = askNumber
	}
	return nil
}

// maxPendingActs is how many actions may be running or waiting. If a user holds a key down, further actions are
// refused.
const maxPendingActs = 8

// startAct queues an action. Actions are executed one at a time.
func (m *model) startAct(a actEffect) []effect {
	if len(m.pendingActs) == maxPendingActs {
		m.notice = "too many actions pending; wait until the service has answered"
		return nil
	}
	clear(m.markedIDs)
	if m.pendingActs = append(m.pendingActs, a); len(m.pendingActs) > 1 {
		return nil
	}
	return []effect{a}
}

// handleActed handles the result of an action and starts the next one. It also requests a fetch, because the
// displayed state is outdated.
func (m *model) handleActed(msg *actResult) []effect {
	m.pendingActs, m.notice = m.pendingActs[1:], msg.text()
	m.mustFetchAgain = true
	todo := m.requestFetch()
	if len(m.pendingActs) > 0 {
		todo = append(todo, m.pendingActs[0])
	}
	return todo
}
