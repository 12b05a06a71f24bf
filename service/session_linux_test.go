package service

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/session"
)

// When the user's session ends, the service does not wait for jobs to end, even if it is already stopping. It
// ends each job and returns it to the queue. Jobs get only a short grace period, whatever the settings say,
// so that the service has time to store the change.
func TestSessionEndDoesNotWaitForJobs(t *testing.T) {
	forEachStore(t, func(w *runningService) {
		for _, stops := range []bool{false, true} {
			w.shutDown()
			w.stopEndsJobs = true
			w.start()
			marker := filepath.Join(w.TempDir(), "ignores-sigterm")
			ignoring := commandSpec("deaf", "trap '' TERM; : >"+marker+"; while :; do sleep 1; done")
			hour := time.Hour
			ignoring.KillAfter = &hour
			w.enqueue(ignoring)
			w.waitForState("deaf", "processing")
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
				if _, err := os.Stat(marker); err == nil {
					break
				}
				if time.Now().After(end) {
					t.Fatal("the job does not run")
				}
			}
			if stops {
				w.requestServiceStop()
				for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
					if _, err := w.ScaleWorkers(w.Context(), control.WorkerScaleParams{TargetWorkers: 4}); err != nil {
						// The service is stopping.
						break
					}
					if time.Now().After(end) {
						t.Fatal("the service does not stop")
					}
				}
			}
			began := time.Now()
			w.cancelSession(session.ErrSessionEnding)
			w.runResult <- <-w.runResult
			if took := time.Since(began); took < session.CommandGracePeriod || took > 20*time.Second {
				// If it waited for its jobs, the service would take 30 s, its stop_timeout.
				t.Errorf("stopping before %t: it took %v", stops, took)
			}
			w.shutDown()
			w.start()
			j := w.waitForState("deaf", "processing")
			for end := time.Now().Add(20 * time.Second); len(j.History) < 2 &&
				time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				// If the first service had no time to store the result, the next service stores it now.
				j = w.waitForState("deaf", "processing")
			}
			if j.Reason == nil || *j.Reason != "stopped" || len(j.History) != 2 || j.AttemptCount != 0 {
				t.Errorf("returned job: %+v", j)
			}
			w.applyToJob(func(ctx context.Context, s control.JobSelection) (control.BulkResult, error) {
				return w.KillJobs(ctx, control.JobKillParams{JobSelection: s, Signal: "KILL"})
			}, "deaf")
			w.waitForState("deaf", "dead")
			w.applyToJob(func(ctx context.Context, s control.JobSelection) (control.BulkResult, error) {
				return w.RemoveJobs(ctx, control.JobRemoveParams{JobSelection: s})
			}, "deaf")
		}
	})
}

// A service that ends because its console window was closed leaves its jobs running. The next service adopts
// them.
func TestClosedConsoleLeavesJobsRunning(t *testing.T) {
	forEachStore(t, func(w *runningService) {
		w.shutDown()
		w.stopEndsJobs = true
		w.start()
		w.enqueue(commandSpec("stays", "echo begun; while :; do sleep 1; done"))
		before := w.waitForState("stays", "processing")
		w.cancelSession(session.ErrConsoleClosed)
		w.runResult <- <-w.runResult
		w.shutDown()
		w.start()
		if after := w.waitForState("stays", "processing"); len(after.History) != 1 || *after.PID != *before.PID {
			t.Errorf("the job was %+v, and is now %+v", before, after)
		}
		w.applyToJob(func(ctx context.Context, s control.JobSelection) (control.BulkResult, error) {
			return w.KillJobs(ctx, control.JobKillParams{JobSelection: s, Signal: "KILL"})
		}, "stays")
		w.waitForState("stays", "dead")
	})
}
