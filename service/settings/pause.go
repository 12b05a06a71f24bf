package settings

import (
	"sync/atomic"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// PauseOfAllJobs holds the pause of all jobs, if there is one.
type PauseOfAllJobs struct {
	atomic.Pointer[store.Setting] // says who paused all jobs and when; nil if they are not paused
}

// PauseKey is the key of the stored setting that keeps a pause of all jobs across restarts. Users cannot set it as
// a configuration key.
const PauseKey = "pause"

// PauseOf returns when a running job was paused, and the uid of the user that paused it. If the job was not
// paused individually, it describes the pause of all jobs. pausedAt is 0 if the job is not paused.
func (p *PauseOfAllJobs) PauseOf(j *queue.Job) (pausedAt queue.Millis, pauserUID int) {
	all := p.Load()
	if j.PausedAt != 0 || j.State != queue.Processing || all == nil {
		return j.PausedAt, j.PausedBy
	}
	return max(all.SetAt, j.StartedAt), all.UID
}

// DrainKey is the key of the stored setting that keeps a drain across restarts. Users cannot set it as a
// configuration key.
const DrainKey = "drain"
