// Package procfs reads the state of processes from /proc, without being held up by a process whose
// memory cannot be read.
//
// Start with Stat, AllProcesses and EnvVar.
package procfs

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Process describes a process as read from /proc.
type Process struct {
	PID, PPID, PGID, SID int
	State                byte
	Flags                uint64
	StartTicks           int64 // start time, in clock ticks since boot
}

// FlagForkNoExec is the kernel's flag for a process that has not executed a program since its fork
// (PF_FORKNOEXEC). The flag stays visible after the end of the process until it is reaped.
const FlagForkNoExec = 0x40

// flagKernelThread is the kernel's flag for its own threads (PF_KTHREAD).
const flagKernelThread = 0x200000

// Stat reads the state of one process. It returns ok=false if the process does not exist.
func Stat(pid int) (p Process, ok bool) {
	b := procBuffers.Get().(*procBuffer)
	defer procBuffers.Put(b)
	raw := b.read(pid, "stat")
	end := bytes.LastIndexByte(raw, ')') // the name may contain any character
	if end < 0 {
		return p, false
	}
	p.PID = pid
	n := 0
	for f := range bytes.FieldsSeq(raw[end+1:]) {
		switch n++; n {
		case 1:
			p.State = f[0]
		case 2:
			p.PPID, _ = strconv.Atoi(string(f))
		case 3:
			p.PGID, _ = strconv.Atoi(string(f))
		case 4:
			p.SID, _ = strconv.Atoi(string(f))
		case 7:
			p.Flags, _ = strconv.ParseUint(string(f), 10, 64)
		case 20:
			p.StartTicks, _ = strconv.ParseInt(string(f), 10, 64)
			return p, true
		}
	}
	return p, false
}

// Alive reports whether the process had not ended.
func (p Process) Alive() bool { return p.State != 'Z' && p.State != 'X' }

// StillAlive reports whether p is still alive, and its pid does not belong to another process.
func (p Process) StillAlive() bool {
	now, ok := Stat(p.PID)
	return ok && now.StartTicks == p.StartTicks && now.Alive()
}

// statusField returns a field of the status file of a process, without its name; "" if the process does
// not exist.
func statusField(pid int, name string) string {
	b := procBuffers.Get().(*procBuffer)
	defer procBuffers.Put(b)
	_, line, _ := bytes.Cut(b.read(pid, "status"), []byte("\n"+name+":"))
	line, _, _ = bytes.Cut(line, []byte("\n"))
	return string(bytes.TrimSpace(line))
}

// UIDs returns the real and the saved user id of a process. It returns ok=false if the process does
// not exist.
func UIDs(pid int) (real, saved uint32, ok bool) {
	ids := strings.Fields(statusField(pid, "Uid"))
	if len(ids) != 4 {
		return 0, 0, false
	}
	first, err1 := strconv.ParseUint(ids[0], 10, 32)
	third, err2 := strconv.ParseUint(ids[2], 10, 32)
	return uint32(first), uint32(third), err1 == nil && err2 == nil
}

// TracerPID returns the pid of the process that traces pid, or 0.
func TracerPID(pid int) int {
	tracer, _ := strconv.Atoi(statusField(pid, "TracerPid"))
	return tracer
}

// SignalSet returns a set of signals from the status file of a process, such as SigIgn.
func SignalSet(pid int, name string) (set uint64) {
	set, _ = strconv.ParseUint(statusField(pid, name), 16, 64)
	return set
}

// EnvVar returns the value of a variable in the environment with which a process was started. It returns
// "" if there is no such variable or the environment cannot be read.
func EnvVar(pid int, name string) string {
	value, _ := globalMemoryReaders.read(pid, func() string { return readEnvVar(pid, name) })
	return value
}

func readEnvVar(pid int, name string) string {
	b := procBuffers.Get().(*procBuffer)
	defer procBuffers.Put(b)
	fd, ok := b.open(pid, "environ")
	if !ok {
		return ""
	}
	defer unix.Close(fd)
	var prefix []byte // start of a variable that continues in the next piece, at most maxEnvVarBytes bytes
	for atStart := true; ; {
		raw := b.next(fd)
		if len(raw) == 0 {
			return ""
		}
		for len(raw) > 0 {
			entry, rest, complete := bytes.Cut(raw, []byte{0})
			if !atStart {
				entry = append(prefix, entry...)
			}
			if n := len(name); complete && len(entry) > n && string(entry[:n]) == name && entry[n] == '=' {
				return string(entry[n+1:])
			}
			if atStart = complete; !atStart {
				prefix = bytes.Clone(entry[:min(len(entry), maxEnvVarBytes)])
			}
			raw = rest
		}
	}
}

// maxEnvVarBytes is the maximum size of a variable that EnvVar finds, in bytes, unless the kernel returns the
// whole environment in one read.
const maxEnvVarBytes = 1024

// procBuffer is a reusable buffer for reading files in /proc. The end of one command may require
// hundreds of reads, which should create little garbage.
type procBuffer struct {
	path [64]byte
	text [16 << 10]byte
}

var procBuffers = sync.Pool{New: func() any { return new(procBuffer) }}

// open opens a file in the /proc directory of a process. It returns ok=false if the process does not
// exist, or if this process may not read the file.
func (b *procBuffer) open(pid int, name string) (fd int, ok bool) {
	path := append(strconv.AppendInt(append(b.path[:0], "/proc/"...), int64(pid), 10), '/')
	path = append(append(path, name...), 0)
	at := unix.AT_FDCWD
	n, _, failed := unix.Syscall6(unix.SYS_OPENAT, uintptr(at), uintptr(unsafe.Pointer(&path[0])),
		unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
	return int(n), failed == 0
}

// next reads the next piece of a file. It returns an empty slice at the end of the file.
func (b *procBuffer) next(fd int) []byte {
	for {
		n, err := unix.Read(fd, b.text[:])
		if err != unix.EINTR {
			return b.text[:max(n, 0)]
		}
	}
}

// read returns the content of a short file in the /proc directory of a process.
func (b *procBuffer) read(pid int, name string) []byte {
	fd, ok := b.open(pid, name)
	if !ok {
		return nil
	}
	defer unix.Close(fd)
	return b.next(fd)
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
		if name[0] < '1' || name[0] > '9' {
			continue
		}
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := Stat(pid); ok && p.Flags&flagKernelThread == 0 {
				procs = append(procs, p)
			}
		}
	}
	return procs
}
