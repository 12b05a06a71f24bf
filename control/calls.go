package control

import (
	"context"
	"encoding/json"
	"fmt"
)

var _ API = (*Client)(nil)

func ask[R any](ctx context.Context, c *Client, method string, params any, again bool) (r R, err error) {
	err = c.call(ctx, method, params, &r, again, nil)
	return r, err
}

func follow[N, R any](ctx context.Context, c *Client, method string, params any, each func(N) error) (r R, err error) {
	err = c.call(ctx, method, params, &r, false, func(raw json.RawMessage) error {
		var n N
		if err := json.Unmarshal(raw, &n); err != nil {
			return fmt.Errorf("the service's stream of %s: %w", method, err)
		}
		return each(n)
	})
	return r, err
}

// Hello implements API.
func (c *Client) Hello(ctx context.Context, p HelloParams) (Hello, error) {
	return ask[Hello](ctx, c, "hello", p, true)
}

// Whoami implements API.
func (c *Client) Whoami(ctx context.Context, p Nothing) (Whoami, error) {
	return ask[Whoami](ctx, c, "whoami", p, true)
}

// Enqueue implements API. It adds a key if there is none.
func (c *Client) Enqueue(ctx context.Context, p Enqueue) (Enqueued, error) {
	if p.Key == "" {
		p.Key = NewKey()
	}
	return ask[Enqueued](ctx, c, "enqueue", p, true)
}

// EnqueueBatch implements API. It adds a key to the last request if there is none.
func (c *Client) EnqueueBatch(ctx context.Context, p EnqueueBatch) (EnqueuedBatch, error) {
	if p.Key == "" && p.Commit {
		p.Key = NewKey()
	}
	return ask[EnqueuedBatch](ctx, c, "enqueue.batch", &p, p.Commit || p.Abort) // twice the same part would be stored twice
}

// Show implements API.
func (c *Client) Show(ctx context.Context, p Show) (JobDetail, error) {
	return ask[JobDetail](ctx, c, "show", p, true)
}

// List implements API.
func (c *Client) List(ctx context.Context, p List) (JobPage, error) {
	return ask[JobPage](ctx, c, "list", p, true)
}

// Status implements API.
func (c *Client) Status(ctx context.Context, p Nothing) (Status, error) {
	return ask[Status](ctx, c, "status", p, true)
}

// Wait implements API.
func (c *Client) Wait(ctx context.Context, p Wait, each func(Ended) error) (Waited, error) {
	return follow[Ended, Waited](ctx, c, "wait", p, each)
}

// Logs implements API.
func (c *Client) Logs(ctx context.Context, p Logs, each func(Piece) error) (LogsEnd, error) {
	return follow[Piece, LogsEnd](ctx, c, "logs", p, each)
}

// Cancel implements API.
func (c *Client) Cancel(ctx context.Context, p Selection) (BulkResult, error) {
	return ask[BulkResult](ctx, c, "cancel", p, true)
}

// Retry implements API.
func (c *Client) Retry(ctx context.Context, p Selection) (BulkResult, error) {
	return ask[BulkResult](ctx, c, "retry", p, false)
}

// Hold implements API.
func (c *Client) Hold(ctx context.Context, p Selection) (BulkResult, error) {
	return ask[BulkResult](ctx, c, "hold", p, true)
}

// Release implements API.
func (c *Client) Release(ctx context.Context, p Selection) (BulkResult, error) {
	return ask[BulkResult](ctx, c, "release", p, true)
}

// Requeue implements API.
func (c *Client) Requeue(ctx context.Context, p Selection) (BulkResult, error) {
	return ask[BulkResult](ctx, c, "requeue", p, false)
}

// Kill implements API.
func (c *Client) Kill(ctx context.Context, p Kill) (BulkResult, error) {
	return ask[BulkResult](ctx, c, "kill", p, false)
}

// Edit implements API.
func (c *Client) Edit(ctx context.Context, p Edit) (BulkResult, error) {
	return ask[BulkResult](ctx, c, "edit", p, true)
}

