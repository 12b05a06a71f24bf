package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/skip"
)

// If a runner is killed, the trees of its commands end with it.
func TestProcessTreesEndWithRunner(t *testing.T) {
	dir := t.TempDir()
	self, _ := os.Executable()
	cookie := fmt.Sprintf("dead.%d", os.Getpid())
	runner := exec.Command(self, "run", dir, cookie)
	runner.Env = append(os.Environ(), testRoleEnvVar+"=1")
	if err := runner.Start(); err != nil {
		t.Fatal(err)
	}
	processes := openTreeHandles(t, dir, 3)
	if h, err := openTreeByCookie(cookie); err != nil {
		t.Errorf("the tree has no name: %v", err)
	} else {
		h.close()
	}
	runner.Process.Kill()
	runner.Wait()
	if n := countLivingProcesses(processes, 5*time.Second); n != 0 {
		t.Errorf("%d processes outlive the runner", n)
	}
	if _, left := EndProcessTrees(DeadRunner{Cookies: []string{cookie}}, time.Second); left != nil {
		t.Errorf("EndTrees could not end %v", left)
	}
}

// If another process has opened the job object of a tree, the tree survives its runner. EndProcessTrees finds the
// tree by its cookie and ends it.
func TestEndProcessTreesEndsSurvivingTree(t *testing.T) {
	dir := t.TempDir()
	c := newTestCommand(t, "tree", dir, "3")
	w := NewWorker(nil)
	defer w.Close()
	c.OnStarted = func(int, time.Time) {
		processes := openTreeHandles(t, dir, 3)
		if _, left := EndProcessTrees(DeadRunner{Cookies: []string{"none", c.Cookie}}, 20*time.Second); left != nil {
			t.Errorf("EndTrees could not end %v", left)
		}
		if n := countLivingProcesses(processes, time.Second); n != 0 {
			t.Errorf("%d processes are running", n)
		}
	}
	if r, _, _ := runOnWorker(t, w, c); r.ExitCode != 1 {
		t.Errorf("the result is %+v, want exit code 1", r)
	}
}

// The result contains the CPU time that the command has used.
func TestResultReportsCPUTime(t *testing.T) {
	r, _, _ := runCommand(t, newTestCommand(t, "spin", "300ms"))
	if r.CPUTime < 50*time.Millisecond || r.CPUTime > 10*time.Second {
		t.Errorf("the CPU time is %v, want 50ms to 10s", r.CPUTime)
	}
}

// The result contains the peak memory of the command's largest process.
func TestResultReportsPeakMemory(t *testing.T) {
	skip.UnderWine(t, "needs Windows, because Wine lacks the feature; tests with a fake job object have the rest")
	if r, _, _ := runCommand(t, newTestCommand(t, "hog", "100")); r.ExitCode != 0 || r.PeakRSSBytes < 100<<20 ||
		r.PeakRSSBytes > 1<<30 {
		t.Errorf("the peak memory is %d bytes, want 100 MiB to 1 GiB", r.PeakRSSBytes)
	}
}

// All processes see the same identifier of the current boot.
func TestBootIDIsSameForAllProcesses(t *testing.T) {
	id, err := BootID()
	_, stdout, _ := runCommand(t, newTestCommand(t, "boot"))
	if err != nil || stdout != id+" <nil> true" || id == "0" {
		t.Errorf("this process sees boot ID %s (%v), a child process sees %s", id, err, stdout)
	}
}

var procGetHandleInformation = kernel32.NewProc("GetHandleInformation")

// When a command has ended, this process has closed all handles that it opened for the command.
func TestCommandHandlesAreClosed(t *testing.T) {
	w := NewWorker(nil)
	defer w.Close()
	count := func() (n int) {
		for h := windows.Handle(4); h < 1<<16; h += 4 {
			if ok, _, _ := procGetHandleInformation.Call(uintptr(h), uintptr(unsafe.Pointer(new(uint32)))); ok != 0 {
				n++
			}
		}
		return n
	}
	runSome := func() {
		c := newTestCommand(t, "cat")
		c.Stdin, c.Limits = "text", TreeLimits{MemoryBytes: 1 << 30}
		runOnWorker(t, w, c)
		c = newTestCommand(t, "exit")
		c.Stdin, c.Argv[0] = "text", "no-such-program"
		runOnWorker(t, w, c)
	}
	sys, _ := fakeSystemCalls(0)
	w.systemCalls = &sys
	for range 5 { // run some commands before counting, because new threads of this process have handles too
		runSome()
	}
	before := count()
	for range 20 {
		runSome()
	}
	if after := count(); after > before+10 {
		t.Errorf("%d handles, then %d", before, after)
	}
}

