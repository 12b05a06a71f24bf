package service

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/launcher"
	"github.com/queuectl/queuectl/worker"
)

// resolveAccount decides which account jobs run as, and which runners the service uses.
func (s *Service) resolveAccount() (err error) {
	r := s.opt.Runners
	s.home = runner.Home{
		Dir: runnersDir(s.opt.Places), Socket: r.Socket, Own: r.Own, Launcher: s.launcher.PID,
		Command: s.opt.Runner, Log: s.opt.Log,
	}
	if s.account, err = s.accountBy(&s.config.Load().Settings); err != nil || !r.fromRoot() {
		return err
	}
	s.home.Dir, s.home.As = r.Dir, s.config.Load().FixedUser()
	s.accounts = &launcher.Accounts{Policy: r.Policy, Service: accounts.Self(), Directory: &s.directory}
	return nil
}

// setTmpdir passes the setting job_tmpdir to the service's own runners. Root's runners do not use the
// setting, but the policy file of root.
func (s *Service) setTmpdir() error {
	tmpdir := s.config.Load().JobTmpdir
	switch {
	case tmpdir == "":
		return nil
	case s.opt.Runners.fromRoot():
		return queue.Invalid("job_tmpdir", "runners that root starts ignore this setting; remove it, and set job_tmpdir in %s",
			s.opt.Runners.Policy)
	}
	s.home.Tmpdir = filepath.Clean(tmpdir)
	if err := s.home.CheckTmpdir(); err != nil { // only warn, since the directory may be mounted later
		s.log.Error("no jobs can start until the setting job_tmpdir is correct", "error", err)
	}
	return nil
}

// fromRoot reports whether the service uses root's runners.
func (r *Runners) fromRoot() bool { return r.Socket != "" && !r.Own }

// accountBy returns the account that jobs run as with the given settings. It returns an error if the
// runners cannot run jobs as that account.
func (s *Service) accountBy(set *config.Settings) (worker.Account, error) {
	a := s.accountOf(accounts.Self())
	if !s.opt.Runners.fromRoot() {
		if err := checkOwnRunners(set, &a); err != nil || accounts.Self() != 0 {
			return a, err
		}
	}
	if name := set.FixedUser(); name != "" {
		known, err := s.accountNamed(name)
		if err != nil {
			return a, queue.Invalid("run_as", "%s: %v", set.RunAs, err)
		}
		a = known
	}
	a.Each = set.RunAs == config.RunAsSubmitter
	return a, nil
}

// checkStorable returns an error if storing the setting would keep the service from starting again. A
// stored setting overrides the settings file, and only a running service can change it. checkStorable also
// checks the setting of the web page's address.
func (s *Service) checkStorable(k *config.Key, text string) error {
	isWebListen := k.Name == webListen
	if !k.AtStart() && !isWebListen {
		return nil
	}
	s.mu.Lock()
	layers := slices.Clone(s.layers)
	for _, i := range []int{layerStored, layerRunning} {
		layers[i].Values = maps.Clone(layers[i].Values)
	}
	s.mu.Unlock()
	layers[layerStored].Values[k.Name] = text
	delete(layers[layerRunning].Values, k.Name) // put, which stores the setting, removes this value too
	if !isWebListen {
		return s.checkStart(layers)
	}
	c, err := config.Merge(layers...)
	if err != nil {
		return err
	}
	page := dashboardConfig(&c.Settings)
	return page.Check()
}

// checkStart returns an error if the service would not start with these layers of settings. It does not check
// values that are already in effect.
func (s *Service) checkStart(layers []config.Layer) error {
	c, err := config.Merge(layers...)
	if err != nil || s.atStart == nil {
		return err
	}
	held := c
	if held.Hold(s.atStart); len(held.Waiting()) == 0 {
		return nil
	}
	if _, err = s.accountBy(&c.Settings); err != nil || s.socketInherited {
		return err
	}
	return s.checkSocketPerms(&c.Settings)
}

// startError returns the error for a setting that keeps the service from starting. If the value is stored,
// the error says how to remove it.
func (s *Service) startError(key string, err error) error {
	if s.config.Load().Origin(key) == config.FromStored {
		k, _, _ := config.Find(key, "") // ignore the error, since key is a known setting
		err = fmt.Errorf("%w; this value was stored by config set, and only a running service can remove it: start the service with QUEUECTL_%s=%s in its environment, then run: queuectl config unset %s",
			err, strings.ToUpper(key), k.Default, key)
	}
	return &ExitError{ExitConfig, err}
}

// mayRun returns an error if the runner would not run jobs of a uid. It is called at enqueue, so that the
// submitter gets the error immediately.
func (s *Service) mayRun(uid int) error {
	if !s.home.Roots() {
		return nil
	}
	if why := s.accounts.Refuses(uint32(uid)); why != "" {
		return queue.Errorf(queue.CodeDenied, "%s", why)
	}
	return nil
}
