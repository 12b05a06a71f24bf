package settings

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// QueueRules caches the settings of all queues.
type QueueRules struct {
	Store    store.Store
	Settings *Keeper

	defaults     atomic.Pointer[map[string]string]          // JSON defaults of the queues, by queue
	retentions   atomic.Pointer[map[string]store.Retention] // retention of the queues that override it, by queue
	frozenQueues atomic.Pointer[map[string]bool]            // frozen queues, whose running jobs are paused too
}

// LoadRules reads the settings of all queues from the store.
func (r *QueueRules) LoadRules(ctx context.Context) error {
	list, err := r.Store.Queues(ctx)
	if err != nil {
		return err
	}
	defaults, keeps, frozen := map[string]string{}, map[string]store.Retention{}, map[string]bool{}
	for _, q := range list {
		if q.Rule.Frozen {
			frozen[q.Name] = true
		}
		if q.Rule.Keep != (store.Retention{}) {
			keeps[q.Name] = q.Rule.Keep
		}
		if q.Rule.Defaults != "" {
			defaults[q.Name] = q.Rule.Defaults
		}
	}
	r.defaults.Store(&defaults)
	r.retentions.Store(&keeps)
	r.frozenQueues.Store(&frozen)
	return nil
}

// Retention returns the queue's overrides of the retention settings.
func (r *QueueRules) Retention(name string) store.Retention { return (*r.retentions.Load())[name] }

// IsFrozen reports whether a queue is frozen, so that its running jobs are paused too.
func (r *QueueRules) IsFrozen(name string) bool {
	frozen := r.frozenQueues.Load()
	return frozen != nil && (*frozen)[name]
}

// WithDefaults returns a spec with the defaults of its queue for the fields that it does not set.
func (r *QueueRules) WithDefaults(spec *queue.Spec) (*queue.Spec, error) {
	all := r.defaults.Load()
	if all == nil || len(*all) == 0 {
		return spec, nil
	}
	name := queue.DefaultQueue
	if spec.Queue != nil {
		name = *spec.Queue
	}
	text := (*all)[name]
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

// ReplaceNulls returns a job's patch in which the queue's defaults replace null fields. If the patch moves
// the job to another queue, the defaults of that queue apply.
func (r *QueueRules) ReplaceNulls(set json.RawMessage, name string) json.RawMessage {
	var fields, defaults map[string]json.RawMessage
	all := r.defaults.Load()
	if all == nil || len(*all) == 0 || json.Unmarshal(set, &fields) != nil {
		return set
	}
	if other := ""; json.Unmarshal(fields["queue"], &other) == nil && other != "" {
		name = other
	}
	if (*all)[name] == "" || json.Unmarshal([]byte((*all)[name]), &defaults) != nil {
		return set
	}
	for field, value := range fields {
		if def, has := defaults[field]; has && string(value) == "null" {
			fields[field] = def
		}
	}
	patch, err := json.Marshal(fields)
	if err != nil {
		return set
	}
	return patch
}

// DefaultPriority returns the priority of a queue's jobs that set none.
func (r *QueueRules) DefaultPriority(name string) int64 {
	var fields struct{ Priority *int64 }
	if all := r.defaults.Load(); all != nil && (*all)[name] != "" &&
		json.Unmarshal([]byte((*all)[name]), &fields) == nil && fields.Priority != nil {
		return *fields.Priority
	}
	return r.Settings.Current().Priority
}
