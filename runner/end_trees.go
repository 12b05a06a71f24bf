package runner

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// AttemptCookie returns the cookie of an attempt: a text in the environment of each of its processes, by which they can
// be found. runnerName is the name of the runner that started the attempt.
func AttemptCookie(runnerName string, l wire.Lease) string {
	return runnerName + "." + strconv.FormatInt(l.Seq, 10) + "." + strconv.FormatInt(l.Fence, 10)
}

// EndProcessTrees ends the processes of attempts whose runner is dead: of the attempts in leasedAttempts, and of the
// attempts in the files of the runner's directory. If the runner has switched to an account, EndProcessTrees ends only
// processes of that account. The fields RequestID and Error of the reply stay empty.
//
// In two cases, EndProcessTrees ends nothing. If the machine has rebooted since the runner started, the pids may belong
// to other processes. If the directory is a copy, the original runner may be alive. See docs/decisions/0031.
func EndProcessTrees(runnerDir string, leasedAttempts []wire.Attempt) (reply wire.EndProcessTreesReply, err error) {
	d := process.DeadRunner{}
	running := leasedAttempts
	reply.RunnerStartedThisBoot = true
	if runnerDir != "" {
		r, err := ReadDeadRunnerFiles(runnerDir, nil)
		if err == nil {
			d.OwnerUID, err = switchedAccountUID(runnerDir)
		}
		if reply.RunnerStartedThisBoot = r.RunnerStartedThisBoot; err != nil || !r.RunnerStartedThisBoot {
			return reply, err
		}
		t, err := rundir.ReadRunningTable(runnerDir)
		if err != nil || t.IsIntact && t.RunnerPID == 0 {
			return reply, err
		}
		spared, err := rundir.ReadBackgroundPGIDs(runnerDir)
		if err != nil {
			return reply, err
		}
		d.PID, d.StartTicks, d.IsBackgroundGroup = t.RunnerPID, t.RunnerStartTicks,
			func(pgid int) bool { return spared[pgid] }
		running = slices.Concat(r.RunningAttempts, leasedAttempts)
	}
	for _, a := range running {
		if runnerDir != "" {
			d.Cookies = append(d.Cookies, AttemptCookie(filepath.Base(runnerDir), a.Lease))
		}
		tree := process.AttemptTree{MainPID: int(a.PID), JobSeq: a.Seq, Fence: a.Fence}
		if a.StartedAtMillis != 0 {
			tree.StartedAt = time.UnixMilli(a.StartedAtMillis)
		}
		d.AttemptTrees = append(d.AttemptTrees, tree)
	}
	found, stuck := process.EndProcessTrees(d, SigkillTimeout())
	for _, a := range leasedAttempts {
		belongsToAttempt := func(p process.SurvivingProcess) bool {
			return strings.HasSuffix(p.Cookie, AttemptCookie("", a.Lease)) || a.PID != 0 && int64(p.PGID) == a.PID
		}
		if slices.ContainsFunc(found, belongsToAttempt) {
			reply.LeasesWithProcesses = append(reply.LeasesWithProcesses, a.Lease)
		}
	}
	for _, p := range stuck {
		reply.StuckProcesses = append(reply.StuckProcesses, wire.RemainingProcess{PID: int64(p.PID), PGID: int64(p.PGID),
			Cookie: p.Cookie})
	}
	return reply, nil
}
