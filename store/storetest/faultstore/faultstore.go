// Package faultstore wraps a store so that tests can delay calls of its methods or make them fail.
package faultstore

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Call describes a call of a method of the store. Only methods that take a context have such calls.
type Call struct {
	Method string
	// Arg is the method's first argument after the context, or the part of it that tests need. It is nil if the
	// method has no other argument.
	Arg any
	// Succeeded is false before the store executes the call, and true after the call has succeeded.
	Succeeded bool
}

// Hook is called before the store executes a call, and again after the call has succeeded. It may block. If it
// returns an error, the caller of the store gets that error. An error of the first hook call prevents the
// execution. An error of the second one only hides the result.
type Hook func(ctx context.Context, c Call) error

// Store is a store.Store that calls a hook before and after each call.
type Store struct {
	store.Store
	hook atomic.Pointer[Hook]
}

// New returns a store that passes all calls on to s, without a hook.
func New(s store.Store) *Store { return &Store{Store: s} }

// SetHook sets the hook. For calls that are already running, the new hook is called only when they
// end. nil removes the hook.
func (s *Store) SetHook(hook Hook) { s.hook.Store(&hook) }

func (s *Store) runHook(ctx context.Context, c Call) error {
	if hook := s.hook.Load(); hook != nil && *hook != nil {
		return (*hook)(ctx, c)
	}
	return nil
}

// call calls the hook, executes action, and, if action succeeds, calls the hook again.
func call[T any](ctx context.Context, s *Store, method string, arg any, action func() (T, error)) (T, error) {
	var zero T
	if err := s.runHook(ctx, Call{method, arg, false}); err != nil {
		return zero, err
	}
	v, err := action()
	if err != nil {
		return v, err
	}
	if err := s.runHook(ctx, Call{method, arg, true}); err != nil {
		return zero, err
	}
	return v, nil
}

// callErr is like call for methods that return only an error.
func callErr(ctx context.Context, s *Store, method string, arg any, action func() error) error {
	_, err := call(ctx, s, method, arg, func() (struct{}, error) { return struct{}{}, action() })
	return err
}

// Enqueue implements store.Store.
func (s *Store) Enqueue(ctx context.Context, r store.Request) (store.Receipt, error) {
	return call(ctx, s, "Enqueue", r, func() (store.Receipt, error) { return s.Store.Enqueue(ctx, r) })
}

// StageBatch implements store.Store.
func (s *Store) StageBatch(ctx context.Context, r store.Request) (store.Receipt, error) {
	return call(ctx, s, "StageBatch", r, func() (store.Receipt, error) { return s.Store.StageBatch(ctx, r) })
}

// AbortBatch implements store.Store.
func (s *Store) AbortBatch(ctx context.Context, uid int, batch string) error {
	return callErr(ctx, s, "AbortBatch", uid, func() error { return s.Store.AbortBatch(ctx, uid, batch) })
}

// ApplyBatch implements store.Store.
func (s *Store) ApplyBatch(ctx context.Context, batchNumber int64) (bool, error) {
	return call(ctx, s, "ApplyBatch", batchNumber, func() (bool, error) { return s.Store.ApplyBatch(ctx, batchNumber) })
}

// Change implements store.Store.
func (s *Store) Change(ctx context.Context, seq int64, c store.Change) error {
	return callErr(ctx, s, "Change", seq, func() error { return s.Store.Change(ctx, seq, c) })
}

// Pause implements store.Store.
func (s *Store) Pause(ctx context.Context, p store.Pause) error {
	return callErr(ctx, s, "Pause", p, func() error { return s.Store.Pause(ctx, p) })
}

// Audit implements store.Store.
func (s *Store) Audit(ctx context.Context, a store.Audit) error {
	return callErr(ctx, s, "Audit", a, func() error { return s.Store.Audit(ctx, a) })
}

// Exchange implements store.Store.
func (s *Store) Exchange(ctx context.Context, t store.Report) (store.Grant, error) {
	return call(ctx, s, "Exchange", t, func() (store.Grant, error) { return s.Store.Exchange(ctx, t) })
}

// Await implements store.Store.
func (s *Store) Await(ctx context.Context, maxJobs int) ([]queue.Job, error) {
	return call(ctx, s, "Await", maxJobs, func() ([]queue.Job, error) { return s.Store.Await(ctx, maxJobs) })
}

// Parents implements store.Store.
func (s *Store) Parents(ctx context.Context, seq int64) ([]store.Parent, error) {
	return call(ctx, s, "Parents", seq, func() ([]store.Parent, error) { return s.Store.Parents(ctx, seq) })
}

