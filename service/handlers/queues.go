package handlers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// A reply suggests existing queues with similar names only if the request has created at most
// maxNewQueuesWithSuggestions queues. If a request creates more queues, it is unlikely that their names are typing
// errors.
const maxNewQueuesWithSuggestions = 10

// describeNewQueues returns the queues that a request has created. With each queue, it returns the name of a
// similar existing queue, if there is one and the request has created at most maxNewQueuesWithSuggestions queues.
func (h *API) describeNewQueues(ctx context.Context, r *store.Receipt) (newQueues []control.CreatedQueue) {
	isNew := map[string]bool{}
	for _, name := range r.CreatedQueues {
		if isNew[name] = true; name != queue.DefaultQueue {
			newQueues = append(newQueues, control.CreatedQueue{Queue: name})
		}
	}
	if len(newQueues) == 0 || len(newQueues) > maxNewQueuesWithSuggestions {
		return newQueues
	}
	known, err := h.listQueues(ctx)
	if err != nil {
		return newQueues
	}
	names := []string{queue.DefaultQueue}
	for _, q := range known {
		if !isNew[q.Name] {
			names = append(names, q.Name)
		}
	}
	for i := range newQueues {
		newQueues[i].SimilarQueue = queue.NearestWord(newQueues[i].Queue, names)
	}
	return newQueues
}

// listQueues returns all queues. The list always includes the default queue, even if it has no jobs.
func (h *API) listQueues(ctx context.Context) (queues []store.QueueState, err error) {
	queues, err = withReadSlot(ctx, h.UserLimits, control.ClassOneJobRead,
		func() ([]store.QueueState, error) { return h.Store.Queues(ctx) })
	if err == nil && !slices.ContainsFunc(queues, func(q store.QueueState) bool { return q.Name == queue.DefaultQueue }) {
		queues = append(queues, store.QueueState{Name: queue.DefaultQueue, Rule: store.DefaultQueueRule})
		slices.SortFunc(queues, func(a, b store.QueueState) int { return cmp.Compare(a.Name, b.Name) })
	}
	return queues, err
}

// newQueueView converts a queue to its form in a reply.
func (h *API) newQueueView(q *store.QueueState) control.QueueView {
	r := &q.Rule
	v := control.QueueView{
		Queue: q.Name, Running: q.LeasedJobs, Waiting: q.WaitingJobs, OldestReadySince: control.Time(q.OldestReadySince),
		Concurrency: r.Concurrency, Weight: r.Weight, MaxWaitingJobs: r.MaxPendingJobs,
		JobDefaults: json.RawMessage(cmp.Or(r.JobDefaults, "{}")), Paused: r.Paused,
		RetentionMaxJobs: r.Retention.MaxJobs, RetentionOutputBytes: r.Retention.MaxOutputBytes,
	}
	if r.Retention.MaxAge != 0 {
		v.Retention = new(control.RetentionAge(r.Retention.MaxAge))
	}
	if r.Paused {
		pausedBy := h.Owners.UserName(r.PausedByUID)
		v.RunningJobsFrozen = r.RunningJobsPaused
		v.PausedBy, v.PausedAt, v.PausedUntil = &pausedBy, control.Time(r.PausedAt), control.Time(r.PausedUntil)
		if r.PauseReason != "" {
			v.PauseReason = &r.PauseReason
		}
	}
	return v
}

// QueueList implements control.API.
func (h *API) ListQueues(ctx context.Context, p control.QueueListParams) (control.QueueList, error) {
	list, err := h.listQueueViews(ctx, func(q *store.QueueState) bool { return q.Name > p.AfterName })
	if err == nil {
		h.addOtherNodesThroughput(ctx, list.Queues)
	}
	return list, err
}

// addOtherNodesThroughput adds the throughput of the other nodes to the throughput of each queue.
func (h *API) addOtherNodesThroughput(ctx context.Context, queues []control.QueueView) {
	_, ended := h.NodeRegistry.OtherNodesThroughput(ctx)
	for i := range queues {
		queues[i].ThroughputPerMinute += ended[queues[i].Queue]
	}
}

// listQueueViews returns the queues that includesQueue accepts, in the form of a reply. The throughput in the reply
// includes only this node.
func (h *API) listQueueViews(ctx context.Context, includesQueue func(*store.QueueState) bool) (control.QueueList,
	error) {
	list, err := h.listQueues(ctx)
	out := control.QueueList{Queues: []control.QueueView{}}
	rates := h.Pool.QueueThroughputsPerMinute()
	for i := range list {
		if !includesQueue(&list[i]) {
			continue
		}
		if n := len(out.Queues); n == control.MaxQueuesPerPage {
			out.Next = out.Queues[n-1].Queue
			break
		}
		out.Queues = append(out.Queues, h.newQueueView(&list[i]))
		out.Queues[len(out.Queues)-1].ThroughputPerMinute = rates[list[i].Name]
	}
	return out, err
}

