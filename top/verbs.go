package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/queue"
)

// verb is what a key does to rows, or to the service.
type verb struct {
	key, name string
	of        string // what it is done to
	done      string // what is said of that then
	method    string // whose right it needs
	takes     func(*row) bool
	asks      bool // before it is done
	number    bool // which it asks for
	do        func(context.Context, control.API, *act) (control.BulkResult, error)
}

// verbs is the table of them. Of those with one key the first is meant that takes the row.
func verbs() []verb {
	return []verb{
		{key: "r", name: "retry", of: "job", done: "pending again", method: "retry", takes: inStates(queue.VerbRetry.Takes()...), asks: true,
			do: func(ctx context.Context, api control.API, a *act) (control.BulkResult, error) {
				return api.Retry(ctx, control.Retry{Selection: a.selection()})
			}},
		{key: "c", name: "cancel", of: "job", done: "cancelled", method: "cancel", takes: inStates(append([]queue.State{queue.Processing}, queue.VerbCancel.Takes()...)...), asks: true, do: onJobs(control.API.Cancel)},
		{key: "p", name: "pause", of: "job", done: "paused", method: "pause", takes: runs(false), asks: true, do: onJobs(control.API.Pause)},
		{key: "p", name: "resume", of: "job", done: "resumed", method: "resume", takes: runs(true), asks: true, do: onJobs(control.API.Resume)},
		{key: "h", name: "hold", of: "job", done: "held", method: "hold", takes: inStates(queue.VerbHold.Takes()...), asks: true, do: onJobs(control.API.Hold)},
		{key: "h", name: "release", of: "job", done: "released", method: "release", takes: inStates(queue.VerbRelease.Takes()...), asks: true, do: onJobs(control.API.Release)},
		{key: "P", name: "priority", of: "job", done: "changed", method: "edit", takes: inStates(queue.VerbEdit.Takes()...), number: true,
			do: func(ctx context.Context, api control.API, a *act) (control.BulkResult, error) {
				set, err := json.Marshal(map[string]int64{"priority": a.number})
				if err != nil {
					return control.BulkResult{}, err
				}
				return api.Edit(ctx, control.Edit{Selection: a.selection(), Set: set})
			}},
		{key: "p", name: "pause", of: "queue", done: "paused", method: "queue.pause", asks: true, takes: func(r *row) bool { return r.queue != nil && !r.queue.Paused },
			do: onNames(func(ctx context.Context, api control.API, name string) error {
				_, err := api.QueuePause(ctx, control.QueuePause{Name: name})
				return err
			})},
		{key: "p", name: "resume", of: "queue", done: "resumed", method: "queue.resume", asks: true, takes: func(r *row) bool { return r.queue != nil && r.queue.Paused },
			do: onNames(func(ctx context.Context, api control.API, name string) error {
				_, err := api.QueueResume(ctx, control.QueueName{Name: name})
				return err
			})},
		{key: "p", name: "pause", of: "schedule", done: "paused", method: "schedule.pause", asks: true, takes: func(r *row) bool { return r.schedule != nil && !r.schedule.Paused },
			do: onNames(func(ctx context.Context, api control.API, name string) error {
				_, err := api.SchedulePause(ctx, control.ScheduleName{Name: name})
				return err
			})},
		{key: "p", name: "resume", of: "schedule", done: "resumed", method: "schedule.resume", asks: true, takes: func(r *row) bool { return r.schedule != nil && r.schedule.Paused },
			do: onNames(func(ctx context.Context, api control.API, name string) error {
				_, err := api.ScheduleResume(ctx, control.ScheduleName{Name: name})
				return err
			})},
		{key: "r", name: "run", of: "schedule", done: "job enqueued", method: "schedule.run", asks: true, takes: func(r *row) bool { return r.schedule != nil },
			do: onNames(func(ctx context.Context, api control.API, name string) error {
				_, err := api.ScheduleRun(ctx, control.ScheduleName{Name: name})
				return err
			})},
	}
}

// scaling are the verbs on workers, which need no row.
func scaling() []verb {
	return []verb{
		{key: "+", name: "add a worker", method: "worker.start",
			do: func(ctx context.Context, api control.API, _ *act) (control.BulkResult, error) {
				_, err := api.WorkerStart(ctx, control.Count{})
				return control.BulkResult{}, err
			}},
		{key: "-", name: "remove a worker", method: "worker.scale",
			do: func(ctx context.Context, api control.API, _ *act) (control.BulkResult, error) {
				st, err := api.Status(ctx, control.Nothing{}) // the picture may be older than the last key
				if err == nil {
					_, err = api.WorkerScale(ctx, control.WorkerScale{Count: max(st.Workers.Total-1, 0)})
				}
				return control.BulkResult{}, err
			}},
	}
}