// PreviousSession implements store.Store.
func (s *Store) PreviousSession(ctx context.Context) (store.PreviousSession, error) {
	return call(ctx, s, "PreviousSession", nil, func() (store.PreviousSession, error) {
		return s.Store.PreviousSession(ctx)
	})
}

// NextEpoch implements store.Store.
func (s *Store) NextEpoch(ctx context.Context) (int64, error) {
	return call(ctx, s, "NextEpoch", nil, func() (int64, error) { return s.Store.NextEpoch(ctx) })
}

// StoreRunnerDirs implements store.Store.
func (s *Store) StoreRunnerDirs(ctx context.Context, dirs []string) error {
	return callErr(ctx, s, "StoreRunnerDirs", dirs, func() error { return s.Store.StoreRunnerDirs(ctx, dirs) })
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, id string) (queue.Job, error) {
	return call(ctx, s, "Get", id, func() (queue.Job, error) { return s.Store.Get(ctx, id) })
}

// GetFull implements store.Store.
func (s *Store) GetFull(ctx context.Context, id string) (queue.Job, error) {
	return call(ctx, s, "GetFull", id, func() (queue.Job, error) { return s.Store.GetFull(ctx, id) })
}

// History implements store.Store.
func (s *Store) History(ctx context.Context, seq int64, beforeNumber, limit int) ([]queue.Attempt, error) {
	return call(ctx, s, "History", seq, func() ([]queue.Attempt, error) {
		return s.Store.History(ctx, seq, beforeNumber, limit)
	})
}

// Attempt implements store.Store.
func (s *Store) Attempt(ctx context.Context, seq int64, n int) (queue.Attempt, error) {
	return call(ctx, s, "Attempt", seq, func() (queue.Attempt, error) { return s.Store.Attempt(ctx, seq, n) })
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, f store.Filter) (store.Page, error) {
	return call(ctx, s, "List", f, func() (store.Page, error) { return s.Store.List(ctx, f) })
}

// ListRefs implements store.Store.
func (s *Store) ListRefs(ctx context.Context, f store.Filter) (store.RefPage, error) {
	return call(ctx, s, "ListRefs", f, func() (store.RefPage, error) { return s.Store.ListRefs(ctx, f) })
}

// Queues implements store.Store.
func (s *Store) Queues(ctx context.Context) ([]store.QueueState, error) {
	return call(ctx, s, "Queues", nil, func() ([]store.QueueState, error) { return s.Store.Queues(ctx) })
}

// WaitReasons implements store.Store.
func (s *Store) WaitReasons(ctx context.Context, seqs []int64) (map[int64][]store.WaitReason, error) {
	return call(ctx, s, "WaitReasons", seqs, func() (map[int64][]store.WaitReason, error) {
		return s.Store.WaitReasons(ctx, seqs)
	})
}

// Simulate implements store.Store.
func (s *Store) Simulate(ctx context.Context, n int) (store.Simulation, error) {
	return call(ctx, s, "Simulate", n, func() (store.Simulation, error) { return s.Store.Simulate(ctx, n) })
}

// BestWaitingPriority implements store.Store.
func (s *Store) BestWaitingPriority(ctx context.Context, uid int) (store.WaitingPriority, error) {
	return call(ctx, s, "BestWaitingPriority", uid, func() (store.WaitingPriority, error) {
		return s.Store.BestWaitingPriority(ctx, uid)
	})
}

// DependencyLinks implements store.Store.
func (s *Store) DependencyLinks(ctx context.Context, seq int64, limit int) (parents, children []store.DependencyLink,
	err error) {
	err = callErr(ctx, s, "DependencyLinks", seq, func() (err error) {
		parents, children, err = s.Store.DependencyLinks(ctx, seq, limit)
		return err
	})
	return parents, children, err
}

// OldestReadySince implements store.Store.
func (s *Store) OldestReadySince(ctx context.Context) (queue.Millis, error) {
	return call(ctx, s, "OldestReadySince", nil, func() (queue.Millis, error) { return s.Store.OldestReadySince(ctx) })
}

// Screen implements store.Store.
func (s *Store) Screen(ctx context.Context, f store.ScreenFilter) (store.Screen, error) {
	return call(ctx, s, "Screen", f, func() (store.Screen, error) { return s.Store.Screen(ctx, f) })
}

// Events implements store.Store.
func (s *Store) Events(ctx context.Context, afterSeq int64, limit int) ([]queue.Event, error) {
	return call(ctx, s, "Events", afterSeq, func() ([]queue.Event, error) { return s.Store.Events(ctx, afterSeq, limit) })
}

// Stats implements store.Store.
func (s *Store) Stats(ctx context.Context, f store.StatsFilter) (store.Stats, error) {
	return call(ctx, s, "Stats", f, func() (store.Stats, error) { return s.Store.Stats(ctx, f) })
}

