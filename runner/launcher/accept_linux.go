package launcher

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/rundir"
)

// maxSpawnRequestBytes is the maximum length of a request for a runner, in bytes. A request may contain a file path.
const maxSpawnRequestBytes = 16 << 10

// HandleSpawnRequest reads a service's request for a runner from the connection on standard input, and executes every
// step that needs root's rights. It replaces standard input with /dev/null. If the request names an account,
// HandleSpawnRequest switches this process to that account permanently.
//
// cgroupDelegated means that this process may divide its control group.
func HandleSpawnRequest(runnersDir, policyFile string, cgroupDelegated bool) (*AcceptedSpawnRequest, error) {
	c, err := net.FileConn(os.Stdin)
	if err != nil {
		if call, ok := errors.AsType[*os.SyscallError](err); ok { // omit the operation, which package net adds to the error
			err = call.Err
		}
		return nil, fmt.Errorf("standard input is not a connection from the service (%w); only systemd and queuectl itself "+
			"start this internal command", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	if err := unix.Dup3(int(null.Fd()), 0, 0); err != nil {
		return nil, err
	}
	g := &AcceptedSpawnRequest{ServiceConn: c, RunnerSettings: RunnerSettings{RunnersDir: runnersDir,
		PolicyFile: policyFile}}
	c.SetDeadline(time.Now().Add(runner.SpawnTimeout))
	if err := g.handleRequest(cgroupDelegated); err != nil {
		g.ReplyError(err)
		return nil, err
	}
	return g, nil
}

// handleRequest reads the request and executes it.
func (g *AcceptedSpawnRequest) handleRequest(cgroupDelegated bool) error {
	peer, err := rundir.PeerCredentials(g.ServiceConn)
	if err != nil {
		return err
	}
	request, err := readSpawnRequest(g.ServiceConn)
	if err != nil {
		return err
	}
	g.ServiceUID, g.ServesOneIsolatedJob, g.JobTmpdir = int(peer.Uid), request.ForIsolatedJob, request.JobTmpdir
	if g.PolicyFile != "" && request.RunnerDirToKill != "" {
		g.KilledOtherRunner = true
		if err := killNamedRunner(g.RunnersDir, request.RunnerDirToKill); err != nil {
			return err
		}
		g.ReplyReady(request.RunnerDirToKill)
		return nil
	}
	if g.PolicyFile == "" {
		err = g.prepareOwnAccountRunner(request)
	} else {
		err = createSharedDir(g.RunnersDir, 0, int(peer.Gid), runnersDirMode)
	}
	// Create the control groups only now, so that a request that was refused above changes nothing.
	if err == nil && cgroupDelegated {
		g.Cgroups, g.NoCgroupsReason = process.NewCgroups()
	}
	if err != nil || g.PolicyFile == "" {
		return err
	}
	return g.prepareRootRunner(request, int(peer.Gid))
}

// readSpawnRequest reads the line with the service's request.
func readSpawnRequest(r io.Reader) (request runner.SpawnRequest, err error) {
	line, err := bufio.NewReader(io.LimitReader(r, maxSpawnRequestBytes)).ReadString('\n')
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok { // omit the addresses, which are empty
			err = op.Err
		}
		return request, fmt.Errorf("the new runner did not receive the service's request; if this repeats, check the load "+
			"of the machine: %w", err)
	}
	return runner.ParseSpawnRequest(strings.TrimSuffix(line, "\n"))
}

// prepareOwnAccountRunner prepares a runner that keeps the account of this process. It returns an error if
// the service runs under another account.
func (g *AcceptedSpawnRequest) prepareOwnAccountRunner(request runner.SpawnRequest) error {
	switch {
	case g.ServiceUID != os.Geteuid():
		return fmt.Errorf("--runner-socket: the service runs as uid %d, but this socket starts runners of uid %d; check "+
			"the path of the socket", g.ServiceUID, os.Geteuid())
	case request.SwitchToAccount != "" || request.RunnerDirToKill != "":
		return fmt.Errorf("--runner-socket: the runners that this socket starts can run jobs only as uid %d, but the "+
			"service runs jobs as other accounts too; check the path of the socket and the setting \"run_as\"", os.Geteuid())
	}
	return os.MkdirAll(g.RunnersDir, 0o700)
}

// prepareRootRunner prepares a runner in a process that runs as root. The runner stays root, or switches to the account
// that the request names. The group readerGID may read the runner's files.
func (g *AcceptedSpawnRequest) prepareRootRunner(request runner.SpawnRequest, readerGID int) error {
	rules, err := readPolicy(g.PolicyFile)
	if err != nil {
		return err
	}
	if g.JobTmpdir = rules.jobTmpdir; g.JobTmpdir != "" { // the policy's job_tmpdir replaces the service's
		if err := rundir.CheckJobTmpdir(g.JobTmpdir, g.RunnersDir, true); err != nil {
			return err
		}
	}
	if err := process.PreferOOMKillOfCommands(); err != nil || request.SwitchToAccount == "" {
		return err
	}
	return g.switchAccount(request.SwitchToAccount, readerGID)
}

// killNamedRunner kills the runner whose directory is runnersDir/runnerName. It returns an error if
// runnerName is not a name that a runner's directory can have.
func killNamedRunner(runnersDir, runnerName string) error {
	account, own := filepath.Split(filepath.Clean(runnerName))
	account = strings.TrimSuffix(account, "/")
	isAccount := strings.HasPrefix(account, rundir.AccountDirPrefix) && !strings.Contains(account, "/")
	if !filepath.IsLocal(runnerName) || !rundir.IsRunnerDirName(own) || own[0] == '.' || account != "" && !isAccount {
		return fmt.Errorf("%q is not a runner name; this is a bug in queuectl; please report it", runnerName)
	}
	return runner.KillRunnerByDir(filepath.Join(runnersDir, account, own))
}

// switchAccount switches this process to the account with the given name, and makes sure that it cannot
// switch back.
func (g *AcceptedSpawnRequest) switchAccount(accountName string, readerGID int) error {
	known := &AccountAuthorizer{PolicyFile: g.PolicyFile, ServiceUID: g.ServiceUID,
		AccountResolver: &accounts.Resolver{AlwaysQueryRemote: true}}
	account, rules, err := known.authorizeAccount(known.AccountResolver.UserByName(accountName))
	if err != nil {
		return err
	}
	if account.UID == 0 {
		return errors.New("the setting run_as = fixed:root would run all users' jobs as root; use another account")
	}
	g.Credentials = readAllowedCredentials(rules, &account, known.AccountResolver)
	g.RunnersDir, g.PolicyFile = filepath.Join(g.RunnersDir, rundir.AccountDirPrefix+account.Name), ""
	if err := createSharedDir(g.RunnersDir, int(account.UID), readerGID, accountRunnersDirMode); err != nil {
		return err
	}
	if g.JobTmpdir != "" {
		g.JobTmpdir = filepath.Join(g.JobTmpdir, rundir.AccountDirPrefix+account.Name)
		os.Mkdir(g.JobTmpdir, 0o700) // the directory may exist, so ignore an error; if the directory is missing, Lchown fails
		if err := os.Lchown(g.JobTmpdir, int(account.UID), int(account.GID)); err != nil {
			return err
		}
	}
	if g.Cgroups != nil {
		if err := g.Cgroups.Chown(int(account.UID), int(account.GID)); err != nil {
			return fmt.Errorf("cannot give account %s the runner's control group: %w", account.Name, err)
		}
	}
	groups := make([]int, len(account.Groups))
	for i, group := range account.Groups {
		groups[i] = int(group)
	}
	uid, accountGID := int(account.UID), int(account.GID)
	err = errors.Join(syscall.Setgroups(groups), syscall.Setresgid(accountGID, accountGID, accountGID),
		syscall.Setresuid(uid, uid, uid))
	if err != nil {
		return fmt.Errorf("cannot switch to account %s: %w", account.Name, err)
	}
	if syscall.Setresuid(0, 0, 0) == nil {
		return fmt.Errorf("a runner for account %s was not started, because its process could switch back to root; check "+
			"SecureBits= and AmbientCapabilities= in the systemd unit of the runners", account.Name)
	}
	return nil
}
