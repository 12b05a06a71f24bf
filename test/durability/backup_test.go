//go:build linux || windows

package durability

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/queuectl/queuectl/internal/testrig"
)

// A backup that runs while 64 clients enqueue jobs is one file with a consistent database. It contains all
// outputs, and every job that was acknowledged before it began. A service can run on the restored backup. Only
// its owner can read the file.
func TestBackupUnderLoadIsConsistent(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("enqueue", "--id", "large", "head -c 200000 /dev/zero | tr '\\0' x; echo end >&2")
	q.MustRunCLI("wait", "large")
	q.MustRunCLI("worker", "scale", "0")
	for i := range 10 { // fill a few hundred pages, so that the backup takes several steps
		q.DialService().Enqueue(testrig.JSONFields{"id": fmt.Sprintf("wide%d", i), "command": "true #" +
			strings.Repeat("y", 120_000)})
	}
	var mu sync.Mutex
	var acked []string
	var stopped atomic.Bool
	var clients sync.WaitGroup
	for c := range 64 {
		w := q.DialService()
		clients.Go(func() {
			for n := 0; !stopped.Load() && n < 400; n++ {
				if id := fmt.Sprintf("c%d-%d", c, n); testrig.TryEnqueueJobWithID(w, id) {
					mu.Lock()
					acked = append(acked, id)
					mu.Unlock()
				}
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acked)
	}
	q.WaitUntil("all enqueue", 20*time.Second, func() bool { return count() > 500 })
	mu.Lock()
	before := slices.Clone(acked)
	mu.Unlock()
	file := filepath.Join(q.StateDir, "copy.db")
	r := q.RunCLI("backup", file, "--json")
	stopped.Store(true)
	clients.Wait()
	var end struct{ Bytes int64 }
	if err := json.Unmarshal([]byte(r.Stdout), &end); err != nil || r.ExitCode != 0 {
		t.Fatalf("backup: %+v, %v", r, err)
	}
	t.Logf("%d jobs were acknowledged before the backup, %d by its end; the backup has %d bytes", len(before), count(),
		end.Bytes)
	info, err := os.Stat(file)
	if err != nil || !testrig.IsAccessibleOnlyByOwner(info) || info.Size() != end.Bytes {
		t.Errorf("the file of the backup: %v, %v", info, err)
	}
	if remaining, _ := filepath.Glob(filepath.Join(q.StateDir, "*copy-*")); len(remaining) > 0 {
		t.Errorf("remaining files: %v", remaining)
	}
	checkBackup(t, file, append(before, "large"))
	if r := q.RunCLI("restore", file); r.ExitCode != 5 || !strings.Contains(r.Stderr, "service stop") {
		t.Errorf("restore onto a running service: %+v", r)
	}

	other := testrig.NewHarness(t, "")
	other.MustRunCLI("restore", file)
	other.StartService("--workers", "2", "--config", os.DevNull)
	other.MustRunCLI("worker", "scale", "2")
	if out := other.MustRunCLI("logs", "large", "--stdout"); len(out) != 200_000 {
		t.Errorf("the restored output has %d bytes", len(out))
	}
	if r := other.RunCLI(append([]string{"wait"}, before[:100/testrig.JobCountDivisor]...)...); r.ExitCode != 0 {
		t.Errorf("restored jobs do not run: %+v", r)
	}
}

// checkBackup checks that SQLite's integrity check accepts a backup and that the backup contains
// the given jobs.
func checkBackup(t *testing.T, backupPath string, wantJobIDs []string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+backupPath+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var verdict string
	if err := db.QueryRow(`PRAGMA integrity_check`).Scan(&verdict); err != nil || verdict != "ok" {
		t.Fatalf("integrity: %q, %v", verdict, err)
	}
	for _, id := range wantJobIDs {
		var n int
		if err := db.QueryRow(`SELECT count(*) FROM jobs WHERE id = ?`, id).Scan(&n); err != nil || n != 1 {
			t.Fatalf("job %s, acknowledged before the backup: %d in the backup, %v", id, n, err)
		}
	}
}

// `queuectl restore` keeps the previous database in a separate directory. The restored queue never reuses an
// event number. If the file is not a valid backup, the command changes nothing.
func TestRestoreKeepsPreviousDatabase(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("run", "true")
	file := filepath.Join(q.StateDir, "copy.db")
	q.MustRunCLI("backup", file)
	q.MustRunCLI("run", "echo later")
	last := q.ListEvents()[len(q.ListEvents())-1].Seq
	q.StopService()
	damaged := filepath.Join(q.StateDir, "damaged.db")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	copy(raw[8*4096:], make([]byte, 4096))
	if err := os.WriteFile(damaged, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	for file, c := range map[string]struct {
		code int
		want string
	}{damaged: {2, "not a valid backup"}, filepath.Join(q.StateDir, "initialized"): {2, "not a valid backup"},
		filepath.Join(q.StateDir, "none"): {4, "does not exist"}} {
		if r := q.RunCLI("restore", file); r.ExitCode != c.code || !strings.Contains(r.Stderr, c.want) {
			t.Errorf("restore %s: %+v", filepath.Base(file), r)
		}
	}
	killed := q.Path("restore.outputs") // `queuectl restore` leaves such a directory behind if it is killed
	if err := errors.Join(os.Mkdir(killed, 0o700), os.WriteFile(q.Path("restore.tmp-journal"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	q.StartService("--workers", "1")
	if remaining, _ := filepath.Glob(q.Path("restore.*")); len(remaining) > 0 {
		t.Errorf("restore left the files of a killed restore: %v", remaining)
	}
	if out := q.MustRunCLI("logs", "2"); out != "later" {
		t.Errorf("after refused restores, the output of job 2 is %q", out)
	}
	q.StopService()
	q.WaitUntil("the runner ended", 10*time.Second, func() bool { return len(q.RunnerPIDs()) == 0 })
	q.MustRunCLI("restore", file)
	aside, _ := filepath.Glob(filepath.Join(q.StateDir, "before-restore-*", "queuectl.db"))
	if len(aside) != 1 {
		t.Errorf("directories with previous databases: %v", aside)
	}
	q.StartService("--workers", "1")
	if r := q.RunCLI("show", "2"); r.ExitCode != 4 {
		t.Errorf("show of a job that was enqueued after the backup: %+v", r)
	}
	if id := q.MustRunCLI("enqueue", "true"); id != "3" {
		t.Errorf("the next number is %s, want 3, because 2 was assigned before", id)
	}
	if r := q.RunCLI("events", "--since", fmt.Sprint(last-1), "--jsonl"); r.ExitCode != 4 ||
		!strings.Contains(r.Stderr, "were removed") {
		t.Errorf("events since a number from before the restore: %+v", r)
	}
}

// When all outputs together exceed retention_output, the service removes the oldest outputs, whether these are in the
// database or in files. It keeps the jobs to which the outputs belong. `queuectl logs` says why an output was removed.
func TestOldestOutputsAreRemovedAboveRetentionLimit(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	for i := range 6 {
		q.MustRunCLI("run", "--id", fmt.Sprint("j", i), fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x >&2; echo %[1]d",
			100_000+i*20_000))
	}
	if !strings.Contains(q.MustRunCLI("status", "--verbose"), "job output 8") { // 900 KB, which is 878 KiB
		t.Errorf("status: %s", q.MustRunCLI("status", "--verbose"))
	}
	q.MustRunCLI("config", "set", "retention_output", "400K")
	files := func() int {
		list, _ := filepath.Glob(q.Path("runner/output/*"))
		return len(list)
	}
	q.WaitUntil("the oldest outputs are gone", 20*time.Second, func() bool { return files() == 2 })
	if r := q.RunCLI("logs", "j0"); r.ExitCode != 4 || !strings.Contains(r.Stderr,
		"removed to make room (setting retention_output)") {
		t.Errorf("logs of the oldest job: %+v", r)
	}
	if r := q.RunCLI("attach", "j0"); r.ExitCode != 125 ||
		r.Stderr != "queuectl: the output of attempt 1 was removed to make room (setting retention_output)\n" {
		t.Errorf("attach to the oldest job: %+v", r)
	}
	if r := q.RunCLI("show", "j0"); r.ExitCode != 0 || !strings.Contains(r.Stdout, "completed") {
		t.Errorf("show of the oldest job: %+v", r)
	}
	if out := q.MustRunCLI("logs", "j5", "--stdout"); out != "200000" {
		t.Errorf("logs of the newest job: %q", out)
	}
	q.CheckDoctorHealthy("after trimming")
}

// If the service is killed during a backup, the target file is either complete or missing. The next
// service removes the temporary copy of the database. `queuectl restore` refuses to replace the queue
// while a runner runs jobs.
func TestKilledBackupLeavesNoPartialFile(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	for i := range 50 {
		q.DialService().Enqueue(testrig.JSONFields{"delay": "1h", "id": fmt.Sprintf("wide%d", i),
			"command": "true #" + strings.Repeat("y", 120_000)})
	}
	q.MustRunCLI("enqueue", "--id", "long", "sleep 300")
	q.WaitUntil("the job runs", 20*time.Second, func() bool { return q.ShowJob("long").State == "processing" })
	file := filepath.Join(q.StateDir, "out", "copy.db")
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := q.CLICommand("backup", file)
	if err := testrig.StartCommand(cmd); err != nil {
		t.Fatal(err)
	}
	q.WaitUntil("the copy begins, or is done", 20*time.Second, func() bool {
		remaining, _ := filepath.Glob(filepath.Join(q.StateDir, "copy-*"))
		_, err := os.Stat(file)
		return len(remaining) > 0 || err == nil
	})
	q.KillService()
	cmd.Wait()
	remaining, _ := os.ReadDir(filepath.Dir(file))
	done := len(remaining) == 1 && remaining[0].Name() == filepath.Base(file)
	switch code := cmd.ProcessState.ExitCode(); {
	// The backup was complete before the service was killed. The client has received the reply (0) or lost it (3).
	case done && (code == 0 || code == 3):
	case code != 3 || len(remaining) != 0:
		t.Errorf("exit code %d, remaining files %v", code, remaining)
	}
	if r := q.RunCLI("restore", filepath.Join(q.StateDir, "initialized")); r.ExitCode != 5 ||
		!strings.Contains(r.Stderr, "still run") {
		t.Errorf("restore while a job runs: %+v", r)
	}
	q.StartService("--workers", "1")
	if remaining, _ := filepath.Glob(filepath.Join(q.StateDir, "copy-*")); len(remaining) > 0 {
		t.Errorf("remaining files after the next start: %v", remaining)
	}
}
