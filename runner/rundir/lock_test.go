package rundir

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/runner/wire"
)

// TestMain runs this program as a runner if QUEUECTL_TEST_RUNNER is set, for tests that need a second
// process.
func TestMain(m *testing.M) {
	if dir := os.Getenv("QUEUECTL_TEST_RUNNER"); dir != "" {
		fmt.Println(createRunnerFiles(dir))
		io.Copy(io.Discard, os.Stdin) // wait here until this process is killed
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// createRunnerFiles creates the files of a runner with one running job and the result of another job. It
// holds the runner's lock until this process ends.
func createRunnerFiles(dir string) error {
	if _, ok, err := TryLockFile(filepath.Join(dir, LockFileName), 0o600); !ok || err != nil {
		return fmt.Errorf("the lock: %t, %w", ok, err)
	}
	j, err := OpenJournal(dir, 0o600, func(JournalSize) {})
	if err != nil {
		return err
	}
	if _, err := j.AppendResult(encodedResultFrame(4)); err != nil {
		return err
	}
	table, err := CreateRunningTable(dir, 0o600, 4711, 99)
	if err != nil {
		return err
	}
	table.SetStartingAttempt(2, wire.Lease{Seq: 5, Fence: 6}, 7)
	table.SetAttemptProcess(2, 8, 7)
	return nil
}

// While a runner is alive, no other process can take its lock. When it was killed, the lock is free. Its
// files can be read while it is alive, and are complete after it was killed.
func TestKilledRunnerLeavesFilesAndNoLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "1.a")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "QUEUECTL_TEST_RUNNER="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if stdout, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(stdout) != "<nil>" {
		t.Fatalf("the other process printed %q, %v", stdout, err)
	}
	want := []wire.Attempt{{Lease: wire.Lease{Seq: 5, Fence: 6}, TableSlot: 2, PID: 8, StartedAtMillis: 7}}
	checkFiles := func(when string) {
		t.Helper()
		checkJournal(t, dir, when, 4)
		if got, err := ReadRunningTable(dir); got.RunnerPID != 4711 || got.RunnerStartTicks != 99 ||
			!slices.Equal(got.Attempts, want) ||
			err != nil {
			t.Errorf("%s: the running table is %+v, error %v", when, got, err)
		}
	}
	path := filepath.Join(dir, LockFileName)
	checkFiles("while it lives")
	if lock, ok, err := TryLockFile(path, 0o600); ok || err != nil {
		t.Errorf("another process took the lock: %v, %v", lock, err)
	}
	if held, err := isRunnerAlive(dir); !held || err != nil {
		t.Errorf("a living runner: %t, %v", held, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if held, err := isRunnerAlive(dir); held || err != nil {
		t.Errorf("a dead runner: %t, %v", held, err)
	}
	checkFiles("once it is dead")
	if err := RemoveDeadRunnerDir(dir); err != nil {
		t.Error(err)
	}
}

// isRunnerAlive reports whether the lock of a runner's directory is held.
func isRunnerAlive(runnerDir string) (bool, error) {
	return IsLockHeld(filepath.Join(runnerDir, LockFileName))
}

// Several processes can check at the same time whether a runner is alive. A dead runner must not look alive
// to one process because another process is checking it.
func TestConcurrentLockChecksDoNotConflict(t *testing.T) {
	path := filepath.Join(t.TempDir(), LockFileName)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		done := make(chan bool)
		for range 4 {
			go func() {
				held := false
				for range 200 {
					h, err := IsLockHeld(path)
					held = held || h || err != nil
				}
				done <- held
			}()
		}
		for range 4 {
			if <-done {
				t.Fatal("a lock that no process holds is held")
			}
		}
	}
	lock, ok, err := TryLockFile(path, 0o600)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	defer lock.Close()
	if held, err := IsLockHeld(path); !held || err != nil {
		t.Errorf("a lock that is held: %v, %v", held, err)
	}
}

// A runner that removes its directory counts as living until all its files are removed.
func TestRunnerRemovingItsDirectoryCountsAsAlive(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "1.a")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, ok, err := TryLockFile(filepath.Join(dir, LockFileName), 0o600)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	for n := range 500 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s.%d", journalFilePrefix, n)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	left := make(chan int)
	go func() {
		for {
			if held, err := isRunnerAlive(dir); err == nil && !held {
				list, _ := filepath.Glob(filepath.Join(dir, journalFilePrefix+".*"))
				left <- len(list)
				return
			}
		}
	}()
	if err := RemoveRunnerDir(dir, lock); err != nil {
		t.Error(err)
	}
	if n := <-left; n > 0 {
		t.Errorf("the runner counted as dead while %d files were left", n)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory still exists: %v", err)
	}
}
