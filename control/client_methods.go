package control

import (
	"context"
	"encoding/json"
)

// Client implements API. Each of its methods calls the API method of the same name.
var _ API = (*Client)(nil)

// callRepeatable calls a method that sends a single answer, and returns the answer. If the connection is lost, it sends
// the request once more.
func callRepeatable[R any](ctx context.Context, c *Client, method string, params any) (r R, err error) {
	err = c.call(ctx, method, params, &r, true, nil)
	return r, err
}

// callOnce calls a method that sends a single answer, and returns the answer. It never repeats the request.
func callOnce[R any](ctx context.Context, c *Client, method string, params any) (r R, err error) {
	err = c.call(ctx, method, params, &r, false, nil)
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

func (c *Client) Hello(ctx context.Context, p HelloParams) (HelloResult, error) {
	return callRepeatable[HelloResult](ctx, c, "hello", p)
}

func (c *Client) Whoami(ctx context.Context, p NoParams) (WhoamiResult, error) {
	return callRepeatable[WhoamiResult](ctx, c, "whoami", p)
}

// Enqueue implements API. If p has no idempotency key, Enqueue generates one, so that the request can be
// repeated.
func (c *Client) Enqueue(ctx context.Context, p EnqueueParams) (EnqueueResult, error) {
	if p.IdempotencyKey == "" {
		p.IdempotencyKey = NewIdempotencyKey()
	}
	return callRepeatable[EnqueueResult](ctx, c, "enqueue", p)
}

// EnqueueBatch implements API. If p commits the batch and has no idempotency key, EnqueueBatch generates one.
func (c *Client) EnqueueBatch(ctx context.Context, p EnqueueBatchParams) (EnqueueBatchResult, error) {
	if p.IdempotencyKey == "" && p.Commit {
		p.IdempotencyKey = NewIdempotencyKey()
	}
	if p.Commit || p.Abort {
		return callRepeatable[EnqueueBatchResult](ctx, c, "enqueue.batch", &p)
	}
	// The requests before the commit have no key. They are not repeated after a lost connection, because their jobs would
	// be added twice.
	return callOnce[EnqueueBatchResult](ctx, c, "enqueue.batch", &p)
}

func (c *Client) ShowJob(ctx context.Context, p JobShowParams) (JobDetail, error) {
	return callRepeatable[JobDetail](ctx, c, "show", p)
}

func (c *Client) ListJobs(ctx context.Context, p JobListParams) (JobPage, error) {
	return callRepeatable[JobPage](ctx, c, "list", p)
}

func (c *Client) ReadOverviewScreen(ctx context.Context, p OverviewScreenParams) (OverviewScreen, error) {
	return callRepeatable[OverviewScreen](ctx, c, "screen", p)
}

func (c *Client) Status(ctx context.Context, p NoParams) (Status, error) {
	return callRepeatable[Status](ctx, c, "status", p)
}

func (c *Client) WaitForJobs(ctx context.Context, p JobWaitParams,
	handleNotice func(JobEndNotice) error) (JobWaitResult,
	error) {
	return callStream[JobEndNotice, JobWaitResult](ctx, c, "wait", p, handleNotice)
}

func (c *Client) StreamOutput(ctx context.Context, p JobOutputParams,
	handlePiece func(OutputPiece) error) (OutputStreamEnd,
	error) {
	return callStream[OutputPiece, OutputStreamEnd](ctx, c, "logs", p, handlePiece)
}

// AttachTerminal implements API. The request is not repeated after a lost connection, because its text would be typed
// twice.
func (c *Client) AttachTerminal(ctx context.Context, p AttachTerminalParams) (AttachTerminalResult, error) {
	return callOnce[AttachTerminalResult](ctx, c, "attach", p)
}

func (c *Client) CancelJobs(ctx context.Context, p JobSelection) (BulkResult, error) {
	return callRepeatable[BulkResult](ctx, c, "cancel", p)
}

func (c *Client) RetryJobs(ctx context.Context, p JobRetryParams) (BulkResult, error) {
	return callOnce[BulkResult](ctx, c, "retry", p)
}

func (c *Client) HoldJobs(ctx context.Context, p JobSelection) (BulkResult, error) {
	return callRepeatable[BulkResult](ctx, c, "hold", p)
}

func (c *Client) ReleaseJobs(ctx context.Context, p JobSelection) (BulkResult, error) {
	return callRepeatable[BulkResult](ctx, c, "release", p)
}

func (c *Client) PauseJobs(ctx context.Context, p JobSelection) (BulkResult, error) {
	return callRepeatable[BulkResult](ctx, c, "pause", p)
}

func (c *Client) ResumeJobs(ctx context.Context, p JobSelection) (BulkResult, error) {
	return callRepeatable[BulkResult](ctx, c, "resume", p)
}

func (c *Client) RequeueJobs(ctx context.Context, p JobSelection) (BulkResult, error) {
	return callOnce[BulkResult](ctx, c, "requeue", p)
}

func (c *Client) KillJobs(ctx context.Context, p JobKillParams) (BulkResult, error) {
	return callOnce[BulkResult](ctx, c, "kill", p)
}

func (c *Client) EditJobs(ctx context.Context, p JobEditParams) (BulkResult, error) {
	return callRepeatable[BulkResult](ctx, c, "edit", p)
}

func (c *Client) RemoveJobs(ctx context.Context, p JobRemoveParams) (BulkResult, error) {
	return callRepeatable[BulkResult](ctx, c, "rm", p)
}

func (c *Client) RemoveNonRunningJobs(ctx context.Context, p JobClearParams) (RemovalCount, error) {
	return callOnce[RemovalCount](ctx, c, "clear", p)
}

func (c *Client) ListDeadJobs(ctx context.Context, p DeadJobListParams) (JobPage, error) {
	return callRepeatable[JobPage](ctx, c, "dlq.list", p)
}

func (c *Client) RetryDeadJobs(ctx context.Context, p DeadJobRetryParams) (BulkResult, error) {
	return callOnce[BulkResult](ctx, c, "dlq.retry", p)
}

func (c *Client) RemoveDeadJobs(ctx context.Context, p JobClearParams) (RemovalCount, error) {
	return callOnce[RemovalCount](ctx, c, "dlq.clear", p)
}

func (c *Client) ListQueues(ctx context.Context, p QueueListParams) (QueueList, error) {
	return callRepeatable[QueueList](ctx, c, "queue.list", p)
}

func (c *Client) ConfigureQueue(ctx context.Context, p ConfigureQueueParams) (QueueView, error) {
	return callRepeatable[QueueView](ctx, c, "queue.set", p)
}

func (c *Client) PauseQueues(ctx context.Context, p QueuePauseParams) (QueueList, error) {
	return callOnce[QueueList](ctx, c, "queue.pause", p)
}

func (c *Client) ResumeQueues(ctx context.Context, p QueueResumeParams) (QueueList, error) {
	return callRepeatable[QueueList](ctx, c, "queue.resume", p)
}

func (c *Client) RemoveQueue(ctx context.Context, p QueueRemoveParams) (QueueList, error) {
	return callOnce[QueueList](ctx, c, "queue.rm", p)
}

func (c *Client) ReadDependencyTree(ctx context.Context, p DependencyTreeParams) (DependencyTree, error) {
	return callRepeatable[DependencyTree](ctx, c, "tree", p)
}

func (c *Client) ReadStats(ctx context.Context, p StatsParams) (Stats, error) {
	return callRepeatable[Stats](ctx, c, "stats", p)
}

func (c *Client) SimulateNextStarts(ctx context.Context, p SimulateParams) (SimulateResult, error) {
	return callRepeatable[SimulateResult](ctx, c, "simulate", p)
}

func (c *Client) ExplainWaiting(ctx context.Context, p ExplainWaitingParams) (WaitingExplanation, error) {
	return callRepeatable[WaitingExplanation](ctx, c, "why", p)
}

func (c *Client) StartWorkers(ctx context.Context, p WorkerStartParams) (WorkerCount, error) {
	return callOnce[WorkerCount](ctx, c, "worker.start", p)
}

func (c *Client) StopWorkers(ctx context.Context, p WorkerStopParams) (WorkerCount, error) {
	return callOnce[WorkerCount](ctx, c, "worker.stop", p)
}

func (c *Client) ScaleWorkers(ctx context.Context, p WorkerScaleParams) (WorkerCount, error) {
	return callRepeatable[WorkerCount](ctx, c, "worker.scale", p)
}

func (c *Client) ListWorkers(ctx context.Context, p NoParams) (WorkerList, error) {
	return callRepeatable[WorkerList](ctx, c, "worker.list", p)
}

func (c *Client) AddSchedule(ctx context.Context, p ScheduleAddParams) (ScheduleDetail, error) {
	return callRepeatable[ScheduleDetail](ctx, c, "schedule.add", p)
}

func (c *Client) ListSchedules(ctx context.Context, p ScheduleListParams) (SchedulePage, error) {
	return callRepeatable[SchedulePage](ctx, c, "schedule.list", p)
}

func (c *Client) ShowSchedule(ctx context.Context, p ScheduleNameParams) (ScheduleDetail, error) {
	return callRepeatable[ScheduleDetail](ctx, c, "schedule.show", p)
}

// RemoveSchedule implements API. The request is not repeated. The repetition would fail if the first request
// has already removed the schedule.
func (c *Client) RemoveSchedule(ctx context.Context, p ScheduleNameParams) (Schedule, error) {
	return callOnce[Schedule](ctx, c, "schedule.rm", p)
}

func (c *Client) PauseSchedule(ctx context.Context, p ScheduleNameParams) (Schedule, error) {
	return callRepeatable[Schedule](ctx, c, "schedule.pause", p)
}

func (c *Client) ResumeSchedule(ctx context.Context, p ScheduleNameParams) (Schedule, error) {
	return callRepeatable[Schedule](ctx, c, "schedule.resume", p)
}

// RunScheduleNow implements API. The request is not repeated, because the repetition would enqueue a second job.
func (c *Client) RunScheduleNow(ctx context.Context, p ScheduleNameParams) (EnqueueResult, error) {
	return callOnce[EnqueueResult](ctx, c, "schedule.run", p)
}

func (c *Client) ListNodes(ctx context.Context, p NodeListParams) (NodeList, error) {
	return callRepeatable[NodeList](ctx, c, "node.list", p)
}

func (c *Client) SetNodeDraining(ctx context.Context, p NodeDrainParams) (NodeView, error) {
	return callRepeatable[NodeView](ctx, c, "node.drain", p)
}

// RemoveNode implements API. The request is not repeated. The repetition would fail if the first request has
// already removed the node.
func (c *Client) RemoveNode(ctx context.Context, p NodeRemoveParams) (NodeView, error) {
	return callOnce[NodeView](ctx, c, "node.rm", p)
}

func (c *Client) ListGates(ctx context.Context, p GateListParams) (GateList, error) {
	return callRepeatable[GateList](ctx, c, "gate.list", p)
}

func (c *Client) SetGateRule(ctx context.Context, p SetGateRuleParams) (GateView, error) {
	return callRepeatable[GateView](ctx, c, "gate.set", p)
}

// EnqueueHookTest implements API. The request is not repeated, because the repetition would enqueue a second job.
func (c *Client) EnqueueHookTest(ctx context.Context, p HookTestParams) (EnqueueResult, error) {
	return callOnce[EnqueueResult](ctx, c, "hook.test", p)
}

func (c *Client) StartWebPage(ctx context.Context, p WebStartParams) (WebState, error) {
	return callRepeatable[WebState](ctx, c, "web.start", p)
}

func (c *Client) StopWebPage(ctx context.Context, p NoParams) (WebState, error) {
	return callRepeatable[WebState](ctx, c, "web.stop", p)
}

func (c *Client) CreateWebLink(ctx context.Context, p NoParams) (WebLink, error) {
	return callRepeatable[WebLink](ctx, c, "web.open", p)
}

func (c *Client) ListSettings(ctx context.Context, p NoParams) (ConfigList, error) {
	return callRepeatable[ConfigList](ctx, c, "config.list", p)
}

func (c *Client) ReadSetting(ctx context.Context, p SettingNameParams) (ConfigValue, error) {
	return callRepeatable[ConfigValue](ctx, c, "config.get", p)
}

func (c *Client) ChangeSetting(ctx context.Context, p ConfigSetParams) (ConfigValue, error) {
	return callRepeatable[ConfigValue](ctx, c, "config.set", p)
}

func (c *Client) UnsetSetting(ctx context.Context, p SettingNameParams) (ConfigValue, error) {
	return callRepeatable[ConfigValue](ctx, c, "config.unset", p)
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
	return callRepeatable[DrainResult](ctx, c, "drain", p)
}

func (c *Client) ReloadSettingsFile(ctx context.Context, p NoParams) (ReloadResult, error) {
	return callRepeatable[ReloadResult](ctx, c, "reload", p)
}

func (c *Client) StopService(ctx context.Context, p ServiceStopParams) (ServiceStopResult, error) {
	return callOnce[ServiceStopResult](ctx, c, "service.stop", p)
}
