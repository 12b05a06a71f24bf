package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// spareAddressSpaceBytes is how much address space a process that runs commands may need in addition to what it uses at
// its start. It is enough for the threads and memory of a few hundred workers.
const spareAddressSpaceBytes = 256 << 20

// hardResourceLimit returns this process's hard limit of a resource (getrlimit(2)). Commands inherit it.
func hardResourceLimit(resource int) uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(resource, &limit); err != nil {
		return unix.RLIM_INFINITY
	}
	return limit.Max
}

// inheritedLimit is a resource limit that commands inherit from this process. errno or signal shows that a
// command has reached the limit.
type inheritedLimit struct {
	errno unix.Errno // error that the limit may cause at the start of a command; 0 if none
	// signal that the kernel sends to a command that reaches the limit (getrlimit(2)); 0 if none
	signal             unix.Signal
	signalsAtHardLimit bool   // the kernel sends the signal at the hard limit instead of the soft limit
	rlimitResource     int    // RLIMIT constant
	unit, systemdName  string // unit of the value, and name of the limit in systemd, for messages
}

// raiseLimitHint returns a text that names the limit, shows its value limitValue, and says how to raise it.
func (l inheritedLimit) raiseLimitHint(limitValue uint64) string {
	return fmt.Sprintf("; the runner's limit is %d %s; raise it (Limit%s=)", limitValue, l.unit, l.systemdName)
}

// limitsCausingStartErrors lists the limits that may cause an error at the start of a command.
var limitsCausingStartErrors = []inheritedLimit{
	{errno: unix.EAGAIN, rlimitResource: unix.RLIMIT_NPROC, unit: "processes", systemdName: "NPROC"},
	{errno: unix.EMFILE, rlimitResource: unix.RLIMIT_NOFILE, unit: "open files", systemdName: "NOFILE"},
	{errno: unix.ENOMEM, rlimitResource: unix.RLIMIT_AS, unit: "bytes", systemdName: "AS"},
	{errno: unix.ENOMEM, rlimitResource: unix.RLIMIT_DATA, unit: "bytes", systemdName: "DATA"},
	{errno: unix.E2BIG, rlimitResource: unix.RLIMIT_STACK, unit: "bytes", systemdName: "STACK"},
}

// startErrorLimitHint returns a text that names the limit that may have caused err, and says how to raise it. The text
// begins with a semicolon. It is "" if no limit can be the cause.
func startErrorLimitHint(err error) string {
	for _, l := range limitsCausingStartErrors {
		if hard := hardResourceLimit(l.rlimitResource); errors.Is(err, l.errno) && hard != unix.RLIM_INFINITY {
			return l.raiseLimitHint(hard)
		}
	}
	return ""
}

// limitsCausingSignals lists the limits at which the kernel ends a command with a signal.
var limitsCausingSignals = []inheritedLimit{
	{signal: unix.SIGXCPU, rlimitResource: unix.RLIMIT_CPU, unit: "s of CPU time", systemdName: "CPU"},
	{signal: unix.SIGKILL, signalsAtHardLimit: true, rlimitResource: unix.RLIMIT_CPU, unit: "s of CPU time",
		systemdName: "CPU"},
	{signal: unix.SIGXFSZ, rlimitResource: unix.RLIMIT_FSIZE, unit: "bytes", systemdName: "FSIZE"},
}

// signalLimitHint returns a text about the inherited limit for which a signal has ended a command, in the form of
// startErrorLimitHint. It returns "" if the command has changed this limit itself, or has used less CPU time than the
// limit of CPU time allows. Call it before the command is reaped.
func signalLimitHint(pid int, signal unix.Signal) string {
	for _, s := range limitsCausingSignals {
		var ownLimit, commandLimit unix.Rlimit
		if s.signal != signal || unix.Getrlimit(s.rlimitResource, &ownLimit) != nil ||
			unix.Prlimit(pid, s.rlimitResource, nil, &commandLimit) != nil {
			continue
		}
		value, inherited := ownLimit.Cur, ownLimit.Cur == commandLimit.Cur
		switch {
		case s.signalsAtHardLimit:
			value, inherited = ownLimit.Max, ownLimit.Max == commandLimit.Max
		// When the kernel sends SIGXCPU, it raises the soft limit by one second.
		case s.rlimitResource == unix.RLIMIT_CPU:
			inherited = ownLimit.Cur+1 == commandLimit.Cur
		}
		if inherited && value != unix.RLIM_INFINITY && (s.rlimitResource != unix.RLIMIT_CPU || usedCPUSeconds(pid) >= value) {
			return s.raiseLimitHint(value)
		}
	}
	return ""
}

// usedCPUSeconds returns the CPU time of a process in seconds, as the kernel counts it for RLIMIT_CPU. It returns
// 0 if the process does not exist.
func usedCPUSeconds(pid int) uint64 {
	// cpuClockProf is CPUCLOCK_PROF in include/linux/posix-timers.h. The expression below computes the clock id of a
	// process as defined there.
	const cpuClockProf = 0
	var cpuTime unix.Timespec
	if unix.ClockGettime(int32(^pid)<<3|cpuClockProf, &cpuTime) != nil {
		return 0
	}
	return uint64(cpuTime.Sec)
}

// CheckAddressSpaceLimit returns an error if this process's limit of address space is so low that the process and its
// commands would run out of memory sooner or later.
func CheckAddressSpaceLimit() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &limit); err != nil {
		return fmt.Errorf("queuectl cannot start, because it cannot read its address space limit (RLIMIT_AS); check the "+
			"sandbox or container in which it runs: %w", err)
	}
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return fmt.Errorf("cannot read the size of this process; check that /proc is mounted: %w", err)
	}
	first, _, _ := bytes.Cut(raw, []byte(" "))
	pages, err := strconv.ParseUint(string(first), 10, 64)
	if err != nil {
		return fmt.Errorf("/proc/self/statm begins with %q, not with a number; check that /proc is mounted", first)
	}
	return checkAddressSpace(limit.Cur, pages*uint64(os.Getpagesize()))
}

// checkAddressSpace returns an error if an address space limit of limitBytes is too low for a process that now uses
// processBytes and may need spareAddressSpaceBytes more.
func checkAddressSpace(limitBytes, processBytes uint64) error {
	need := processBytes + spareAddressSpaceBytes
	if limitBytes >= need {
		return nil
	}
	return fmt.Errorf("the address space limit (RLIMIT_AS; ulimit -v, LimitAS=) is %d MiB, but this process needs %d "+
		"MiB for its threads; raise or remove it, and limit jobs with --memory", limitBytes>>20, need>>20+1)
}