// ConfigureQueue implements control.API.
func (h *API) ConfigureQueue(ctx context.Context, p control.ConfigureQueueParams) (v control.QueueView, err error) {
	err = h.applyOnAllNodes(ctx, func() error {
		rule, err := h.storedQueueRule(ctx, p.Name)
		if err != nil {
			return err
		}
		setIfGiven(&rule.Concurrency, p.Concurrency)
		setIfGiven(&rule.Weight, p.Weight)
		setIfGiven(&rule.MaxPendingJobs, p.MaxWaitingJobs)
		setIfGiven(&rule.Retention.MaxAge, (*time.Duration)(p.Retention))
		setIfGiven(&rule.Retention.MaxJobs, p.RetentionMaxJobs)
		setIfGiven(&rule.Retention.MaxOutputBytes, p.RetentionOutputBytes)
		if p.JobDefaults != nil {
			var j queue.Job
			rule.JobDefaults, j, err = mergeJobDefaults(rule.JobDefaults, p.JobDefaults,
				h.Settings.CurrentConfig().JobDefaults())
			if err == nil { // reject defaults with demands, for example for a resource, that no node can meet
				err = h.checkDemandsCanBeMet(&j, func() ([]store.NodeState, error) { return h.NodeRegistry.Nodes(ctx) })
			}
			if err != nil {
				return err
			}
		}
		return h.setQueueRule(ctx, "queue.set", p.Name, rule)
	})
	if err != nil {
		return v, err
	}
	list, err := h.listQueueViews(ctx, func(q *store.QueueState) bool { return q.Name == p.Name })
	if len(list.Queues) > 0 {
		h.addOtherNodesThroughput(ctx, list.Queues)
		v = list.Queues[0]
	} else {
		// The queue has neither settings nor jobs any more, so it no longer exists. Return the default settings.
		v = h.newQueueView(&store.QueueState{Name: p.Name, Rule: store.DefaultQueueRule})
	}
	return v, err
}

// setIfGiven assigns *newValue to *target, unless newValue is nil.
func setIfGiven[T any](target, newValue *T) {
	if newValue != nil {
		*target = *newValue
	}
}

// queueStateByName returns the state of a queue. A queue that does not exist has no jobs and default settings.
func (h *API) queueStateByName(ctx context.Context, name string) (store.QueueState, error) {
	list, err := h.listQueues(ctx)
	for _, q := range list {
		if q.Name == name {
			return q, nil
		}
	}
	return store.QueueState{Name: name, Rule: store.DefaultQueueRule}, err
}

// storedQueueRule returns the settings of a queue. The caller holds the settings lock.
func (h *API) storedQueueRule(ctx context.Context, name string) (store.QueueRule, error) {
	q, err := h.queueStateByName(ctx, name)
	return q.Rule, err
}

// setQueueRule stores the settings of a queue, and records the action in the audit log under the given verb. The caller
// holds the settings lock.
func (h *API) setQueueRule(ctx context.Context, verb, name string, rule store.QueueRule) error {
	if err := h.Guard.RecordAudit(ctx, verb, name, nil); err != nil {
		return err
	}
	if err := h.Store.SetQueue(ctx, name, rule); err != nil {
		return err
	}
	return h.QueueRules.LoadQueueRules(context.WithoutCancel(ctx))
}

// mergeJobDefaults applies a merge patch to the job defaults of a queue and validates the result. It returns the
// result as JSON, and a job that has these defaults.
func mergeJobDefaults(
	oldJSON string, patch json.RawMessage, defaults queue.JobDefaults,
) (mergedJSON string, defaultsJob queue.Job, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(cmp.Or(oldJSON, "{}")), &fields); err != nil {
		return "", defaultsJob, err
	}
	err = queue.EachMember(patch, func(name string, value json.RawMessage) error {
		if string(value) == "null" {
			delete(fields, name)
		} else {
			fields[name] = slices.Clone(value)
		}
		return control.CheckFieldAllowsQueueDefault(name)
	})
	if err != nil {
		return "", defaultsJob, err
	}
	var spec queue.Spec
	raw, err := json.Marshal(fields)
	if err == nil {
		err = json.Unmarshal(raw, &spec)
	}
	if err != nil {
		return "", defaultsJob, err
	}
	any := queue.Spec{Command: new("true")}
	any.Override(&spec)
	if defaultsJob, err = queue.ResolveSpec(&any, defaults); err != nil {
		return "", defaultsJob, err
	}
	setFields := spec.GivenFields() // in their canonical spelling
	if len(setFields) == 0 {
		return "", defaultsJob, nil
	}
	raw, err = json.Marshal(setFields)
	if len(raw) > control.MaxQueueDefaultsBytes {
		return "", defaultsJob,
			queue.InvalidFieldError("default", "too long (%d bytes of JSON, together with the existing defaults); the "+
				"maximum is %d bytes", len(raw), control.MaxQueueDefaultsBytes)
	}
	return string(raw), defaultsJob, err
}

