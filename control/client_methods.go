package control

import (
	"context"
	"encoding/json"
)

// Client implements API. Each of its methods calls the API method of the same name.
var _ API = (*Client)(nil)

// callMethod calls a method that sends a single answer, and returns the answer. If repeatIfConnLost is true and the
// connection is lost, it sends the request once more.
func callMethod[R any](ctx context.Context, c *Client, method string, params any, repeatIfConnLost bool) (r R,
	err error) {
	err = c.call(ctx, method, params, &r, repeatIfConnLost, nil)
	return r, err
}

// callStream calls a method that sends a stream. It calls handleStreamPiece for every piece of the stream, and returns
// the answer that follows the last piece.
func callStream[N, R any](ctx context.Context, c *Client, method string, params any,
	handleStreamPiece func(N) error) (r R, err error) {
	err = c.call(ctx, method, params, &r, false, func(raw json.RawMessage) error {
		var n N
		if err := decodeResultJSON(method, raw, &n); err != nil {
			return err
		}
		return handleStreamPiece(n)
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
func (c *Client) Enqueue(ctx context.Context, p EnqueueParams) (EnqueueResult, error) {
	if p.IdempotencyKey == "" {
		p.IdempotencyKey = NewIdempotencyKey()
	}
	return callMethod[EnqueueResult](ctx, c, "enqueue", p, true)
}

// EnqueueBatch implements API. If p commits the batch and has no idempotency key, EnqueueBatch generates one.
func (c *Client) EnqueueBatch(ctx context.Context, p EnqueueBatchParams) (EnqueueBatchResult, error) {
	if p.IdempotencyKey == "" && p.Commit {
		p.IdempotencyKey = NewIdempotencyKey()
	}
	// The requests before the commit have no key. They are not repeated after a lost connection, because their jobs would
	// be added twice.
	return callMethod[EnqueueBatchResult](ctx, c, "enqueue.batch", &p, p.Commit || p.Abort)
}

func (c *Client) ShowJob(ctx context.Context, p ShowParams) (JobDetail, error) {
	return callMethod[JobDetail](ctx, c, "show", p, true)
}

func (c *Client) ListJobs(ctx context.Context, p ListParams) (JobPage, error) {
	return callMethod[JobPage](ctx, c, "list", p, true)
}

func (c *Client) ReadScreen(ctx context.Context, p ScreenParams) (OverviewScreen, error) {
	return callMethod[OverviewScreen](ctx, c, "screen", p, true)
}

func (c *Client) Status(ctx context.Context, p NoParams) (Status, error) {
	return callMethod[Status](ctx, c, "status", p, true)
}

func (c *Client) WaitForJobs(ctx context.Context, p WaitParams, handleNotice func(JobEndNotice) error) (WaitResult,
	error) {
	return callStream[JobEndNotice, WaitResult](ctx, c, "wait", p, handleNotice)
}

func (c *Client) StreamOutput(ctx context.Context, p LogsParams, handlePiece func(OutputPiece) error) (OutputStreamEnd,
	error) {
	return callStream[OutputPiece, OutputStreamEnd](ctx, c, "logs", p, handlePiece)
}

// AttachTerminal implements API. The request is not repeated after a lost connection, because its text would be typed
// twice.
func (c *Client) AttachTerminal(ctx context.Context, p AttachParams) (AttachResult, error) {
	return callMethod[AttachResult](ctx, c, "attach", p, false)
}

func (c *Client) CancelJobs(ctx context.Context, p Selection) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "cancel", p, true)
}

func (c *Client) RetryJobs(ctx context.Context, p RetryParams) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "retry", p, false)
}

func (c *Client) HoldJobs(ctx context.Context, p Selection) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "hold", p, true)
}

func (c *Client) ReleaseJobs(ctx context.Context, p Selection) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "release", p, true)
}

func (c *Client) PauseJobs(ctx context.Context, p Selection) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "pause", p, true)
}

