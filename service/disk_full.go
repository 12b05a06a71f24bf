package service

import (
	"context"
	"errors"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// retryWhileDiskFull repeats action while the disk is full. It returns when action succeeds, when it fails for another
// reason, or when ctx ends. Sometimes the error of an action that failed for lack of space does not mention the full
// disk. This happens if another program frees space before the store checks how much space is free. So after the disk
// was full, retryWhileDiskFull also repeats action once after an error of another kind.
func (st *startup) retryWhileDiskFull(ctx context.Context, action func() error) error {
	for logged, doubted := false, false; ; logged = true {
		err := action()
		full := errors.Is(err, queue.ErrNoSpace) || isDiskFullError(err)
		if err == nil || !full && (!logged || doubted) {
			return err
		}
		doubted = !full
		if !logged {
			st.Log.Error("the disk is full; the service starts once there is space", "error", err)
			if st.options.OnDiskFull != nil {
				st.options.OnDiskFull(err)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-st.launcher.ExitError:
			return launcherEndedError(err)
		case <-time.After(diskFullRetryDelay):
		}
	}
}

// diskFullRetryDelay is the delay between two calls of action in retryWhileDiskFull.
const diskFullRetryDelay = 200 * time.Millisecond
