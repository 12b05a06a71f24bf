package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// diskFileSystem returns the name of the file system that contains a directory. It returns an error if the file
// system is in memory, because an fsync costs nothing there.
func diskFileSystem(dir string) (string, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return "", fmt.Errorf("cannot check the file system of %s: %w", dir, err)
	}
	switch s.Type {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return "", fmt.Errorf("%s is on a file system in memory, where fsync costs nothing; choose a directory "+
			"on a disk with -dir", dir)
	case unix.EXT4_SUPER_MAGIC:
		return "ext4", nil
	case unix.XFS_SUPER_MAGIC:
		return "xfs", nil
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs", nil
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay", nil
	}
	return fmt.Sprintf("%#x", s.Type), nil
}

func cpuModel() string {
	raw, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(raw)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown CPU"
}

// processCPU returns the CPU time of a process and its threads, without its child processes. It reads the CPU
// clock of the process, which is more precise than the times in /proc (10 ms).
func processCPU(pid int) (time.Duration, error) {
	const allThreads = 2 // selects the clock of the whole process (CPUCLOCK_SCHED)
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|allThreads), &t); err != nil {
		return 0, fmt.Errorf("cannot read the CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// endedChildrenCPUTime returns the CPU time of the children of a process. It counts only children that have ended and
// whose exit status the process has read with wait(2).
func endedChildrenCPUTime(pid int) (time.Duration, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	var ticks int64
	// These are fields 16 and 17 in proc(5), cutime and cstime. fields begins with field 3.
	for _, f := range fields[13:15] {
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("cannot read /proc/%d/stat: %w", pid, err)
		}
		ticks += n
	}
	const tick = time.Second / 100 // the unit USER_HZ, which is the same on every Linux
	return time.Duration(ticks) * tick, nil
}

// processMemoryMB contains the memory use of a process, in MB.
type processMemoryMB struct{ rssMB, pssMB, privateMB float64 }

func (m processMemoryMB) String() string {
	return fmt.Sprintf("%.1f MB (PSS %.1f, private %.1f)", m.rssMB, m.pssMB, m.privateMB)
}

// readProcessMemory reads the memory use of a process from /proc. It computes the resident memory as the sum of RssAnon
// and RssFile.
func readProcessMemory(pid int) (m processMemoryMB, err error) {
	fields := map[string]*float64{
		"RssAnon:": &m.rssMB, "RssFile:": &m.rssMB,
		"Pss:": &m.pssMB, "Private_Clean:": &m.privateMB, "Private_Dirty:": &m.privateMB,
	}
	for _, name := range []string{"status", "smaps_rollup"} {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		if err != nil {
			return m, err
		}
		lines := bufio.NewScanner(bytes.NewReader(raw))
		for lines.Scan() {
			words := strings.Fields(lines.Text())
			if len(words) < 2 || fields[words[0]] == nil {
				continue
			}
			kib, err := strconv.ParseFloat(words[1], 64)
			if err != nil {
				return m, fmt.Errorf("cannot read %s of process %d: %w", name, pid, err)
			}
			*fields[words[0]] += kib * 1024 / 1e6
		}
	}
	return m, nil
}

// voluntaryContextSwitches returns how many times the threads of a process have gone to sleep to wait for something.
// The kernel calls such an event a voluntary context switch.
func voluntaryContextSwitches(pid int) (total int64) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, f := range files {
		raw, _ := os.ReadFile(f)
		for line := range strings.Lines(string(raw)) {
			if v, ok := strings.CutPrefix(line, "voluntary_ctxt_switches:"); ok {
				n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
				total += n
			}
		}
	}
	return total
}
