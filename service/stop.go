// Package service is the program that the OS runs: it wires, starts, stops and
// answers.
package service

import (
	"context"
	"os"
	"time"

	"github.com/queuectl/queuectl/internal/session"
	"github.com/queuectl/queuectl/internal/systemd"
	"github.com/queuectl/queuectl/runner"
)

// untilStopped waits for a reason to end, and lets running jobs finish if that is
// asked for.
// See docs/decisions/0080.
func (s *Service) untilStopped(ctx context.Context, hup <-chan os.Signal, failed <-chan error) error {
	for {
		keep := s.opt.KeepJobs
		select {
		case err := <-failed:
			return err
		case <-s.store.Broken():
			return s.store.Err()
		case <-hup:
			if _, err := s.reloading(context.WithoutCancel(ctx)); err != nil {
				s.log.Error("cannot reload the settings; the old settings stay in effect", "error", err)
			}
			continue
		case keep = <-s.stop:
			keep = keep || s.opt.KeepJobs
		case <-ctx.Done():
			keep = session.Closed(ctx) || keep && (s.opt.Unit == "" || !s.opt.Unit.Stopping(stoppingWithin)) // jobs have no console that could be closed
		}
		systemd.Notify("STOPPING=1")
		s.longer()
		s.log.Info("stopping", "keep_jobs", keep)
		if !keep {
			s.drain(ctx, failed)
			s.tidy()
		}
		return nil
	}
}

// drain lets running jobs finish, and ends the runners. A database that fails meanwhile
// ends it. The system is asked for more time as long as something can be stored: a
// service that hangs is its to end. If the session ends, before or meanwhile, there is no time
// to let anything finish.
func (s *Service) drain(stopping context.Context, failed <-chan error) {
	within, grace, ending := s.config.Load().StopTimeout, runner.GraceOf(stopping), session.Ending(stopping)
	if session.Ends(stopping) {
		within, ending = 0, nil
		s.log.Info("the user's session ends; stopping running jobs and returning them to the queue", "running", s.pool.Busy(), "grace", grace.String())
	} else if n := s.pool.Busy(); n > 0 {
		s.log.Info("waiting for running jobs; after the stop_timeout, they are stopped and returned to the queue", "running", n, "stop_timeout", within.String())
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	go func() { // ends with the pool's runners, or ctx
		s.pool.Stop(ctx, within, grace)
		close(done)
	}()
	// What cannot be stored, for the disk is full, the runners keep for the next service.
	over := time.After(within + grace + stopSpare)
	sign := time.After(0)
	stored := make(chan error, 1)
	for {
		select {
		case <-done:
		case <-failed:
		case <-s.store.Broken():
		case <-over:
			s.log.Error("the service stopped before all jobs were put back into the queue; it puts them back at its next start")
		case <-ending:
			ending = nil
			if session.Ends(stopping) {
				s.log.Info("the user's session ends; stopping running jobs and returning them to the queue immediately", "running", s.pool.Busy())
				go s.pool.Hurry(ctx, session.Grace) // ends as Stop does
				over = time.After(session.Grace + stopSpare)
			}
			continue
		case <-sign:
			go func() { // ends with the store
				_, err := s.store.NextEpoch(context.Background())
				stored <- err
			}()
			continue
		case err := <-stored:
			if err == nil {
				s.longer()
				systemd.Longer()
				systemd.Notify("STATUS=stopping: " + s.standing())
			}
			sign = time.After(stopSign)
			continue
		}
		return
	}
}

// longer tells a manager that the service stops, and has more to do.
func (s *Service) longer() {
	if s.opt.Manager != nil {
		s.opt.Manager.Longer()
	}
}

// tidy removes what runners have made for themselves, once they are gone: they end a moment
// after they were told to.
func (s *Service) tidy() {
	for end := time.Now().Add(runnersGone); !runner.RemovePrograms(s.home.Dir) && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
}

// runnersGone bounds the wait for runners that end.
const runnersGone = time.Second

// stopSpare is what a stop may take beside its jobs.
const stopSpare = 40 * time.Second

// stoppingWithin bounds the question whether the unit is being stopped: a service that
// keeps its jobs ends within 2 s.
const stoppingWithin = time.Second

// stopSign is the time between two signs that a stop has more to do.
const stopSign = 5 * time.Second
