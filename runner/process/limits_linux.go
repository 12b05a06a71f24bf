package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// spareSpace is how much address space a process that runs commands needs beside that which
// it has at its start: for the threads and memory of some hundred workers.
const spareSpace = 256 << 20 // bytes

// hardLimit returns the hard limit of a resource that this process and its commands have.
func hardLimit(resource int) uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(resource, &limit); err != nil {
		return unix.RLIM_INFINITY
	}
	return limit.Max
}

// behind lists which limit of this process a start's error, or a signal that ends a command, may
// follow from: commands have the same limit.
var behind = [...]struct {
	errno      unix.Errno  // 0 for a signal
	signal     unix.Signal // 0 for an error
	resource   int
	what, name string
}{
	{unix.EAGAIN, 0, unix.RLIMIT_NPROC, "processes", "NPROC"},
	{unix.EMFILE, 0, unix.RLIMIT_NOFILE, "open files", "NOFILE"},
	{unix.ENOMEM, 0, unix.RLIMIT_AS, "bytes", "AS"},
	{unix.ENOMEM, 0, unix.RLIMIT_DATA, "bytes", "DATA"},
	{unix.E2BIG, 0, unix.RLIMIT_STACK, "bytes", "STACK"},
	{0, unix.SIGXCPU, unix.RLIMIT_CPU, "seconds of CPU time", "CPU"},
	{0, unix.SIGXFSZ, unix.RLIMIT_FSIZE, "bytes", "FSIZE"},
}

// limitBehind names the limit that an error, or else a signal, may follow from, and how to raise it.
// It returns "" where no such limit is set, and else begins with a semicolon.
func limitBehind(err error, signal unix.Signal) string {
	for i := range behind {
		b := &behind[i]
		if b.errno != 0 && !errors.Is(err, b.errno) || b.signal != signal {
			continue
		}
		if hard := hardLimit(b.resource); hard != unix.RLIM_INFINITY {
			return fmt.Sprintf("; the runner's limit is %d %s; raise it (Limit%s=)", hard, b.what, b.name)
		}
	}
	return ""
}

// CheckLimits refuses limits of this process under which it would sooner or later end, and
// with it all that it runs.
func CheckLimits() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &limit); err != nil {
		return fmt.Errorf("read the limit of address space: %w", err)
	}
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return fmt.Errorf("read the size of this process: %w", err)
	}
	first, _, _ := bytes.Cut(raw, []byte(" "))
	pages, err := strconv.ParseUint(string(first), 10, 64)
	if err != nil {
		return fmt.Errorf("read the size of this process: %w", err)
	}
	return checkSpace(limit.Cur, pages*uint64(os.Getpagesize()))
}

func checkSpace(limit, size uint64) error {
	need := size + spareSpace
	if limit >= need {
		return nil
	}
	return fmt.Errorf("the limit of address space (RLIMIT_AS; ulimit -v, LimitAS=) is %d MiB, but %d MiB are needed: with less this process would end, and a runner with its jobs, as soon as it can make no thread; raise the limit, or remove it: jobs have one of their own (memory)", limit>>20, need>>20+1)
}
