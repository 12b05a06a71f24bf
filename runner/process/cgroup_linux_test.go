package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/skip"
)

// A control group has the limits of its current command. Limits that no controller enforces are reported as missing for
// each command, even if the command before had the same limits.
func TestCgroupAppliesLimitsOfCurrentCommand(t *testing.T) {
	b := &cgroup{path: t.TempDir()}
	for _, name := range []string{"memory.max", "cpu.max", "pids.max"} {
		if err := os.WriteFile(filepath.Join(b.path, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		limits TreeLimits
		want   string
	}{
		{TreeLimits{}, "||4096"},
		{TreeLimits{MemoryBytes: 1 << 20, CPUs: 0.5, Tasks: 7}, "1048576|50000 100000|7"},
		{TreeLimits{CPUs: 2}, "max|200000 100000|4096"},
		{TreeLimits{}, "max|max 100000|4096"},
	} {
		missing, err := b.setLimits(c.limits)
		var got []string
		for _, name := range []string{"memory.max", "cpu.max", "pids.max"} {
			raw, _ := os.ReadFile(filepath.Join(b.path, name))
			got = append(got, string(raw))
		}
		if text := strings.Join(got, "|"); text != c.want || missing != nil || err != nil {
			t.Errorf("limits %+v: the files contain %q, missing %v, error %v; want %q",
				c.limits, text, missing, err, c.want)
		}
	}
	cpu := filepath.Join(b.path, "cpu.max")
	if err := errors.Join(os.Remove(cpu), os.Mkdir(cpu, 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.setLimits(TreeLimits{MemoryBytes: 1 << 20, CPUs: 1}); err == nil {
		t.Error("a limit that cannot be written: no error")
	}
	if err := errors.Join(os.Remove(cpu), os.WriteFile(cpu, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if missing, err := b.setLimits(TreeLimits{}); err != nil {
		t.Errorf("the next command: %v, %v", missing, err)
	}
	for name, want := range map[string]string{"memory.max": "max", "cpu.max": "max 100000"} {
		if raw, _ := os.ReadFile(filepath.Join(b.path, name)); string(raw) != want {
			t.Errorf("the next command has the limits of a command that did not start: %s is %q", name, raw)
		}
	}
	none := &cgroup{path: filepath.Join(t.TempDir(), "gone")}
	for range 2 {
		if missing, err := none.setLimits(TreeLimits{MemoryBytes: 1 << 20}); err != nil || strings.Join(missing,
			" ") != "memory tasks" {
			t.Errorf("without controllers: got %v, %v", missing, err)
		}
	}
}

// An out-of-memory kill counts as reaching the command's own limit only if the command's group itself reached its
// limit. Otherwise memory ran out in the whole machine, in a parent group, or in a subgroup.
func TestOOMKillReportsOwnLimitOnlyIfReached(t *testing.T) {
	dir := t.TempDir()
	set := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set("memory.events", "")
	memory, err := unix.Open(filepath.Join(dir, "memory.events"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(memory)
	b := &cgroup{path: dir, memoryEventsFD: memory}
	for _, c := range []struct {
		what string
		// Counts since the group was created (cgroup-v2.rst): "oom" and "oom_kill" in memory.events, and "oom" in
		// memory.events.local.
		reached, killed, ownReached int
		want                        oomReport
	}{
		{"nothing", 0, 0, 0, oomReport{}},
		{"its limit", 1, 1, 1, oomReport{true, true}},
		{"nothing more", 1, 1, 1, oomReport{}},
		{"the machine's memory", 1, 2, 1, oomReport{true, false}},
		{"an allocation refused", 2, 2, 2, oomReport{}},
		{"the limit of a group below", 3, 3, 2, oomReport{true, false}},
		{"its limit again", 4, 5, 3, oomReport{true, true}},
	} {
		events := func(oom, kills int) string {
			return fmt.Sprintf("low 0\nhigh 0\nmax 9\noom %d\noom_kill %d\noom_group_kill 0\n", oom, kills)
		}
		set("memory.events", events(c.reached, c.killed))
		set("memory.events.local", events(c.ownReached, c.killed))
		if got := b.takeOOMKills(); got != c.want {
			t.Errorf("%s: takeOOMKills returned %+v, want %+v", c.what, got, c.want)
		}
	}
	// Remove the file that Linux before 5.2 does not have.
	if err := os.Remove(filepath.Join(dir, "memory.events.local")); err != nil {
		t.Fatal(err)
	}
	set("memory.events", "oom 5\noom_kill 6\n")
	if got := b.takeOOMKills(); got != (oomReport{true, false}) {
		t.Errorf("without memory.events.local: got %+v", got)
	}
}

// If the kernel kills a child process at the command's memory limit, the result reports this, even if the
// main process survives and fails with an exit code.
func TestChildKilledAtTheMemoryLimitIsReported(t *testing.T) {
	got := Result{ExitCode: 137}
	(&runningCommand{runState: runState{result: &got}}).recordOutOfMemory(oomReport{processKilled: true,
		ownLimitReached: true})
	if want := (Result{ExitCode: 137, ReachedMemoryLimit: true}); got != want {
		t.Errorf("the result is %+v, want %+v", got, want)
	}
}

// LimitThisProcessMemory sets the limit on the group of this process. It returns an error if no controller can
// enforce the limit.
func TestLimitOwnMemorySetsGroupLimit(t *testing.T) {
	c := &Cgroups{parentPath: t.TempDir()}
	own := filepath.Join(c.parentPath, supervisorGroupName)
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(own, "memory.max"), []byte("max"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.LimitThisProcessMemory(1 << 28); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(filepath.Join(own, "memory.max")); err != nil || string(raw) != "268435456" {
		t.Errorf("memory.max contains %q, error %v; want 268435456", raw, err)
	}
	if err := os.RemoveAll(own); err != nil {
		t.Fatal(err)
	}
	if err := c.LimitThisProcessMemory(1 << 28); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the controller: %v", err)
	}
}

// newTestCgroups creates a control group (version 2) that a test may divide.
func newTestCgroups(t *testing.T) *Cgroups {
	t.Helper()
	skip.UnlessRoot(t, "needs root to make control groups; "+
		".ci/run runs it as root, and packaging/test/scenario/limits.sh has them")
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var cgroupFS unix.Statfs_t
		if unix.Statfs(root, &cgroupFS) != nil || cgroupFS.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		path := filepath.Join(root, fmt.Sprintf("queuectl-test-%d", os.Getpid()))
		if err := os.Mkdir(path, 0o755); errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		c := &Cgroups{parentPath: path}
		t.Cleanup(func() {
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
				c.RemoveAbandonedGroups()
				if os.Remove(path) == nil || time.Now().After(deadline) {
					break
				}
			}
			if left, _ := filepath.Glob(path + "/job-*"); left != nil {
				t.Errorf("groups are left: %v", left)
			}
		})
		return c
	}
	skip.MissingRequirement(t, "cgroup2", "needs control groups of version 2; packaging/test/scenario/limits.sh has them")
	return nil
}

// runShellLine runs a shell command line on w. It returns the result and the output of the command.
func (w *Worker) runShellLine(t *testing.T, commandLine string) (Result, string) {
	t.Helper()
	c := newTestCommand(t, "/bin/sh", "-c", commandLine)
	r := w.Run(c)
	return r, c.output(t)
}

// A command's leftover processes end with its control group, even if they changed their session and
// environment. The worker's next command gets another group, because since Linux 6.15 a group in which
// cgroup.kill was used also kills processes that enter it later.
func TestCgroupKillEndsDetachedProcesses(t *testing.T) {
	groups := newTestCgroups(t)
	// Create a group that an earlier runner seems to have left behind.
	if err := os.Mkdir(filepath.Join(groups.parentPath, "job-1"), 0o755); err != nil {
		t.Fatal(err)
	}
	groups.abandonedPaths = append(groups.abandonedPaths, filepath.Join(groups.parentPath, "job-1"))
	w := NewWorker(groups)
	defer w.Close()
	r, stdout := w.runShellLine(t, "cat /proc/self/cgroup; setsid env -i sleep 4321 & echo $!")
	lines := strings.Fields(stdout)
	if r.EndedLeftoverCount != 1 || r.ExitCode != 0 || !strings.Contains(stdout, "/queuectl-test-") {
		t.Errorf("%+v, %q; want one process left behind, in its own control group", r, stdout)
	}
	for range 3 {
		if r, stdout := w.runShellLine(t, "echo fine"); r.ExitCode != 0 || stdout != "fine\n" {
			t.Errorf("after a tree was ended: %+v, %q", r, stdout)
		}
	}
	if raw, _ := os.ReadFile("/proc/" + lines[len(lines)-1] + "/cmdline"); strings.Contains(string(raw), "4321") {
		t.Errorf("process %s is still running", lines[len(lines)-1])
	}
}

// A command with a limit of tasks gets a new group, because the peak of tasks that the kernel reports counts from the
// creation of the group. A command without such a limit reuses the group of the command before it.
func TestPeakTasksCountOnlyOwnCommand(t *testing.T) {
	groups := newTestCgroups(t)
	w := NewWorker(groups)
	defer w.Close()
	groupOfRun := func(tasks int) string {
		c := newTestCommand(t, "/bin/sh", "-c", "sed -n s/^0:://p /proc/self/cgroup")
		c.Limits.Tasks = tasks
		r := w.Run(c)
		path := filepath.Join(filepath.Dir(groups.parentPath), strings.TrimSpace(c.output(t)))
		raw, _ := os.ReadFile(filepath.Join(path, "pids.peak")) // unreadable if no controller counts tasks
		if want := strings.TrimSpace(string(raw)); tasks != 0 && want != "" && fmt.Sprint(r.PeakTasks) != want ||
			tasks == 0 && r.PeakTasks != 0 {
			t.Errorf("the peak is %d, and the group's %q", r.PeakTasks, want)
		}
		return filepath.Base(path)
	}
	got := []string{groupOfRun(0), groupOfRun(0), groupOfRun(50), groupOfRun(50), groupOfRun(0), groupOfRun(50)}
	if want := []string{"job-1", "job-1", "job-2", "job-3", "job-3", "job-4"}; !slices.Equal(got, want) {
		t.Errorf("the commands ran in the groups %v, want %v", got, want)
	}
	b := &cgroup{path: t.TempDir()}
	if n := b.peakTasks(); n != 0 {
		t.Errorf("without a counter: %d", n)
	}
	if err := os.WriteFile(filepath.Join(b.path, "pids.peak"), []byte("12\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n := b.peakTasks(); n != 12 {
		t.Errorf("peakTasks returned %d, want 12", n)
	}
}

// A command may leave, remove or divide its control group if it has the right to write to it. The worker's next command
// then gets a new group. If the program of the next command is missing, the result still says so, and does not report a
// shortage of resources.
func TestLostCgroupIsReplaced(t *testing.T) {
	groups := newTestCgroups(t)
	w := NewWorker(groups)
	defer w.Close()
	leave := fmt.Sprintf(`own=%s/$(basename "$(sed -n s/^0:://p /proc/self/cgroup)"); echo $$ >%[1]s/cgroup.procs; `,
		groups.parentPath)
	for _, c := range []struct{ what, line string }{
		{"removed", "for i in 1 2 3 4 5; do rmdir $own && exit 0; sleep 0.1; done; cat $own/cgroup.procs; exit 1"},
		{"divided", "mkdir $own/below; echo threaded >$own/below/cgroup.type; echo fine"},
	} {
		if r, stdout := w.runShellLine(t, leave+c.line); r.ExitCode != 0 {
			t.Fatalf("%s: the command that changes its group failed: %+v, output %q", c.what, r, stdout)
		}
		for range 2 {
			if r, stdout := w.runShellLine(t, "echo fine"); r.ExitCode != 0 || stdout != "fine\n" {
				t.Errorf("after a group was %s: %+v, %q", c.what, r, stdout)
			}
		}
	}
	left, _ := filepath.Glob(groups.parentPath + "/job-*/below")
	for _, name := range left {
		os.Remove(name)
	}
	if r, _ := w.runShellLine(t, "exec /no/such/program"); r.ExitCode != 127 || r.ResourceShortage {
		t.Errorf("a missing program: %+v", r)
	}
}
