package service

import (
	"os"
	"strings"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
)

// The ways of the setting run_as.
const (
	asService   = "service"
	asSubmitter = "submitter"
	asFixed     = "fixed:"
)

// settleAccount decides whom jobs run as, and where their runners are.
func (s *Service) settleAccount() error {
	how := s.config.Load().RunAs
	s.home = runner.Home{Dir: runnersOf(s.opt.Places), Command: s.opt.Runner, Log: s.opt.Log}
	if s.opt.Runners.Socket == "" && how != asService {
		if err := s.beRoot(how); err != nil {
			return err
		}
	}
	s.account = accountOf(os.Geteuid())
	r := s.opt.Runners
	if r.Socket == "" {
		return nil
	}
	s.home.Dir, s.home.Socket = r.Dir, r.Socket
	name, fixed := strings.CutPrefix(how, asFixed)
	if fixed {
		known, err := accountNamed(name)
		if err != nil {
			return queue.Invalid("run_as", "%s: %v", how, err)
		}
		s.home.As, s.account = name, known
	}
	s.account.Own = how == asService
	return nil
}

// mayRun says why no job of a uid would be run, nil if it would: what only the runner
// decides is told early by whoever can.
func (s *Service) mayRun(uid int) error {
	if !s.home.Roots() || s.account.Own || uid != 0 {
		return nil
	}
	policy, err := runner.ReadPolicy(s.opt.Runners.Policy)
	if err != nil {
		return queue.Errorf(queue.CodeDenied, "%v", err)
	}
	if policy.AllowRootJobs {
		return nil
	}
	return queue.Errorf(queue.CodeDenied, "jobs of root are not run here: set allow_root_jobs = true in %s, or name another account with --user NAME", policy.File)
}
