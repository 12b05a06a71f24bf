package process

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/runner/procfs"
)

// Cgroups divides the control group (cgroups(7), version 2) of this process into subgroups, one for each
// worker. A worker runs its commands in its subgroup, one after another. Commands may not write to the
// groups, so a process cannot leave its subgroup. A subgroup therefore contains all processes of one command
// and nothing else. All methods may be called concurrently. See docs/decisions/0043.
type Cgroups struct {
	parentPath string
	// oomKillCountFile is the path of a file of cgroup version 1, which counts out-of-memory kills in all subgroups
	// together. It is "" if version 1 does not manage the memory.
	oomKillCountFile string

	mu              sync.Mutex
	lastGroupNumber int // number in the name of the newest subgroup; guarded by mu
	// abandonedPaths lists the subgroups that are not used any more, but could not be removed yet; guarded by mu.
	abandonedPaths []string
}

// supervisorGroupName is the name of the subgroup for this process itself. The kernel does not allow a group to have
// both processes and controllers for its subgroups. So this process may not stay in the group that it divides into
// subgroups.
const supervisorGroupName = "supervisor"

// defaultMaxTasks limits the tasks (processes and threads) of a command that sets no limit of tasks itself. A control
// group enforces the limit.
const defaultMaxTasks = 4096

// NewCgroups moves this process into a subgroup of its control group, and enables the memory, pids and cpu
// controllers for all subgroups. The system must have delegated the group to this process (systemd:
// Delegate=yes). If a controller cannot be enabled, NewCgroups returns an error that names it, and a usable
// Cgroups without this controller.
func NewCgroups() (*Cgroups, error) {
	path, oomKillCountFile, err := ownCgroupPaths()
	if err != nil {
		return nil, err
	}
	supervisor := filepath.Join(path, supervisorGroupName)
	err = os.Mkdir(supervisor, 0o755)
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = writeCgroupFile(supervisor, "cgroup.procs", strconv.Itoa(os.Getpid()))
	}
	controllers, readErr := os.ReadFile(filepath.Join(path, "cgroup.controllers"))
	if err := cmp.Or(err, readErr); err != nil {
		return nil, fmt.Errorf("cannot set up control groups; check that the runner's systemd unit has Delegate=yes: %w", err)
	}
	var controllerErrs error
	for _, c := range strings.Fields(string(controllers)) {
		if c == "memory" || c == "pids" || c == "cpu" {
			if err := writeCgroupFile(path, "cgroup.subtree_control", "+"+c); err != nil {
				controllerErrs = errors.Join(controllerErrs,
					fmt.Errorf("cannot enable the control group controller %s: %w", c, err))
			}
		}
	}
	return &Cgroups{parentPath: path, oomKillCountFile: oomKillCountFile}, controllerErrs
}

// writeCgroupFile writes a value to a file of a control group.
func writeCgroupFile(groupPath, file, value string) error {
	return os.WriteFile(filepath.Join(groupPath, file), []byte(value), 0)
}

// ownCgroupPaths returns the directory of this process's version 2 group. It also works if both cgroup versions are
// mounted. oomKillCountFile is the path of a file of the version 1 group of this process. The file counts the processes
// that the kernel killed because memory ran out. It is "" if version 1 does not manage the memory.
func ownCgroupPaths() (groupPath, oomKillCountFile string, err error) {
	raw, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(string(raw)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3) // the form is HIERARCHY:CONTROLLERS:PATH
		switch {
		case len(f) < 3:
		case slices.Contains(strings.Split(f[1], ","), "memory"):
			oomKillCountFile = filepath.Join("/sys/fs/cgroup/memory", f[2], "memory.oom_control")
		case f[0] == "0": // the hierarchy of version 2
			for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
				_, procsErr := os.Stat(filepath.Join(root, f[2], "cgroup.procs"))
				_, controllersErr := os.Stat(filepath.Join(root, f[2], "cgroup.controllers"))
				if groupPath == "" && procsErr == nil && controllersErr == nil {
					groupPath = filepath.Join(root, f[2])
				}
			}
		}
	}
	if groupPath == "" {
		err = errors.New("control groups (cgroup v2) are not available")
	}
	return groupPath, oomKillCountFile, err
}

// Chown gives the group to an account, so that the account may create subgroups. Call it before this process
// switches to the account.
func (c *Cgroups) Chown(uid, gid int) error {
	const ownLimit = supervisorGroupName + "/memory.max" // this file does not exist without a controller for memory
	var errs error
	for _, name := range []string{".", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads", supervisorGroupName,
		supervisorGroupName + "/cgroup.procs", ownLimit} {
		err := os.Chown(filepath.Join(c.parentPath, name), uid, gid)
		if name != ownLimit || !errors.Is(err, fs.ErrNotExist) {
			errs = errors.Join(errs, err)
		}
	}
	return errs
}

