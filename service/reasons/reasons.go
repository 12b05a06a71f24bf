// Package reasons finds out why a job does not run, and puts it into words.
//
// Start with Finder. Merge combines the reasons of several nodes.
package reasons

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/doctor"
	"github.com/queuectl/queuectl/store"
)

// Finder finds out what jobs wait for.
type Finder struct {
	*doctor.HealthCheck
	ReadOnly bool // read-only mode: no service runs, and only the queue's files are read; see service.OpenOffline
	Shares   *control.UserLimits
	// RuleOf returns the settings of a queue.
	RuleOf func(ctx context.Context, queue string) (store.QueueRule, error)
}

// This file decides why a job does not run. OwnReason returns what the job itself waits for: a user's
// action, other jobs or its start time. NodeReasons returns what keeps this node from starting a job that
// is due, with the most helpful reason first. The command why shows all reasons. The commands list, show,
// status and top and the web page show only the first reason, as waits_for.

// ObstaclesTimeout limits how long a list waits for the writer of the store. Only the writer knows how much
// room the gates have. If a disk, a server or another program delays the writer for longer, the jobs are
// listed without the reasons that concern gates.
const ObstaclesTimeout = 200 * time.Millisecond

// SetWaitsFor fills in what each of these jobs waits for.
func (w *Finder) SetWaitsFor(ctx context.Context, jobs []queue.Job, views []control.Job) {
	now := w.Store.Now()
	reasons := map[int64]control.Reason{}
	var due []*queue.Job
	for i := range jobs {
		j := &jobs[i]
		if r, found := w.OwnReason(j, now); found {
			reasons[j.Seq] = r
		} else if j.State.Runnable() {
			due = append(due, j)
		}
	}
	if len(due) > 0 {
		w.addNodeReasons(ctx, due, reasons)
	}
	for i := range views {
		if r, found := reasons[views[i].Seq]; found {
			views[i].WaitsFor = &r
		}
	}
}

// addNodeReasons adds to the map reasons, for each job that is due, what keeps this node from starting that
// job.
func (w *Finder) addNodeReasons(ctx context.Context, due []*queue.Job, reasons map[int64]control.Reason) {
	if list := w.stopReasons(); len(list) > 0 {
		for _, j := range due {
			reasons[j.Seq] = list[0]
		}
		return
	}
	obstacles, err := w.obstaclesOf(ctx, due)
	if err != nil {
		return
	}
	for _, j := range due {
		if list := w.NodeReasons(j, obstacles[j.Seq]); len(list) > 0 {
			reasons[j.Seq] = list[0]
		}
	}
}

// sameGates is a key that groups jobs by their gates: jobs with an equal key wait for the same reasons.
// Room at a resource is also reserved for jobs of a higher rank, so each job that needs a resource is
// checked individually.
type sameGates struct {
	queue   string
	uid     int
	demands string // see queue.DemandsText
	seq     int64  // number of the job if it is checked individually, otherwise 0
}

// obstaclesOf returns the obstacles of jobs that are due. It queries the store for one job of each group with
// the same gates.
func (w *Finder) obstaclesOf(ctx context.Context, jobs []*queue.Job) (map[int64][]store.Obstacle, error) {
	first := map[sameGates]int64{}
	representative := make([]int64, len(jobs)) // for each job, the job that represents its group
	var seqs []int64
	for i, j := range jobs {
		key := sameGates{queue: j.Queue, uid: j.UID, demands: queue.DemandsText(j.Demands)}
		for _, d := range j.Demands {
			if d.Kind == queue.GateResource {
				key.seq = j.Seq
			}
		}
		seq, found := first[key]
		if !found {
			seq = j.Seq
			first[key] = seq
			seqs = append(seqs, seq)
		}
		representative[i] = seq
	}
	ctx, cancel := context.WithTimeout(ctx, ObstaclesTimeout)
	defer cancel()
	found, err := w.Store.Obstacles(ctx, seqs)
	if err != nil {
		return nil, err
	}
	all := map[int64][]store.Obstacle{}
	for i, j := range jobs {
		all[j.Seq] = found[representative[i]]
	}
	return all, nil
}

// OwnReason returns what a job itself waits for. A job that is due, runs or has ended has no such reason.
func (w *Finder) OwnReason(j *queue.Job, now queue.Millis) (r control.Reason, found bool) {
	due := control.Time(j.DueAt)
	switch {
	case j.State == queue.Held:
		next := "queuectl release " + j.ID
		if j.Disowned() { // a release is refused until the job has another account
			next = "queuectl edit " + j.ID + ` '{"user":"NAME"}'`
		}
		return control.Reason{Kind: "held", Text: "the job is held" + because(j), Next: next}, true
	case j.State == queue.Blocked && len(j.DependsOn) > 0:
		id := parentID(j.DependsOn[0].Job, j.DependsOn[0].ID)
		return control.Reason{Kind: "dependency", Key: id, Text: "job " + id + " " + mustEnd(j.DependsOn[0].Condition),
			Next: "queuectl why " + id}, true
	case j.State == queue.Processing:
		return w.pauseReason(j)
	case !j.State.Runnable() || j.DueAt <= now:
		return r, false
	case j.State == queue.Failed:
		return control.Reason{Kind: "retry", At: due,
			Text: fmt.Sprintf("attempt %d failed, and the automatic retry is not due yet", j.Attempts),
			Next: "queuectl retry " + j.ID}, true
	}
	return control.Reason{Kind: "time", At: due, Text: "not due yet", Next: "queuectl edit " + j.ID + " --run-at now"},
		true
}

