package process

import (
	"bytes"
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
)

// Cgroups is a control group (cgroups(7), version 2) of this process that it may divide:
// each worker gets one below it, for one command after another. What may not write to the
// groups does not leave its own, so that a tree is what is in it. Its methods may be
// called at once.
// See docs/decisions/0043.
type Cgroups struct {
	path   string
	memory string // the file that tells of all that is below, where version 1 counts memory; else ""

	mu   sync.Mutex
	made int      // guarded by mu
	left []string // still with processes when they were given up; guarded by mu
}

// supervisorName is the group of the runner itself: one that is divided has no
// processes of its own.
const supervisorName = "supervisor"

// maxTasks is how many tasks a command may have where that can be enforced.
const maxTasks = 4096

// Divide moves this process into a group below its own, and has the controllers that
// there are count what is in the others. It is for a group that the system has handed
// over (systemd: Delegate=yes). Where a controller refuses the error says so, and there
// are groups all the same.
func Divide() (*Cgroups, error) {
	path, err := ownCgroup()
	if err != nil {
		return nil, err
	}
	own := filepath.Join(path, supervisorName)
	if err := os.Mkdir(own, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("set up control groups: %w", err)
	}
	if err := os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		return nil, fmt.Errorf("set up control groups: %w", err)
	}
	controllers, err := os.ReadFile(filepath.Join(path, "cgroup.controllers"))
	if err != nil {
		return nil, fmt.Errorf("set up control groups: %w", err)
	}
	var refused error
	for _, c := range strings.Fields(string(controllers)) {
		if c == "memory" || c == "pids" || c == "cpu" {
			if err := os.WriteFile(filepath.Join(path, "cgroup.subtree_control"), []byte("+"+c), 0); err != nil {
				refused = errors.Join(refused, fmt.Errorf("enable the control group controller %s: %w", c, err))
			}
		}
	}
	return &Cgroups{path: path, memory: memoryV1()}, refused
}

// memoryV1 is the file of this process's group of version 1 that tells how often the
// kernel has ended a process there for want of memory; "" where that is not counted so.
func memoryV1() string {
	raw, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(raw)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && slices.Contains(strings.Split(f[1], ","), "memory") {
			return filepath.Join("/sys/fs/cgroup/memory", f[2], "memory.oom_control")
		}
	}
	return ""
}

// ownCgroup is the folder of this process's group: of version 2, which may be mounted
// beside version 1.
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
			if _, err := os.Stat(filepath.Join(root, path, "cgroup.procs")); err == nil {
				if _, err := os.Stat(filepath.Join(root, path, "cgroup.controllers")); err == nil {
					return filepath.Join(root, path), nil
				}
			}
		}
	}
	return "", errors.New("control groups (cgroup v2) are not available")
}

// GiveTo hands the group, and what will be below it, to an account that this process is
// about to become.
func (c *Cgroups) GiveTo(uid, gid int) error {
	err := os.Chown(c.path, uid, gid)
	for _, name := range []string{"cgroup.procs", "cgroup.subtree_control", "cgroup.threads"} {
		err = errors.Join(err, os.Chown(filepath.Join(c.path, name), uid, gid))
	}
	own := filepath.Join(c.path, supervisorName)
	if bound := os.Chown(filepath.Join(own, "memory.max"), uid, gid); !errors.Is(bound, fs.ErrNotExist) {
		err = errors.Join(err, bound)
	}
	return errors.Join(err, os.Chown(own, uid, gid), os.Chown(filepath.Join(own, "cgroup.procs"), uid, gid))
}

// BoundSelf bounds the memory of this process, in bytes; commands, which are in groups of
// their own, do not count. An error says that nothing bounds it.
func (c *Cgroups) BoundSelf(bytes int64) error {
	err := os.WriteFile(filepath.Join(c.path, supervisorName, "memory.max"), []byte(strconv.FormatInt(bytes, 10)), 0)
	if err != nil {
		return fmt.Errorf("limit the memory of the runner's control group: %w", err)
	}
	return nil
}

// cgroup is the group of one worker.
type cgroup struct {
	path    string
	dir     int      // a descriptor of its folder
	events  int      // of cgroup.events
	memory  int      // of memory.events, or of what tells for all groups; -1 if memory is not counted
	shared  bool     // memory tells for all groups
	limits  Limits   // that it was given, with its own of tasks
	missing []string // of them, those that no controller enforces
	// Counts of the kernel, as last seen: processes killed because memory ran out, how often the memory limit was reached
	// in the group or below it, and how often in the group itself.
	kills, reached, ownReached int64
	// spent says that its processes were ended by the group. It is used no more: newer
	// kernels (6.15) take whatever is started in it later for one of them.
	spent bool
	// used says that a command was in it: its peak of tasks, which cannot be set back, may be
	// that command's.
	used bool
}

