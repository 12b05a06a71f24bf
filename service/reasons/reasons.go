// Package reasons finds out why a job does not run, and puts it into words.
//
// Start with Finder. MergeNodeReasons combines the reasons of several nodes.
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
	*doctor.Examiner
	// ReadQueueRule returns the settings of the named queue.
	ReadQueueRule func(ctx context.Context, queue string) (store.QueueRule, error)
}

// This file decides why a job does not run. ReasonFoundInJob returns what the job itself waits for: a user's action,
// other jobs or its start time. WaitReasonsFromStore returns what keeps this node from starting a job that is due,
// with the most helpful reason first.
//
// "queuectl why" shows all reasons. The web page and the commands "list", "show", "status" and "top" show
// only the first one, in the field waits_for.

// WaitReasonsTimeout limits how long a list waits for the reasons that only the store's writer knows. The writer is the
// goroutine that makes all changes. An example of such a reason is a lock that another job holds. If a slow disk delays
// the writer for longer, the list leaves these reasons out.
const WaitReasonsTimeout = 200 * time.Millisecond

// SetWaitReasons sets in the view of each job the first reason why that job does not run.
func (f *Finder) SetWaitReasons(ctx context.Context, jobs []queue.Job, jobViews []control.Job) {
	now := f.Store.Now()
	reasons := map[int64]control.WaitReason{}
	var dueJobs []*queue.Job
	for i := range jobs {
		j := &jobs[i]
		if r, found := f.ReasonFoundInJob(j, now); found {
			reasons[j.Seq] = r
		} else if j.State.IsRunnable() {
			dueJobs = append(dueJobs, j)
		}
	}
	if len(dueJobs) > 0 {
		f.addThisNodeReasons(ctx, dueJobs, reasons)
	}
	for i := range jobViews {
		if r, found := reasons[jobViews[i].Seq]; found {
			jobViews[i].MainWaitReason = &r
		}
	}
}

// addThisNodeReasons adds to reasonByJobSeq, for each of dueJobs, why this node does not start the job. Jobs of one
// queue and user that need the same locks and other limits have the same reasons. So addThisNodeReasons queries the
// store for only one job of each such group.
func (f *Finder) addThisNodeReasons(ctx context.Context, dueJobs []*queue.Job,
	reasonByJobSeq map[int64]control.WaitReason) {
	if list := f.noJobStartsReasons(); len(list) > 0 {
		for _, j := range dueJobs {
			reasonByJobSeq[j.Seq] = list[0]
		}
		return
	}
	groups := map[gateGroupKey][]*queue.Job{}
	var seqs []int64 // numbers of the first jobs of the groups
	for _, j := range dueJobs {
		key := gateGroupKey{queue: j.Queue, uid: j.UID, demandSignature: queue.DemandsSignature(j.Demands)}
		if slices.ContainsFunc(j.Demands, func(d queue.Demand) bool { return d.Kind == queue.GateResource }) {
			key.seqOfUngroupedJob = j.Seq
		}
		if groups[key] == nil {
			seqs = append(seqs, j.Seq)
		}
		groups[key] = append(groups[key], j)
	}
	ctx, cancel := context.WithTimeout(ctx, WaitReasonsTimeout)
	defer cancel()
	obstacles, err := f.Store.WaitReasons(ctx, seqs)
	if err != nil {
		return
	}
	for _, group := range groups {
		for _, j := range group {
			if list := f.WaitReasonsFromStore(j, obstacles[group[0].Seq]); len(list) > 0 {
				reasonByJobSeq[j.Seq] = list[0]
			}
		}
	}
}

// gateGroupKey is the key of a group of jobs that wait for the same reasons: jobs of one queue and user that need the
// same locks, rates and so on. A job that needs a resource forms its own group, because free units of the resource may
// be kept for a job of a higher rank.
type gateGroupKey struct {
	queue             string
	uid               int
	demandSignature   string // see queue.DemandsSignature
	seqOfUngroupedJob int64  // number of the job if the job forms its own group, otherwise 0
}

// ReasonFoundInJob returns why a job does not run, if the reason is in the job itself, such as its start time. found is
// false for a job that is due, running or ended.
func (f *Finder) ReasonFoundInJob(j *queue.Job, now queue.UnixMillis) (r control.WaitReason, found bool) {
	switch {
	case j.State == queue.Held:
		next := "queuectl release " + j.ID
		if j.IsDisowned() { // the job can be released only after it was given to another account
			next = "queuectl edit " + j.ID + ` '{"user":"NAME"}'`
		}
		return newReason("held", "the job is held"+parenthesizedStateReason(j), next), true
	case j.State == queue.Blocked && len(j.DependsOn) > 0:
		id := parentIDOrSeq(j.DependsOn[0].ParentSeq, j.DependsOn[0].ParentID)
		r = newReason("dependency", "job "+id+" "+requiredParentEndText(j.DependsOn[0].Condition), "queuectl why "+id)
		r.CauseKey = id
		return r, true
	case j.State == queue.Processing:
		return f.pauseReason(j)
	case !j.State.IsRunnable() || j.DueAt <= now:
		return r, false
	case j.State == queue.Failed:
		r = newReason("retry", fmt.Sprintf("attempt %d failed, and the automatic retry is not due yet", j.Attempts),
			"queuectl retry "+j.ID)
	default:
		r = newReason("time", "not due yet", "queuectl edit "+j.ID+" --run-at now")
	}
	r.EndsAt = control.Time(j.DueAt)
	return r, true
}

