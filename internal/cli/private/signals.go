package private

import (
	"context"
	"os"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
)

// awaitServiceEnd waits for the service to stop. The first signal stops the running jobs. After the second signal,
// awaitServiceEnd returns without waiting. In that case the runner keeps the results of jobs that have ended.
func (p *privateJobs) awaitServiceEnd(ended <-chan error, signals <-chan os.Signal) error {
	for p.signalCount < 2 {
		select {
		case err := <-ended:
			return err
		case <-signals:
		}
		p.a.ExitCode = fault.ExitDetached
		if p.signalCount++; p.signalCount < 2 {
			p.stopWorkers(context.Background(), control.WorkerStop{Force: true})
		}
	}
	p.a.Say("exiting before all running jobs have stopped; to continue, run the same command again, which also runs the " +
		"stopped jobs again")
	return nil
}

// finishRunning makes the service start no more jobs, and waits until the running jobs end. After Ctrl-C it
// waits without a limit. After another signal, such as that of a system shutdown, it waits for the
// service's timeout. A second signal puts the running jobs back in the queue.
func (p *privateJobs) finishRunning(sig os.Signal, signals <-chan os.Signal) {
	p.stopping.Store(true)
	p.a.ShowProgress("")
	var how control.WorkerStop
	if sig == os.Interrupt {
		how.Timeout = new(control.Duration(noTimeout))
	}
	// The connection of p.c may be busy with another request.
	c := control.NewClient(p.socket)
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	soon, cancelSoon := context.WithTimeout(ctx, leaveTimeout)
	// Set the number of workers to 0, so that no more jobs start, as the next message says. An error is
	// harmless, because WorkerStop below stops the workers too.
	c.WorkerScale(soon, control.WorkerScale{})
	cancelSoon()
	p.a.Say("starting no more jobs; running jobs may finish (press Ctrl-C again to stop them); to continue later, run " +
		"the same command again")
	select {
	case <-p.stopWorkers(ctx, how):
	case <-signals:
		p.signalCount++
		p.a.Say("stopping running jobs (Ctrl-C again exits without waiting for them)")
		select {
		case <-p.stopWorkers(context.Background(), control.WorkerStop{Force: true}):
		case <-signals:
			p.signalCount++
		}
	}
	close(p.noneRunning)
}

// noTimeout is a timeout that never passes while a user waits.
const noTimeout = 10_000 * time.Hour

// stopWorkers removes all workers and closes the returned channel when their jobs have ended or the context
// ends. With the field Force, the jobs return to the queue. An error is ignored, because the jobs also end,
// and return to the queue, when the service stops.
func (p *privateJobs) stopWorkers(ctx context.Context, how control.WorkerStop) <-chan struct{} {
	stopped := make(chan struct{})
	go func() { // this goroutine ends when the jobs have ended, with the context, or with the process
		defer close(stopped)
		c := control.NewClient(p.socket)
		defer c.Close()
		c.WorkerStop(ctx, how)
	}()
	return stopped
}

// leaveTimeout bounds how long the program waits for the goroutine that stores the jobs after the user
// asked to stop. That goroutine may be reading a pipe that never ends.
const leaveTimeout = 500 * time.Millisecond

// awaitResults waits until the results of all ended jobs are printed. It returns earlier if a
// signal arrives, or after leaveTimeout if the jobs are not stored yet.
func (p *privateJobs) awaitResults(done <-chan error, signals <-chan os.Signal) error {
	var timeout <-chan time.Time
	select {
	case <-p.allStored:
	default:
		timeout = time.After(leaveTimeout)
	}
	select {
	case err := <-done:
		return err
	case <-signals:
		p.signalCount++
	case <-timeout:
	}
	return nil
}
