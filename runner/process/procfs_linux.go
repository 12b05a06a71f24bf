package process

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// proc describes a process as read from /proc.
type proc struct {
	pid, ppid, pgid, sid int
	state                byte
	flags                uint64
	ticks                int64 // start time, in clock ticks since boot
}

// forkNoExec is the kernel's flag for a process that has not executed a program since its fork
// (PF_FORKNOEXEC). The flag stays visible after the end of the process until it is reaped.
const forkNoExec = 0x40

// kernelThread is the kernel's flag for its own threads (PF_KTHREAD).
const kernelThread = 0x200000

// stat reads the state of one process. It returns ok=false if the process does not exist.
func stat(pid int) (p proc, ok bool) {
	b := procBuffers.Get().(*procBuffer)
	defer procBuffers.Put(b)
	raw := b.read(pid, "stat")
	end := bytes.LastIndexByte(raw, ')') // the name may contain any character
	if end < 0 {
		return p, false
	}
	p.pid = pid
	n := 0
	for f := range bytes.FieldsSeq(raw[end+1:]) {
		switch n++; n {
		case 1:
			p.state = f[0]
		case 2:
			p.ppid, _ = strconv.Atoi(string(f))
		case 3:
			p.pgid, _ = strconv.Atoi(string(f))
		case 4:
			p.sid, _ = strconv.Atoi(string(f))
		case 7:
			p.flags, _ = strconv.ParseUint(string(f), 10, 64)
		case 20:
			p.ticks, _ = strconv.ParseInt(string(f), 10, 64)
			return p, true
		}
	}
	return p, false
}

func (p proc) alive() bool { return p.state != 'Z' && p.state != 'X' }

// IsStopped reports whether a process is stopped, by a signal or a debugger.
func IsStopped(pid int) bool {
	p, ok := stat(pid)
	return ok && (p.state == 'T' || p.state == 't')
}

// stillAlive reports whether p is still alive, and its pid does not belong to another process.
func (p proc) stillAlive() bool {
	now, ok := stat(p.pid)
	return ok && now.ticks == p.ticks && now.alive()
}

// uidsOf returns the real and the saved user id of a process. It returns ok=false if the process does
// not exist.
func uidsOf(pid int) (real, saved uint32, ok bool) {
	b := procBuffers.Get().(*procBuffer)
	defer procBuffers.Put(b)
	_, line, _ := bytes.Cut(b.read(pid, "status"), []byte("\nUid:"))
	line, _, _ = bytes.Cut(line, []byte("\n"))
	n := 0
	for f := range bytes.FieldsSeq(line) {
		id, err := strconv.ParseUint(string(f), 10, 32)
		if err != nil {
			return 0, 0, false
		}
		switch n++; n {
		case 1:
			real = uint32(id)
		case 3:
			saved = uint32(id)
		}
	}
	return real, saved, n == 4
}

// tracerOf returns the pid of the process that traces pid, or 0.
func tracerOf(pid int) int {
	b := procBuffers.Get().(*procBuffer)
	defer procBuffers.Put(b)
	_, line, _ := bytes.Cut(b.read(pid, "status"), []byte("\nTracerPid:"))
	line, _, _ = bytes.Cut(line, []byte("\n"))
	tracer, _ := strconv.Atoi(string(bytes.TrimSpace(line)))
	return tracer
}

// signalSet returns a set of signals from the status file of a process, such as SigIgn.
func signalSet(pid int, name string) (set uint64) {
	b := procBuffers.Get().(*procBuffer)
	defer procBuffers.Put(b)
	_, line, _ := bytes.Cut(b.read(pid, "status"), []byte("\n"+name+":"))
	line, _, _ = bytes.Cut(line, []byte("\n"))
	set, _ = strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 64)
	return set
}

// cookieOf returns the cookie in a process's environment. It returns "" if the environment has no
// cookie or cannot be read.
func cookieOf(pid int) string {
	cookie, _ := memories.read(pid, func() string { return readCookie(pid) })
	return cookie
}

func readCookie(pid int) string {
	b := procBuffers.Get().(*procBuffer)
	defer procBuffers.Put(b)
	fd, ok := b.open(pid, "environ")
	if !ok {
		return ""
	}
	defer unix.Close(fd)
	var prefix []byte // start of a variable that continues in the next piece, at most maxCookie bytes
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
			if v, ok := bytes.CutPrefix(entry, cookiePrefix); ok && complete {
				return string(v)
			}
			if atStart = complete; !atStart {
				prefix = bytes.Clone(entry[:min(len(entry), maxCookie)])
			}
			raw = rest
		}
	}
}

var cookiePrefix = []byte(CookieName + "=")

// maxCookie is the maximum size of the variable with the cookie, in bytes.
const maxCookie = 1024

// procBuffer is a reusable buffer for reading files in /proc. The end of one command may require
// hundreds of reads, which must not create garbage.
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

// allProcs lists all processes except kernel threads.
func allProcs() []proc {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	procs := make([]proc, 0, len(names))
	for _, name := range names {
		if name[0] < '1' || name[0] > '9' {
			continue
		}
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := stat(pid); ok && p.flags&kernelThread == 0 {
				procs = append(procs, p)
			}
		}
	}
	return procs
}
