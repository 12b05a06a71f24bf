package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Doctor finds what is planted in a queue that runs, says what to do, and what it says
// helps.
func TestDoctorFindsWhatIsPlanted(t *testing.T) {
	q := serving(t, "--workers", "1")
	q.must("run", "--id", "large", "head -c 200000 /dev/zero | tr '\\0' x; true")
	q.must("run", "true")
	q.must("enqueue", "--delay", "1h", "true")
	q.healthy("a new queue")

	q.plant(`DROP INDEX jobs_ended`)
	q.diagnosed("a missing index", "database", "index jobs_ended is missing")
	q.diagnosed("a missing index", "indexes", "no such index", "--verify")
	q.plant(`UPDATE meta SET completed = completed + 1`)
	q.diagnosed("a counter off by one", "counters", "3 jobs are counted as completed, but there are 2", "--verify")
	q.mend()

	orphan := q.path("runner/output/999-1")
	if err := os.WriteFile(orphan, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	q.diagnosed("an orphan output", "outputs", "999-1 is of no attempt", "--verify")
	os.Remove(orphan)
	outputs, _ := filepath.Glob(q.path("runner/output/*"))
	if len(outputs) != 1 {
		t.Fatalf("outputs: %v", outputs)
	}
	os.Rename(outputs[0], q.path("aside"))
	q.diagnosed("a missing output", "outputs", filepath.Base(outputs[0])+" of an attempt is missing", "--verify")
	os.Rename(q.path("aside"), outputs[0])
	q.healthy("with its output back")

	os.Chmod(q.path("queuectl.db"), 0o644)
	q.diagnosed("a wrong mode", "permissions", "chmod 600 "+q.path("queuectl.db"))
	os.Chmod(q.path("queuectl.db"), 0o600)
	os.Chmod(q.path("queuectl.sock"), 0o666)
	q.diagnosed("an open socket", "permissions", "chmod 600 "+q.path("queuectl.sock"))
	os.Chmod(q.path("queuectl.sock"), 0o600)

	q.plant(`UPDATE jobs SET created_at = created_at + 86400000 WHERE id = 'large'`)
	q.diagnosed("a row dated in the future", "rows", "1 jobs are dated in the future, like large", "--verify")
	q.plant(`UPDATE jobs SET created_at = created_at - 86400000 WHERE id = 'large'`)
	q.healthy("with its date back")

	pid := q.runnerPid()
	syscall.Kill(pid, syscall.SIGSTOP)
	q.until("it has stopped", 20*time.Second, func() bool {
		raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return strings.Contains(string(raw), ") T ")
	})
	q.diagnosed("a runner that is stopped", "runner", "does not answer")
	syscall.Kill(pid, syscall.SIGCONT)
	q.healthy("with its runner back")
}