// Settings implements store.Store.
func (s *Store) Settings(ctx context.Context) ([]store.Setting, error) {
	return call(ctx, s, "Settings", nil, func() ([]store.Setting, error) { return s.Store.Settings(ctx) })
}

// SetSetting implements store.Store.
func (s *Store) SetSetting(ctx context.Context, setting store.Setting) error {
	return callErr(ctx, s, "SetSetting", setting, func() error { return s.Store.SetSetting(ctx, setting) })
}

// SetOrder implements store.Store.
func (s *Store) SetOrder(ctx context.Context, o queue.Order) error {
	return callErr(ctx, s, "SetOrder", o, func() error { return s.Store.SetOrder(ctx, o) })
}

// Rerank implements store.Store.
func (s *Store) Rerank(ctx context.Context) (bool, error) {
	return call(ctx, s, "Rerank", nil, func() (bool, error) { return s.Store.Rerank(ctx) })
}

// SetQueue implements store.Store.
func (s *Store) SetQueue(ctx context.Context, name string, rule store.QueueRule) error {
	return callErr(ctx, s, "SetQueue", name, func() error { return s.Store.SetQueue(ctx, name, rule) })
}

// SetNode implements store.Store.
func (s *Store) SetNode(ctx context.Context, node store.Node) error {
	return callErr(ctx, s, "SetNode", node, func() error { return s.Store.SetNode(ctx, node) })
}

// SetGate implements store.Store.
func (s *Store) SetGate(ctx context.Context, rule queue.Demand) error {
	return callErr(ctx, s, "SetGate", rule, func() error { return s.Store.SetGate(ctx, rule) })
}

// Gates implements store.Store.
func (s *Store) Gates(ctx context.Context, uid int, afterGate store.GateState) ([]store.GateState, error) {
	return call(ctx, s, "Gates", uid, func() ([]store.GateState, error) { return s.Store.Gates(ctx, uid, afterGate) })
}

// SetHooks implements store.Store.
func (s *Store) SetHooks(ctx context.Context, h store.Hooks) error {
	return callErr(ctx, s, "SetHooks", h.Triggers, func() error { return s.Store.SetHooks(ctx, h) })
}

// SetMaxRunningPerUser implements store.Store.
func (s *Store) SetMaxRunningPerUser(ctx context.Context, n int) error {
	return callErr(ctx, s, "SetMaxRunningPerUser", n, func() error { return s.Store.SetMaxRunningPerUser(ctx, n) })
}

// Promote implements store.Store.
func (s *Store) Promote(ctx context.Context) (time.Duration, error) {
	return call(ctx, s, "Promote", nil, func() (time.Duration, error) { return s.Store.Promote(ctx) })
}

// Purge implements store.Store.
func (s *Store) Purge(ctx context.Context, filter store.EndedFilter, limit int, byUID *int) (int, error) {
	return call(ctx, s, "Purge", filter.States, func() (int, error) { return s.Store.Purge(ctx, filter, limit, byUID) })
}

// CountEnded implements store.Store.
func (s *Store) CountEnded(ctx context.Context, ended store.EndedFilter) (int64, error) {
	return call(ctx, s, "CountEnded", ended.States, func() (int64, error) { return s.Store.CountEnded(ctx, ended) })
}

// OwnRetentionQueues implements store.Store.
func (s *Store) OwnRetentionQueues(ctx context.Context) ([]store.OwnRetentionQueue, error) {
	return call(ctx, s, "OwnRetentionQueues", nil, func() ([]store.OwnRetentionQueue, error) {
		return s.Store.OwnRetentionQueues(ctx)
	})
}

// TrimJobs implements store.Store.
func (s *Store) TrimJobs(ctx context.Context, queue string, maxJobs int64, limit int) (bool, error) {
	return call(ctx, s, "TrimJobs", queue, func() (bool, error) { return s.Store.TrimJobs(ctx, queue, maxJobs, limit) })
}

// TrimEvents implements store.Store.
func (s *Store) TrimEvents(ctx context.Context, beforeTime queue.Millis, maxEvents int64) (bool, error) {
	return call(ctx, s, "TrimEvents", beforeTime,
		func() (bool, error) { return s.Store.TrimEvents(ctx, beforeTime, maxEvents) })
}

// TrimOutputs implements store.Store.
func (s *Store) TrimOutputs(ctx context.Context, maxBytes int64) (bool, error) {
	return call(ctx, s, "TrimOutputs", maxBytes, func() (bool, error) { return s.Store.TrimOutputs(ctx, maxBytes) })
}

