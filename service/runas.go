package service

import (
	"os"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
)

// settleAccount decides whom jobs run as, and where their runners are.
func (s *Service) settleAccount() error {
	how := s.config.Load().RunAs
	s.home = runner.Home{Dir: runnersOf(s.opt.Places), Command: s.opt.Runner, Log: s.opt.Log}
	s.account = accountOf(os.Geteuid())
	r := s.opt.Runners
	rooted := r.Socket != "" && !r.Own
	switch {
	case !rooted && how == config.RunAsService:
		s.home.Socket, s.home.Own = r.Socket, r.Own
		return nil
	case !rooted:
		return queue.Invalid("run_as", "%s needs runners of root's: start the service by its unit (queuectl service install) or as root, or set run_as = service", how)
	}
	s.home.Dir, s.home.Socket = r.Dir, r.Socket
	s.accounts = &runner.Accounts{Policy: r.Policy, Service: os.Geteuid()}
	if name := s.config.Load().FixedUser(); name != "" {
		known, err := accountNamed(name)
		if err != nil {
			return queue.Invalid("run_as", "%s: %v", how, err)
		}
		s.home.As, s.account = name, known
	}
	s.account.Own = how == config.RunAsService
	return nil
}

// runsAs is the uid that a job runs as, where it is not the service's rule.
func (s *Service) runsAs(j *queue.Job) int {
	if j.AsUID != nil {
		return *j.AsUID
	}
	return j.UID
}

// mayRun says why no job of a uid would be run, nil if it would: what the runner decides
// is told to whoever hands the job in.
func (s *Service) mayRun(uid int) error {
	if !s.home.Roots() || s.account.Own {
		return nil
	}
	if why := s.accounts.Refuses(uint32(uid)); why != "" {
		return queue.Errorf(queue.CodeDenied, "%s", why)
	}
	return nil
}