// LimitThisProcessMemory limits the memory of this process to maxBytes. The limit does not include commands, which are
// in other groups. If LimitThisProcessMemory returns an error, no limit is set.
func (c *Cgroups) LimitThisProcessMemory(maxBytes int64) error {
	if err := writeCgroupFile(c.parentPath, supervisorGroupName+"/memory.max",
		strconv.FormatInt(maxBytes, 10)); err != nil {
		return fmt.Errorf("cannot limit the memory of the runner's control group: %w", err)
	}
	return nil
}

// cgroup is the control group of one worker.
type cgroup struct {
	path     string
	dirFD    int // descriptor of its directory
	eventsFD int // descriptor of cgroup.events
	// descriptor of memory.events, or of Cgroups.oomKillCountFile; -1 if memory is not counted
	memoryEventsFD         int
	countsKillsOfAllGroups bool // memoryEventsFD counts the kills in all groups together, as cgroup version 1 does
	// the current limits; Tasks is not 0, because setLimits replaces 0 by defaultMaxTasks
	limits               TreeLimits
	unenforcedLimitNames []string // names of the current limits that no controller enforces
	// The last values of three counters of the kernel. oomKillCount counts processes that were killed because memory ran
	// out. memoryLimitHitCount counts how often this group or one of its subgroups reached its memory limit.
	// ownMemoryLimitHitCount counts how often this group itself reached its limit.
	oomKillCount, memoryLimitHitCount, ownMemoryLimitHitCount int64
	// wasKilled means that cgroup.kill has ended the processes of the group. The group is not used again,
	// because since Linux 6.15 the kernel also kills processes that enter the group later.
	wasKilled bool
	// hasRunEarlierCommand means that an earlier command ran in the group. The file pids.peak, which cannot be reset, may
	// then contain a peak of tasks that is higher than that of the next command.
	hasRunEarlierCommand bool
}

