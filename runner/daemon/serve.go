package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/launcher"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// Options configure a runner process.
type Options struct {
	launcher.RunnerSettings
	Version string
	// WatchdogCommand is the command line that starts this program as a watchdog.
	WatchdogCommand []string
	// IsServiceStopped reports whether the operating system has stopped the service permanently. The runner calls it while
	// no service is connected, and ends if two calls in a row return true. If IsServiceStopped is nil, the runner never
	// ends for this reason.
	IsServiceStopped func() bool
	// ExtendStopTimeout is called every extendStopTimeoutInterval while the runner ends: from the end of Serve's context
	// until all jobs have ended. It may be nil.
	ExtendStopTimeout func()
	Log               *slog.Logger
	// OnReady is called once the runner's socket accepts connections.
	OnReady func(dir string)
}

// server is a runner process. mu guards the fields below mu. Callers of methods whose names end in Locked must hold mu.
// The fields above mu are set before the first connection, or have their own locks.
type server struct {
	Options
	dir                runnerDirectory
	runningTable       *rundir.MappedRunningTable
	journal            *rundir.Journal
	accounts           *launcher.AccountAuthorizer // nil unless the runner runs as root
	watchdog           *launcher.Watchdog          // nil unless the runner runs as root
	socket             *runnerSocket
	diskQueue          diskOperationQueue // disk operations, which must not run while mu is held
	sweeper            workDirSweeper     // removes the private directories of attempts that have ended
	orphanReapRequests chan struct{}      // receives a value when an attempt may have left orphans
	goroutines         sync.WaitGroup     // workers and the goroutines that workers start
	lastWorkDirNumber  atomic.Int64       // number of private directories that were given a name

	warnUnenforcedLimitsOnce sync.Once // used to log once that limits are not enforced
	warnUnlimitedMemoryOnce  sync.Once // used to log once that the runner's own memory is not limited

	mu                      sync.Mutex
	lifetime                runnerLifetime
	serviceLink             serviceLink
	attempts                map[wire.Lease]*attempt
	waitingAttempts         []*attempt // attempts that no worker has taken, in the order in which they will start
	unjournaledAttemptCount int        // number of attempts in attemptUnjournaled
	// ended attempts with processes that survived SIGKILL; each attempt keeps its slot
	stuckAttempts    []wire.Attempt
	tableSlots       tableSlotUses
	workers          workerGroup
	idleWorkDirTimer *time.Timer // makes idle workers remove their private directories; nil before its first use
	leaseExpiry      leaseExpiry
}

// Serve runs a runner in this process, with a new directory below RunnersDir. The runner ends when ctx ends,
// the service sends Shutdown, the directory is removed, or it has been idle for idleRunnerExitDelay. Before Serve
// returns, it ends the running jobs and stores their results in the journal.
func Serve(ctx context.Context, o Options) error {
	pid := os.Getpid()
	name := fmt.Sprintf("%d.%x", pid, time.Now().UnixNano())
	if o.ServesOneIsolatedJob {
		name += runner.IsolatedRunnerDirSuffix
	}
	s := &server{
		Options:            o,
		dir:                runnerDirectory{runnerName: name, dirPath: filepath.Join(o.RunnersDir, name)},
		orphanReapRequests: make(chan struct{}, 1),
		lifetime:           runnerLifetime{ended: make(chan struct{})},
		serviceLink:        serviceLink{runnerLastBusyAt: time.Now()},
		attempts:           map[wire.Lease]*attempt{},
		leaseExpiry:        leaseExpiry{watchdogNeededSignal: make(chan struct{}, 1)},
	}
	s.workers.wakeUp = sync.NewCond(&s.mu)
	if o.PolicyFile != "" {
		users := &accounts.Resolver{AlwaysQueryRemote: true}
		s.accounts = &launcher.AccountAuthorizer{PolicyFile: o.PolicyFile, ServiceUID: o.ServiceUID, AccountResolver: users}
	}
	lock, err := s.setUpDirectory(pid)
	if err != nil {
		return err
	}
	defer lock.Close()
	s.sweeper.init(s.Log)
	s.diskQueue.wake = make(chan struct{}, 1)
	if s.accounts != nil {
		if s.watchdog, err = launcher.StartWatchdog(o.WatchdogCommand, s.dir.dirPath, true, s.Log); err != nil {
			return err
		}
		defer s.watchdog.End()
		s.leaseExpiry.watchdog, s.leaseExpiry.watchdogStartDone = s.watchdog, true
	}
	o.OnReady(s.dir.dirPath)

	s.run(ctx)
	s.runningTable.SetLeasesExpire(false) // no jobs are left, so the watchdog must not try to end jobs
	if err := rundir.RemoveWorkspaces(s.dir.workspacesDir); err != nil {
		s.Log.Warn("could not remove all private directories of jobs", "error", err)
	}
	return s.removeDirAfterShutdown(lock)
}

// run serves until the runner ends and all its goroutines have returned.
func (s *server) run(ctx context.Context) {
	var loops sync.WaitGroup
	loops.Go(s.acceptConns)
	loops.Go(s.runHousekeeping)
	loops.Go(func() { s.diskQueue.runOperations(s.lifetime.ended) })
	loops.Go(func() { s.sweeper.runOperations(s.lifetime.ended) })
	if s.watchdog == nil {
		loops.Go(s.startLeaseWatchdog)
	}
	guardCtx, stopGuard := context.WithCancel(context.Background())
	dirRemoved := make(chan struct{})
	loops.Go(func() {
		if s.socket.keepReachable(guardCtx, s.Log) {
			close(dirRemoved)
		}
	})
	serviceStopped := make(chan struct{})
	if s.IsServiceStopped != nil {
		s.watchServiceUnit(serviceStopped)
	}
	select {
	case <-ctx.Done():
		if s.ExtendStopTimeout != nil {
			loops.Go(s.extendStopTimeoutUntilEnd)
		}
		s.stopRunner(runner.StopGracePeriodFor(ctx))
	case <-serviceStopped:
		s.Log.Info("the service is stopped, so this runner ends; its running jobs may finish within the setting " +
			"stop_timeout")
		s.stopRunner(runner.StopGracePeriod())
	case <-dirRemoved:
		s.Log.Error("this runner's directory was removed, so no service can find this runner; "+
			"ending the runner and its jobs", "dir", s.dir.dirPath)
		s.stopRunner(runner.StopGracePeriod())
	case <-s.lifetime.ended:
	}
	<-s.lifetime.ended
	stopGuard()
	s.socket.close()
	s.goroutines.Wait()
	loops.Wait()
}
