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

// RecoveryResult describes what a dead runner left: the results in its journal, and the attempts that were
// running when it died. The processes of these attempts have ended, except those in StuckProcesses.
type RecoveryResult struct {
	Results         []*wire.Result
	RunningAttempts []wire.Attempt
	// SameBoot reports whether the machine has not rebooted since the runner started. It is also true
	// if the runner's boot ID is missing.
	SameBoot bool
	// FilesDamaged reports that the runner's files are incomplete, so the runner may have started attempts
	// that they do not show. It is true after a reboot too, since a power cut may have damaged the
	// files.
	FilesDamaged bool
	// LeasesWithProcesses lists the attempts that the service named and that still had processes.
	LeasesWithProcesses []wire.Lease
	// StuckProcesses lists the processes that outlive SIGKILL. UnkilledLeases holds the attempts in
	// RunningAttempts that these processes belong to.
	StuckProcesses []wire.Survivor
	UnkilledLeases map[wire.Lease]bool
}

// Recover ends the remaining processes of a dead runner's attempts and returns what the runner's files
// say about the attempts. Processes that outlive SIGKILL remain. leased lists the attempts that the
// service has not settled and that this runner may have had. sent lists the attempts that no other
// runner can have: Recover finds their processes even if the runner's directory is damaged, or gone
// (dir is ""). helper is a living runner that has the rights to end the processes; if it is nil, this
// process ends them.
func Recover(ctx context.Context, dir string, leased, sent []wire.Attempt, helper *Client) (RecoveryResult, error) {
	r, err := ReadDeadRunner(dir, leased)
	if err != nil {
		return r, err
	}
	var ended wire.RecoverReply
	if helper == nil {
		ended, err = EndTrees(dir, sent)
	} else {
		// Let the runner compare the boot IDs, because a sandbox may show another boot ID to this
		// process.
		ended, err = helper.endTrees(ctx, dir, sent)
	}
	if err != nil {
		return r, err
	}
	r.SameBoot, r.StuckProcesses, r.LeasesWithProcesses = ended.SameBoot, ended.Survivors, ended.LeasesWithProcesses
	for _, p := range r.StuckProcesses {
		for _, a := range r.RunningAttempts {
			if p.PGID == a.PID || p.Cookie == CookieOf(filepath.Base(dir), a.Lease) {
				r.UnkilledLeases[a.Lease] = true
			}
		}
	}
	return r, nil
}

// UnacknowledgedLeases lists the running attempts of the runner in dir, and its ended attempts whose results no service
// has acknowledged. It changes nothing. For a dead runner, the list may also contain attempts whose
// results were acknowledged. alive reports whether the runner is alive.
func UnacknowledgedLeases(dir string) (list []wire.Lease, alive bool, err error) {
	if alive, err = IsAlive(dir); err != nil || alive {
		if err == nil {
			list, err = listAttempts(dir)
		}
		return list, alive, err
	}
	t, err := rundir.ReadTable(dir)
	if err != nil {
		return nil, false, err
	}
	for _, a := range t.Attempts {
		list = append(list, a.Lease)
	}
	results, _, err := rundir.ReadJournal(dir, t.JournalSize, func(wire.Lease) bool { return true })
	for i := range results {
		list = append(list, results[i].Lease)
	}
	return list, false, err
}

// ReadDeadRunner returns what a dead runner's files say about its attempts. Unlike Recover, it ends no processes.
func ReadDeadRunner(dir string, leased []wire.Attempt) (r RecoveryResult, err error) {
	r.UnkilledLeases, r.SameBoot = map[wire.Lease]bool{}, true
	if dir == "" {
		return r, nil
	}
	// "" if it is missing or damaged
	storedBoot, err := rundir.ReadChecksummedFile(filepath.Join(dir, rundir.BootIDFileName), 64)
	if err != nil {
		return r, fmt.Errorf("cannot read the runner's boot ID: %w", err)
	}
	boot, err := process.BootID()
	if err != nil {
		return r, err
	}
	r.SameBoot = storedBoot == "" || storedBoot == boot
	wanted := map[wire.Lease]bool{}
	for _, a := range leased {
		wanted[a.Lease] = true
	}
	t, err := rundir.ReadTable(dir)
	if err != nil {
		return r, err
	}
	complete := false
	isWanted := func(l wire.Lease) bool { return wanted[l] }
	if r.Results, complete, err = rundir.ReadJournal(dir, t.JournalSize, isWanted); err != nil {
		return r, err
	}
	r.FilesDamaged = storedBoot == "" || !t.Intact || !complete || !r.SameBoot
	ended := map[wire.Lease]bool{}
	for _, result := range r.Results {
		ended[result.Lease] = true
	}
	for _, a := range t.Attempts {
		if !ended[a.Lease] {
			r.RunningAttempts = append(r.RunningAttempts, a)
		}
	}
	return r, nil
}

// endTrees makes the connected runner call its own endTrees, because that runner has the rights to end
// the processes.
func (c *Client) endTrees(ctx context.Context, dir string, sent []wire.Attempt) (wire.RecoverReply, error) {
	name := ""
	if dir != "" {
		name = filepath.Base(dir)
	}
	r, err := request[*wire.RecoverReply](ctx, c, nil, &wire.Recover{RunnerName: name, Attempts: sent})
	switch {
	case err == ErrNoReply:
		return wire.RecoverReply{}, errors.New("the service lost its connection to the runner that should end the jobs of " +
			"this dead runner; the service tries again through another runner")
	case err != nil:
		return wire.RecoverReply{}, err
	case r.Error != "":
		return wire.RecoverReply{}, errors.New(r.Error)
	}
	return *r, nil
}

// RemoveDeadRunner removes a dead runner's directory, after everything in it has been stored. helper is a
// living runner that may remove it; if helper is nil, this process removes the directory.
func RemoveDeadRunner(dir string, helper *Client) error {
	if helper == nil {
		return rundir.RemoveDeadRunner(dir)
	}
	helper.Send(&wire.RemoveDeadRunner{RunnerName: filepath.Base(dir)})
	return nil
}
