package test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A backup that is interrupted leaves nothing; what is no file is not replaced by one,
// and a link leads to the new backup.
func TestBackupTargets(t *testing.T) {
	q := serving(t, "--workers", "0")
	q.must("enqueue", "true")
	out := filepath.Join(q.dir, "out")
	if err := os.Mkdir(out, 0o700); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(out, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{pipe, out} {
		if r := q.cli("backup", name); r.code != 2 || !strings.Contains(r.err, "is no file") {
			t.Errorf("backup %s: %+v", filepath.Base(name), r)
		}
	}
	os.Remove(pipe)
	file, link := filepath.Join(q.dir, "copy.db"), filepath.Join(q.dir, "newest")
	if err := errors.Join(os.WriteFile(file, []byte("old"), 0o644), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	q.must("backup", link)
	if to, err := os.Readlink(link); err != nil || to != file {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	holdsAll(t, file, []string{"1"})

	q.cmd.Process.Signal(syscall.SIGSTOP) // so that it comes in the middle
	cmd := q.command("backup", filepath.Join(out, "copy.db"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	q.until("it has begun", 20*time.Second, func() bool {
		list, _ := os.ReadDir(out)
		return len(list) > 0
	})
	cmd.Process.Signal(syscall.SIGINT)
	cmd.Wait()
	q.cmd.Process.Signal(syscall.SIGCONT)
	if list, _ := os.ReadDir(out); len(list) > 0 || cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("interrupted: exit %d, left %v", cmd.ProcessState.ExitCode(), list)
	}
}

// A service that is killed while a backup is made leaves neither a file nor half of
// one, and cleans up at its next start. A runner that lives keeps the queue from being
// replaced.
func TestBackupInterrupted(t *testing.T) {
	q := serving(t, "--workers", "1")
	for i := range 50 {
		q.must("enqueue", "--delay", "1h", "--id", fmt.Sprintf("wide%d", i), "true #"+strings.Repeat("y", 120_000))
	}
	q.must("enqueue", "--id", "long", "sleep 300")
	q.until("it runs", 20*time.Second, func() bool { return q.show("long").State == "processing" })
	file := filepath.Join(q.dir, "out", "copy.db")
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := q.command("backup", file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	q.until("the copy begins, or is done", 20*time.Second, func() bool {
		left, _ := filepath.Glob(filepath.Join(q.dir, "copy-*"))
		_, err := os.Stat(file)
		return len(left) > 0 || err == nil
	})
	q.cmd.Process.Signal(syscall.SIGSTOP)
	_, err := os.Stat(file)
	done := err == nil
	q.kill()
	cmd.Wait()
	left, _ := os.ReadDir(filepath.Dir(file))
	if !done && (cmd.ProcessState.ExitCode() != 3 || len(left) != 0) {
		t.Errorf("exit code %d, left %v", cmd.ProcessState.ExitCode(), left)
	}
	if r := q.cli("restore", filepath.Join(q.dir, "initialized")); r.code != 5 || !strings.Contains(r.err, "still run") {
		t.Errorf("restore while a job runs: %+v", r)
	}
	q.start("--workers", "1")
	if left, _ := filepath.Glob(filepath.Join(q.dir, "copy-*")); len(left) > 0 {
		t.Errorf("left after the next start: %v", left)
	}
}