// cgroup makes a group. Without one the worker goes by process group, session and cookie.
func (c *Cgroups) cgroup() (*cgroup, error) {
	path, err := c.makeFolder()
	if err != nil {
		return nil, err
	}
	b := &cgroup{path: path, dir: -1, events: -1, memory: -1}
	if b.dir, err = unix.Open(path, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		b.events, err = unix.Open(path+"/cgroup.events", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		c.drop(b)
		return nil, err
	}
	b.memory, err = unix.Open(path+"/memory.events", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if b.shared = err != nil; b.shared {
		if b.memory, err = unix.Open(c.memory, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			b.memory = -1
		}
	}
	if _, err := b.limit(Limits{}); err != nil {
		c.drop(b)
		return nil, err
	}
	return b, nil
}

// cpuPeriod is the time, in microseconds, within which a command gets its part of the
// processors.
const cpuPeriod = 100_000

// limit gives the group's next command its limits, and names those that no controller
// here enforces.
func (b *cgroup) limit(l Limits) (missing []string, err error) {
	if l.Tasks == 0 {
		l.Tasks = maxTasks
	}
	if l == b.limits {
		return b.missing, nil
	}
	set := func(what, file, value string) {
		failed := os.WriteFile(filepath.Join(b.path, file), []byte(value), 0)
		switch {
		case errors.Is(failed, fs.ErrNotExist), errors.Is(failed, fs.ErrPermission): // the controller is not here
			missing = append(missing, what)
		case failed != nil:
			err = errors.Join(err, fmt.Errorf("set the job's %s limit: %w", what, failed))
		}
	}
	most := func(n int64) string {
		if n == 0 {
			return "max"
		}
		return strconv.FormatInt(n, 10)
	}
	if l.Memory != 0 || b.limits.Memory != 0 {
		set("memory", "memory.max", most(l.Memory))
	}
	if l.CPUs != 0 || b.limits.CPUs != 0 {
		set("cpus", "cpu.max", fmt.Sprintf("%s %d", most(int64(l.CPUs*cpuPeriod)), cpuPeriod))
	}
	set("tasks", "pids.max", strconv.Itoa(l.Tasks))
	if err != nil {
		b.limits = Limits{-1, -1, -1} // which it has is not known: the next command's are all written
		return nil, err
	}
	b.limits, b.missing = l, missing
	return missing, nil
}

// makeFolder makes a new group. Names that are taken, by a runner that had the same place
// before, are passed over.
func (c *Cgroups) makeFolder() (path string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range maxTaken {
		c.made++
		path = filepath.Join(c.path, "job-"+strconv.Itoa(c.made))
		if err = os.Mkdir(path, 0o755); !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	return path, err
}

// maxTaken is how many names may be taken.
const maxTaken = 100_000

// drop gives a group up, which may have processes still: then it is removed later.
func (c *Cgroups) drop(b *cgroup) {
	b.close()
	if os.Remove(b.path) == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = append(c.left, b.path)
}

// Sweep removes the groups that were given up with processes and have none any more.
func (c *Cgroups) Sweep() {
	c.mu.Lock()
	left := c.left
	c.left = nil
	c.mu.Unlock()
	var stay []string
	for _, path := range left {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			stay = append(stay, path)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = append(c.left, stay...)
}

func (b *cgroup) close() {
	for _, fd := range []int{b.dir, b.events, b.memory} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// empty reports whether no process is in the group, nor below it.
func (b *cgroup) empty() bool {
	var buf [64]byte
	n, err := unix.Pread(b.events, buf[:], 0)
	return err == nil && bytes.Contains(buf[:n], []byte("populated 0"))
}

// procs lists the living processes in the group and below it, one excepted.
func (b *cgroup) procs(except int) (list []proc) {
	if b.empty() {
		return nil
	}
	filepath.WalkDir(b.path, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // it has gone meanwhile, or is a file
		}
		raw, _ := os.ReadFile(filepath.Join(path, "cgroup.procs")) // what has gone has none
		for field := range bytes.FieldsSeq(raw) {
			if pid, err := strconv.Atoi(string(field)); err == nil && pid != except {
				if p, ok := stat(pid); ok && p.alive() {
					list = append(list, p)
				}
			}
		}
		return nil
	})
	return list
}

// kill ends all that is in the group and below it; it reports whether that could be
// asked (Linux 5.14).
func (b *cgroup) kill() bool {
	b.spent = true
	return os.WriteFile(b.path+"/cgroup.kill", []byte("1"), 0) == nil
}

// peakTasks is how many tasks there were at once in the group, at most, since it was made; 0
// where the kernel does not tell (before Linux 6.1), or nothing counts them.
func (b *cgroup) peakTasks() int64 {
	raw, _ := os.ReadFile(filepath.Join(b.path, "pids.peak"))
	n, _ := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	return max(0, n)
}

// oomKills is what the kernel did because memory ran out while a command ran.
type oomKills struct {
	killed  bool // it killed a process of the command
	atLimit bool // and did so at the command's own limit
}

// oomKills returns what has happened since it was last called. Where version 1 counts, a process that was killed may
// be any of the runner's.
func (b *cgroup) oomKills() (seen oomKills) {
	if b.memory < 0 {
		return seen
	}
	var buf [256]byte
	n, _ := unix.Pread(b.memory, buf[:], 0)
	events := buf[:max(n, 0)]
	if kills := count(events, "oom_kill "); kills > b.kills {
		seen.killed, b.kills = true, kills
	}
	if reached := count(events, "oom "); reached > b.reached && !b.shared {
		b.reached = reached // by the group, or by one that the command has made below it
		raw, _ := os.ReadFile(filepath.Join(b.path, "memory.events.local"))
		if own := count(raw, "oom "); own > b.ownReached {
			seen.atLimit, b.ownReached = seen.killed, own
		}
	}
	return seen
}

// count returns the number after a name in a file of the kernel's, 0 if it is not there.
func count(file []byte, name string) int64 {
	for line := range strings.Lines(string(file)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return n
		}
	}
	return 0
}
