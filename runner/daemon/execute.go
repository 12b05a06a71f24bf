package daemon

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/launcher"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/runas"
	"github.com/queuectl/queuectl/runner/wire"
)

// executeAttempt runs one attempt and stores its result.
func (s *server) executeAttempt(w *process.Worker, dir *workDir, a *attempt) {
	failpoint.Hit("attempt-noted")
	c := s.newAttemptCommand(a)
	ws := &a.workspace
	ws.server, ws.attempt, ws.dir = s, a, dir
	if failed := s.prepareCommand(c, ws); failed != nil {
		a.outputLog.Close()
		s.journalAndSendResult(a, failed, ws)
		return
	}
	r := w.Run(c)
	ws.collectResultAndProgress(&r)
	if r.UnenforcedLimitNames != "" {
		s.warnUnenforcedLimitsOnce.Do(func() {
			s.Log.Warn("jobs request limits that this system does not enforce; see: queuectl doctor",
				"limits", r.UnenforcedLimitNames, "job", a.startFrame.Seq)
		})
	}
	s.journalAndSendResult(a, &r, ws)
	if r.StuckPID != 0 {
		s.awaitStuckProcesses(w, a)
	}
}

// newAttemptCommand returns the command that the attempt's Start frame describes.
func (s *server) newAttemptCommand(a *attempt) *process.Command {
	st := a.startFrame
	env := append(st.Env, "QUEUECTL_WORKER="+runner.WorkerName(s.dir.dirPath, a.tableSlot))
	return &process.Command{
		Argv: st.Argv, Env: env, WorkingDir: st.Cwd, Umask: int(st.Umask),
		Stdin: st.Stdin, StdinFile: st.StdinFile, TTY: st.TTY, OutputLog: a.outputLog,
		Timeout: st.Timeout, IdleTimeout: st.IdleTimeout, KillAfter: st.KillAfter, LeftoverGracePeriod: st.OutputGrace,
		AllowBackground: st.AllowBackground, SigkillTimeout: runner.SigkillTimeout(), Cookie: s.attemptCookie(a),
		Limits: process.TreeLimits{MemoryBytes: st.MemoryBytes, CPUs: float64(st.MilliCPUs) / 1000, Tasks: int(st.MaxTasks)},
		ProcessLimits: process.ProcessLimits{Nice: int(st.Nice), MaxOpenFiles: int(st.MaxOpenFiles),
			NoNewPrivileges: st.NoNewPrivileges}, MaskSecrets: st.MaskSecrets,
		OnForked: func(pid int, forkedAt time.Time) {
			s.runningTable.SetAttemptProcess(a.tableSlot, pid, forkedAt.UnixMilli())
			s.mu.Lock()
			a.recordForkLocked(pid, forkedAt)
			s.mu.Unlock()
		},
		// The runner sends this report together with the next results. If the attempt ends before that, the service receives
		// the report and the result together.
		OnStarted: func(int, time.Time) {
			s.mu.Lock()
			s.sendFrameLocked(&wire.StartReport{Attempt: toWireAttempt(a)}, a.reportsImmediately)
			s.mu.Unlock()
		},
	}
}

// prepareCommand adds to a command what only the runner knows: the account, the secrets and the private directory. It
// returns nil on success. Otherwise the command cannot run, and prepareCommand returns the result of the failed
// attempt.
func (s *server) prepareCommand(c *process.Command, ws *workspace) *process.Result {
	err := s.setCommandAccount(c, ws.attempt.startFrame.AccountUID)
	if err != nil {
		r := failedStartResult(126, "user: "+err.Error())
		if !launcher.IsPermanentError(err) { // the user database (NSS) did not answer, so a later try may succeed
			r.ResourceShortage, r.StartHung = true, true
		}
		return r
	}
	if c.Secrets, err = s.readSecrets(ws.attempt.startFrame); err != nil {
		r := failedStartResult(126, err.Error())
		r.StartFailedPermanently = process.IsPermanentError(err)
		return r
	}
	if err := ws.openWorkDir(c); err != nil {
		r := failedStartResult(-1, err.Error())
		r.ResourceShortage = true
		return r
	}
	return nil
}

// failedStartResult returns the result of an attempt whose command could not be started. failureReason says why.
func failedStartResult(exitCode int64, failureReason string) *process.Result {
	now := time.Now()
	return &process.Result{StartedAt: now, EndedAt: now, ExitCode: exitCode, Error: failureReason}
}

// setCommandAccount makes a command run under the account with the given uid, with the account's groups and with
// variables such as HOME. The default working directory is the account's home. A negative uid means the
// runner's own account.
func (s *server) setCommandAccount(c *process.Command, uid int64) error {
	if uid < 0 {
		return nil
	}
	account, err := s.accounts.AllowedAccountByUID(uint32(uid))
	if err != nil {
		return err
	}
	c.RunAs = &runas.Identity{UID: account.UID, GID: account.GID, Groups: account.Groups}
	c.Env = launcher.AddAccountEnv(&account, c.Env)
	c.WorkingDir = cmp.Or(c.WorkingDir, account.HomeDir)
	return nil
}

// credentialPrefix marks a secret as a systemd credential: the secret has the form NAME=credential:CREDENTIAL.
// Without the prefix, the text after NAME= is the path of a file.
const credentialPrefix = "credential:"

// readSecrets reads the secrets of an attempt from files and credentials, because the service sends only references to
// secrets. It returns an error if the attempt's account may not read one of the secrets.
func (s *server) readSecrets(st *wire.StartAttempt) (secrets []process.Secret, err error) {
	for _, e := range st.Secrets {
		name, reference, _ := strings.Cut(e, "=")
		secret := process.Secret{EnvVarName: name, FilePath: reference}
		if credential, ok := strings.CutPrefix(reference, credentialPrefix); ok {
			secret.FilePath = ""
			if secret.Value, err = launcher.ReadAllowedCredential(s.accounts, s.Credentials, credential,
				st.AccountUID); err != nil {
				return nil, fmt.Errorf("env_secret %s: credential %s: %w", name, credential, err)
			}
		}
		secrets = append(secrets, secret)
	}
	return secrets, nil
}