// newReason returns a reason of a kind, with its text and the advice for the user.
func newReason(kind, text, advice string) control.WaitReason {
	return control.WaitReason{Kind: kind, Text: text, Advice: advice}
}

// requiredParentEndText returns how the parent job must end to meet a dependency. The result is the end of a sentence
// whose subject is the parent.
func requiredParentEndText(condition queue.DependencyCondition) string {
	if condition == queue.ParentEnded {
		return "must end"
	}
	return fmt.Sprintf("must be %s", condition)
}

// pauseReason returns the reason why a running job makes no progress: who paused the job. It returns false if the job
// is not paused.
func (f *Finder) pauseReason(j *queue.Job) (r control.WaitReason, found bool) {
	since, uid := f.PauseOfAllJobs.PauseOfJob(j)
	if since == 0 {
		return r, false
	}
	next := "queuectl resume " + j.ID
	if j.PausedAt == 0 {
		next = "queuectl resume --all"
	}
	return newReason("paused", fmt.Sprintf("the job is paused, by %s since %s", f.Owners.UserName(uid), since), next), true
}

// noJobStartsReasons returns the reasons why this node starts no jobs at all.
func (f *Finder) noJobStartsReasons() (reasons []control.WaitReason) {
	if f.ReadOnly {
		return []control.WaitReason{newReason("workers", "the service is not running", "queuectl service start")}
	}
	switch all := f.PauseOfAllJobs.Load(); {
	case all != nil:
		reasons = append(reasons, newReason("paused", "all jobs are paused, by "+f.Owners.UserName(all.SetByUID),
			"queuectl resume --all"))
	case f.Pool.IsDraining():
		reasons = append(reasons, newReason("draining", "the service is draining and starts no jobs",
			f.DrainState.CommandToEndDrain(f.NodeName)))
	case f.Pool.WantedWorkerCount() == 0:
		reasons = append(reasons, control.WaitReason{Kind: "workers", LimitUsage: new(0), Limit: new(0),
			Text:   "there are no workers",
			Advice: "queuectl worker start"})
	}
	if text, next := f.ExplainMissingRunner(); text != "" {
		reasons = append(reasons, newReason("runner", text, next))
	}
	return reasons
}

// WaitReasonsFromStore returns all reasons why this node does not start a job that is due. storeReasons are the
// reasons that the store has found. The reason "all workers are busy" comes last, because more workers do not help
// while another reason exists.
func (f *Finder) WaitReasonsFromStore(j *queue.Job, storeReasons []store.WaitReason) []control.WaitReason {
	list := f.noJobStartsReasons()
	stopped := len(list) > 0
	for i := range storeReasons {
		list = append(list, gateReason(j, &storeReasons[i]))
	}
	if workers, busy := f.Pool.WantedWorkerCount(), f.Pool.BusyWorkerCount(); !stopped && busy >= workers {
		text := fmt.Sprintf("all %d workers are busy", workers)
		if workers == 1 {
			text = "the only worker is busy"
		}
		list = append(list, control.WaitReason{Kind: "workers", LimitUsage: &busy, Limit: &workers, Text: text,
			Advice: "queuectl worker start"})
	}
	return list
}

// LocalWaitReasons returns the reasons why this node does not start a job that is due. To find locks, rates and other
// limits that keep the job from starting, it queries the store.
func (f *Finder) LocalWaitReasons(ctx context.Context, j *queue.Job) ([]control.WaitReason, error) {
	all, err := f.Store.WaitReasons(ctx, []int64{j.Seq})
	if err != nil {
		return nil, err
	}
	list := f.WaitReasonsFromStore(j, all[j.Seq])
	for _, o := range all[j.Seq] {
		if o.QueuePaused {
			f.addQueuePauseDetails(ctx, &list[slices.IndexFunc(list, func(r control.WaitReason) bool {
				return r.Kind == "queue" && r.CauseKey == o.GateKeyOrQueueName
			})])
		}
	}
	return list, nil
}

// addQueuePauseDetails adds to the reason "the queue is paused" who paused the queue, why, and until when.
func (f *Finder) addQueuePauseDetails(ctx context.Context, r *control.WaitReason) {
	rule, err := f.ReadQueueRule(ctx, r.CauseKey)
	if err != nil || !rule.Paused {
		return // add nothing: the queue is no longer paused, or its details are unavailable
	}
	r.Text += ", by " + f.Owners.UserName(rule.PausedByUID)
	if rule.PauseReason != "" {
		r.Text += ": " + rule.PauseReason
	}
	r.EndsAt = control.Time(rule.PausedUntil)
}
