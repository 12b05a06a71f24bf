// Package faultstore wraps a store so that tests can delay calls of its methods or make them fail.
package faultstore

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Call describes a call of a method of the store that takes a context. For methods without a context, the hook is not
// called.
type Call struct {
	MethodName string
	// FirstArg is the method's first argument after the context, or the part of it that tests need. It is nil if the
	// method has no other argument.
	FirstArg any
	// HasSucceeded is false before the store executes the call, and true after the call has succeeded.
	HasSucceeded bool
}

// CallHook is called before the store executes a call, and again after the call has succeeded. It may block. If
// CallHook returns an error, the caller of the store gets that error. If the first call of the hook returns an error,
// the store does not execute the call. If the second call of the hook returns an error, the store has already executed
// the call, and only the result is lost.
type CallHook func(ctx context.Context, c Call) error

// Store is a store.Store that calls a hook before and after each call.
type Store struct {
	store.Store
	hook atomic.Pointer[CallHook]
}

// New returns a store that passes all calls on to s, without a hook.
func New(s store.Store) *Store { return &Store{Store: s} }

// SetHook sets the hook; nil removes it. A call of the store that is already running uses the new hook only after its
// execution.
func (s *Store) SetHook(hook CallHook) { s.hook.Store(&hook) }

func (s *Store) runHook(ctx context.Context, c Call) error {
	if hook := s.hook.Load(); hook != nil && *hook != nil {
		return (*hook)(ctx, c)
	}
	return nil
}

