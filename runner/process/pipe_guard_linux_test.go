package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/runner/privdir"
)

// A command ends in time even if one of its processes has locked the output pipe, which blocks Run's goroutine in a
// read. The command ends at its timeout, or when the output grace period of leftover processes is over.
func TestLockedOutputPipesDoNotDelayCommandEnd(t *testing.T) {
	setSubreaper(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			c := newTestCommand(t, self)
			c.Timeout, c.KillAfter = 300*time.Millisecond, 0
			leavesProcess := i%2 == 1
			if leavesProcess {
				c.Argv = []string{"/bin/sh", "-c", `"$0" & sleep 0.2`, self}
				c.Timeout = 20 * time.Second
			}
			c.Env = append(c.Env, testRoleEnvVar+"=lock ")
			began := time.Now()
			r := NewWorker(nil).Run(c)
			if r.TimedOut == leavesProcess || r.Error != "" || time.Since(began) > 10*time.Second {
				t.Errorf("the process was left behind: %v; the result is %+v after %v", leavesProcess, r, time.Since(began))
			}
		})
	}
	all.Wait()
}

// commandWithProgressNotes returns a command that runs a shell script, with a FIFO for progress notes. The notes are
// discarded. In the script, "$0" runs lockProgressFIFO with lockTiming, "soon" or "late".
func commandWithProgressNotes(t *testing.T, lockTiming, script string) *Command {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := newTestCommand(t, "/bin/sh", "-c", script, self)
	c.PrivateDir, c.ProgressHandler = privdir.New(filepath.Join(t.TempDir(), "f")), discardProgressHandler{}
	if err := c.PrivateDir.Open(nil); err != nil {
		t.Fatal(err)
	}
	c.Env = append(c.Env, testRoleEnvVar+"=note "+lockTiming+" "+c.PrivateDir.ProgressPath)
	c.LeftoverGracePeriod = 300 * time.Millisecond
	return c
}

// discardProgressHandler discards progress notes.
type discardProgressHandler struct{}

func (discardProgressHandler) HandleProgress([]byte) bool { return false }
func (discardProgressHandler) SetMaskedTexts([][]byte)    {}

// If a leftover process has locked the FIFO for progress notes, the command still ends in time, and does not
// count as timed out.
func TestLockedProgressFIFODoesNotDelayCommandEnd(t *testing.T) {
	setSubreaper(t)
	c := commandWithProgressNotes(t, "soon", `"$0" & sleep 0.3`)
	c.Timeout = 500 * time.Millisecond
	if r := NewWorker(nil).Run(c); r.TimedOut || r.ExitCode != 0 || r.EndedLeftoverCount != 1 {
		t.Errorf("the command ended with exit code 0 in time, but left a process: %+v", r)
	}
}

// If a background process keeps the FIFO for progress notes locked, the next command gets a new FIFO.
func TestLockedProgressFIFOIsReplaced(t *testing.T) {
	setSubreaper(t)
	c := commandWithProgressNotes(t, "late", `"$0" & :`)
	c.AllowBackground = true
	r := NewWorker(nil).Run(c)
	defer func() {
		for _, p := range listTreeProcesses(r.PID, c.Cookie, c.uid()) {
			unix.Kill(p.PID, unix.SIGKILL)
		}
	}()
	notes, ended := c.PrivateDir.ProgressPath, make(chan bool)
	go func() {
		c.PrivateDir.DrainProgress()
		c.PrivateDir.RenameForRemoval(true)
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("reading the pipes waits for a background process")
	}
	if err := c.PrivateDir.Open(nil); err != nil || c.PrivateDir.ProgressPath == notes || !r.HasBackgroundProcesses {
		t.Errorf("the next command has the FIFO %s, the one before had %s (%v): %+v", c.PrivateDir.ProgressPath, notes, err,
			r)
	}
}

// If another process has locked the FIFO for progress notes when the command ends, all output of the command
// is still read.
func TestLockedProgressFIFOLosesNoOutput(t *testing.T) {
	setSubreaper(t)
	c := commandWithProgressNotes(t, "", `sleep 0.3; echo hello`)
	fd, err := unix.Open(c.PrivateDir.ProgressPath, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	sockets, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Write(fd, []byte("1\n"))
	var all sync.WaitGroup
	all.Go(func() { unix.Splice(sockets[0], nil, fd, nil, 4096, 0) })
	time.AfterFunc(700*time.Millisecond, func() { unix.Write(sockets[1], []byte("2\n")) })
	r := NewWorker(nil).Run(c)
	all.Wait()
	if stdout := c.output(t); stdout != "hello\n" {
		t.Errorf("the command printed %q: %+v", stdout, r)
	}
}

// An orphan that has ended, but is not reaped yet, may leave output in the pipe. The run reads this output,
// even if the control group is already empty.
func TestOutputOfUnreapedOrphanIsRead(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	events := filepath.Join(t.TempDir(), "events")
	if err := os.WriteFile(events, []byte("populated 0\nfrozen 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(events, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	c := exec.Command("/bin/sh", "-c", "cat <&3 3<&- & exit 0")
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.ExtraFiles = []*os.File{from}
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	r := &runningCommand{runState: runState{worker: &Worker{cgroup: &cgroup{eventsFD: fd}}, command: &Command{},
		result: &Result{}},
		pipesEmptyAtLastPoll: true, reapedCountBeforePoll: globalOrphanTable.reapedCount.Load()}
	if alone := r.hasTreeEnded(); !alone || r.pipesEmptyAtLastPoll &&
		r.reapedCountBeforePoll == globalOrphanTable.reapedCount.Load() {
		t.Errorf("alone: %v, and the pipes are not checked again", alone)
	}
	from.Close()
	to.Close()
	for !hasNoOrphans() {
		reapOrphans()
		time.Sleep(time.Millisecond)
	}
}
