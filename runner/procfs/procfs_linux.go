// Package procfs reads the state of processes from /proc. If a process makes a read of its memory hang, the
// package stops waiting for the read.
//
// Start with Stat, AllProcesses and EnvVar.
package procfs

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Process describes a process as read from /proc.
type Process struct {
	PID, PPID, PGID, SID int
	State                byte   // state as a letter, such as R or Z
	KernelFlags          uint64 // flags of the kernel, such as FlagForkNoExec
	StartTicks           int64  // start time, in clock ticks since boot
}

// FlagForkNoExec is the kernel's flag for a process that has not executed a program since its fork
// (PF_FORKNOEXEC). The flag of an ended process can be read until the process is reaped.
const FlagForkNoExec = 0x40

// flagKernelThread is the kernel's flag for its own threads (PF_KTHREAD).
const flagKernelThread = 0x200000

// Stat reads the state of one process. It returns ok=false if the process does not exist.
func Stat(pid int) (p Process, ok bool) {
	raw := readProcFile(pid, "stat")
	fields := strings.Fields(raw[strings.LastIndexByte(raw, ')')+1:]) // skip the name, which may contain anything
	if len(fields) < 20 {
		return p, false
	}
	number := func(i int) int64 {
		n, _ := strconv.ParseInt(fields[i], 10, 64)
		return n
	}
	return Process{PID: pid, PPID: int(number(1)), PGID: int(number(2)), SID: int(number(3)), State: fields[0][0],
		KernelFlags: uint64(number(6)), StartTicks: number(19)}, true
}

// WasAlive reports whether the process was alive when it was read.
func (p Process) WasAlive() bool { return p.State != 'Z' && p.State != 'X' }

// IsStillAlive reports whether the process is alive now. It returns false if another process now has its pid.
func (p Process) IsStillAlive() bool {
	now, ok := Stat(p.PID)
	return ok && now.StartTicks == p.StartTicks && now.WasAlive()
}

// statusField returns the value of a field in /proc/PID/status. It returns "" if the process does not
// exist.
func statusField(pid int, fieldName string) string {
	_, line, _ := strings.Cut(readProcFile(pid, "status"), "\n"+fieldName+":")
	line, _, _ = strings.Cut(line, "\n")
	return strings.TrimSpace(line)
}

// UIDs returns the real and the saved user id of a process. It returns ok=false if the process does
// not exist.
func UIDs(pid int) (realUID, savedUID uint32, ok bool) {
	ids := strings.Fields(statusField(pid, "Uid"))
	if len(ids) != 4 {
		return 0, 0, false
	}
	first, err1 := strconv.ParseUint(ids[0], 10, 32)
	third, err2 := strconv.ParseUint(ids[2], 10, 32)
	return uint32(first), uint32(third), err1 == nil && err2 == nil
}

// TracerPID returns the pid of the process that traces a process (ptrace), or 0 if none does.
func TracerPID(pid int) int {
	tracer, _ := strconv.Atoi(statusField(pid, "TracerPid"))
	return tracer
}

// SignalSet returns a set of signals from /proc/PID/status. fieldName is the field that contains the set, such as
// SigIgn for the ignored signals. Signal n is in the set if bit n-1 of signalBits is 1.
func SignalSet(pid int, fieldName string) (signalBits uint64) {
	signalBits, _ = strconv.ParseUint(statusField(pid, fieldName), 16, 64)
	return signalBits
}

// EnvVar returns the value of an environment variable with which a process was started. It returns "" if
// the process has no such variable or its environment cannot be read.
func EnvVar(pid int, varName string) string {
	value, _ := globalHungReads.readWithTimeout(pid, func() string { return readEnvVar(pid, varName) })
	return value
}

// readEnvVar implements EnvVar.
func readEnvVar(pid int, varName string) string {
	file, err := os.Open(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return ""
	}
	defer file.Close()
	prefix, variables := []byte(varName+"="), bufio.NewReaderSize(file, maxEnvVarBytes)
	for atStart := true; ; {
		entry, err := variables.ReadSlice(0)
		if value, found := bytes.CutPrefix(entry, prefix); found && atStart && err == nil {
			return string(bytes.TrimSuffix(value, []byte{0}))
		}
		if err != nil && err != bufio.ErrBufferFull {
			return ""
		}
		atStart = err == nil
	}
}

// maxEnvVarBytes is the maximum size of a variable that EnvVar finds, in bytes.
const maxEnvVarBytes = 4 << 10

// readProcFile returns the content of a file in the /proc directory of a process, at most its first 16 KiB. It
// returns "" if the process does not exist, or if this process may not read the file.
func readProcFile(pid int, fileName string) string {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/%s", pid, fileName), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var content [16 << 10]byte
	n, _ := unix.Read(fd, content[:])
	return string(content[:max(n, 0)])
}

// AllProcesses lists all processes except kernel threads.
func AllProcesses() []Process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	procs := make([]Process, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := Stat(pid); ok && p.KernelFlags&flagKernelThread == 0 {
				procs = append(procs, p)
			}
		}
	}
	return procs
}
