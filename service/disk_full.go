package service

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
)

// diskWait repeats an operation while the disk is full.
type diskWait struct {
	launcher runner.Launcher // the launcher that this service started as root
	log      *slog.Logger
	onFull   func(error) // called when the start waits for free disk space; may be nil
}

// retryWhileFull calls do until it succeeds, fails for another reason than a full disk, or ctx ends.
// Whether a full disk caused an error is found by measuring the free space after the error. Another program
// may have freed space in the meantime. After an error with a full disk, retryWhileFull therefore tries
// once more even if the next error does not look like a full disk.
func (w *diskWait) retryWhileFull(ctx context.Context, do func() error) error {
	for logged, doubted := false, false; ; logged = true {
		err := do()
		full := errors.Is(err, queue.ErrNoSpace) || diskFull(err)
		if err == nil || !full && (!logged || doubted) {
			return err
		}
		doubted = !full
		if !logged {
			w.log.Error("the disk is full; the service starts once there is space", "error", err)
			if w.onFull != nil {
				w.onFull(err)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-w.launcher.Exit:
			return endWithLauncher(err)
		case <-time.After(diskFullRetryDelay):
		}
	}
}

// diskFullRetryDelay is the delay between two tries of retryWhileFull.
const diskFullRetryDelay = 200 * time.Millisecond
