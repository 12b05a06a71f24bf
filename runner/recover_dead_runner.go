package runner

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// RecoveryResult describes a dead runner's attempts: the results of the ended attempts, from the runner's journal, and
// the attempts that were running when the runner died. RecoverDeadRunner has killed the processes of the running
// attempts, except StuckProcesses.
type RecoveryResult struct {
	AttemptResults  []*wire.Result
	RunningAttempts []wire.Attempt
	// RunnerStartedThisBoot is false if the machine has rebooted since the runner started. If the runner's boot ID is
	// missing, this is unknown, and RunnerStartedThisBoot is true.
	RunnerStartedThisBoot bool
	// RunnerFilesDamaged means that the runner's files may not contain all attempts that it has started. After a
	// reboot it is true, because a power cut may have damaged the files.
	RunnerFilesDamaged bool
	// LeasesWithProcesses lists the attempts in the argument sentAttempts of RecoverDeadRunner that still had processes.
	LeasesWithProcesses []wire.Lease
	// StuckProcesses lists the processes that SIGKILL did not end. LeasesWithStuckProcesses contains the
	// running attempts that have such processes.
	StuckProcesses           []wire.RemainingProcess
	LeasesWithStuckProcesses map[wire.Lease]bool
}

// RecoverDeadRunner ends the remaining processes of a dead runner's attempts, and returns what the runner's files say
// about the attempts. runnerDir is the runner's directory, or "" if the directory is gone.
//
// leasedAttempts lists the attempts that this runner may have received and whose results are not stored yet.
// RecoverDeadRunner returns only results of these attempts. sentAttempts lists attempts that this runner may have
// received, but that no other runner can have received. RecoverDeadRunner finds the processes of sentAttempts even if
// runnerDir is damaged or gone.
//
// livingRunner is a runner with the rights to kill the processes. If it is nil, this process kills them.
func RecoverDeadRunner(ctx context.Context, runnerDir string, leasedAttempts, sentAttempts []wire.Attempt,
	livingRunner *Client) (RecoveryResult, error) {
	r, err := ReadDeadRunnerFiles(runnerDir, leasedAttempts)
	if err != nil {
		return r, err
	}
	var reply wire.EndProcessTreesReply
	if livingRunner == nil {
		reply, err = EndProcessTrees(runnerDir, sentAttempts)
	} else {
		// The living runner also compares the boot IDs. Its result is right even if this process is in a sandbox that shows
		// another boot ID.
		reply, err = livingRunner.endProcessTrees(ctx, runnerDir, sentAttempts)
	}
	if err != nil {
		return r, err
	}
	r.RunnerStartedThisBoot, r.StuckProcesses, r.LeasesWithProcesses = reply.RunnerStartedThisBoot, reply.StuckProcesses,
		reply.LeasesWithProcesses
	for _, p := range r.StuckProcesses {
		for _, a := range r.RunningAttempts {
			if p.PGID == a.PID || p.Cookie == AttemptCookie(filepath.Base(runnerDir), a.Lease) {
				r.LeasesWithStuckProcesses[a.Lease] = true
			}
		}
	}
	return r, nil
}

// UnsettledLeases lists the running attempts of the runner in runnerDir, and the ended attempts whose results no
// service has acknowledged. runnerAlive reports whether the runner is alive. The ended attempts of a dead runner are
// read from its journal, which may also contain results that were acknowledged.
func UnsettledLeases(runnerDir string) (leases []wire.Lease, runnerAlive bool, err error) {
	if runnerAlive, err = IsAlive(runnerDir); err != nil {
		return nil, runnerAlive, err
	}
	if runnerAlive {
		// Because of wire.NoEpoch, the runner does not treat the connection as a new service, and keeps the connection to its
		// service.
		c, err := Connect(runnerDir, wire.NoEpoch, "")
		if err != nil {
			return nil, true, err
		}
		defer c.Close()
		return c.attemptLeases(), true, nil
	}
	t, err := rundir.ReadRunningTable(runnerDir)
	if err != nil {
		return nil, false, err
	}
	for _, a := range t.Attempts {
		leases = append(leases, a.Lease)
	}
	results, _, err := rundir.ReadJournal(runnerDir, t.JournalSize, func(wire.Lease) bool { return true })
	for _, r := range results {
		leases = append(leases, r.Lease)
	}
	return leases, false, err
}