// newCgroup creates a group for a worker. If newCgroup fails, the worker has no group. The worker then finds the
// processes of a tree by their process group, session and cookie.
func (c *Cgroups) newCgroup() (*cgroup, error) {
	path, err := c.createGroupDir()
	if err != nil {
		return nil, err
	}
	b := &cgroup{path: path, dirFD: -1, eventsFD: -1, memoryEventsFD: -1}
	if b.dirFD, err = unix.Open(path, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		b.eventsFD, err = unix.Open(path+"/cgroup.events", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		c.abandonGroup(b)
		return nil, err
	}
	b.memoryEventsFD, err = unix.Open(path+"/memory.events", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if b.countsKillsOfAllGroups = err != nil; b.countsKillsOfAllGroups {
		if b.memoryEventsFD, err = unix.Open(c.oomKillCountFile, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			b.memoryEventsFD = -1
		}
	}
	if _, err := b.setLimits(TreeLimits{}); err != nil {
		c.abandonGroup(b)
		return nil, err
	}
	return b, nil
}

// cpuPeriodMicros is the length of a period of the CPU limit, in microseconds.
const cpuPeriodMicros = 100_000

// setLimits sets the limits for the group's next command. It returns the names of the limits that no
// controller enforces.
func (c *cgroup) setLimits(l TreeLimits) (unenforcedLimitNames []string, err error) {
	l.Tasks = cmp.Or(l.Tasks, defaultMaxTasks)
	if l == c.limits {
		return c.unenforcedLimitNames, nil
	}
	set := func(name, file, value string) {
		switch failed := writeCgroupFile(c.path, file, value); {
		// The group has no controller for this limit.
		case errors.Is(failed, fs.ErrNotExist), errors.Is(failed, fs.ErrPermission):
			unenforcedLimitNames = append(unenforcedLimitNames, name)
		case failed != nil:
			err = errors.Join(err, fmt.Errorf("cannot set the job's limit --%s; change or remove the limit: %w", name, failed))
		}
	}
	limitText := func(n int64) string {
		if n == 0 {
			return "max"
		}
		return strconv.FormatInt(n, 10)
	}
	if l.MemoryBytes != 0 || c.limits.MemoryBytes != 0 {
		set("memory", "memory.max", limitText(l.MemoryBytes))
	}
	if l.CPUs != 0 || c.limits.CPUs != 0 {
		set("cpus", "cpu.max", fmt.Sprintf("%s %d", limitText(int64(l.CPUs*cpuPeriodMicros)), cpuPeriodMicros))
	}
	set("tasks", "pids.max", strconv.Itoa(l.Tasks))
	if err != nil {
		// After an error, the group has unknown limits; setLimits then sets all limits for the next command.
		c.limits = TreeLimits{-1, -1, -1}
		return nil, err
	}
	c.limits, c.unenforcedLimitNames = l, unenforcedLimitNames
	return unenforcedLimitNames, nil
}

// createGroupDir creates the directory of a new group. Groups that an earlier runner has left behind may exist, so
// it tries the next name until one is free.
func (c *Cgroups) createGroupDir() (path string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range maxGroupNameTries {
		c.lastGroupNumber++
		path = filepath.Join(c.parentPath, "job-"+strconv.Itoa(c.lastGroupNumber))
		if err = os.Mkdir(path, 0o755); !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	return path, err
}

// maxGroupNameTries is how many names createGroupDir tries before it returns an error.
const maxGroupNameTries = 100_000

// abandonGroup stops using a group and removes it. If the group still has processes, RemoveAbandonedGroups removes it
// later.
func (c *Cgroups) abandonGroup(group *cgroup) {
	closeDescriptors(&group.dirFD, &group.eventsFD, &group.memoryEventsFD)
	if os.Remove(group.path) == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abandonedPaths = append(c.abandonedPaths, group.path)
}

// RemoveAbandonedGroups removes groups that are no longer used and whose processes have ended.
func (c *Cgroups) RemoveAbandonedGroups() {
	c.mu.Lock()
	paths := c.abandonedPaths
	c.abandonedPaths = nil
	c.mu.Unlock()
	// Do not hold mu during the removal, which may take long, because workers wait for mu.
	kept := slices.DeleteFunc(paths, func(path string) bool {
		err := os.Remove(path)
		return err == nil || errors.Is(err, fs.ErrNotExist)
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abandonedPaths = append(c.abandonedPaths, kept...)
}

// isEmpty reports whether neither the group nor its subgroups contain a process.
func (c *cgroup) isEmpty() bool { return c.hasEventLine("populated 0") }

// hasEventLine reports whether the file cgroup.events contains a line.
func (c *cgroup) hasEventLine(line string) bool {
	var buf [64]byte
	n, err := unix.Pread(c.eventsFD, buf[:], 0)
	return err == nil && bytes.Contains(buf[:n], []byte(line))
}

// listProcesses lists the living processes in the group and its subgroups, without the process exceptPID.
func (c *cgroup) listProcesses(exceptPID int) (processes []procfs.Process) {
	if c.isEmpty() {
		return nil
	}
	filepath.WalkDir(c.path, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // skip an entry that has disappeared or is a file
		}
		raw, _ := os.ReadFile(filepath.Join(path, "cgroup.procs")) // ignore an error: a removed group has no processes
		for field := range bytes.FieldsSeq(raw) {
			if pid, err := strconv.Atoi(string(field)); err == nil && pid != exceptPID {
				if p, ok := procfs.Stat(pid); ok && p.WasAlive() {
					processes = append(processes, p)
				}
			}
		}
		return nil
	})
	return processes
}

// kill ends all processes in the group and its subgroups. It returns false and ends no process if the kernel
// does not support cgroup.kill (before Linux 5.14).
func (c *cgroup) kill() bool {
	c.wasKilled = true
	return writeCgroupFile(c.path, "cgroup.kill", "1") == nil
}

// peakTasks returns the most tasks that existed at one time in the group since it was created. It returns 0 if the
// kernel does not report this number (before Linux 6.1) or if no controller counts tasks.
func (c *cgroup) peakTasks() int64 {
	raw, _ := os.ReadFile(filepath.Join(c.path, "pids.peak"))
	n, _ := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	return max(0, n)
}

// oomReport reports which processes of a command the kernel killed because memory ran out.
type oomReport struct {
	processKilled   bool // the kernel killed a process of the command
	ownLimitReached bool // the kernel killed processes because the command reached its own memory limit
}

// takeOOMKills returns the out-of-memory kills since its last call. If cgroup version 1 manages the memory, the killed
// processes can belong to any command of this runner.
func (c *cgroup) takeOOMKills() (report oomReport) {
	if c.memoryEventsFD < 0 {
		return report
	}
	var buf [256]byte
	n, _ := unix.Pread(c.memoryEventsFD, buf[:], 0)
	events := buf[:max(n, 0)]
	if kills := parseCounter(events, "oom_kill "); kills > c.oomKillCount {
		report.processKilled, c.oomKillCount = true, kills
	}
	if reached := parseCounter(events, "oom "); reached > c.memoryLimitHitCount && !c.countsKillsOfAllGroups {
		c.memoryLimitHitCount = reached // this counter includes subgroups, so read memory.events.local too
		raw, _ := os.ReadFile(filepath.Join(c.path, "memory.events.local"))
		if localReached := parseCounter(raw, "oom "); localReached > c.ownMemoryLimitHitCount {
			report.ownLimitReached, c.ownMemoryLimitHitCount = report.processKilled, localReached
		}
	}
	return report
}

// parseCounter returns the number after counterName in one of the kernel's counter files, or 0 if the file does not
// contain this name.
func parseCounter(counterFile []byte, counterName string) int64 {
	for line := range strings.Lines(string(counterFile)) {
		if value, ok := strings.CutPrefix(line, counterName); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return n
		}
	}
	return 0
}
