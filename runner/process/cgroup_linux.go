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

// Cgroups is a control group (cgroups(7), version 2) of this process, which this process may divide.
// Each worker gets a subgroup, and runs one command after another in it. A process that may not write
// to the groups cannot leave its subgroup, so the processes of a subgroup are exactly one tree. All
// methods may be called concurrently. See docs/decisions/0043.
type Cgroups struct {
	path string
	// oomCountFile is the path of the file that counts out-of-memory kills in all subgroups, if cgroup
	// version 1 counts memory; "" otherwise.
	oomCountFile string

	mu             sync.Mutex
	createdCount   int      // number of subgroups created; guarded by mu
	abandonedPaths []string // paths of subgroups that were given up with processes in them; guarded by mu
}

// supervisorName is the subgroup of the runner itself. A group that has controllers for its subgroups
// must not contain processes.
const supervisorName = "supervisor"

// maxTasks is the default limit of tasks of a command, where the limit can be enforced.
const maxTasks = 4096

// NewCgroups moves this process into a subgroup of its control group, and enables the memory, pids and cpu
// controllers for all subgroups. The system must have delegated the group to this process (systemd:
// Delegate=yes). If a controller cannot be enabled, NewCgroups returns the groups together with an error
// that names the controller.
func NewCgroups() (*Cgroups, error) {
	path, err := ownCgroup()
	if err != nil {
		return nil, err
	}
	supervisor := filepath.Join(path, supervisorName)
	err = os.Mkdir(supervisor, 0o755)
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = os.WriteFile(filepath.Join(supervisor, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
	}
	controllers, readErr := os.ReadFile(filepath.Join(path, "cgroup.controllers"))
	if err := cmp.Or(err, readErr); err != nil {
		return nil, fmt.Errorf("cannot set up control groups; check that the runner's systemd unit has Delegate=yes: %w", err)
	}
	var refused error
	for _, c := range strings.Fields(string(controllers)) {
		if c == "memory" || c == "pids" || c == "cpu" {
			if err := os.WriteFile(filepath.Join(path, "cgroup.subtree_control"), []byte("+"+c), 0); err != nil {
				refused = errors.Join(refused, fmt.Errorf("cannot enable the control group controller %s: %w", c, err))
			}
		}
	}
	return &Cgroups{path: path, oomCountFile: oomCountFileV1()}, refused
}

// oomCountFileV1 returns the file of this process's version 1 group that counts the processes killed because
// memory ran out. It returns "" if version 1 does not count memory.
func oomCountFileV1() string {
	raw, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(raw)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && slices.Contains(strings.Split(f[1], ","), "memory") {
			return filepath.Join("/sys/fs/cgroup/memory", f[2], "memory.oom_control")
		}
	}
	return ""
}

// ownCgroup returns the directory of this process's version 2 group. Version 2 may be mounted next to
// version 1.
func ownCgroup() (string, error) {
	raw, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(raw)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
			_, procsErr := os.Stat(filepath.Join(root, path, "cgroup.procs"))
			_, controllersErr := os.Stat(filepath.Join(root, path, "cgroup.controllers"))
			if procsErr == nil && controllersErr == nil {
				return filepath.Join(root, path), nil
			}
		}
	}
	return "", errors.New("control groups (cgroup v2) are not available")
}

// Chown makes an account the owner of the group, so that it may create subgroups. It must be called
// before this process switches to that account.
func (c *Cgroups) Chown(uid, gid int) error {
	const ownLimit = supervisorName + "/memory.max" // does not exist without a controller for memory
	var errs error
	for _, name := range []string{".", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads", supervisorName,
		supervisorName + "/cgroup.procs", ownLimit} {
		err := os.Chown(filepath.Join(c.path, name), uid, gid)
		if name != ownLimit || !errors.Is(err, fs.ErrNotExist) {
			errs = errors.Join(errs, err)
		}
	}
	return errs
}

