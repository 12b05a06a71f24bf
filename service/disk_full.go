package service

import (
	"context"
	"errors"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// retryWhileFull repeats an operation until it succeeds, until it fails for a reason other than a full disk, or until
// ctx ends. To find out whether a full disk caused an error, the store measures the free space after the
// error. By then, another program may have freed space. So after a disk-full error, retryWhileFull tries once
// more even if the next error is of another kind.
func (st *startup) retryWhileFull(ctx context.Context, action func() error) error {
	for logged, doubted := false, false; ; logged = true {
		err := action()
		full := errors.Is(err, queue.ErrNoSpace) || isDiskFullError(err)
		if err == nil || !full && (!logged || doubted) {
			return err
		}
		doubted = !full
		if !logged {
			st.log.Error("the disk is full; the service starts once there is space", "error", err)
			if st.options.OnDiskFull != nil {
				st.options.OnDiskFull(err)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-st.launcher.Exit:
			return launcherEndedError(err)
		case <-time.After(diskFullRetryDelay):
		}
	}
}

// diskFullRetryDelay is the delay between two tries of retryWhileFull.
const diskFullRetryDelay = 200 * time.Millisecond
