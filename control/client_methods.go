package control

import (
	"context"
	"encoding/json"
)

// Client implements API. Each of its methods calls the API method of the same name.
var _ API = (*Client)(nil)

// callMethod calls a method that sends a single answer, and returns the answer. If repeatable is true and the
// connection is lost, it sends the request once more.
func callMethod[R any](ctx context.Context, c *Client, method string, params any, repeatable bool) (r R, err error) {
	err = c.call(ctx, method, params, &r, repeatable, nil)
	return r, err
}

// callStream calls a method that sends a stream. It calls handlePiece for every piece of the stream, and
// returns the answer that follows the last piece.
func callStream[N, R any](ctx context.Context, c *Client, method string, params any,
	handlePiece func(N) error) (r R, err error) {
	err = c.call(ctx, method, params, &r, false, func(raw json.RawMessage) error {
		var n N
		if err := decodeAnswer(method, raw, &n); err != nil {
			return err
		}
		return handlePiece(n)
	})
	return r, err
}

func (c *Client) Hello(ctx context.Context, p HelloParams) (Hello, error) {
	return callMethod[Hello](ctx, c, "hello", p, true)
}

func (c *Client) Whoami(ctx context.Context, p NoParams) (Whoami, error) {
	return callMethod[Whoami](ctx, c, "whoami", p, true)
}

// Enqueue implements API. If p has no idempotency key, Enqueue generates one, so that the request can be
// repeated.
func (c *Client) Enqueue(ctx context.Context, p Enqueue) (EnqueueResult, error) {
	if p.Key == "" {
		p.Key = NewIdempotencyKey()
	}
	return callMethod[EnqueueResult](ctx, c, "enqueue", p, true)
}

// EnqueueBatch implements API. If the request that commits the batch has no idempotency key, EnqueueBatch
// generates one.
func (c *Client) EnqueueBatch(ctx context.Context, p EnqueueBatch) (EnqueueBatchResult, error) {
	if p.Key == "" && p.Commit {
		p.Key = NewIdempotencyKey()
	}
	// The requests before the commit have no key. They are not repeated, because their jobs would be added
	// twice.
	return callMethod[EnqueueBatchResult](ctx, c, "enqueue.batch", &p, p.Commit || p.Abort)
}

func (c *Client) Show(ctx context.Context, p Show) (JobDetail, error) {
	return callMethod[JobDetail](ctx, c, "show", p, true)
}

func (c *Client) List(ctx context.Context, p List) (JobPage, error) {
	return callMethod[JobPage](ctx, c, "list", p, true)
}

func (c *Client) Screen(ctx context.Context, p ScreenParams) (Screen, error) {
	return callMethod[Screen](ctx, c, "screen", p, true)
}

func (c *Client) Status(ctx context.Context, p NoParams) (Status, error) {
	return callMethod[Status](ctx, c, "status", p, true)
}

func (c *Client) Wait(ctx context.Context, p Wait, handleNotice func(JobEndNotice) error) (WaitResult, error) {
	return callStream[JobEndNotice, WaitResult](ctx, c, "wait", p, handleNotice)
}

func (c *Client) Logs(ctx context.Context, p Logs, handlePiece func(OutputPiece) error) (LogsEnd, error) {
	return callStream[OutputPiece, LogsEnd](ctx, c, "logs", p, handlePiece)
}

// Attach implements API. The request is not repeated, because its text would be typed twice.
func (c *Client) Attach(ctx context.Context, p Attach) (AttachResult, error) {
	return callMethod[AttachResult](ctx, c, "attach", p, false)
}

func (c *Client) Cancel(ctx context.Context, p Selection) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "cancel", p, true)
}

func (c *Client) Retry(ctx context.Context, p Retry) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "retry", p, false)
}

func (c *Client) Hold(ctx context.Context, p Selection) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "hold", p, true)
}

func (c *Client) Release(ctx context.Context, p Selection) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "release", p, true)
}

func (c *Client) Pause(ctx context.Context, p Selection) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "pause", p, true)
}

func (c *Client) Resume(ctx context.Context, p Selection) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "resume", p, true)
}

func (c *Client) Requeue(ctx context.Context, p Selection) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "requeue", p, false)
}

func (c *Client) Kill(ctx context.Context, p Kill) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "kill", p, false)
}

