package service

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/launcher"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/worker"
)

// runnerPolicy returns the policy that says as which accounts runners that run as root may run jobs. It
// returns nil if the service uses no such runners.
func (st *startup) runnerPolicy() *launcher.Accounts {
	r := &st.options.ExternalRunners
	if !r.ownedByRoot() {
		return nil
	}
	return &launcher.Accounts{PolicyFile: r.PolicyFile, ServiceUID: accounts.CurrentUser(),
		Directory: &st.directory.Directory}
}

// chooseRunnerLocation returns where the runners of the service are. The setting job_tmpdir applies only to
// the service's own runners. If the service uses runners that run as root, the setting causes an error,
// because their directory is set in the policy file.
func (st *startup) chooseRunnerLocation() (runner.Location, error) {
	r, set := &st.options.ExternalRunners, st.settings.Current()
	runners := runner.Location{
		Dir: cluster.RunnersDir(st.options.Paths), SpawnSocket: r.SpawnSocket, SpawnsOwnAccount: r.SpawnsOwnAccount,
		LauncherPID: st.launcher.PID, Command: st.options.RunnerCommand, Log: st.options.LogFile,
	}
	if r.ownedByRoot() {
		runners.Dir, runners.Account = r.Dir, set.FixedUser()
	}
	switch {
	case set.JobTmpdir == "":
		return runners, nil
	case r.ownedByRoot():
		return runners, queue.Invalid("job_tmpdir", "this setting has no effect if root starts the runners; remove it here, "+
			"and set it in %s", r.PolicyFile)
	}
	runners.Tmpdir = filepath.Clean(set.JobTmpdir)
	if err := runners.CheckTmpdir(); err != nil { // only warn, since the directory may be mounted later
		st.log.Error("no jobs can start until the setting job_tmpdir is correct", "error", err)
	}
	return runners, nil
}

// ownedByRoot reports whether the service uses runners that run as root.
func (r *ExternalRunners) ownedByRoot() bool { return r.SpawnSocket != "" && !r.SpawnsOwnAccount }

// jobAccount returns the account that jobs run as with the given settings. It returns an error if the
// runners cannot run jobs as that account.
func (st *startup) jobAccount(settings *config.Settings) (worker.Account, error) {
	a := st.directory.AccountOf(accounts.CurrentUser())
	if !st.options.ExternalRunners.ownedByRoot() {
		if err := checkRunAsSupported(settings, &a); err != nil || accounts.CurrentUser() != 0 {
			return a, err
		}
	}
	if name := settings.FixedUser(); name != "" {
		known, err := st.directory.AccountNamed(name)
		if err != nil {
			return a, queue.Invalid("run_as", "%s: %v", settings.RunAs, err)
		}
		a = known
	}
	a.RunsAsJobAccount = settings.RunAs == config.RunAsSubmitter
	return a, nil
}

// settingStartError returns the error for a setting with which the service cannot start. If the value came
// from the store, the error says how to remove it.
func (st *startup) settingStartError(key string, err error) *ExitError {
	if st.settings.Current().Origin(key) == config.FromStored {
		k, _, _ := config.FindKey(key, "") // ignore the error, since key is a known setting
		err = fmt.Errorf("%w; this value was stored by config set, and only a running service can remove it: start the "+
			"service with QUEUECTL_%s=%s in its environment, then run: queuectl config unset %s",
			err, strings.ToUpper(key), k.Default, key)
	}
	return &ExitError{ExitConfig, err}
}
