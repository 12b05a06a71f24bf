package durability

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// smallDiskQueue returns a queue on an ext4 disk of 32 MB, and a function that returns the disk's free bytes.
// It turns off the quota that would prevent a single user from filling the disk.
func smallDiskQueue(t *testing.T) (q *testrig.Harness, freeBytes func() int64) {
	t.Helper()
	skip.UnlessRoot(t, "needs root to mount a disk; .ci/run runs it as root, and the tests of store/sqlite cover "+
		"compaction")
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	q = testrig.NewHarness(t, "")
	disk := q.MountQueueDisk("32M")
	q.StartService("--workers", "2")
	q.MustRunCLI("config", "set", "max_bytes_per_user", "0")
	return q, func() int64 {
		var s syscall.Statfs_t
		if err := syscall.Statfs(disk, &s); err != nil {
			t.Fatal(err)
		}
		return int64(s.Bavail) * int64(s.Bsize)
	}
}

// checkQueueUsableAfterRemoval removes all jobs of the queue. It checks that new jobs then run and that the disk has
// free space again, without a restart of the service.
func checkQueueUsableAfterRemoval(q *testrig.Harness, freeBytes func() int64) {
	q.Helper()
	q.WaitUntil("ended jobs can be removed", 30*time.Second, func() bool {
		return q.RunCLI("cleanup", "--yes", "--days", "0", "--state", "cancelled,completed,dead").ExitCode == 0
	})
	q.WaitUntil("new jobs are taken again", 20*time.Second, func() bool {
		return q.RunCLI("enqueue", "--id", "after", "true").ExitCode == 0
	})
	q.MustRunCLI("wait", "after", "--timeout", "20")
	q.WaitUntil("the disk has space again", 30*time.Second, func() bool { return freeBytes() >= 12<<20 })
	if out := q.RunCLI("doctor", "--verify"); !strings.Contains(out.Stdout, "are free for new rows") ||
		!strings.Contains(out.Stdout, "SQLite finds no damage") {
		q.Errorf("doctor: %s%s", out.Stdout, out.Stderr)
	}
	if _, err := os.Stat(q.Path("reserve")); err != nil {
		q.Errorf("the reserve was not recreated: %v", err)
	}
}

// If the inputs of jobs have filled the disk, the queue accepts new jobs again after these jobs are
// removed.
func TestDiskFilledByInputsIsUsableAgain(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	q, free := smallDiskQueue(t)
	input := filepath.Join(t.TempDir(), "input")
	if err := os.WriteFile(input, []byte(`{"command": "cat", "delay": "1h", "stdin": "`+strings.Repeat("x", 250<<10)+`"}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; n < 200; n++ {
		r := q.RunCLI("enqueue", "--file", input)
		if r.ExitCode == 5 {
			break
		}
		if r.ExitCode != 0 {
			t.Fatalf("enqueue: exit code %d, %s", r.ExitCode, r.Stderr)
		}
	}
	if n < 10 || n == 200 {
		t.Fatalf("%d jobs were accepted", n)
	}
	q.MustRunCLI("cancel", "--all", "--yes")
	checkQueueUsableAfterRemoval(q, free)
}

// If the outputs of jobs have filled the disk to the last page, the queue accepts new jobs again
// after the ended jobs are removed.
func TestDiskFilledByOutputsIsUsableAgain(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	q, free := smallDiskQueue(t)
	q.MustRunCLI("queue", "pause", "default")
	list := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(list, []byte(strings.Repeat("head -c 60000 /dev/urandom | base64 -w0 | head -c 60000\n", 900)),
		0o600); err != nil {
		t.Fatal(err)
	}
	q.MustRunCLI("enqueue", "--lines", list)
	q.MustRunCLI("queue", "resume", "default")
	q.WaitUntil("the disk is full", 2*time.Minute, func() bool { return free() < 256<<10 })
	q.RunCLI("queue", "pause", "default") // ignore errors: the service may refuse this while the disk is full
	q.WaitUntil("the rest is cancelled", 30*time.Second, func() bool {
		return q.RunCLI("cancel", "--all", "--yes").ExitCode == 0
	})
	q.RunCLI("queue", "resume", "default")
	checkQueueUsableAfterRemoval(q, free)
}
