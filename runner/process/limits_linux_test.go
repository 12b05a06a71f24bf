package process

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A limit of address space that leaves no room for threads is refused with what to do.
func TestTooLittleAddressSpaceIsRefused(t *testing.T) {
	const size = 1 << 30
	for limit, good := range map[uint64]bool{0: false, size: false, size + spareSpace - 1: false, size + spareSpace: true, math.MaxUint64: true} {
		if err := checkSpace(limit, size); (err == nil) != good {
			t.Errorf("a limit of %d for %d bytes: %v", limit, size, err)
		}
	}
	if err := CheckLimits(); err != nil {
		t.Errorf("without a limit: %v", err)
	}
	restrict(t, unix.RLIMIT_AS, 1<<40)
	if err := CheckLimits(); err != nil {
		t.Errorf("with a large limit: %v", err)
	}
	if err := checkSpace(1000<<20, 900<<20); err == nil || !strings.Contains(err.Error(), "is 1000 MiB") || !strings.Contains(err.Error(), "1157 MiB") || !strings.Contains(err.Error(), "raise the limit") {
		t.Errorf("got %v", err)
	}
}

// An error that follows from a limit of this process, which its commands inherit, names the limit.
func TestErrorNamesTheInheritedLimit(t *testing.T) {
	open := hardLimit(unix.RLIMIT_NOFILE)
	want := fmt.Sprintf("the runner's limit is %d open files; raise it (LimitNOFILE=)", open)
	if got := limitBehind(fmt.Errorf("pipe: %w", unix.EMFILE), 0); got != "; "+want {
		t.Errorf("without a free descriptor: %q, want %q", got, want)
	}
	for _, err := range []error{unix.ENOENT, unix.EACCES, nil} {
		if got := limitBehind(err, 0); got != "" {
			t.Errorf("%v: %q", err, got)
		}
	}
}

// A command that the runner's limit of CPU time or of file sizes has ended says so, also where the
// limit is inherited.
func TestSignalNamesTheInheritedLimit(t *testing.T) {
	if os.Getenv(limitedRole) == "" {
		for limit, want := range map[string]string{"-f 8": "ended by signal 25; the runner's limit is 8192 bytes; raise it (LimitFSIZE=)", "-t 3600": "no error"} {
			cmd := exec.Command("/bin/bash", "-c", "ulimit "+limit+`; exec "$0" -test.run '^TestSignalNamesTheInheritedLimit$' -test.v`, os.Args[0])
			cmd.Env = append(os.Environ(), limitedRole+"=1")
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
				t.Errorf("ulimit %s: %v, %s; want %q", limit, err, out, want)
			}
		}
		return
	}
	w := NewWorker(nil)
	defer w.Close()
	r := w.Run(command(t, "/bin/sh", "-c", "exec head -c 20000 /dev/zero >"+filepath.Join(t.TempDir(), "file")))
	fmt.Println(cmp.Or(r.Error, "no error"))
}

// limitedRole makes this test start a command under the limits of its own process.
const limitedRole = "QUEUECTL_TEST_LIMITED"