// QueuePause implements control.API.
func (h *API) PauseQueues(ctx context.Context, p control.QueuePauseParams) (control.QueueList, error) {
	now := h.Store.Now()
	until := queue.UnixMillis(p.PauseUntil)
	if p.PauseDuration != 0 {
		until = now.Add(time.Duration(p.PauseDuration))
	}
	if until != 0 && until <= now {
		return control.QueueList{}, queue.InvalidFieldError("until", "%s is in the past; give a later time", until)
	}
	return h.changeQueueRules(ctx, "queue.pause", p.Name, p.AllQueues, func(q *store.QueueState) (store.QueueRule, error) {
		rule := q.Rule
		if rule.RunningJobsPaused && until != 0 {
			return rule, queue.Errorf(queue.CodeWrongState,
				"queue %[1]q was paused with --freeze and cannot resume at a set time; resume it with queuectl queue "+
					"resume %[1]s, then pause it again", q.Name)
		}
		if !rule.RunningJobsPaused { // if the queue's running jobs are already paused, keep the time of that pause
			rule.PausedByUID, rule.PausedAt = control.PeerFrom(ctx).UID, now
		}
		rule.Paused, rule.PauseReason, rule.PausedUntil = true, p.Reason, until
		rule.RunningJobsPaused = rule.RunningJobsPaused || p.FreezeRunningJobs
		return rule, nil
	})
}

// A request that pauses a queue waits until all jobs of the queue that are claimed but not started have returned to the
// queue. jobRecallTimeout limits the wait, and jobRecallPollInterval is the time between two checks.
const (
	jobRecallTimeout      = 2 * time.Second
	jobRecallPollInterval = 5 * time.Millisecond
)

// PauseJobsOfFrozenQueues pauses the running jobs of frozen queues when a service starts. A frozen queue is paused
// together with its running jobs. A service that was killed while it froze a queue may not have paused all of these
// jobs.
func (h *API) PauseJobsOfFrozenQueues(ctx context.Context) {
	list, err := h.listQueues(ctx)
	name := ""
	for i := range list {
		if q := &list[i]; err == nil && q.Rule.RunningJobsPaused {
			name, err = q.Name, h.applyQueuePauseToJobs(ctx, q)
		}
	}
	if err != nil && ctx.Err() == nil {
		h.Log.Warn("the service could not pause all running jobs of queues that were paused with --freeze, so some may "+
			"still run; pause the queues again with: queuectl queue pause QUEUE --freeze", "queue", name, "error", err)
	}
}

// applyQueuePauseToJobs puts jobs of a paused queue that are claimed but have not started back into the queue. If the
// queue is frozen (paused with its running jobs), it also pauses the running jobs. It repeats both until no job is
// left, because the worker pool does not yet know a job that is just being claimed. See docs/decisions/0023.
func (h *API) applyQueuePauseToJobs(ctx context.Context, q *store.QueueState) error {
	paused := map[int64]bool{}
	timeoutCtx, cancel := context.WithTimeout(ctx, jobRecallTimeout)
	defer cancel()
	for leased := int64(q.LeasedJobs); ; {
		running, unstarted := h.Pool.RecallQueueJobs(q.Name)
		if q.Rule.RunningJobsPaused {
			if err := h.pauseRunningJobs(ctx, running, q.Rule.PausedByUID, paused); err != nil {
				return err
			}
		}
		if leased == 0 && unstarted == 0 && len(running) == 0 {
			return nil
		}
		now, err := h.queueStateByName(ctx, q.Name)
		if err != nil {
			return err
		}
		if leased = int64(now.LeasedJobs); unstarted == 0 && leased <= int64(len(running)) {
			return nil
		}
		select {
		case <-timeoutCtx.Done():
			// This is not an error: if a runner does not respond, its unstarted jobs return to the queue after this request.
			return ctx.Err()
		case <-time.After(jobRecallPollInterval):
		}
	}
}

// pauseRunningJobs pauses running jobs of this node, all at the same time. It skips the jobs in handledSeqs, which
// earlier calls have handled, and adds the other jobs to handledSeqs.
func (h *API) pauseRunningJobs(ctx context.Context, seqs []int64, uid int, handledSeqs map[int64]bool) error {
	errs := make([]error, len(seqs))
	var pauses sync.WaitGroup
	for i, seq := range seqs {
		if !handledSeqs[seq] {
			handledSeqs[seq] = true
			pauses.Go(func() { _, errs[i] = h.Pool.SetJobPaused(ctx, seq, true, uid) })
		}
	}
	pauses.Wait()
	for _, err := range errs {
		// Ignore ErrWrongState, which means that the job is being ended.
		if err != nil && !errors.Is(err, queue.ErrWrongState) {
			return err
		}
	}
	return nil
}