func (c *Client) ResumeJobs(ctx context.Context, p Selection) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "resume", p, true)
}

func (c *Client) RequeueJobs(ctx context.Context, p Selection) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "requeue", p, false)
}

func (c *Client) KillJobs(ctx context.Context, p KillParams) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "kill", p, false)
}

func (c *Client) EditJobs(ctx context.Context, p EditParams) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "edit", p, true)
}

func (c *Client) RemoveJobs(ctx context.Context, p RemoveParams) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "rm", p, true)
}

func (c *Client) RemoveNonRunningJobs(ctx context.Context, p ClearParams) (RemovalCount, error) {
	return callMethod[RemovalCount](ctx, c, "clear", p, false)
}

func (c *Client) ListDeadJobs(ctx context.Context, p DeadJobListParams) (JobPage, error) {
	return callMethod[JobPage](ctx, c, "dlq.list", p, true)
}

func (c *Client) RetryDeadJobs(ctx context.Context, p DeadJobRetryParams) (BulkResult, error) {
	return callMethod[BulkResult](ctx, c, "dlq.retry", p, false)
}

func (c *Client) RemoveDeadJobs(ctx context.Context, p ClearParams) (RemovalCount, error) {
	return callMethod[RemovalCount](ctx, c, "dlq.clear", p, false)
}

func (c *Client) QueueList(ctx context.Context, p QueueListParams) (QueueList, error) {
	return callMethod[QueueList](ctx, c, "queue.list", p, true)
}

func (c *Client) ConfigureQueue(ctx context.Context, p QueueSetParams) (QueueView, error) {
	return callMethod[QueueView](ctx, c, "queue.set", p, true)
}

func (c *Client) QueuePause(ctx context.Context, p QueuePauseParams) (QueueList, error) {
	return callMethod[QueueList](ctx, c, "queue.pause", p, false)
}

func (c *Client) QueueResume(ctx context.Context, p QueueResumeParams) (QueueList, error) {
	return callMethod[QueueList](ctx, c, "queue.resume", p, true)
}

func (c *Client) QueueRemove(ctx context.Context, p QueueRemoveParams) (QueueList, error) {
	return callMethod[QueueList](ctx, c, "queue.rm", p, false)
}

func (c *Client) ReadDependencyTree(ctx context.Context, p DependencyTreeParams) (DependencyTree, error) {
	return callMethod[DependencyTree](ctx, c, "tree", p, true)
}

func (c *Client) Stats(ctx context.Context, p StatsParams) (Stats, error) {
	return callMethod[Stats](ctx, c, "stats", p, true)
}

func (c *Client) SimulateNextStarts(ctx context.Context, p SimulateParams) (SimulateResult, error) {
	return callMethod[SimulateResult](ctx, c, "simulate", p, true)
}

func (c *Client) ExplainWaiting(ctx context.Context, p ExplainWaitingParams) (WaitingExplanation, error) {
	return callMethod[WaitingExplanation](ctx, c, "why", p, true)
}

func (c *Client) WorkerStart(ctx context.Context, p WorkerStartParams) (WorkerCount, error) {
	return callMethod[WorkerCount](ctx, c, "worker.start", p, false)
}

func (c *Client) WorkerStop(ctx context.Context, p WorkerStopParams) (WorkerCount, error) {
	return callMethod[WorkerCount](ctx, c, "worker.stop", p, false)
}

func (c *Client) WorkerScale(ctx context.Context, p WorkerScaleParams) (WorkerCount, error) {
	return callMethod[WorkerCount](ctx, c, "worker.scale", p, true)
}

func (c *Client) WorkerList(ctx context.Context, p NoParams) (WorkerList, error) {
	return callMethod[WorkerList](ctx, c, "worker.list", p, true)
}

func (c *Client) ScheduleAdd(ctx context.Context, p ScheduleAddParams) (ScheduleDetail, error) {
	return callMethod[ScheduleDetail](ctx, c, "schedule.add", p, true)
}