// LimitOwnMemory limits the memory of this process, in bytes. The memory of commands does not count,
// because they are in other groups. If it returns an error, no limit is set.
func (c *Cgroups) LimitOwnMemory(bytes int64) error {
	err := os.WriteFile(filepath.Join(c.path, supervisorName, "memory.max"), []byte(strconv.FormatInt(bytes, 10)), 0)
	if err != nil {
		return fmt.Errorf("cannot limit the memory of the runner's control group: %w", err)
	}
	return nil
}

// cgroup is the control group of one worker.
type cgroup struct {
	path            string
	dirFD           int        // descriptor of its directory
	eventsFD        int        // descriptor of cgroup.events
	memoryEventsFD  int        // descriptor of memory.events, or of Cgroups.oomCountFile; -1 if memory is not counted
	countsAllGroups bool       // the file of memory counts the kills in all groups together
	limits          TreeLimits // the current limits; Tasks is never 0
	missingLimits   []string   // names of the current limits that no controller enforces
	// Latest values of the kernel's counters. killCount counts processes killed because memory ran out.
	// limitHitCount counts how often the memory limit was reached in the group or below it, ownLimitHitCount in
	// the group itself.
	killCount, limitHitCount, ownLimitHitCount int64
	// wasKilled means that cgroup.kill has ended the processes of the group. The group is not used again:
	// since Linux 6.15, the kernel also kills processes that are started in it later.
	wasKilled bool
	// wasUsed means that a command was in the group. pids.peak cannot be reset, so it may be the peak of
	// that command.
	wasUsed bool
}

