package durability

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// While a disk of 24 MB fills up, the service refuses new jobs with no_space before the database
// runs out of space. Acknowledged jobs run. When the disk has free space again, the service accepts
// new jobs. The test needs root to mount the disk.
func TestServiceRefusesJobsBeforeDiskIsFull(t *testing.T) {
	skip.UnlessRoot(t, "needs root to mount a disk; "+
		".ci/run runs it as root, and the tests of store/sqlite simulate a full disk")
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	t.Parallel() // this test mostly waits for the next time that the service checks the disk
	q := testrig.NewHarness(t, "")
	disk := q.MountQueueDisk("24M")
	q.StartService("--workers", "2")
	filler, gate := filepath.Join(disk, "filler"), filepath.Join(filepath.Dir(disk), "go")
	acked := fillDiskWithJobs(q, filler, gate)
	t.Logf("%d jobs were acknowledged before the disk was full", len(acked))
	q.CheckDoctorFinding("a full disk", "disk", "free some space")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range acked {
		if r := q.RunCLI("wait", id, "--timeout", "30"); r.ExitCode != 0 {
			t.Fatalf("job %s on a full disk: exit code %d, %s", id, r.ExitCode, r.Stderr)
		}
	}
	os.Remove(filler)
	q.WaitUntil("new jobs are taken again", 40*time.Second,
		func() bool { return q.RunCLI("enqueue", "true").ExitCode == 0 })
}

// fillDiskWithJobs enqueues jobs that wait until the gate file exists and then print output. After each job, it makes
// the file fillerPath longer, until the service refuses a job for lack of space. Then it fills the rest of the disk. It
// returns the ids of the acknowledged jobs.
func fillDiskWithJobs(q *testrig.Harness, fillerPath, startFilePath string) (ackedJobIDs []string) {
	f, err := os.Create(fillerPath)
	if err != nil {
		q.Fatal(err)
	}
	defer f.Close()
	// The service checks the disk ten times a second. One block is so large that the disk can fill up between
	// two checks.
	block := make([]byte, 512<<10)
	for range 400 {
		r := q.RunCLI("enqueue", "--json", "while [ ! -e "+startFilePath+" ]; do sleep 0.05; done; seq 2000")
		if r.ExitCode == 5 && strings.Contains(r.Stderr, "free") {
			if _, err := os.Stat(q.Path("reserve")); err != nil {
				q.Errorf("the service has used its disk reserve: %v", err)
			}
			var diskStats syscall.Statfs_t
			if err := syscall.Statfs(filepath.Dir(fillerPath), &diskStats); err != nil ||
				diskStats.Bavail*uint64(diskStats.Bsize) < 3<<19 {
				q.Errorf("only %d bytes were free when the first job was refused (%v)",
					diskStats.Bavail*uint64(diskStats.Bsize), err)
			}
			// Fill the rest of the disk too. The service must still record the results of running jobs.
			for err == nil {
				_, err = f.Write(block)
			}
			return ackedJobIDs
		}
		var j testrig.Job
		if r.ExitCode != 0 || json.Unmarshal([]byte(r.Stdout), &j) != nil {
			q.Fatalf("enqueue: exit code %d: %s", r.ExitCode, r.Stderr)
		}
		ackedJobIDs = append(ackedJobIDs, j.ID)
		f.Write(block) // one of these writes fills the disk, and then the service refuses the next job
	}
	q.Fatal("the disk was never full")
	return nil
}

// fillDiskCompletely fills a disk to the last byte with one file, which it returns.
func fillDiskCompletely(t *testing.T, diskDir string) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(diskDir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	for size := 256 << 10; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	return f
}

// If a service cannot start because the disk is full, it prints the reason and waits. It ends when it is
// stopped.
func TestServiceStartWaitsOnFullDisk(t *testing.T) {
	skip.UnlessRoot(t, "needs root to mount a disk; .ci/run runs it as root")
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	t.Parallel()
	q := testrig.NewHarness(t, "")
	disk := q.MountQueueDisk("24M")
	q.StartService("--workers", "1")
	q.KillService()
	q.KillRunners()
	os.Remove(q.Path("reserve"))
	fillDiskCompletely(t, disk)
	for _, args := range [][]string{{"serve"}, {"run", "--private", "--lines", "-"}} {
		cmd, errs := q.CLICommand(args...), &testrig.LockedBuffer{}
		cmd.Stderr = errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		q.WaitUntil("the service reports the full disk", 20*time.Second, func() bool {
			return strings.Contains(errs.String(), "once there is space")
		})
		cmd.Process.Signal(syscall.SIGTERM)
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			cmd.Process.Kill()
			t.Errorf("%v does not end: %s", args, errs)
		}
	}
}

