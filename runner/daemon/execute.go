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

// execute runs one attempt and stores its result.
func (s *server) execute(w *process.Worker, dir *workDir, a *attempt) {
	failpoint.Hit("attempt-noted")
	c := s.newCommand(a)
	ws := &a.workspace
	ws.server, ws.attempt, ws.dir = s, a, dir
	if failed := s.prepareCommand(c, ws); failed != nil {
		a.outputLog.Close()
		s.settle(a, failed, ws)
		return
	}
	r := w.Run(c)
	ws.collectReports(&r)
	if r.UnenforcedLimits != "" {
		s.warnUnenforcedLimitsOnce.Do(func() {
			s.Log.Warn("jobs request limits that this system does not enforce; see: queuectl doctor",
				"limits", r.UnenforcedLimits, "job", a.startFrame.Seq)
		})
	}
	s.settle(a, &r, ws)
	if r.StuckPID != 0 {
		s.awaitStuck(w, a)
	}
}

// newCommand returns the command that the attempt's Start frame describes.
func (s *server) newCommand(a *attempt) *process.Command {
	st := a.startFrame
	env := append(st.Env, "QUEUECTL_WORKER="+runner.WorkerName(s.dir.path, a.slot))
	return &process.Command{
		Argv: st.Argv, Env: env, Dir: st.Cwd, Umask: int(st.Umask),
		Stdin: st.Stdin, StdinFile: st.StdinFile, TTY: st.TTY, Log: a.outputLog,
		Timeout: st.Timeout, IdleTimeout: st.IdleTimeout, KillAfter: st.KillAfter, OutputGrace: st.OutputGrace,
		AllowBackground: st.AllowBackground, UnkillableAfter: runner.UnkillableAfter(), Cookie: s.cookie(a),
		Limits: process.TreeLimits{MemoryBytes: st.Memory, CPUs: float64(st.MilliCPUs) / 1000, Tasks: int(st.Tasks)},
		ProcessLimits: process.ProcessLimits{Nice: int(st.Nice), NoFile: int(st.NoFile),
			NoNewPrivileges: st.NoNewPrivileges}, MaskSecrets: st.MaskSecrets,
		OnForked: func(pid int, forkedAt time.Time) {
			s.runningTable.SetProcess(a.slot, pid, forkedAt.UnixMilli())
			s.mu.Lock()
			a.recordForkLocked(pid, forkedAt)
			s.mu.Unlock()
		},
		// The service receives this report with the next results that the runner sends. If the attempt ends
		// before that, the service learns of its start and its end together.
		OnStarted: func(int, time.Time) {
			s.mu.Lock()
			s.sendLocked(&wire.StartReport{Attempt: wireAttempt(a)}, a.sendsImmediately)
			s.mu.Unlock()
		},
	}
}

// prepareCommand adds to a command what only the runner knows: the account, the secrets and the private
// directory. It returns nil on success. On failure, the command cannot run, and prepareCommand returns the
// result of the attempt.
func (s *server) prepareCommand(c *process.Command, ws *workspace) *process.Result {
	err := s.setAccount(c, ws.attempt.startFrame.UID)
	if err != nil {
		r := failedStartResult(126, "user: "+err.Error())
		if !launcher.IsPermanent(err) { // the user database (NSS) did not answer, so a later try may succeed
			r.Shortage, r.HungStart = true, true
		}
		return r
	}
	if c.Secrets, err = s.readSecrets(ws.attempt.startFrame); err != nil {
		r := failedStartResult(126, err.Error())
		r.CannotStart = process.IsPermanent(err)
		return r
	}
	if err := ws.openDir(c); err != nil {
		r := failedStartResult(-1, err.Error())
		r.Shortage = true
		return r
	}
	return nil
}

// failedStartResult returns the result of an attempt whose command could not be started. problem says why.
func failedStartResult(exitCode int64, problem string) *process.Result {
	now := time.Now()
	return &process.Result{StartedAt: now, EndedAt: now, ExitCode: exitCode, Error: problem}
}

// setAccount makes a command run under the account with the given uid, with the account's groups and with
// variables such as HOME. The default working directory is the account's home. A negative uid means the
// runner's own account.
func (s *server) setAccount(c *process.Command, uid int64) error {
	if uid < 0 {
		return nil
	}
	account, err := s.accounts.ByUID(uint32(uid))
	if err != nil {
		return err
	}
	c.RunAs = &runas.Identity{UID: account.UID, GID: account.GID, Groups: account.Groups}
	c.Env = launcher.AccountEnv(&account, c.Env)
	c.Dir = cmp.Or(c.Dir, account.Home)
	return nil
}

// credentialPrefix marks a secret as a systemd credential: the secret has the form NAME=credential:CREDENTIAL.
// Without the prefix, the text after NAME= is the path of a file.
const credentialPrefix = "credential:"

// readSecrets reads the secret environment variables of an attempt. The service sends only references to them.
// readSecrets returns an error if the attempt's account may not read one of them.
func (s *server) readSecrets(st *wire.Start) (secrets []process.Secret, err error) {
	for _, e := range st.Secrets {
		name, reference, _ := strings.Cut(e, "=")
		secret := process.Secret{Name: name, Path: reference}
		if credential, ok := strings.CutPrefix(reference, credentialPrefix); ok {
			secret.Path = ""
			if secret.Value, err = launcher.AllowedCredential(s.accounts, s.Credentials, credential, st.UID); err != nil {
				return nil, fmt.Errorf("env_secret %s: credential %s: %w", name, credential, err)
			}
		}
		secrets = append(secrets, secret)
	}
	return secrets, nil
}