// fakeSystemCalls returns system calls whose job objects accept all limits except those of refusedLimitClass.
// *setLimits lists the limits that were set.
func fakeSystemCalls(refusedLimitClass uint32) (sys systemCalls, setLimits *[]string) {
	sys, setLimits = realSystemCalls, new([]string)
	sys.setJobInfo = func(job windows.Handle, class uint32, info unsafe.Pointer, size uintptr) error {
		if class == refusedLimitClass {
			return errors.New("refused")
		}
		switch class {
		case windows.JobObjectExtendedLimitInformation:
			l := (*windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION)(info)
			*setLimits = append(*setLimits, fmt.Sprintf("%#x memory %d tasks %d", l.BasicLimitInformation.LimitFlags,
				l.JobMemoryLimit,
				l.BasicLimitInformation.ActiveProcessLimit))
			return realSystemCalls.setJobInfo(job, class, info, size)
		case windows.JobObjectCpuRateControlInformation:
			rate := (*[2]uint32)(info)
			*setLimits = append(*setLimits, fmt.Sprintf("flags %d rate %d", rate[0], rate[1]))
		case windows.JobObjectAssociateCompletionPortInformation:
			*setLimits = append(*setLimits, "port")
		}
		return nil
	}
	return sys, setLimits
}

// The limits of a command apply to its whole process tree, and are set before the command starts.
func TestLimitsAreSetBeforeStart(t *testing.T) {
	w := NewWorker(nil)
	defer w.Close()
	sys, calls := fakeSystemCalls(0)
	w.systemCalls = &sys
	c := newTestCommand(t, "exit", "0")
	all := windows.GetActiveProcessorCount(windows.ALL_PROCESSOR_GROUPS)
	c.Limits = TreeLimits{MemoryBytes: 1 << 30, CPUs: 0.5, Tasks: 20}
	if r, _, _ := runOnWorker(t, w, c); r.ExitCode != 0 || r.OutOfMemory {
		t.Errorf("the result is %+v, want exit code 0", r)
	}
	want := []string{
		"0x2000 memory 0 tasks 0", "0x2200 memory 1073741824 tasks 0", "port", "0x2208 memory 1073741824 tasks 20",
		fmt.Sprintf("flags 5 rate %d", 5000/all),
	}
	if !slices.Equal(*calls, want) {
		t.Errorf("the limits were set as\n%q\nwant\n%q", *calls, want)
	}
	for cpus, want := range map[float64]string{1e-9: "rate 1", 1e9: "rate 10000"} {
		c := newTestCommand(t, "exit", "0")
		c.Limits = TreeLimits{CPUs: cpus}
		if runOnWorker(t, w, c); !strings.HasSuffix((*calls)[len(*calls)-1], want) {
			t.Errorf("a limit of %v CPUs was set as %q, want the last to end in %q", cpus, *calls, want)
		}
	}
}

// The nice value sets a priority class for the whole tree, before the command starts.
func TestNiceSetsPriorityClass(t *testing.T) {
	for nice, want := range map[int]uint32{
		-20: windows.HIGH_PRIORITY_CLASS, -9: windows.ABOVE_NORMAL_PRIORITY_CLASS, 1: windows.BELOW_NORMAL_PRIORITY_CLASS,
		9: windows.BELOW_NORMAL_PRIORITY_CLASS, 10: windows.IDLE_PRIORITY_CLASS, 19: windows.IDLE_PRIORITY_CLASS,
	} {
		w := NewWorker(nil)
		defer w.Close()
		sys, _ := fakeSystemCalls(0)
		var class uint32
		keep := sys.setJobInfo
		sys.setJobInfo = func(job windows.Handle, kind uint32, info unsafe.Pointer, size uintptr) error {
			if kind == windows.JobObjectExtendedLimitInformation {
				l := (*windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION)(info)
				if l.BasicLimitInformation.LimitFlags&windows.JOB_OBJECT_LIMIT_PRIORITY_CLASS != 0 {
					class = l.BasicLimitInformation.PriorityClass
				}
				return nil // do not set the limit on the real system, which may refuse it
			}
			return keep(job, kind, info, size)
		}
		w.systemCalls = &sys
		c := newTestCommand(t, "exit", "0")
		c.Nice, c.MaxOpenFiles = nice, 99
		if r, _, _ := runOnWorker(t, w, c); r.ExitCode != 0 || class != want || r.UnenforcedLimitNames != "nofile" {
			t.Errorf("nice %d: the priority class is %#x, want %#x; the result is %+v", nice, class, want, r)
		}
	}
}