// If the disk is full when a service starts, the service waits, and is ready when the disk has space again.
// This also holds after a crash, and if the database's shared memory file is missing.
func TestWaitingServiceStartsWhenDiskHasSpace(t *testing.T) {
	testrig.SkipIfShort(t)
	skip.UnlessRoot(t, "needs root to mount a disk; .ci/run runs it as root")
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	t.Parallel()
	for name, lost := range map[string][]string{"after a crash": {"reserve"},
		"without shared memory": {"reserve", "queuectl.db-shm"}} {
		t.Run(name, func(t *testing.T) {
			q := testrig.NewHarness(t, "")
			disk := q.MountQueueDisk("24M")
			q.StartService("--workers", "1")
			q.MustRunCLI("enqueue", "--id", "before", "true")
			q.KillService()
			q.KillRunners()
			for _, file := range lost {
				if err := os.Remove(q.Path(file)); err != nil {
					t.Fatal(err)
				}
			}
			filler := fillDiskCompletely(t, disk)
			ended, errs := startServiceWithoutWaiting(q)
			select {
			case <-ended:
				t.Fatalf("the service ended: %s", errs)
			case <-time.After(2 * time.Second): // in this time, the service tries several times to start
			}
			if text := errs.String(); strings.Contains(text, "ready on") || !strings.Contains(text, "once there is space") {
				t.Errorf("the service on a full disk printed %s", text)
			}
			if err := filler.Truncate(0); err != nil {
				t.Fatal(err)
			}
			q.WaitUntil("it is ready", 10*time.Second, func() bool { return strings.Contains(errs.String(), "ready on") })
			q.MustRunCLI("wait", "before")
		})
	}
}

// startServiceWithoutWaiting starts a service without waiting until it is ready. It stops the service at the end of the
// test. The channel ended is closed when the service ends. stderr receives the service's standard error.
func startServiceWithoutWaiting(q *testrig.Harness) (ended <-chan struct{}, stderr *testrig.LockedBuffer) {
	q.Helper()
	cmd, stderr := q.CLICommand("serve", "--workers", "1"), &testrig.LockedBuffer{}
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		q.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		cmd.Wait()
		close(done)
	}()
	q.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		<-done
	})
	return done, stderr
}

// A file system can have blocks smaller than the 4 KiB in which SQLite extends the database's shared memory file.
// If such a disk is nearly full, the service waits for space, or runs. It does not end.
func TestServiceStartsOnNearlyFullSmallBlockDisk(t *testing.T) {
	testrig.SkipIfShort(t)
	skip.UnlessRoot(t, "needs root to mount a disk; .ci/run runs it as root")
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	t.Parallel()
	for _, freeKiB := range []int64{16, 24, 32, 40} {
		t.Run(fmt.Sprint(freeKiB, " KiB"), func(t *testing.T) {
			q := testrig.NewHarness(t, "")
			disk := q.MountQueueDisk("24M", "-b", "1024")
			q.StartService("--workers", "1")
			q.StopService()
			q.KillRunners()
			os.Remove(q.Path("reserve"))
			filler := fillDiskCompletely(t, disk)
			size, err := filler.Seek(0, io.SeekEnd)
			if err != nil {
				t.Fatal(err)
			}
			if err := filler.Truncate(size - freeKiB<<10); err != nil {
				t.Fatal(err)
			}
			ended, errs := startServiceWithoutWaiting(q)
			select {
			case <-ended:
				t.Fatalf("the service ended: %s", errs)
			case <-time.After(time.Second): // in this time, the service tries several times to start
			}
			if err := filler.Truncate(0); err != nil {
				t.Fatal(err)
			}
			q.WaitUntil("it is ready", 10*time.Second, func() bool { return strings.Contains(errs.String(), "ready on") })
			q.WaitUntil("new jobs are accepted", 40*time.Second, func() bool {
				return q.RunCLI("enqueue", "--id", "after", "true").ExitCode == 0
			})
			q.MustRunCLI("wait", "after")
		})
	}
}