func (c *Client) Edit(ctx context.Context, p Edit) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "edit", p, true)
}

func (c *Client) Remove(ctx context.Context, p Remove) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "rm", p, true)
}

func (c *Client) Clear(ctx context.Context, p ClearParams) (RemovalCount, error) {
	return callMethod[RemovalCount](ctx, c, "clear", p, false)
}

func (c *Client) DLQList(ctx context.Context, p DLQList) (JobPage, error) {
	return callMethod[JobPage](ctx, c, "dlq.list", p, true)
}

func (c *Client) DLQRetry(ctx context.Context, p DLQRetry) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "dlq.retry", p, false)
}

func (c *Client) DLQClear(ctx context.Context, p ClearParams) (RemovalCount, error) {
	return callMethod[RemovalCount](ctx, c, "dlq.clear", p, false)
}

func (c *Client) QueueList(ctx context.Context, p QueueListParams) (QueueList, error) {
	return callMethod[QueueList](ctx, c, "queue.list", p, true)
}

func (c *Client) QueueSet(ctx context.Context, p QueueSet) (QueueView, error) {
	return callMethod[QueueView](ctx, c, "queue.set", p, true)
}

func (c *Client) QueuePause(ctx context.Context, p QueuePause) (QueueList, error) {
	return callMethod[QueueList](ctx, c, "queue.pause", p, false)
}

func (c *Client) QueueResume(ctx context.Context, p QueueResumeParams) (QueueList, error) {
	return callMethod[QueueList](ctx, c, "queue.resume", p, true)
}

func (c *Client) QueueRemove(ctx context.Context, p QueueRemove) (QueueList, error) {
	return callMethod[QueueList](ctx, c, "queue.rm", p, false)
}

func (c *Client) Tree(ctx context.Context, p Tree) (TreeView, error) {
	return callMethod[TreeView](ctx, c, "tree", p, true)
}

func (c *Client) Stats(ctx context.Context, p StatsParams) (Stats, error) {
	return callMethod[Stats](ctx, c, "stats", p, true)
}

func (c *Client) Simulate(ctx context.Context, p Simulate) (SimulateResult, error) {
	return callMethod[SimulateResult](ctx, c, "simulate", p, true)
}

func (c *Client) Why(ctx context.Context, p WhyParams) (Why, error) {
	return callMethod[Why](ctx, c, "why", p, true)
}

func (c *Client) WorkerStart(ctx context.Context, p WorkerStart) (WorkerCount, error) {
	return callMethod[WorkerCount](ctx, c, "worker.start", p, false)
}

func (c *Client) WorkerStop(ctx context.Context, p WorkerStop) (WorkerCount, error) {
	return callMethod[WorkerCount](ctx, c, "worker.stop", p, false)
}

func (c *Client) WorkerScale(ctx context.Context, p WorkerScale) (WorkerCount, error) {
	return callMethod[WorkerCount](ctx, c, "worker.scale", p, true)
}

func (c *Client) WorkerList(ctx context.Context, p NoParams) (WorkerList, error) {
	return callMethod[WorkerList](ctx, c, "worker.list", p, true)
}

func (c *Client) ScheduleAdd(ctx context.Context, p ScheduleAdd) (ScheduleDetail, error) {
	return callMethod[ScheduleDetail](ctx, c, "schedule.add", p, true)
}

func (c *Client) ScheduleList(ctx context.Context, p ScheduleList) (SchedulePage, error) {
	return callMethod[SchedulePage](ctx, c, "schedule.list", p, true)
}

func (c *Client) ScheduleShow(ctx context.Context, p ScheduleNameParams) (ScheduleDetail, error) {
	return callMethod[ScheduleDetail](ctx, c, "schedule.show", p, true)
}

// ScheduleRemove implements API. The request is not repeated. The repetition would fail if the first request
// has already removed the schedule.
func (c *Client) ScheduleRemove(ctx context.Context, p ScheduleNameParams) (Schedule, error) {
	return callMethod[Schedule](ctx, c, "schedule.rm", p, false)
}

func (c *Client) SchedulePause(ctx context.Context, p ScheduleNameParams) (Schedule, error) {
	return callMethod[Schedule](ctx, c, "schedule.pause", p, true)
}

func (c *Client) ScheduleResume(ctx context.Context, p ScheduleNameParams) (Schedule, error) {
	return callMethod[Schedule](ctx, c, "schedule.resume", p, true)
}