// newCgroup creates a group for a worker. A worker without a group finds trees by process group, session
// and cookie.
func (c *Cgroups) newCgroup() (*cgroup, error) {
	path, err := c.makeGroup()
	if err != nil {
		return nil, err
	}
	b := &cgroup{path: path, dirFD: -1, eventsFD: -1, memoryEventsFD: -1}
	if b.dirFD, err = unix.Open(path, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		b.eventsFD, err = unix.Open(path+"/cgroup.events", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		c.abandon(b)
		return nil, err
	}
	b.memoryEventsFD, err = unix.Open(path+"/memory.events", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if b.countsAllGroups = err != nil; b.countsAllGroups {
		if b.memoryEventsFD, err = unix.Open(c.oomCountFile, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			b.memoryEventsFD = -1
		}
	}
	if _, err := b.setLimits(TreeLimits{}); err != nil {
		c.abandon(b)
		return nil, err
	}
	return b, nil
}

// cpuPeriodMicros is the length of a period of the CPU limit, in microseconds.
const cpuPeriodMicros = 100_000

// setLimits sets the limits for the group's next command. It returns the names of the limits that no
// controller enforces.
func (c *cgroup) setLimits(l TreeLimits) (missing []string, err error) {
	l.Tasks = cmp.Or(l.Tasks, maxTasks)
	if l == c.limits {
		return c.missingLimits, nil
	}
	set := func(name, file, value string) {
		failed := os.WriteFile(filepath.Join(c.path, file), []byte(value), 0)
		switch {
		// The group has no controller for this limit.
		case errors.Is(failed, fs.ErrNotExist), errors.Is(failed, fs.ErrPermission):
			missing = append(missing, name)
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
		c.limits = TreeLimits{-1, -1, -1} // the current limits are unknown, so the next command sets all of them
		return nil, err
	}
	c.limits, c.missingLimits = l, missing
	return missing, nil
}

// makeGroup creates a new group. It skips names that an earlier runner in the same control group has
// left behind.
func (c *Cgroups) makeGroup() (path string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range maxGroupNames {
		c.createdCount++
		path = filepath.Join(c.path, "job-"+strconv.Itoa(c.createdCount))
		if err = os.Mkdir(path, 0o755); !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	return path, err
}

// maxGroupNames is how many names makeGroup tries.
const maxGroupNames = 100_000

// abandon gives up a group. If the group still has processes, Sweep removes it later.
func (c *Cgroups) abandon(b *cgroup) {
	closeDescriptors(&b.dirFD, &b.eventsFD, &b.memoryEventsFD)
	if os.Remove(b.path) == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abandonedPaths = append(c.abandonedPaths, b.path)
}

// Sweep removes groups that were given up and whose processes have ended.
func (c *Cgroups) Sweep() {
	c.mu.Lock()
	paths := c.abandonedPaths
	c.abandonedPaths = nil
	c.mu.Unlock()
	kept := slices.DeleteFunc(paths, func(path string) bool { // without the lock, since workers wait for it
		err := os.Remove(path)
		return err == nil || errors.Is(err, fs.ErrNotExist)
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abandonedPaths = append(c.abandonedPaths, kept...)
}

// isEmpty reports whether neither the group nor its subgroups contain a process.
func (c *cgroup) isEmpty() bool {
	var buf [64]byte
	n, err := unix.Pread(c.eventsFD, buf[:], 0)
	return err == nil && bytes.Contains(buf[:n], []byte("populated 0"))
}

// procs lists the living processes in the group and its subgroups, except the one with the pid in
// except.
func (c *cgroup) procs(except int) (list []procfs.Process) {
	if c.isEmpty() {
		return nil
	}
	filepath.WalkDir(c.path, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // the entry has disappeared, or is a file
		}
		raw, _ := os.ReadFile(filepath.Join(path, "cgroup.procs")) // a removed group has no processes
		for field := range bytes.FieldsSeq(raw) {
			if pid, err := strconv.Atoi(string(field)); err == nil && pid != except {
				if p, ok := procfs.Stat(pid); ok && p.Alive() {
					list = append(list, p)
				}
			}
		}
		return nil
	})
	return list
}

// kill ends all processes in the group and its subgroups. It reports whether the kernel supports
// cgroup.kill (Linux 5.14).
func (c *cgroup) kill() bool {
	c.wasKilled = true
	return os.WriteFile(c.path+"/cgroup.kill", []byte("1"), 0) == nil
}

// peakTasks returns the most tasks that existed at one time in the group since it was created. It
// returns 0 if the kernel does not report the number (before Linux 6.1) or no controller counts
// tasks.
func (c *cgroup) peakTasks() int64 {
	raw, _ := os.ReadFile(filepath.Join(c.path, "pids.peak"))
	n, _ := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	return max(0, n)
}

// oomKills describes what the kernel did because memory ran out while a command ran.
type oomKills struct {
	processKilled bool // the kernel killed a process of the command
	atLimit       bool // the kernel killed processes because the command reached its own memory limit
}

// takeOOMKills returns the out-of-memory kills since its last call. If cgroup version 1 counts memory, the
// killed process may be any process of the runner.
func (c *cgroup) takeOOMKills() (result oomKills) {
	if c.memoryEventsFD < 0 {
		return result
	}
	var buf [256]byte
	n, _ := unix.Pread(c.memoryEventsFD, buf[:], 0)
	events := buf[:max(n, 0)]
	if kills := parseCounter(events, "oom_kill "); kills > c.killCount {
		result.processKilled, c.killCount = true, kills
	}
	if reached := parseCounter(events, "oom "); reached > c.limitHitCount && !c.countsAllGroups {
		c.limitHitCount = reached // the limit of a subgroup may have been reached instead, so compare memory.events.local
		raw, _ := os.ReadFile(filepath.Join(c.path, "memory.events.local"))
		if localReached := parseCounter(raw, "oom "); localReached > c.ownLimitHitCount {
			result.atLimit, c.ownLimitHitCount = result.processKilled, localReached
		}
	}
	return result
}

// parseCounter returns the number after a name in a file of the kernel; 0 if the name is missing.
func parseCounter(file []byte, name string) int64 {
	for line := range strings.Lines(string(file)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return n
		}
	}
	return 0
}
