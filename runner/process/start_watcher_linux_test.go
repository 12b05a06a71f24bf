package process

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/runner/procfs"
)

// KillHungStarts kills only children that hang: those that are stopped, and those that need too long to
// execute a program. The time of each child is measured separately.
func TestKillHungStartsSparesOtherChildren(t *testing.T) {
	program := copyWithFileLease(t, "/bin/true")
	cmd := exec.Command("/proc/self/exe")
	// KillHungStarts recognises a starting child by its command line, which equals that of its parent. So give
	// the children of this process the same arguments.
	cmd.Args = os.Args
	cmd.Env = append(os.Environ(), testRoleEnvVar+"=start "+program+" "+program+" "+program)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var s *StartWatcher
	// Start returns during the exec, so the command line may not be set yet.
	waitUntil(t, "the process has the command line of this test", func() bool {
		var err error
		s, err = NewStartWatcher(cmd.Process.Pid)
		return err == nil && len(s.parentCmdline) > 0
	})
	const limit = time.Hour
	waitUntil(t, "three programs do not begin and one does", func() bool {
		s.KillHungStarts(limit, 0)
		return len(s.startingChildren) == 3 && len(unreapedChildren(cmd.Process.Pid)) == 4
	})
	var pids []int
	for pid := range s.startingChildren {
		pids = append(pids, pid)
	}
	old, young, reused := pids[0], pids[1], pids[2]
	set := func(pid int, c startingChild) {
		c.startTicks += s.startingChildren[pid].startTicks
		s.startingChildren[pid] = c
	}
	hasEnded := func(pid int) bool { p, ok := procfs.Stat(pid); return !ok || !p.WasAlive() }

	set(old, startingChild{observedAge: limit - 1})
	set(young, startingChild{observedAge: limit - 2})
	set(reused, startingChild{observedAge: limit, startTicks: -1}) // the pid belonged to an earlier process
	s.KillHungStarts(limit, 1)
	waitUntil(t, "the hung process ends", func() bool { return hasEnded(old) })
	if hasEnded(young) || hasEnded(reused) {
		t.Error("a process was ended too early")
	}
	unix.Kill(young, unix.SIGSTOP)
	waitUntil(t, "the stopped process ends", func() bool {
		s.KillHungStarts(limit, 0)
		return hasEnded(young)
	})
	for range 3 {
		s.KillHungStarts(limit, 0)
	}
	if list := unreapedChildren(cmd.Process.Pid); hasEnded(reused) || len(list) != 4 {
		t.Errorf("children %v, of which %d has ended: %v", list, reused, hasEnded(reused))
	}
	for _, p := range unreapedChildren(cmd.Process.Pid) {
		unix.Kill(p, unix.SIGKILL)
	}
}

// unreapedChildren lists the children of a process that are not reaped.
func unreapedChildren(parentPID int) (pids []int) {
	for _, p := range procfs.AllProcesses() {
		if p.PPID == parentPID {
			pids = append(pids, p.PID)
		}
	}
	return pids
}