// callWithHook calls the hook, executes action, and, if action succeeds, calls the hook again.
func callWithHook[T any](ctx context.Context, s *Store, method string, arg any, action func() (T, error)) (T, error) {
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

// callWithHookErr is like callWithHook for methods that return only an error.
func callWithHookErr(ctx context.Context, s *Store, method string, arg any, action func() error) error {
	_, err := callWithHook(ctx, s, method, arg, func() (struct{}, error) { return struct{}{}, action() })
	return err
}

// Enqueue implements store.Store.
func (s *Store) Enqueue(ctx context.Context, r store.EnqueueRequest) (store.Receipt, error) {
	return callWithHook(ctx, s, "Enqueue", r, func() (store.Receipt, error) { return s.Store.Enqueue(ctx, r) })
}

// StageBatch implements store.Store.
func (s *Store) StageBatch(ctx context.Context, r store.EnqueueRequest) (store.Receipt, error) {
	return callWithHook(ctx, s, "StageBatch", r, func() (store.Receipt, error) { return s.Store.StageBatch(ctx, r) })
}

// AbortBatch implements store.Store.
func (s *Store) AbortBatch(ctx context.Context, uid int, batch string) error {
	return callWithHookErr(ctx, s, "AbortBatch", uid, func() error { return s.Store.AbortBatch(ctx, uid, batch) })
}

// ApplyBatch implements store.Store.
func (s *Store) ApplyBatch(ctx context.Context, batchNumber int64) (bool, error) {
	return callWithHook(ctx, s, "ApplyBatch", batchNumber, func() (bool, error) {
		return s.Store.ApplyBatch(ctx, batchNumber)
	})
}

// ChangeJob implements store.Store.
func (s *Store) ChangeJob(ctx context.Context, seq int64, c store.JobChange) error {
	return callWithHookErr(ctx, s, "ChangeJob", seq, func() error { return s.Store.ChangeJob(ctx, seq, c) })
}

// RecordJobPause implements store.Store.
func (s *Store) RecordJobPause(ctx context.Context, p store.JobPauseRequest) error {
	return callWithHookErr(ctx, s, "RecordJobPause", p, func() error { return s.Store.RecordJobPause(ctx, p) })
}

// RecordAudit implements store.Store.
func (s *Store) RecordAudit(ctx context.Context, a store.AuditRecord) error {
	return callWithHookErr(ctx, s, "RecordAudit", a, func() error { return s.Store.RecordAudit(ctx, a) })
}

// ReportAndClaim implements store.Store.
func (s *Store) ReportAndClaim(ctx context.Context, report store.LeaseReport) (store.ReportAndClaimResult, error) {
	return callWithHook(ctx, s, "ReportAndClaim", report, func() (store.ReportAndClaimResult, error) {
		return s.Store.ReportAndClaim(ctx, report)
	})
}

// AwaitJobs implements store.Store.
func (s *Store) AwaitJobs(ctx context.Context, maxJobs int) ([]queue.Job, error) {
	return callWithHook(ctx, s, "AwaitJobs", maxJobs, func() ([]queue.Job, error) {
		return s.Store.AwaitJobs(ctx, maxJobs)
	})
}

// ParentJobs implements store.Store.
func (s *Store) ParentJobs(ctx context.Context, seq int64) ([]store.ParentJob, error) {
	return callWithHook(ctx, s, "ParentJobs", seq, func() ([]store.ParentJob, error) {
		return s.Store.ParentJobs(ctx, seq)
	})
}

// PreviousSession implements store.Store.
func (s *Store) PreviousSession(ctx context.Context) (store.PreviousSession, error) {
	return callWithHook(ctx, s, "PreviousSession", nil, func() (store.PreviousSession, error) {
		return s.Store.PreviousSession(ctx)
	})
}

// AdvanceEpoch implements store.Store.
func (s *Store) AdvanceEpoch(ctx context.Context) (int64, error) {
	return callWithHook(ctx, s, "AdvanceEpoch", nil, func() (int64, error) { return s.Store.AdvanceEpoch(ctx) })
}

// StoreRunnerDirs implements store.Store.
func (s *Store) StoreRunnerDirs(ctx context.Context, dirs []string) error {
	return callWithHookErr(ctx, s, "StoreRunnerDirs", dirs, func() error { return s.Store.StoreRunnerDirs(ctx, dirs) })
}

// Get implements store.Store.
func (s *Store) GetJob(ctx context.Context, id string) (queue.Job, error) {
	return callWithHook(ctx, s, "GetJob", id, func() (queue.Job, error) { return s.Store.GetJob(ctx, id) })
}

// GetWithEnvAndStdin implements store.Store.
func (s *Store) GetWithEnvAndStdin(ctx context.Context, id string) (queue.Job, error) {
	return callWithHook(ctx, s, "GetWithEnvAndStdin", id, func() (queue.Job, error) {
		return s.Store.GetWithEnvAndStdin(ctx, id)
	})
}

// AttemptHistory implements store.Store.
func (s *Store) AttemptHistory(ctx context.Context, seq int64, beforeNumber, limit int) ([]queue.Attempt, error) {
	return callWithHook(ctx, s, "AttemptHistory", seq, func() ([]queue.Attempt, error) {
		return s.Store.AttemptHistory(ctx, seq, beforeNumber, limit)
	})
}

// Attempt implements store.Store.
func (s *Store) Attempt(ctx context.Context, seq int64, attemptNumber int) (queue.Attempt, error) {
	return callWithHook(ctx, s, "Attempt", seq, func() (queue.Attempt, error) {
		return s.Store.Attempt(ctx, seq, attemptNumber)
	})
}

// List implements store.Store.
func (s *Store) ListJobs(ctx context.Context, f store.JobFilter) (store.JobPage, error) {
	return callWithHook(ctx, s, "ListJobs", f, func() (store.JobPage, error) { return s.Store.ListJobs(ctx, f) })
}

// ListJobRefs implements store.Store.
func (s *Store) ListJobRefs(ctx context.Context, f store.JobFilter) (store.JobRefPage, error) {
	return callWithHook(ctx, s, "ListJobRefs", f, func() (store.JobRefPage, error) { return s.Store.ListJobRefs(ctx, f) })
}

// Queues implements store.Store.
func (s *Store) Queues(ctx context.Context) ([]store.QueueState, error) {
	return callWithHook(ctx, s, "Queues", nil, func() ([]store.QueueState, error) { return s.Store.Queues(ctx) })
}

// WaitReasons implements store.Store.
func (s *Store) WaitReasons(ctx context.Context, seqs []int64) (map[int64][]store.WaitReason, error) {
	return callWithHook(ctx, s, "WaitReasons", seqs, func() (map[int64][]store.WaitReason, error) {
		return s.Store.WaitReasons(ctx, seqs)
	})
}

// SimulateClaims implements store.Store.
func (s *Store) SimulateClaims(ctx context.Context, maxJobs int) (store.ClaimSimulation, error) {
	return callWithHook(ctx, s, "SimulateClaims", maxJobs, func() (store.ClaimSimulation, error) {
		return s.Store.SimulateClaims(ctx, maxJobs)
	})
}

// BestWaitingPriority implements store.Store.
func (s *Store) BestWaitingPriority(ctx context.Context, uid int) (store.WaitingPriority, error) {
	return callWithHook(ctx, s, "BestWaitingPriority", uid, func() (store.WaitingPriority, error) {
		return s.Store.BestWaitingPriority(ctx, uid)
	})
}

// DependencyLinks implements store.Store.
func (s *Store) DependencyLinks(ctx context.Context, seq int64, limit int) (parents, children []store.DependencyLink,
	err error) {
	err = callWithHookErr(ctx, s, "DependencyLinks", seq, func() (err error) {
		parents, children, err = s.Store.DependencyLinks(ctx, seq, limit)
		return err
	})
	return parents, children, err
}

// OldestReadySince implements store.Store.
func (s *Store) OldestReadySince(ctx context.Context) (queue.UnixMillis, error) {
	return callWithHook(ctx, s, "OldestReadySince", nil, func() (queue.UnixMillis, error) {
		return s.Store.OldestReadySince(ctx)
	})
}

// ReadScreen implements store.Store.
func (s *Store) ReadScreen(ctx context.Context, f store.ScreenFilter) (store.Screen, error) {
	return callWithHook(ctx, s, "ReadScreen", f, func() (store.Screen, error) { return s.Store.ReadScreen(ctx, f) })
}

// Events implements store.Store.
func (s *Store) Events(ctx context.Context, afterSeq int64, limit int) ([]queue.Event, error) {
	return callWithHook(ctx, s, "Events", afterSeq, func() ([]queue.Event, error) {
		return s.Store.Events(ctx, afterSeq, limit)
	})
}

// Stats implements store.Store.
func (s *Store) Stats(ctx context.Context, f store.StatsFilter) (store.Stats, error) {
	return callWithHook(ctx, s, "Stats", f, func() (store.Stats, error) { return s.Store.Stats(ctx, f) })
}

// Settings implements store.Store.
func (s *Store) Settings(ctx context.Context) ([]store.Setting, error) {
	return callWithHook(ctx, s, "Settings", nil, func() ([]store.Setting, error) { return s.Store.Settings(ctx) })
}

// SetSetting implements store.Store.
func (s *Store) SetSetting(ctx context.Context, setting store.Setting) error {
	return callWithHookErr(ctx, s, "SetSetting", setting, func() error { return s.Store.SetSetting(ctx, setting) })
}

// SetRankOrder implements store.Store.
func (s *Store) SetRankOrder(ctx context.Context, o queue.RankPolicy) error {
	return callWithHookErr(ctx, s, "SetRankOrder", o, func() error { return s.Store.SetRankOrder(ctx, o) })
}

// RerankWaitingJobs implements store.Store.
func (s *Store) RerankWaitingJobs(ctx context.Context) (bool, error) {
	return callWithHook(ctx, s, "RerankWaitingJobs", nil, func() (bool, error) { return s.Store.RerankWaitingJobs(ctx) })
}

// SetQueue implements store.Store.
func (s *Store) SetQueue(ctx context.Context, name string, rule store.QueueRule) error {
	return callWithHookErr(ctx, s, "SetQueue", name, func() error { return s.Store.SetQueue(ctx, name, rule) })
}

// SetThisNodeProperties implements store.Store.
func (s *Store) SetThisNodeProperties(ctx context.Context, node store.Node) error {
	return callWithHookErr(ctx, s, "SetThisNodeProperties", node,
		func() error { return s.Store.SetThisNodeProperties(ctx, node) })
}

// SetGateRule implements store.Store.
func (s *Store) SetGateRule(ctx context.Context, rule queue.Demand) error {
	return callWithHookErr(ctx, s, "SetGateRule", rule, func() error { return s.Store.SetGateRule(ctx, rule) })
}

// Gates implements store.Store.
func (s *Store) Gates(ctx context.Context, uid int, afterGate store.GateState) ([]store.GateState, error) {
	return callWithHook(ctx, s, "Gates", uid, func() ([]store.GateState, error) {
		return s.Store.Gates(ctx, uid, afterGate)
	})
}

// SetHooks implements store.Store.
func (s *Store) SetHooks(ctx context.Context, h store.HookSettings) error {
	return callWithHookErr(ctx, s, "SetHooks", h.TriggerEvents, func() error { return s.Store.SetHooks(ctx, h) })
}

// SetMaxRunningPerUser implements store.Store.
func (s *Store) SetMaxRunningPerUser(ctx context.Context, n int) error {
	return callWithHookErr(ctx, s, "SetMaxRunningPerUser", n, func() error { return s.Store.SetMaxRunningPerUser(ctx, n) })
}

// ApplyDueChanges implements store.Store.
func (s *Store) ApplyDueChanges(ctx context.Context) (time.Duration, error) {
	return callWithHook(ctx, s, "ApplyDueChanges", nil, func() (time.Duration, error) {
		return s.Store.ApplyDueChanges(ctx)
	})
}

// PurgeEndedJobs implements store.Store.
func (s *Store) PurgeEndedJobs(ctx context.Context, filter store.EndedJobFilter, limit int, requesterUID *int) (int,
	error) {
	return callWithHook(ctx, s, "PurgeEndedJobs", filter.States, func() (int, error) {
		return s.Store.PurgeEndedJobs(ctx, filter, limit, requesterUID)
	})
}

// CountEndedJobs implements store.Store.
func (s *Store) CountEndedJobs(ctx context.Context, filter store.EndedJobFilter) (int64, error) {
	return callWithHook(ctx, s, "CountEndedJobs", filter.States,
		func() (int64, error) { return s.Store.CountEndedJobs(ctx, filter) })
}

// QueuesWithOwnRetention implements store.Store.
func (s *Store) QueuesWithOwnRetention(ctx context.Context) ([]store.OwnRetentionQueue, error) {
	return callWithHook(ctx, s, "QueuesWithOwnRetention", nil, func() ([]store.OwnRetentionQueue, error) {
		return s.Store.QueuesWithOwnRetention(ctx)
	})
}

// TrimEndedJobs implements store.Store.
func (s *Store) TrimEndedJobs(ctx context.Context, queue string, maxJobs int64, limit int) (bool, error) {
	return callWithHook(ctx, s, "TrimEndedJobs", queue, func() (bool, error) {
		return s.Store.TrimEndedJobs(ctx, queue, maxJobs, limit)
	})
}

// TrimEvents implements store.Store.
func (s *Store) TrimEvents(ctx context.Context, beforeTime queue.UnixMillis, maxEvents int64) (bool, error) {
	return callWithHook(ctx, s, "TrimEvents", beforeTime,
		func() (bool, error) { return s.Store.TrimEvents(ctx, beforeTime, maxEvents) })
}

// TrimOutputs implements store.Store.
func (s *Store) TrimOutputs(ctx context.Context, maxBytes int64) (bool, error) {
	return callWithHook(ctx, s, "TrimOutputs", maxBytes, func() (bool, error) {
		return s.Store.TrimOutputs(ctx, maxBytes)
	})
}

// TrimQueueOutputs implements store.Store.
func (s *Store) TrimQueueOutputs(ctx context.Context, queue string, maxBytes int64) (bool, error) {
	return callWithHook(ctx, s, "TrimQueueOutputs", queue, func() (bool, error) {
		return s.Store.TrimQueueOutputs(ctx, queue, maxBytes)
	})
}

// DisownJobs implements store.Store.
func (s *Store) DisownJobs(ctx context.Context, uid int, ownerName string) (bool, error) {
	return callWithHook(ctx, s, "DisownJobs", uid, func() (bool, error) { return s.Store.DisownJobs(ctx, uid, ownerName) })
}

// MarkUnownedOutputs implements store.Store.
func (s *Store) MarkUnownedOutputs(ctx context.Context, refs []string) ([]string, error) {
	return callWithHook(ctx, s, "MarkUnownedOutputs", refs, func() ([]string, error) {
		return s.Store.MarkUnownedOutputs(ctx, refs)
	})
}

// DeletableOutputs implements store.Store.
func (s *Store) DeletableOutputs(ctx context.Context, limit int) ([]string, error) {
	return callWithHook(ctx, s, "DeletableOutputs", limit, func() ([]string, error) {
		return s.Store.DeletableOutputs(ctx, limit)
	})
}

// RemovableUserBytes implements store.Store.
func (s *Store) RemovableUserBytes(ctx context.Context, uid int, neededBytes int64) (int64, error) {
	return callWithHook(ctx, s, "RemovableUserBytes", uid,
		func() (int64, error) { return s.Store.RemovableUserBytes(ctx, uid, neededBytes) })
}

// TrimUserData implements store.Store.
func (s *Store) TrimUserData(ctx context.Context, uid int, maxBytes int64) (bool, error) {
	return callWithHook(ctx, s, "TrimUserData", uid, func() (bool, error) {
		return s.Store.TrimUserData(ctx, uid, maxBytes)
	})
}

// ForgetDeletedOutputs implements store.Store.
func (s *Store) ForgetDeletedOutputs(ctx context.Context, refs []string) error {
	return callWithHookErr(ctx, s, "ForgetDeletedOutputs", refs,
		func() error { return s.Store.ForgetDeletedOutputs(ctx, refs) })
}

// Owners implements store.Store.
func (s *Store) Owners(ctx context.Context) (ownerNames map[int]string, movingUIDs []int, err error) {
	err = callWithHookErr(ctx, s, "Owners", nil, func() (err error) {
		ownerNames, movingUIDs, err = s.Store.Owners(ctx)
		return err
	})
	return ownerNames, movingUIDs, err
}

// PutSchedule implements store.Store.
func (s *Store) PutSchedule(ctx context.Context, request store.SchedulePutRequest) (store.Schedule, error) {
	return callWithHook(ctx, s, "PutSchedule", request,
		func() (store.Schedule, error) { return s.Store.PutSchedule(ctx, request) })
}

// GetSchedule implements store.Store.
func (s *Store) GetSchedule(ctx context.Context, name string) (schedule store.Schedule,
	occurrences []store.OccurrenceRecord, err error) {
	err = callWithHookErr(ctx, s, "GetSchedule", name, func() (err error) {
		schedule, occurrences, err = s.Store.GetSchedule(ctx, name)
		return err
	})
	return schedule, occurrences, err
}

// ListSchedules implements store.Store.
func (s *Store) ListSchedules(ctx context.Context, afterName string, limit int) ([]store.Schedule, error) {
	return callWithHook(ctx, s, "ListSchedules", afterName, func() ([]store.Schedule, error) {
		return s.Store.ListSchedules(ctx, afterName, limit)
	})
}

// RemoveSchedule implements store.Store.
func (s *Store) RemoveSchedule(ctx context.Context, name string, generation int64, requesterUID int) error {
	return callWithHookErr(ctx, s, "RemoveSchedule", name,
		func() error { return s.Store.RemoveSchedule(ctx, name, generation, requesterUID) })
}

// PauseSchedule implements store.Store.
func (s *Store) PauseSchedule(ctx context.Context, p store.SchedulePauseRequest) error {
	return callWithHookErr(ctx, s, "PauseSchedule", p, func() error { return s.Store.PauseSchedule(ctx, p) })
}

// DueSchedules implements store.Store.
func (s *Store) DueSchedules(ctx context.Context, bootID string, limit int) (dueSchedules []store.Schedule,
	untilNext time.Duration, err error) {
	err = callWithHookErr(ctx, s, "DueSchedules", bootID, func() (err error) {
		dueSchedules, untilNext, err = s.Store.DueSchedules(ctx, bootID, limit)
		return err
	})
	return dueSchedules, untilNext, err
}

// RunOccurrences implements store.Store.
func (s *Store) RunOccurrences(ctx context.Context, request store.OccurrenceRequest) (store.OccurrenceResult, error) {
	return callWithHook(ctx, s, "RunOccurrences", request, func() (store.OccurrenceResult, error) {
		return s.Store.RunOccurrences(ctx, request)
	})
}
