package durability

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// useAllInodes creates files on a disk until the disk has no free inode. It returns the number of files. Call
// freeUsedInodes to remove them.
func useAllInodes(t testing.TB, diskDir string) (fileCount int) {
	t.Helper()
	for ; fileCount < 1000; fileCount++ {
		f, err := os.Create(filepath.Join(diskDir, fmt.Sprint("inode-", fileCount)))
		if errors.Is(err, syscall.ENOSPC) {
			return fileCount
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	t.Fatal("the disk still has free inodes after 1,000 files")
	return fileCount
}

func freeUsedInodes(t testing.TB, diskDir string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(diskDir, "inode-*"))
	for _, name := range names {
		err = errors.Join(err, os.Remove(name))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// readJobOutput returns a job's standard output as `queuectl logs` prints it, and the number of bytes that the
// command reports as dropped.
func readJobOutput(conn *testrig.ServiceConn, id string) (text string, droppedBytes int64) {
	conn.Helper()
	for line := range strings.Lines(conn.MustRunCLI("logs", id, "--stdout", "--jsonl")) {
		var p struct {
			Text    string
			Dropped int64
		}
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			conn.Fatalf("logs %s: %v", id, err)
		}
		text += p.Text
		droppedBytes += p.Dropped
	}
	return text, droppedBytes
}

// While the disk has no free inodes, output that needs a file is dropped, and its size is reported. Jobs do not
// fail for that reason, their results are recorded, and new jobs are accepted. When the disk has free inodes
// again, all output is stored. The test needs root to mount the disk.
func TestOutputIsDroppedWithoutInodes(t *testing.T) {
	testrig.RequireDisks(t, "/dev/loop-control")
	t.Parallel()
	q := testrig.NewHarness(t, "")
	disk := q.MountQueueDisk("32M", "-N", "64")
	gate := filepath.Join(filepath.Dir(disk), "gate")
	q.StartService("--workers", "4")
	w := q.DialService()
	longOutput := numberLines(20000)
	running := w.Enqueue(testrig.JSONFields{"command": "seq 20000; echo up; while [ ! -e " + gate +
		" ]; do sleep 0.01; done",
		"max_retries": 0})
	w.WaitJobRunning(running)
	t.Logf("%d inodes taken", useAllInodes(t, disk))

	cut := func(id string) {
		t.Helper()
		text, dropped := readJobOutput(w, id)
		if dropped == 0 || len(text) < 4096 || !strings.HasPrefix(longOutput, text[:4096]) {
			t.Errorf("without inodes: %d bytes, %d dropped; want the beginning, and that the rest was dropped", len(text),
				dropped)
		}
		if j := w.ShowJob(id); len(j.AttemptHistory) != 1 || j.AttemptHistory[0].DroppedBytes != dropped {
			t.Errorf("the attempt of job %s does not say that %d bytes were dropped: %+v", id, dropped, j.AttemptHistory)
		}
	}
	var large []string
	for range 8 {
		large = append(large, w.Enqueue(testrig.JSONFields{"command": "seq 20000; exit 7", "max_retries": 0}))
	}
	small := w.Enqueue(testrig.JSONFields{"command": "echo hi", "max_retries": 0})
	for _, id := range large {
		j := w.WaitJobEnded(id)
		if j.State != "dead" || testrig.ValueOrMinusOne(j.ExitCode) != 7 || j.AttemptCount != 1 {
			t.Errorf("without inodes: %+v, want its exit code", j)
		}
		cut(id)
	}
	if j := w.WaitJobEnded(small); j.State != "completed" || j.Output != "hi\n" {
		t.Errorf("a small output: %+v", j)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if j := w.WaitJobEnded(running); j.State != "completed" {
		t.Errorf("the running job: %+v", j)
	}
	// The runner removes the job's private directory first. Removing that directory may free an inode for the output.
	if text, dropped := readJobOutput(w, running); dropped != 0 && !strings.HasPrefix(longOutput, text[:4096]) ||
		dropped == 0 &&
			text != longOutput+"up\n" {
		t.Errorf("output of the running job: %d bytes, %d dropped", len(text), dropped)
	}

	freeUsedInodes(t, disk)
	id := w.Enqueue(testrig.JSONFields{"command": "seq 20000", "max_retries": 0})
	if j := w.WaitJobEnded(id); j.State != "completed" {
		t.Errorf("with inodes: %+v", j)
	}
	if text, dropped := readJobOutput(w, id); dropped != 0 || text != longOutput {
		t.Errorf("with inodes: %d bytes, %d dropped; want all %d", len(text), dropped, len(longOutput))
	}
	if code := q.StopService(); code != 0 {
		t.Errorf("stop: exit code %d", code)
	}
}
