package settings

import (
	"sync/atomic"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// PauseOfAllJobs holds the pause of all jobs, with its time and the user who requested it.
type PauseOfAllJobs struct {
	atomic.Pointer[store.Setting] // nil if no pause of all jobs is in effect
}

// PauseSettingKey is the key under which the store keeps a pause of all jobs, so that the pause outlasts restarts. It
// is not a setting that users can change.
const PauseSettingKey = "pause"

// PauseOfJob returns when a running job was paused, and the uid of the user that paused it. If the job was not
// paused individually, it describes the pause of all jobs. pausedAt is 0 if the job is not paused.
func (p *PauseOfAllJobs) PauseOfJob(j *queue.Job) (pausedAt queue.UnixMillis, pauserUID int) {
	all := p.Load()
	if j.PausedAt != 0 || j.State != queue.Processing || all == nil {
		return j.PausedAt, j.PausedBy
	}
	return max(all.SetAt, j.StartedAt), all.SetByUID
}

// DrainSettingKey is the key under which the store keeps a drain of all nodes, so that the drain outlasts restarts. It
// is not a setting that users can change.
const DrainSettingKey = "drain"