func (c *Client) ScheduleList(ctx context.Context, p ScheduleListParams) (SchedulePage, error) {
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

// RunScheduleNow implements API. The request is not repeated, because the repetition would enqueue a second job.
func (c *Client) RunScheduleNow(ctx context.Context, p ScheduleNameParams) (EnqueueResult, error) {
	return callMethod[EnqueueResult](ctx, c, "schedule.run", p, false)
}

func (c *Client) NodeList(ctx context.Context, p NodeListParams) (NodeList, error) {
	return callMethod[NodeList](ctx, c, "node.list", p, true)
}

func (c *Client) NodeDrain(ctx context.Context, p NodeDrainParams) (NodeView, error) {
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

func (c *Client) SetGateRule(ctx context.Context, p GateSetParams) (GateView, error) {
	return callMethod[GateView](ctx, c, "gate.set", p, true)
}

// EnqueueHookTest implements API. The request is not repeated, because the repetition would enqueue a second job.
func (c *Client) EnqueueHookTest(ctx context.Context, p HookTestParams) (EnqueueResult, error) {
	return callMethod[EnqueueResult](ctx, c, "hook.test", p, false)
}

func (c *Client) WebStart(ctx context.Context, p WebStartParams) (WebState, error) {
	return callMethod[WebState](ctx, c, "web.start", p, true)
}

func (c *Client) WebStop(ctx context.Context, p NoParams) (WebState, error) {
	return callMethod[WebState](ctx, c, "web.stop", p, true)
}

func (c *Client) CreateWebLink(ctx context.Context, p NoParams) (WebLink, error) {
	return callMethod[WebLink](ctx, c, "web.open", p, true)
}

func (c *Client) ConfigList(ctx context.Context, p NoParams) (ConfigList, error) {
	return callMethod[ConfigList](ctx, c, "config.list", p, true)
}

func (c *Client) ConfigGet(ctx context.Context, p SettingNameParams) (ConfigValue, error) {
	return callMethod[ConfigValue](ctx, c, "config.get", p, true)
}

func (c *Client) ConfigSet(ctx context.Context, p ConfigSetParams) (ConfigValue, error) {
	return callMethod[ConfigValue](ctx, c, "config.set", p, true)
}

func (c *Client) ConfigUnset(ctx context.Context, p SettingNameParams) (ConfigValue, error) {
	return callMethod[ConfigValue](ctx, c, "config.unset", p, true)
}

func (c *Client) StreamEvents(ctx context.Context, p EventsParams, handleEvent func(Event) error) (EventStreamEnd,
	error) {
	return callStream[Event, EventStreamEnd](ctx, c, "events", p, handleEvent)
}

func (c *Client) RemoveOldJobs(ctx context.Context, p CleanupParams, reportProgress func(RemovalCount) error) (
	RemovalCount, error) {
	return callStream[RemovalCount, RemovalCount](ctx, c, "cleanup", p, reportProgress)
}

func (c *Client) StreamBackup(ctx context.Context, p NoParams, handlePiece func(BackupPiece) error) (BackupSummary,
	error) {
	return callStream[BackupPiece, BackupSummary](ctx, c, "backup", p, handlePiece)
}

func (c *Client) RunDoctor(ctx context.Context, p DoctorParams, reportProgress func(DoctorProgress) error) (Diagnosis,
	error) {
	return callStream[DoctorProgress, Diagnosis](ctx, c, "doctor", p, reportProgress)
}

func (c *Client) StartOrEndDrain(ctx context.Context, p DrainParams) (DrainResult, error) {
	return callMethod[DrainResult](ctx, c, "drain", p, true)
}

func (c *Client) ReloadSettingsFile(ctx context.Context, p NoParams) (ReloadResult, error) {
	return callMethod[ReloadResult](ctx, c, "reload", p, true)
}

func (c *Client) ServiceStop(ctx context.Context, p ServiceStopParams) (ServiceStopResult, error) {
	return callMethod[ServiceStopResult](ctx, c, "service.stop", p, false)
}