// Remove implements API.
func (c *Client) Remove(ctx context.Context, p Remove) (BulkResult, error) {
	return ask[BulkResult](ctx, c, "rm", p, true)
}

// Clear implements API.
func (c *Client) Clear(ctx context.Context, p Sure) (Removed, error) {
	return ask[Removed](ctx, c, "clear", p, false)
}

// DLQList implements API.
func (c *Client) DLQList(ctx context.Context, p List) (JobPage, error) {
	return ask[JobPage](ctx, c, "dlq.list", p, true)
}

// DLQRetry implements API.
func (c *Client) DLQRetry(ctx context.Context, p DLQRetry) (BulkResult, error) {
	return ask[BulkResult](ctx, c, "dlq.retry", p, false)
}

// DLQClear implements API.
func (c *Client) DLQClear(ctx context.Context, p Sure) (Removed, error) {
	return ask[Removed](ctx, c, "dlq.clear", p, false)
}

// WorkerStart implements API.
func (c *Client) WorkerStart(ctx context.Context, p Count) (WorkerCount, error) {
	return ask[WorkerCount](ctx, c, "worker.start", p, false)
}

// WorkerStop implements API.
func (c *Client) WorkerStop(ctx context.Context, p WorkerStop) (WorkerCount, error) {
	return ask[WorkerCount](ctx, c, "worker.stop", p, false)
}

// WorkerScale implements API.
func (c *Client) WorkerScale(ctx context.Context, p Count) (WorkerCount, error) {
	return ask[WorkerCount](ctx, c, "worker.scale", p, true)
}

// WorkerList implements API.
func (c *Client) WorkerList(ctx context.Context, p Nothing) (WorkerList, error) {
	return ask[WorkerList](ctx, c, "worker.list", p, true)
}

// ConfigList implements API.
func (c *Client) ConfigList(ctx context.Context, p Nothing) (ConfigList, error) {
	return ask[ConfigList](ctx, c, "config.list", p, true)
}

// ConfigGet implements API.
func (c *Client) ConfigGet(ctx context.Context, p ConfigKey) (ConfigValue, error) {
	return ask[ConfigValue](ctx, c, "config.get", p, true)
}

// ConfigSet implements API.
func (c *Client) ConfigSet(ctx context.Context, p ConfigSet) (ConfigValue, error) {
	return ask[ConfigValue](ctx, c, "config.set", p, true)
}

// ConfigUnset implements API.
func (c *Client) ConfigUnset(ctx context.Context, p ConfigKey) (ConfigValue, error) {
	return ask[ConfigValue](ctx, c, "config.unset", p, true)
}

// Events implements API.
func (c *Client) Events(ctx context.Context, p Events, each func(Event) error) (EventsEnd, error) {
	return follow[Event, EventsEnd](ctx, c, "events", p, each)
}

// Cleanup implements API.
func (c *Client) Cleanup(ctx context.Context, p Cleanup, each func(Removed) error) (Removed, error) {
	return follow[Removed, Removed](ctx, c, "cleanup", p, each)
}

// Backup implements API.
func (c *Client) Backup(ctx context.Context, p Nothing, each func(BackupPiece) error) (BackupEnd, error) {
	return follow[BackupPiece, BackupEnd](ctx, c, "backup", p, each)
}

// Doctor implements API.
func (c *Client) Doctor(ctx context.Context, p Doctor, each func(Progress) error) (Diagnosis, error) {
	return follow[Progress, Diagnosis](ctx, c, "doctor", p, each)
}

// Drain implements API.
func (c *Client) Drain(ctx context.Context, p Drain) (Draining, error) {
	return ask[Draining](ctx, c, "drain", p, true)
}

// Reload implements API.
func (c *Client) Reload(ctx context.Context, p Nothing) (Reloaded, error) {
	return ask[Reloaded](ctx, c, "reload", p, true)
}

// ServiceStop implements API.
func (c *Client) ServiceStop(ctx context.Context, p ServiceStop) (Stopping, error) {
	return ask[Stopping](ctx, c, "service.stop", p, false)
}