// resumeJobsOfFrozenQueue resumes the jobs that were paused because their queue was frozen (paused with its
// running jobs). Jobs that were already paused before the freeze stay paused.
func (h *API) resumeJobsOfFrozenQueue(ctx context.Context, q *store.QueueState) error {
	f := store.JobFilter{Queue: q.Name, States: []queue.State{queue.Processing}, Limit: store.MaxPageRows}
	for {
		page, err := h.Store.ListJobs(ctx, f)
		if err != nil {
			return err
		}
		var refs []store.JobRef
		for i := range page.Jobs {
			if j := &page.Jobs[i]; j.PausedAt != 0 && j.PausedAt >= q.Rule.PausedAt {
				refs = append(refs, store.JobRef{Seq: j.Seq, ID: j.ID, State: j.State, UID: j.UID})
			}
		}
		// Use the rights of the service, because a user with the right to resume the queue needs no right on
		// its jobs.
		v, err := h.applyVerbToJobRefs(withServiceRights(ctx), h.newPauseVerb(false), refs, f.States)
		if err = firstUnexpectedError(&v, err); err != nil || page.NextBeforeSeq == 0 {
			return err
		}
		f.BeforeSeq = page.NextBeforeSeq
	}
}

// QueueResume implements control.API.
func (h *API) ResumeQueues(ctx context.Context, p control.QueueResumeParams) (control.QueueList, error) {
	list, err := h.listQueues(ctx)
	for i := range list {
		// Resume the jobs before the queue. If resuming them fails, the queue is still frozen, so the caller
		// can repeat the request.
		if q := &list[i]; err == nil && q.Rule.RunningJobsPaused && (p.AllQueues || q.Name == p.Name) {
			err = h.resumeJobsOfFrozenQueue(ctx, q)
		}
	}
	if err != nil {
		return control.QueueList{}, err
	}
	return h.changeQueueRules(ctx, "queue.resume", p.Name, p.AllQueues,
		func(q *store.QueueState) (store.QueueRule, error) {
			return q.Rule.WithoutPause(), nil
		})
}

// QueueRemove implements control.API.
func (h *API) RemoveQueue(ctx context.Context, p control.QueueRemoveParams) (control.QueueList, error) {
	return h.changeQueueRules(ctx, "queue.rm", p.Name, false, func(q *store.QueueState) (store.QueueRule, error) {
		if q.WaitingJobs > 0 || q.LeasedJobs > 0 {
			return store.DefaultQueueRule, queue.Errorf(queue.CodeWrongState,
				"queue %s has %d waiting and %d running jobs; cancel them, or move them: queuectl edit "+
					"--where-queue %s --queue NAME", q.Name, q.WaitingJobs, q.LeasedJobs, q.Name)
		}
		return store.DefaultQueueRule, nil
	})
}

// changeQueueRules changes the settings of one queue or of all queues to the settings that newRule returns. Of queues
// that are paused then, it puts the claimed jobs that have not started back into the queue.
func (h *API) changeQueueRules(ctx context.Context, verb, name string, allQueues bool,
	newRule func(*store.QueueState) (store.QueueRule, error)) (control.QueueList, error) {
	changed := map[string]store.QueueState{}
	err := h.applyOnAllNodes(ctx, func() error {
		list, err := h.listQueues(ctx)
		if err != nil {
			return err
		}
		names := []string{}
		for i := range list {
			q := &list[i]
			names = append(names, q.Name)
			if !allQueues && q.Name != name {
				continue
			}
			rule, err := newRule(q)
			if err == nil && rule != q.Rule {
				err = h.setQueueRule(ctx, verb, q.Name, rule)
			}
			if err != nil {
				return err
			}
			q.Rule = rule
			changed[q.Name] = *q
		}
		if len(changed) == 0 {
			return queue.Errorf(queue.CodeNotFound, "there is no queue %q%s; a queue exists while it has settings (queuectl "+
				"queue set) or waiting or running jobs", name, queue.DidYouMean(name, names))
		}
		return nil
	})
	out := control.QueueList{Queues: []control.QueueView{}}
	for _, q := range changed {
		if err == nil && q.Rule.Paused {
			err = h.applyQueuePauseToJobs(ctx, &q)
		}
	}
	names := slices.Sorted(maps.Keys(changed))
	for _, name := range names[:min(len(names), control.MaxQueuesPerPage)] {
		q := changed[name]
		out.Queues = append(out.Queues, h.newQueueView(&q))
	}
	return out, err
}