// ScheduleRun implements API. The request is not repeated, because the repetition would enqueue a second job.
func (c *Client) ScheduleRun(ctx context.Context, p ScheduleNameParams) (EnqueueResult, error) {
	return callMethod[EnqueueResult](ctx, c, "schedule.run", p, false)
}

func (c *Client) NodeList(ctx context.Context, p NodeListParams) (NodeList, error) {
	return callMethod[NodeList](ctx, c, "node.list", p, true)
}

func (c *Client) NodeDrain(ctx context.Context, p NodeDrain) (NodeView, error) {
	return callMethod[NodeView](ctx, c, "node.drain", p, true)
}

// NodeRemove implements API. The request is not repeated. The repetition would fail if the first request has
// already removed the node.
func (c *Client) NodeRemove(ctx context.Context, p NodeRemoveParams) (NodeView, error) {
	return callMethod[NodeView](ctx, c, "node.rm", p, false)
}

func (c *Client) GateList(ctx context.Context, p GateListParams) (GateList, error) {
	return callMethod[GateList](ctx, c, "gate.list", p, true)
}

func (c *Client) GateSet(ctx context.Context, p GateSet) (GateView, error) {
	return callMethod[GateView](ctx, c, "gate.set", p, true)
}

// HookTest implements API. The request is not repeated, because the repetition would enqueue a second job.
func (c *Client) HookTest(ctx context.Context, p HookTestParams) (EnqueueResult, error) {
	return callMethod[EnqueueResult](ctx, c, "hook.test", p, false)
}

func (c *Client) WebStart(ctx context.Context, p WebStart) (WebState, error) {
	return callMethod[WebState](ctx, c, "web.start", p, true)
}

func (c *Client) WebStop(ctx context.Context, p NoParams) (WebState, error) {
	return callMethod[WebState](ctx, c, "web.stop", p, true)
}

func (c *Client) WebOpen(ctx context.Context, p NoParams) (WebLink, error) {
	return callMethod[WebLink](ctx, c, "web.open", p, true)
}

func (c *Client) ConfigList(ctx context.Context, p NoParams) (ConfigList, error) {
	return callMethod[ConfigList](ctx, c, "config.list", p, true)
}

func (c *Client) ConfigGet(ctx context.Context, p ConfigKeyParams) (ConfigValue, error) {
	return callMethod[ConfigValue](ctx, c, "config.get", p, true)
}

func (c *Client) ConfigSet(ctx context.Context, p ConfigSet) (ConfigValue, error) {
	return callMethod[ConfigValue](ctx, c, "config.set", p, true)
}

func (c *Client) ConfigUnset(ctx context.Context, p ConfigKeyParams) (ConfigValue, error) {
	return callMethod[ConfigValue](ctx, c, "config.unset", p, true)
}

func (c *Client) Events(ctx context.Context, p Events, handleEvent func(Event) error) (EventsEnd, error) {
	return callStream[Event, EventsEnd](ctx, c, "events", p, handleEvent)
}

func (c *Client) Cleanup(ctx context.Context, p Cleanup, reportProgress func(RemovalCount) error) (
	RemovalCount, error) {
	return callStream[RemovalCount, RemovalCount](ctx, c, "cleanup", p, reportProgress)
}

func (c *Client) Backup(ctx context.Context, p NoParams, handlePiece func(BackupPiece) error) (BackupEnd, error) {
	return callStream[BackupPiece, BackupEnd](ctx, c, "backup", p, handlePiece)
}

func (c *Client) Doctor(ctx context.Context, p Doctor, reportProgress func(Progress) error) (Diagnosis, error) {
	return callStream[Progress, Diagnosis](ctx, c, "doctor", p, reportProgress)
}

func (c *Client) Drain(ctx context.Context, p Drain) (DrainResult, error) {
	return callMethod[DrainResult](ctx, c, "drain", p, true)
}

func (c *Client) Reload(ctx context.Context, p NoParams) (ReloadResult, error) {
	return callMethod[ReloadResult](ctx, c, "reload", p, true)
}

func (c *Client) ServiceStop(ctx context.Context, p ServiceStop) (ServiceStopResult, error) {
	return callMethod[ServiceStopResult](ctx, c, "service.stop", p, false)
}
