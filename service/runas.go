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

// runnerAccountPolicy returns the policy that says as which accounts runners that run as root may run jobs. It
// returns nil if the service uses no such runners.
func (st *startup) runnerAccountPolicy() *launcher.AccountAuthorizer {
	r := &st.options.ExternalRunners
	if !r.runnersRunAsRoot() {
		return nil
	}
	return &launcher.AccountAuthorizer{PolicyFile: r.PolicyFile, ServiceUID: accounts.CurrentUserID(),
		AccountResolver: &st.UserDirectory.Resolver}
}

// chooseRunnerLocation returns where the runners of the service are. The setting job_tmpdir applies only to runners
// that the service starts itself. If the service uses runners that run as root, the setting causes an error, because
// the policy file of these runners determines their directory.
func (st *startup) chooseRunnerLocation() (runner.RunnersLocation, error) {
	r, set := &st.options.ExternalRunners, st.Settings.CurrentConfig()
	runners := runner.RunnersLocation{
		RunnersDir: cluster.RunnersDir(st.Paths), SpawnSocketPath: r.SpawnSocketPath,
		SpawnsAsServiceAccount: r.SpawnsAsServiceAccount,
		LauncherPID:            st.launcher.PID, RunnerCommand: st.options.RunnerCommand, RunnerLog: st.options.LogFile,
	}
	if r.runnersRunAsRoot() {
		runners.RunnersDir, runners.SwitchToAccount = r.RunnersDir, set.FixedJobUser()
	}
	switch {
	case set.JobTmpdir == "":
		return runners, nil
	case r.runnersRunAsRoot():
		return runners,
			queue.InvalidFieldError("job_tmpdir", "this setting has no effect if root starts the runners; remove it here, "+
				"and set it in %s", r.PolicyFile)
	}
	runners.JobTmpdir = filepath.Clean(set.JobTmpdir)
	if err := runners.CheckJobTmpdir(); err != nil { // only warn, since the directory may be mounted later
		st.Log.Error("no jobs can start until the setting job_tmpdir is correct", "error", err)
	}
	return runners, nil
}

// runnersRunAsRoot reports whether the service uses runners that run as root.
func (r *ExternalRunners) runnersRunAsRoot() bool {
	return r.SpawnSocketPath != "" && !r.SpawnsAsServiceAccount
}

// jobAccount returns the account that jobs run as with the given settings. It returns an error if the
// runners cannot run jobs as that account.
func (st *startup) jobAccount(settings *config.Settings) (worker.Account, error) {
	a := st.UserDirectory.AccountByUID(accounts.CurrentUserID())
	if !st.options.ExternalRunners.runnersRunAsRoot() {
		if err := checkRunAsSupported(settings, &a); err != nil || accounts.CurrentUserID() != 0 {
			return a, err
		}
	}
	if name := settings.FixedJobUser(); name != "" {
		known, err := st.UserDirectory.AccountByName(name)
		if err != nil {
			return a, queue.InvalidFieldError("run_as", "%s: %v", settings.RunAs, err)
		}
		a = known
	}
	a.UsesPerJobAccount = settings.RunAs == config.RunAsSubmitter
	return a, nil
}

// settingStartError returns the error for a setting with which the service cannot start. If the value came
// from the store, the error says how to remove it.
func (st *startup) settingStartError(settingKey string, err error) *ExitError {
	if st.Settings.CurrentConfig().OriginInEffect(settingKey) == config.FromQueueStore {
		k, _, _ := config.FindSetting(settingKey, "") // ignore the error, since settingKey is a known setting
		err = fmt.Errorf("%w; this value was stored by config set, and only a running service can remove it: start the "+
			"service with QUEUECTL_%s=%s in its environment, then run: queuectl config unset %s",
			err, strings.ToUpper(settingKey), k.DefaultText, settingKey)
	}
	return &ExitError{ExitCodeConfig, err}
}