func inStates(states ...queue.State) func(*row) bool {
	return func(r *row) bool {
		return r.job != nil && slices.ContainsFunc(states, func(s queue.State) bool { return s.String() == r.job.State })
	}
}

// runs takes jobs that run: those that stand still, or the others.
func runs(paused bool) func(*row) bool {
	return func(r *row) bool {
		return r.job != nil && r.job.State == queue.Processing.String() && (r.job.PausedAt != 0) == paused
	}
}

func onJobs(method func(control.API, context.Context, control.Selection) (control.BulkResult, error)) func(context.Context, control.API, *act) (control.BulkResult, error) {
	return func(ctx context.Context, api control.API, a *act) (control.BulkResult, error) {
		return method(api, ctx, a.selection())
	}
}

// onNames carries something out on one after the other, until it is refused.
func onNames(method func(context.Context, control.API, string) error) func(context.Context, control.API, *act) (control.BulkResult, error) {
	return func(ctx context.Context, api control.API, a *act) (r control.BulkResult, err error) {
		for _, name := range a.ids {
			if err := method(ctx, api, name); err != nil {
				return r, err
			}
			r.Done = append(r.Done, name)
		}
		return r, nil
	}
}

func (a *act) selection() control.Selection { return control.Selection{IDs: a.ids} }

// about names what an act is about: how many, and the first of them.
func (a *act) about() string {
	switch n := len(a.ids); n {
	case 0:
		return ""
	case 1:
		return a.verb.of + " " + cli.Shown(a.ids[0])
	default:
		text := fmt.Sprintf("%d %ss, %s", n, a.verb.of, cli.Shown(strings.Join(a.ids[:min(n, namedMost)], ", ")))
		if n > namedMost {
			text += cli.Sign(" …")
		}
		return text
	}
}

// namedMost is how many of several are named.
const namedMost = 3

// text is what came of an act: the first refusal, or else what was done.
func (a *acted) text() string {
	done := act{verb: a.verb, ids: a.result.Done}
	switch {
	case a.err != nil:
		return message(a.err)
	case len(a.result.Refused) > 0:
		first := a.result.Refused[0]
		text := message(first.Err())
		if n := len(a.result.Refused) - 1; n > 0 {
			text += fmt.Sprintf("; %d more were refused", n)
		}
		if len(done.ids) > 0 {
			text += "; " + done.about() + ": " + a.verb.done
		}
		return text
	case len(done.ids) > 0:
		return done.about() + ": " + a.verb.done
	}
	return a.verb.name
}

// offered is the verb that a key means here, if the user may.
func (m *model) offered(name string) *verb {
	if r := m.chosen(); r != nil {
		for _, v := range verbs() {
			if v.key == name && v.takes(r) && m.may(v.method, m.ownsRow(r)) {
				return &v
			}
		}
	}
	for _, v := range scaling() {
		if v.key == name && m.may(v.method, true) {
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
		return r.schedule.User == m.who.User
	}
	return true
}

// begin carries a verb out on the marked rows of the list, or on the chosen one, after it has asked for what
// is not clear yet.
func (m *model) begin(v *verb) []effect {
	a := act{verb: v}
	if v.takes != nil {
		for _, r := range m.table().rows {
			if m.marked[r.id] {
				a.ids = append(a.ids, r.id)
			}
		}
		if len(a.ids) == 0 {
			a.ids = []string{m.chosen().id}
		}
	}
	switch {
	case v.asks:
		m.asks = &question{kind: sure, act: a}
		return nil
	case v.number:
		m.asks = &question{kind: number, act: a}
		return nil
	}
	return m.carryOut(a)
}

// mostActs is how many acts are under way or wait for that: a key may be held down.
const mostActs = 8

// carryOut carries an act out after those that were asked for before, one at a time.
func (m *model) carryOut(a act) []effect {
	if len(m.acts) == mostActs {
		m.said = "too many actions pending; wait until the service has answered"
		return nil
	}
	clear(m.marked)
	if m.acts = append(m.acts, a); len(m.acts) > 1 {
		return nil
	}
	return m.nextAct()
}

// nextAct begins the first of the acts, if there is one.
func (m *model) nextAct() []effect {
	if len(m.acts) == 0 {
		return nil
	}
	return []effect{m.acts[0]}
}

// ended notes what came of an act, and begins the next one. The picture is old now.
func (m *model) ended(msg *acted) []effect {
	m.acts, m.said = m.acts[1:], msg.text()
	todo := m.nextAct()
	m.again = true
	return append(todo, m.look()...)
}

// isAway reports whether an error is that of a service that does not answer.
func isAway(err error) bool {
	return errors.Is(err, queue.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
}