// ReadDeadRunnerFiles returns what a dead runner's files say about its attempts. It returns results only for
// leasedAttempts. Unlike RecoverDeadRunner, it ends no processes.
func ReadDeadRunnerFiles(runnerDir string, leasedAttempts []wire.Attempt) (recovered RecoveryResult, err error) {
	recovered.LeasesWithStuckProcesses, recovered.RunnerStartedThisBoot = map[wire.Lease]bool{}, true
	if runnerDir == "" {
		return recovered, nil
	}
	// storedBoot is "" if the file is missing or damaged
	storedBoot, err := rundir.ReadChecksummedFile(filepath.Join(runnerDir, rundir.BootIDFileName), 64)
	if err != nil {
		return recovered, fmt.Errorf("cannot read the runner's boot ID: %w", err)
	}
	boot, err := process.BootID()
	if err != nil {
		return recovered, err
	}
	recovered.RunnerStartedThisBoot = storedBoot == "" || storedBoot == boot
	wanted := map[wire.Lease]bool{}
	for _, a := range leasedAttempts {
		wanted[a.Lease] = true
	}
	t, err := rundir.ReadRunningTable(runnerDir)
	if err != nil {
		return recovered, err
	}
	complete := false
	isWanted := func(l wire.Lease) bool { return wanted[l] }
	if recovered.AttemptResults, complete, err = rundir.ReadJournal(runnerDir, t.JournalSize, isWanted); err != nil {
		return recovered, err
	}
	recovered.RunnerFilesDamaged = storedBoot == "" || !t.IsIntact || !complete || !recovered.RunnerStartedThisBoot
	ended := map[wire.Lease]bool{}
	for _, result := range recovered.AttemptResults {
		ended[result.Lease] = true
	}
	for _, a := range t.Attempts {
		if !ended[a.Lease] {
			recovered.RunningAttempts = append(recovered.RunningAttempts, a)
		}
	}
	return recovered, nil
}

// endProcessTrees makes the connected runner call EndProcessTrees for the dead runner in runnerDir. The connected
// runner has the rights to kill the processes, which this process may lack.
func (c *Client) endProcessTrees(ctx context.Context, runnerDir string,
	sentAttempts []wire.Attempt) (reply wire.EndProcessTreesReply, err error) {
	name := ""
	if runnerDir != "" {
		name = filepath.Base(runnerDir)
	}
	r, err := sendRequest[*wire.EndProcessTreesReply](ctx, c, nil, &wire.EndProcessTrees{RunnerName: name,
		Attempts: sentAttempts})
	switch {
	case err == ErrNoReply:
		return reply, errors.New("the service lost its connection to the runner that should end the jobs of " +
			"this dead runner; the service tries again through another runner")
	case err != nil:
		return reply, err
	case r.Error != "":
		return reply, errors.New(r.Error)
	}
	return *r, nil
}

// RemoveDeadRunnerDir removes a dead runner's directory. The caller must first save the results and the output in the
// directory. livingRunner is a runner with the rights to remove the directory. If it is nil, this process removes the
// directory.
func RemoveDeadRunnerDir(runnerDir string, livingRunner *Client) error {
	if livingRunner == nil {
		return rundir.RemoveDeadRunnerDir(runnerDir)
	}
	livingRunner.Send(&wire.RemoveDeadRunnerDir{RunnerName: filepath.Base(runnerDir)})
	return nil
}