// TrimQueueOutputs implements store.Store.
func (s *Store) TrimQueueOutputs(ctx context.Context, queue string, maxBytes int64) (bool, error) {
	return call(ctx, s, "TrimQueueOutputs", queue, func() (bool, error) {
		return s.Store.TrimQueueOutputs(ctx, queue, maxBytes)
	})
}

// Disown implements store.Store.
func (s *Store) Disown(ctx context.Context, uid int, ownerName string) (bool, error) {
	return call(ctx, s, "Disown", uid, func() (bool, error) { return s.Store.Disown(ctx, uid, ownerName) })
}

// MarkUnownedOutputs implements store.Store.
func (s *Store) MarkUnownedOutputs(ctx context.Context, refs []string) ([]string, error) {
	return call(ctx, s, "MarkUnownedOutputs", refs, func() ([]string, error) {
		return s.Store.MarkUnownedOutputs(ctx, refs)
	})
}

// DeletableOutputs implements store.Store.
func (s *Store) DeletableOutputs(ctx context.Context, limit int) ([]string, error) {
	return call(ctx, s, "DeletableOutputs", limit, func() ([]string, error) {
		return s.Store.DeletableOutputs(ctx, limit)
	})
}

// RemovableBytes implements store.Store.
func (s *Store) RemovableBytes(ctx context.Context, uid int, neededBytes int64) (int64, error) {
	return call(ctx, s, "RemovableBytes", uid,
		func() (int64, error) { return s.Store.RemovableBytes(ctx, uid, neededBytes) })
}

// TrimUserData implements store.Store.
func (s *Store) TrimUserData(ctx context.Context, uid int, maxBytes int64) (bool, error) {
	return call(ctx, s, "TrimUserData", uid, func() (bool, error) { return s.Store.TrimUserData(ctx, uid, maxBytes) })
}

// ForgetDeletedOutputs implements store.Store.
func (s *Store) ForgetDeletedOutputs(ctx context.Context, refs []string) error {
	return callErr(ctx, s, "ForgetDeletedOutputs", refs, func() error { return s.Store.ForgetDeletedOutputs(ctx, refs) })
}

// Owners implements store.Store.
func (s *Store) Owners(ctx context.Context) (ownerNames map[int]string, movingUIDs []int, err error) {
	err = callErr(ctx, s, "Owners", nil, func() (err error) {
		ownerNames, movingUIDs, err = s.Store.Owners(ctx)
		return err
	})
	return ownerNames, movingUIDs, err
}

// PutSchedule implements store.Store.
func (s *Store) PutSchedule(ctx context.Context, request store.SchedulePut) (store.Schedule, error) {
	return call(ctx, s, "PutSchedule", request,
		func() (store.Schedule, error) { return s.Store.PutSchedule(ctx, request) })
}

// Schedule implements store.Store.
func (s *Store) Schedule(ctx context.Context, name string) (schedule store.Schedule,
	occurrences []store.OccurrenceRecord, err error) {
	err = callErr(ctx, s, "Schedule", name, func() (err error) {
		schedule, occurrences, err = s.Store.Schedule(ctx, name)
		return err
	})
	return schedule, occurrences, err
}

// Schedules implements store.Store.
func (s *Store) Schedules(ctx context.Context, afterName string, limit int) ([]store.Schedule, error) {
	return call(ctx, s, "Schedules", afterName, func() ([]store.Schedule, error) {
		return s.Store.Schedules(ctx, afterName, limit)
	})
}

// RemoveSchedule implements store.Store.
func (s *Store) RemoveSchedule(ctx context.Context, name string, generation int64, byUID int) error {
	return callErr(ctx, s, "RemoveSchedule", name,
		func() error { return s.Store.RemoveSchedule(ctx, name, generation, byUID) })
}

// PauseSchedule implements store.Store.
func (s *Store) PauseSchedule(ctx context.Context, p store.SchedulePause) error {
	return callErr(ctx, s, "PauseSchedule", p, func() error { return s.Store.PauseSchedule(ctx, p) })
}

// DueSchedules implements store.Store.
func (s *Store) DueSchedules(ctx context.Context, bootID string, limit int) (dueSchedules []store.Schedule,
	untilNext time.Duration, err error) {
	err = callErr(ctx, s, "DueSchedules", bootID, func() (err error) {
		dueSchedules, untilNext, err = s.Store.DueSchedules(ctx, bootID, limit)
		return err
	})
	return dueSchedules, untilNext, err
}

// RunOccurrences implements store.Store.
func (s *Store) RunOccurrences(ctx context.Context, request store.OccurrenceRequest) (store.OccurrenceResult, error) {
	return call(ctx, s, "RunOccurrences", request, func() (store.OccurrenceResult, error) {
		return s.Store.RunOccurrences(ctx, request)
	})
}
