package settings

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// QueueRules caches the settings of queues that the service needs itself, such as job defaults. The store
// applies all other settings of queues.
type QueueRules struct {
	Store    store.Store
	Settings *Keeper

	// cachedRules holds the settings of each queue that is paused or has job defaults or a retention. It is nil
	// before the first LoadQueueRules.
	cachedRules atomic.Pointer[map[string]store.QueueRule]
}

// LoadQueueRules reads the settings of all queues from the store.
func (r *QueueRules) LoadQueueRules(ctx context.Context) error {
	list, err := r.Store.Queues(ctx)
	if err != nil {
		return err
	}
	rules := map[string]store.QueueRule{}
	for _, q := range list {
		if q.Rule.JobDefaults != "" || q.Rule.Paused || q.Rule.RunningJobsPaused || q.Rule.Retention != (store.Retention{}) {
			rules[q.Name] = q.Rule
		}
	}
	r.cachedRules.Store(&rules)
	return nil
}

// ruleByQueue returns the cached settings, by the name of the queue.
func (r *QueueRules) ruleByQueue() map[string]store.QueueRule {
	if rules := r.cachedRules.Load(); rules != nil {
		return *rules
	}
	return nil
}

// Retention returns how long the jobs of a queue are kept. Its values override the retention in the settings of the
// service.
func (r *QueueRules) Retention(queueName string) store.Retention {
	return r.ruleByQueue()[queueName].Retention
}

// RunningJobsPaused reports whether a queue is frozen, so that its running jobs are paused too.
func (r *QueueRules) RunningJobsPaused(queueName string) bool {
	return r.ruleByQueue()[queueName].RunningJobsPaused
}

// PausedQueueNames returns the names of the queues that are paused at the given time, sorted.
func (r *QueueRules) PausedQueueNames(now queue.UnixMillis) (names []string) {
	for name, rule := range r.ruleByQueue() {
		// The store ends a pause at its time, but does not notify the cache.
		if rule.Paused && (rule.PausedUntil == 0 || rule.PausedUntil > now) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// WithQueueDefaults returns a spec in which the defaults of its queue fill the fields that the spec does not set.
func (r *QueueRules) WithQueueDefaults(spec *queue.Spec) (*queue.Spec, error) {
	name := queue.DefaultQueue
	if spec.Queue != nil {
		name = *spec.Queue
	}
	text := r.ruleByQueue()[name].JobDefaults
	if text == "" {
		return spec, nil
	}
	var merged queue.Spec
	if err := json.Unmarshal([]byte(text), &merged); err != nil {
		return nil, fmt.Errorf("the stored defaults of queue %[1]s are damaged (%[2]w); when the queue has no jobs, reset "+
			"its settings with: queuectl queue rm %[1]s", name, err)
	}
	merged.Override(spec)
	return &merged, nil
}

// ReplaceNullsByDefaults returns a patch of a job in which each null field is replaced by the default of the queue.
// queueName is the job's queue; if the patch moves the job to another queue, the defaults of that queue
// apply.
func (r *QueueRules) ReplaceNullsByDefaults(patchJSON json.RawMessage, queueName string) json.RawMessage {
	var fields, defaults map[string]json.RawMessage
	if !bytes.Contains(patchJSON, []byte("null")) || json.Unmarshal(patchJSON, &fields) != nil {
		return patchJSON
	}
	if other := ""; json.Unmarshal(fields["queue"], &other) == nil && other != "" {
		queueName = other
	}
	if json.Unmarshal([]byte(r.ruleByQueue()[queueName].JobDefaults), &defaults) != nil {
		return patchJSON
	}
	for field, value := range fields {
		if def, has := defaults[field]; has && string(value) == "null" {
			fields[field] = def
		}
	}
	patch, err := json.Marshal(fields)
	if err != nil {
		return patchJSON
	}
	return patch
}

// DefaultPriority returns the priority of those jobs of a queue that do not set a priority.
func (r *QueueRules) DefaultPriority(queueName string) int64 {
	var fields struct{ Priority *int64 }
	if json.Unmarshal([]byte(r.ruleByQueue()[queueName].JobDefaults), &fields) == nil && fields.Priority != nil {
		return *fields.Priority
	}
	return r.Settings.CurrentConfig().DefaultPriority
}
