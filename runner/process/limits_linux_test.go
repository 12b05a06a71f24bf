package process

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An address space limit that leaves too little room for threads is rejected, with advice.
func TestTooLittleAddressSpaceIsRefused(t *testing.T) {
	const size = 1 << 30
	for limit, good := range map[uint64]bool{0: false, size: false, size + spareAddressSpaceBytes - 1: false, size +
		spareAddressSpaceBytes: true,
		math.MaxUint64: true} {
		if err := checkAddressSpace(limit, size); (err == nil) != good {
			t.Errorf("a limit of %d for %d bytes: %v", limit, size, err)
		}
	}
	if err := CheckAddressSpaceLimit(); err != nil {
		t.Errorf("without a limit: %v", err)
	}
	setSoftLimit(t, unix.RLIMIT_AS, 1<<40)
	if err := CheckAddressSpaceLimit(); err != nil {
		t.Errorf("with a large limit: %v", err)
	}
	if err := checkAddressSpace(1000<<20, 900<<20); err == nil || !strings.Contains(err.Error(), "is 1000 MiB") ||
		!strings.Contains(err.Error(), "1157 MiB") || !strings.Contains(err.Error(), "raise or remove it") {
		t.Errorf("checkAddressSpace returned %v, want an error with both sizes and advice", err)
	}
}

// If a command may have failed because of a limit that it inherits from this process, the error names the limit.
func TestStartErrorNamesInheritedLimit(t *testing.T) {
	open := hardResourceLimit(unix.RLIMIT_NOFILE)
	want := fmt.Sprintf("the runner's limit is %d open files; raise it (LimitNOFILE=)", open)
	if got := startErrorLimitHint(fmt.Errorf("pipe: %w", unix.EMFILE)); got != "; "+want {
		t.Errorf("without a free descriptor: %q, want %q", got, want)
	}
	for _, err := range []error{unix.ENOENT, unix.EACCES, nil} {
		if got := startErrorLimitHint(err); got != "" {
			t.Errorf("limitHint(%v) returned %q, want no hint", err, got)
		}
	}
}

// A command inherits the runner's limits of CPU time and file size. If the kernel ends the command at such a
// limit, the result names the limit. A limit that the command has set itself is not named. For CPU time, the
// kernel sends SIGXCPU at the soft limit and SIGKILL at the hard limit (getrlimit(2)).
func TestSignalResultNamesInheritedLimit(t *testing.T) {
	if job := os.Getenv(limitedCommandEnvVar); job != "" {
		w := NewWorker(nil)
		defer w.Close()
		c := newTestCommand(t, "/bin/bash", "-c", job)
		c.WorkingDir, c.Timeout = t.TempDir(), 3*time.Minute
		r := w.Run(c)
		fmt.Println(cmp.Or(r.Error, "no error"), "signal", r.Signal)
		return
	}
	const spin, write = "while :; do :; done", "exec head -c 20000 /dev/zero >file"
	for _, c := range []struct{ limit, job, want string }{
		{"-f 8", write, "ended by signal 25 (SIGXFSZ); the runner's limit is 8192 bytes; raise it (LimitFSIZE=)"},
		{"-f 16", "ulimit -S -f 8; " + write, "no error signal 25"},
		{"-t 1", spin, "ended by signal 9 (SIGKILL); the runner's limit is 1 s of CPU time; raise it (LimitCPU=)"},
		{"-S -t 1", spin, "ended by signal 24 (SIGXCPU); the runner's limit is 1 s of CPU time; raise it (LimitCPU=)"},
		{"-t 3600", "ulimit -S -t 1; " + spin, "no error signal 24"},
		{"-t 3600", "ulimit -t 1; " + spin, "no error signal 9"},
		{"-t 3600", "kill -KILL $$", "no error signal 9"},
		{"-t 3600", "true", "no error signal 0"},
	} {
		t.Run(c.limit+" "+c.job, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("/bin/bash", "-c", "ulimit "+c.limit+
				`; exec "$0" -test.run '^TestSignalResultNamesInheritedLimit$' -test.v`, os.Args[0])
			cmd.Env = append(os.Environ(), limitedCommandEnvVar+"="+c.job)
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), c.want) {
				t.Errorf("the test in a process with limits: %v, output %s; want %q", err, out, c.want)
			}
		})
	}
}

// limitedCommandEnvVar is an environment variable. A test process in which it is set runs its value as a shell
// command, under the limits of the process.
const limitedCommandEnvVar = "QUEUECTL_TEST_LIMITED"