// mustEnd returns the end of a sentence about the parent job. It says how the parent must end to meet the
// dependency.
func mustEnd(how queue.DependencyCondition) string {
	if how == queue.ParentEnded {
		return "must end"
	}
	return fmt.Sprintf("must be %s", how)
}

// pauseReason returns who paused a running job.
func (w *Finder) pauseReason(j *queue.Job) (control.Reason, bool) {
	since, uid := w.Pauses.PauseOf(j)
	if since == 0 {
		return control.Reason{}, false
	}
	next := "queuectl resume " + j.ID
	if j.PausedAt == 0 {
		next = "queuectl resume --all"
	}
	return control.Reason{Kind: "paused", Text: fmt.Sprintf("the job is paused, by %s since %s", w.Owners.UserName(uid),
		since), Next: next}, true
}

// stopReasons returns what keeps this node from starting any job.
func (w *Finder) stopReasons() (list []control.Reason) {
	if w.ReadOnly {
		return []control.Reason{{Kind: "workers", Text: "the service is not running", Next: "queuectl service start"}}
	}
	switch all := w.Pauses.Current(); {
	case all != nil:
		text := "all jobs are paused, by " + w.Owners.UserName(all.UID)
		list = append(list, control.Reason{Kind: "paused", Text: text, Next: "queuectl resume --all"})
	case w.Pool.Draining():
		list = append(list, control.Reason{Kind: "draining", Text: "the service is draining and starts no jobs",
			Next: w.DrainState.EndCommand(w.Node)})
	case w.Pool.Workers() == 0:
		list = append(list, control.Reason{Kind: "workers", Usage: new(0), Limit: new(0), Text: "there are no workers",
			Next: "queuectl worker start"})
	}
	if text, next := w.NoRunner(); text != "" {
		list = append(list, control.Reason{Kind: "runner", Text: text, Next: next})
	}
	return list
}

// NodeReasons returns everything that keeps this node from starting a job that is due. Busy workers come
// last: more workers help only if there is no other reason.
func (w *Finder) NodeReasons(j *queue.Job, obstacles []store.Obstacle) []control.Reason {
	list := w.stopReasons()
	stopped := len(list) > 0
	for i := range obstacles {
		list = append(list, gateReason(j, &obstacles[i]))
	}
	if workers, busy := w.Pool.Workers(), w.Pool.Busy(); !stopped && busy >= workers {
		text := fmt.Sprintf("all %d workers are busy", workers)
		if workers == 1 {
			text = "the only worker is busy"
		}
		list = append(list, control.Reason{Kind: "workers", Usage: &busy, Limit: &workers, Text: text,
			Next: "queuectl worker start"})
	}
	return list
}

// gateReason converts an obstacle to a reason.
func gateReason(j *queue.Job, o *store.Obstacle) control.Reason {
	r := control.Reason{Kind: gateTexts[o.Gate].kind, Key: o.Key, Usage: new(o.Usage), Limit: new(o.Limit),
		Next: "queuectl list -s processing"}
	if o.Paused {
		r.Usage, r.Limit = nil, nil
		r.Text, r.Next = fmt.Sprintf("queue %s is paused", o.Key), "queuectl queue resume "+queue.ShellWord(o.Key)
		return r
	}
	gateTexts[o.Gate].describe(o, j, &r)
	return r
}

// LocalReasons returns what keeps this node from starting a job that is due.
func (w *Finder) LocalReasons(ctx context.Context, j *queue.Job) ([]control.Reason, error) {
	all, err := w.Store.Obstacles(ctx, []int64{j.Seq})
	if err != nil {
		return nil, err
	}
	list := w.NodeReasons(j, all[j.Seq])
	for i, o := range all[j.Seq] {
		if !o.Paused {
			continue
		}
		pos := slices.IndexFunc(list, func(r control.Reason) bool { return r.Kind == "queue" && r.Key == o.Key })
		w.addPause(ctx, &list[pos], &all[j.Seq][i])
	}
	return list, nil
}

// addPause completes the reason that a queue is paused. It adds who paused the queue, why, and until when.
func (w *Finder) addPause(ctx context.Context, r *control.Reason, o *store.Obstacle) {
	rule, err := w.RuleOf(ctx, o.Key)
	if err != nil || !rule.Paused {
		return // add nothing: the queue was resumed in the meantime, or its details are unavailable
	}
	r.Text += ", by " + w.Owners.UserName(rule.PausedBy)
	if rule.Reason != "" {
		r.Text += ": " + rule.Reason
	}
	r.At = control.Time(rule.Until)
}
