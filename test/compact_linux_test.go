package test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
)

// smallDiskQueue returns a service on an ext4 disk of 32 MB, without a quota that would keep one
// user's jobs from filling it.
func smallDiskQueue(t *testing.T) (q *queue, free func() int64) {
	t.Helper()
	skip.UnlessRoot(t, "needs root to mount a disk; .ci/run runs it as root, and the tests of store/sql cover compaction")
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	q = newQueue(t, "")
	disk := q.mount("32M")
	q.start("--workers", "2")
	q.must("config", "set", "max_bytes_per_user", "0")
	return q, func() int64 {
		var s syscall.Statfs_t
		if err := syscall.Statfs(disk, &s); err != nil {
			t.Fatal(err)
		}
		return int64(s.Bavail) * int64(s.Bsize)
	}
}

// checkUsableAgain empties the queue. It checks that new jobs run, that the disk has free space
// again and that no restart of the service was needed.
func (q *queue) checkUsableAgain(free func() int64) {
	q.Helper()
	q.waitUntil("ended jobs can be removed", 30*time.Second, func() bool {
		return q.cli("cleanup", "--yes", "--days", "0", "--state", "cancelled,completed,dead").code == 0
	})
	q.waitUntil("new jobs are taken again", 20*time.Second, func() bool {
		return q.cli("enqueue", "--id", "after", "true").code == 0
	})
	q.must("wait", "after", "--timeout", "20")
	q.waitUntil("the disk has space again", 30*time.Second, func() bool { return free() >= 12<<20 })
	if out := q.cli("doctor", "--verify"); !strings.Contains(out.out, "are free for new rows") ||
		!strings.Contains(out.out, "SQLite finds no damage") {
		q.Errorf("doctor: %s%s", out.out, out.err)
	}
	if _, err := os.Stat(q.path("reserve")); err != nil {
		q.Errorf("the reserve was not made again: %v", err)
	}
}

// A disk that inputs of jobs have filled accepts new jobs again after these jobs are removed.
func TestDiskFilledByInputsIsUsableAgain(t *testing.T) {
	t.Parallel()
	q, free := smallDiskQueue(t)
	input := filepath.Join(t.TempDir(), "input")
	if err := os.WriteFile(input, []byte(`{"command": "cat", "delay": "1h", "stdin": "`+strings.Repeat("x", 250<<10)+`"}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; n < 200; n++ {
		r := q.cli("enqueue", "--file", input)
		if r.code == 5 {
			break
		}
		if r.code != 0 {
			t.Fatalf("enqueue: exit code %d, %s", r.code, r.err)
		}
	}
	if n < 10 || n == 200 {
		t.Fatalf("%d jobs were taken", n)
	}
	q.must("cancel", "--all", "--yes")
	q.checkUsableAgain(free)
}

// A disk that outputs of jobs have filled to the last page accepts new jobs again after the ended
// jobs are removed.
func TestDiskFilledByOutputsIsUsableAgain(t *testing.T) {
	t.Parallel()
	q, free := smallDiskQueue(t)
	q.must("queue", "pause", "default")
	list := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(list, []byte(strings.Repeat("head -c 60000 /dev/urandom | base64 -w0 | head -c 60000\n", 900)),
		0o600); err != nil {
		t.Fatal(err)
	}
	q.must("enqueue", "--lines", list)
	q.must("queue", "resume", "default")
	q.waitUntil("the disk is full", 2*time.Minute, func() bool { return free() < 256<<10 })
	q.cli("queue", "pause", "default") // this may be refused for lack of space
	q.waitUntil("the rest is cancelled", 30*time.Second, func() bool {
		return q.cli("cancel", "--all", "--yes").code == 0
	})
	q.cli("queue", "resume", "default")
	q.checkUsableAgain(free)
}