// If a limit cannot be set, the command does not start, and the error names the limit.
func TestUnsettableLimitPreventsStart(t *testing.T) {
	for class, want := range map[uint32]string{
		windows.JobObjectCpuRateControlInformation:          "limit --cpus",
		windows.JobObjectAssociateCompletionPortInformation: "limit --memory",
	} {
		w := NewWorker(nil)
		defer w.Close()
		sys, _ := fakeSystemCalls(class)
		w.systemCalls = &sys
		c := newTestCommand(t, "exit", "0")
		c.Limits = TreeLimits{MemoryBytes: 1 << 30, CPUs: 1}
		if r, _, _ := runOnWorker(t, w, c); r.ExitCode != 126 || !strings.Contains(r.Error, want) || r.PID != 0 {
			t.Errorf("the result is %+[2]v, want an error about %[1]s", want, r)
		}
	}
}

// If the system refuses memory to a command at its limit and the command then fails, the result has
// OutOfMemory set. OutOfMemory is not set if the command succeeds, or reaches no limit.
func TestOutOfMemoryIsReported(t *testing.T) {
	for _, c := range []struct {
		code     string
		messages []uint32
		want     bool
	}{
		{"3", []uint32{6, jobMessageMemoryLimit, 7}, true},
		{"0", []uint32{jobMessageMemoryLimit}, false},
		{"3", []uint32{6, 7}, false},
	} {
		w := NewWorker(nil)
		defer w.Close()
		sys, _ := fakeSystemCalls(0)
		sys.nextJobMessage = func(windows.Handle) (message uint32, ok bool) {
			if len(c.messages) == 0 {
				return 0, false
			}
			message, c.messages = c.messages[0], c.messages[1:]
			return message, true
		}
		w.systemCalls = &sys
		cmd := newTestCommand(t, "exit", c.code)
		cmd.Limits = TreeLimits{MemoryBytes: 1 << 30}
		if r, _, _ := runOnWorker(t, w, cmd); r.OutOfMemory != c.want || r.ReachedMemoryLimit != c.want {
			t.Errorf("case %+v: the result is %+v", c, r)
		}
	}
}

// Windows enforces the limits of a command, and the result says that memory was refused.
func TestWindowsEnforcesCommandLimits(t *testing.T) {
	skip.UnderWine(t, "needs Windows, because Wine lacks the feature; tests with a fake job object have the rest")
	c := newTestCommand(t, "hog", "300")
	c.Limits = TreeLimits{MemoryBytes: 128 << 20}
	if r, _, _ := runCommand(t, c); r.ExitCode == 0 || !r.OutOfMemory {
		t.Errorf("memory limit: the result is %+v, want OutOfMemory", r)
	}
	c = newTestCommand(t, "exit", "0")
	c.Limits = TreeLimits{MemoryBytes: 1 << 20} // less than any program needs at its start
	if r, _, _ := runCommand(t, c); r.ResourceShortage || r.ExitCode == 0 {
		t.Errorf("too little memory: %+v", r)
	}
	c = newTestCommand(t, "behind", t.TempDir(), "lets go")
	c.Limits = TreeLimits{Tasks: 1}
	if r, _, _ := runCommand(t, c); r.ExitCode == 0 {
		t.Errorf("tasks limit: the result is %+v, want a failure", r)
	}
	c = newTestCommand(t, "spin", "2s")
	c.Limits = TreeLimits{CPUs: 0.1}
	if r, _, _ := runCommand(t, c); r.CPUTime > time.Second {
		t.Errorf("cpus limit: the result is %+v, want at most a second of CPU time", r)
	}
}
