package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// spareSpace is how much address space a process that runs commands needs beside that which
// it has at its start: for the threads and memory of some hundred workers.
const spareSpace = 256 << 20 // bytes

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
