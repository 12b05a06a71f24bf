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
func TestBackupUnderLoad(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustCLI("enqueue", "--id", "large", "head -c 200000 /dev/zero | tr '\\0' x; echo end >&2")
	q.MustCLI("wait", "large")
	q.MustCLI("worker", "scale", "0")
	for i := range 10 { // fill a few hundred pages, so that the backup takes several steps
		q.Dial().Enqueue(testrig.Fields{"id": fmt.Sprintf("wide%d", i), "command": "true #" + strings.Repeat("y", 120_000)})
	}
	var mu sync.Mutex
	var acked []string
	var stopped atomic.Bool
	var clients sync.WaitGroup
	for c := range 64 {
		w := q.Dial()
		clients.Go(func() {
			for n := 0; !stopped.Load() && n < 400; n++ {
				if id := fmt.Sprintf("c%d-%d", c, n); testrig.EnqueueRaw(w, id) {
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
	file := filepath.Join(q.Dir, "copy.db")
	r := q.CLI("backup", file, "--json")
	stopped.Store(true)
	clients.Wait()
	var end struct{ Bytes int64 }
	if err := json.Unmarshal([]byte(r.Stdout), &end); err != nil || r.Code != 0 {
		t.Fatalf("backup: %+v, %v", r, err)
	}
	t.Logf("%d jobs were acknowledged before the backup, %d by its end; the backup has %d bytes", len(before), count(),
		end.Bytes)
	info, err := os.Stat(file)
	if err != nil || !testrig.IsOwnerOnly(info) || info.Size() != end.Bytes {
		t.Errorf("the file of the backup: %v, %v", info, err)
	}
	if remaining, _ := filepath.Glob(filepath.Join(q.Dir, "*copy-*")); len(remaining) > 0 {
		t.Errorf("remaining files: %v", remaining)
	}
	checkBackup(t, file, append(before, "large"))
	if r := q.CLI("restore", file); r.Code != 5 || !strings.Contains(r.Stderr, "service stop") {
		t.Errorf("restore onto a running service: %+v", r)
	}

	other := testrig.NewQueue(t, "")
	other.MustCLI("restore", file)
	other.Start("--workers", "2", "--config", os.DevNull)
	other.MustCLI("worker", "scale", "2")
	if out := other.MustCLI("logs", "large", "--stdout"); len(out) != 200_000 {
		t.Errorf("the restored output has %d bytes", len(out))
	}
	if r := other.CLI(append([]string{"wait"}, before[:100/testrig.JobDivisor]...)...); r.Code != 0 {
		t.Errorf("restored jobs do not run: %+v", r)
	}
}

// checkBackup checks that SQLite's integrity check accepts a backup and that the backup contains
// the given jobs.
func checkBackup(t *testing.T, file string, ids []string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var verdict string
	if err := db.QueryRow(`PRAGMA integrity_check`).Scan(&verdict); err != nil || verdict != "ok" {
		t.Fatalf("integrity: %q, %v", verdict, err)
	}
	for _, id := range ids {
		var n int
		if err := db.QueryRow(`SELECT count(*) FROM jobs WHERE id = ?`, id).Scan(&n); err != nil || n != 1 {
			t.Fatalf("job %s, acknowledged before the backup: %d in the backup, %v", id, n, err)
		}
	}
}

// `queuectl restore` keeps the previous database in a separate directory. The restored queue never reuses an
// event number. If the file is not a valid backup, the command changes nothing.
func TestRestore(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustCLI("run", "true")
	file := filepath.Join(q.Dir, "copy.db")
	q.MustCLI("backup", file)
	q.MustCLI("run", "echo later")
	last := q.Events()[len(q.Events())-1].Seq
	q.Stop()
	damaged := filepath.Join(q.Dir, "damaged.db")
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
	}{damaged: {2, "not a valid backup"}, filepath.Join(q.Dir, "initialized"): {2, "not a valid backup"},
		filepath.Join(q.Dir, "none"): {4, "does not exist"}} {
		if r := q.CLI("restore", file); r.Code != c.code || !strings.Contains(r.Stderr, c.want) {
			t.Errorf("restore %s: %+v", filepath.Base(file), r)
		}
	}
	killed := q.Path("restore.outputs") // `queuectl restore` leaves this directory behind if it is killed
	if err := errors.Join(os.Mkdir(killed, 0o700), os.WriteFile(q.Path("restore.tmp-journal"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	q.Start("--workers", "1")
	if remaining, _ := filepath.Glob(q.Path("restore.*")); len(remaining) > 0 {
		t.Errorf("restore left the files of a killed restore: %v", remaining)
	}
	if out := q.MustCLI("logs", "2"); out != "later" {
		t.Errorf("after refused restores, the output of job 2 is %q", out)
	}
	q.Stop()
	q.MustCLI("restore", file)
	aside, _ := filepath.Glob(filepath.Join(q.Dir, "before-restore-*", "queuectl.db"))
	if len(aside) != 1 {
		t.Errorf("directories with previous databases: %v", aside)
	}
	q.Start("--workers", "1")
	if r := q.CLI("show", "2"); r.Code != 4 {
		t.Errorf("show of a job that was enqueued after the backup: %+v", r)
	}
	if id := q.MustCLI("enqueue", "true"); id != "3" {
		t.Errorf("the next number is %s, want 3, because 2 was assigned before", id)
	}
	if r := q.CLI("events", "--since", fmt.Sprint(last-1), "--jsonl"); r.Code != 4 ||
		!strings.Contains(r.Stderr, "were removed") {
		t.Errorf("events since a number from before the restore: %+v", r)
	}
}

// When all outputs together exceed retention_output, the service removes the oldest ones, whether they are in
// the database or in files, but keeps their jobs. `queuectl logs` says why an output was removed.
func TestOldestOutputsAreRemovedAboveLimit(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	for i := range 6 {
		q.MustCLI("run", "--id", fmt.Sprint("j", i), fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x >&2; echo %[1]d",
			100_000+i*20_000))
	}
	if !strings.Contains(q.MustCLI("status", "--verbose"), "job output 8") { // 900 KB, which is 878 KiB
		t.Errorf("status: %s", q.MustCLI("status", "--verbose"))
	}
	q.MustCLI("config", "set", "retention_output", "400K")
	files := func() int {
		list, _ := filepath.Glob(q.Path("runner/output/*"))
		return len(list)
	}
	q.WaitUntil("the oldest outputs are gone", 20*time.Second, func() bool { return files() == 2 })
	if r := q.CLI("logs", "j0"); r.Code != 4 || !strings.Contains(r.Stderr,
		"removed to make room (setting retention_output)") {
		t.Errorf("logs of the oldest job: %+v", r)
	}
	if r := q.CLI("attach", "j0"); r.Code != 125 ||
		r.Stderr != "queuectl: the output of attempt 1 was removed to make room (setting retention_output)\n" {
		t.Errorf("attach to the oldest job: %+v", r)
	}
	if r := q.CLI("show", "j0"); r.Code != 0 || !strings.Contains(r.Stdout, "completed") {
		t.Errorf("show of the oldest job: %+v", r)
	}
	if out := q.MustCLI("logs", "j5", "--stdout"); out != "200000" {
		t.Errorf("logs of the newest job: %q", out)
	}
	q.CheckHealthy("after trimming")
}

// If the service is killed during a backup, the target file is either complete or missing. The next
// service removes the temporary copy of the database. `queuectl restore` refuses to replace the queue
// while a runner runs jobs.
func TestBackupInterrupted(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	for i := range 50 {
		q.Dial().Enqueue(testrig.Fields{"delay": "1h", "id": fmt.Sprintf("wide%d", i),
			"command": "true #" + strings.Repeat("y", 120_000)})
	}
	q.MustCLI("enqueue", "--id", "long", "sleep 300")
	q.WaitUntil("the job runs", 20*time.Second, func() bool { return q.Show("long").State == "processing" })
	file := filepath.Join(q.Dir, "out", "copy.db")
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := q.Command("backup", file)
	if err := testrig.StartCommand(cmd); err != nil {
		t.Fatal(err)
	}
	q.WaitUntil("the copy begins, or is done", 20*time.Second, func() bool {
		remaining, _ := filepath.Glob(filepath.Join(q.Dir, "copy-*"))
		_, err := os.Stat(file)
		return len(remaining) > 0 || err == nil
	})
	q.Kill()
	cmd.Wait()
	remaining, _ := os.ReadDir(filepath.Dir(file))
	done := len(remaining) == 1 && remaining[0].Name() == filepath.Base(file)
	switch code := cmd.ProcessState.ExitCode(); {
	// The backup was complete before the service was killed. The client has received the reply (0) or lost it (3).
	case done && (code == 0 || code == 3):
	case code != 3 || len(remaining) != 0:
		t.Errorf("exit code %d, remaining files %v", code, remaining)
	}
	if r := q.CLI("restore", filepath.Join(q.Dir, "initialized")); r.Code != 5 ||
		!strings.Contains(r.Stderr, "still run") {
		t.Errorf("restore while a job runs: %+v", r)
	}
	q.Start("--workers", "1")
	if remaining, _ := filepath.Glob(filepath.Join(q.Dir, "copy-*")); len(remaining) > 0 {
		t.Errorf("remaining files after the next start: %v", remaining)
	}
}
