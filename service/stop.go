package service

import (
	"context"
	"os"
	"time"

	"github.com/queuectl/queuectl/internal/session"
	"github.com/queuectl/queuectl/internal/systemd"
	"github.com/queuectl/queuectl/runner"
)

// waitAndStop waits until the service must stop. It then lets running jobs finish and ends the runners. If the request
// to stop says that the jobs are to be kept, it leaves jobs and runners running instead. See docs/decisions/0080.
func (s *Service) waitAndStop(ctx context.Context, reloadSignals <-chan os.Signal, failures <-chan error,
	f *frontEnd) error {
	for {
		keep := s.options.KeepJobsOnStop
		select {
		case err := <-failures:
			return err
		case <-s.Store.StoreFailed():
			return s.Store.Err()
		case <-reloadSignals:
			if _, err := f.api.ReloadSettings(context.WithoutCancel(ctx)); err != nil {
				s.Log.Error("cannot reload the settings; the old settings stay in effect", "error", err)
			}
			continue
		case keep = <-f.stopRequests:
			keep = keep || s.options.KeepJobsOnStop
		case <-ctx.Done():
			// If ctx ended because a console window was closed, keep the jobs, because jobs do not use that console.
			keep = session.ConsoleClosed(ctx) || keep && (s.SystemdUnit == "" ||
				!s.SystemdUnit.IsStopping(systemdStoppingQueryTimeout))
		}
		systemd.Notify("STOPPING=1")
		s.reportStopProgress()
		s.Log.Info("stopping", "keep_jobs", keep)
		if !keep {
			s.drainAndStop(ctx, failures)
			s.removeProgramCopies()
		}
		return nil
	}
}

// drainAndStop lets running jobs finish and ends the runners. If the user's session ends before or during this wait,
// drainAndStop stops the jobs immediately and returns them to the queue. If the database fails, drainAndStop returns
// early. A service manager may kill a service that seems to hang. So while the store accepts writes, drainAndStop asks
// the service manager for more time.
func (s *Service) drainAndStop(stopCtx context.Context, failures <-chan error) {
	within, grace, ending := s.Settings.CurrentConfig().StopTimeout, runner.StopGracePeriodFor(stopCtx),
		session.Done(stopCtx)
	if session.IsEnding(stopCtx) {
		within, ending = 0, nil
		s.Log.Info("the user's session ends; stopping running jobs and returning them to the queue", "running",
			s.Pool.BusyWorkerCount(), "grace", grace.String())
	} else if n := s.Pool.BusyWorkerCount(); n > 0 {
		s.Log.Info("waiting for running jobs; after the stop_timeout, they are stopped and returned to the queue", "running",
			n, "stop_timeout", within.String())
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	go func() { // this goroutine ends when the pool has stopped or ctx ends
		s.Pool.Stop(ctx, within, grace)
		close(done)
	}()
	// At the deadline, the service ends even if results could not be stored because the disk is full. The
	// runners keep these results for the next service.
	deadline := time.After(within + grace + stopTimeoutMargin)
	nextProgress := time.After(0)
	stored := make(chan error, 1)
	for {
		select {
		case <-done:
		case <-failures:
		case <-s.Store.StoreFailed():
		case <-deadline:
			s.Log.Error("the service stopped before all jobs were put back into the queue; it puts them back at its next start")
		case <-ending:
			ending = nil
			if session.IsEnding(stopCtx) {
				s.Log.Info("the user's session ends; stopping running jobs and returning them to the queue immediately", "running",
					s.Pool.BusyWorkerCount())
				go s.Pool.HastenStop(ctx, session.CommandGracePeriod) // HastenStop returns when the pool has stopped or ctx ends
				deadline = time.After(session.CommandGracePeriod + stopTimeoutMargin)
			}
			continue
		case <-nextProgress:
			go func() { // this goroutine ends at the latest when the store is closed
				_, err := s.Store.AdvanceEpoch(context.Background())
				stored <- err
			}()
			continue
		case err := <-stored:
			if err == nil {
				s.reportStopProgress()
				systemd.ExtendStopTimeout()
				systemd.Notify("STATUS=stopping: " + s.queueStatusLine())
			}
			nextProgress = time.After(stopProgressInterval)
			continue
		}
		return
	}
}

// reportStopProgress notifies the service manager that the stop makes progress, so that the manager waits
// longer.
func (s *Service) reportStopProgress() {
	if s.options.ServiceManager != nil {
		s.options.ServiceManager.ExtendStopTimeout()
	}
}

// removeProgramCopies removes the copies of the runner program. Running runners use their copies, so it first waits up
// to removeProgramsTimeout for the runners to end.
func (s *Service) removeProgramCopies() {
	for end := time.Now().Add(removeProgramsTimeout); !runner.RemoveProgramCopies(s.RunnerLocation.RunnersDir) &&
		time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
}

// removeProgramsTimeout bounds the wait of removeProgramCopies.
const removeProgramsTimeout = time.Second

// stopTimeoutMargin is how long a stop may take in addition to the time that the running jobs get to end.
const stopTimeoutMargin = 40 * time.Second

// systemdStoppingQueryTimeout limits how long the service waits for systemd's answer whether systemd is stopping the
// unit. It is short because a service that leaves its jobs running must end within 2 s.
const systemdStoppingQueryTimeout = time.Second

// stopProgressInterval is the interval between two progress reports to the service manager during a stop.
const stopProgressInterval = 5 * time.Second
