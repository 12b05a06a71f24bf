//go:build linux || windows

package cli

import (
	"bytes"
	"database/sql"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// execOnDatabase executes an SQL statement on the database, as another program could do.
func execOnDatabase(q *testrig.Harness, statement string) {
	q.Helper()
	db, err := sql.Open("sqlite", "file:"+q.Path("queuectl.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		q.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(statement); err != nil {
		q.Fatalf("%s: %v", statement, err)
	}
}

// repairQueueDatabase does what `queuectl doctor` advises if it finds rows of the database that contradict each other.
func repairQueueDatabase(q *testrig.Harness) {
	q.Helper()
	file := q.Path("repair.db")
	q.MustRunCLI("backup", file)
	q.MustRunCLI("service", "stop")
	<-q.ServiceExit
	q.MustRunCLI("restore", file)
	q.StartService("--workers", "1")
	q.CheckDoctorHealthy("after backup and restore")
}

// If the program on disk is newer than the running service, `queuectl doctor` reports that and recommends a
// restart. After the restart, the command reports nothing.
func TestDoctorFindsANewerProgram(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	if err := os.Mkdir(q.Path("bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	q.ClientPath = testrig.InstallPrograms(t, testrig.BuiltProgram(t, ""), q.Path("bin"))
	q.StartService("--workers", "1")
	q.CheckDoctorHealthy("just started")
	q.ClientPath = testrig.InstallPrograms(t, testrig.BuiltProgram(t, ""), q.Path("bin"))
	q.CheckDoctorFinding("a newer program", "program", "has changed since the service")
	q.MustRunCLI("service", "stop", "--keep-jobs")
	<-q.ServiceExit
	q.StartService("--workers", "1")
	q.CheckDoctorHealthy("after a restart")
	if err := os.Rename(filepath.Join(filepath.Dir(q.ClientPath), "queuectld"+testrig.ExecutableSuffix),
		q.Path("taken")); err != nil {
		t.Fatal(err)
	}
	q.ClientPath = testrig.BuiltProgram(t, "")
	q.CheckDoctorFinding("without the service's program", "program", "is missing")
}

// The service does not start on a network file system, and `queuectl doctor` says why.
func TestNetworkFileSystemIsRefused(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "failpoint")
	q.StartService("--workers", "0")
	q.MustRunCLI("enqueue", "true")
	q.StopService()
	q.ServiceEnv = []string{"QUEUECTL_FAILPOINTS=nfs"}
	if err := q.TryStartService(); err == nil || !strings.Contains(err.Error(), testrig.NetworkDirFindingText) ||
		q.ServiceCmd.ProcessState.ExitCode() != 78 {
		t.Errorf("start on a network file system: %v", err)
	}
	q.ServiceCmd = nil
	cmd := q.CLICommand("doctor", "--json", "--verify")
	cmd.Env = append(cmd.Env, q.ServiceEnv...)
	if r := testrig.RunCommand(t, cmd); r.ExitCode != 1 || !strings.Contains(r.Stdout, testrig.NetworkDirFindingText) ||
		!strings.Contains(r.Stdout, `"check":"counters","level":"ok"`) {
		t.Errorf("doctor on a network file system: %+v", r)
	}
}

// Without a running service, `queuectl doctor` reads the files of the queue. It reports damage by other programs
// and says how to fix it.
func TestDoctorChecksFilesOfStoppedQueue(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("run", "true")
	q.StopService()
	q.CheckDoctorHealthy("stopped")
	execOnDatabase(q, `UPDATE meta SET dead = dead + 1`)
	q.CheckDoctorFinding("a counter off by one", "counters", "the counter of dead jobs is 1, but there are 0", "--verify")
	f, err := os.OpenFile(q.Path("queuectl.db"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteAt(make([]byte, 2048), 100)
	f.Close()
	q.CheckDoctorFinding("a damaged database", "database", "queuectl restore")
	q.CheckDoctorFinding("a damaged database", "database", "queuectl restore", "--verify")
	os.Remove(q.Path("queuectl.db"))
	q.CheckDoctorFinding("a missing database", "database", "queuectl.db is missing")
}

// `queuectl doctor` creates no files for a stopped queue, whichever user runs it. Files created by root would
// prevent the owner's service from starting.
func TestDoctorCreatesNoFiles(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("run", "true")
	q.StopService()
	os.Remove(q.Path("service.lock"))
	names := func() (list []string) {
		entries, err := os.ReadDir(q.StateDir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			list = append(list, e.Name())
		}
		return list
	}
	before := names()
	q.CheckDoctorHealthy("stopped")
	if after := names(); !slices.Equal(after, before) {
		t.Errorf("doctor changed the files from %[2]v to %[1]v", after, before)
	}
	if os.Geteuid() != 0 {
		return // only root can access another user's directory
	}
	const other = 65534
	if err := os.Chown(q.StateDir, other, other); err != nil {
		t.Fatal(err)
	}
	if r := q.RunCLI("doctor"); r.ExitCode != 5 || !strings.Contains(r.Stderr,
		"belongs to uid 65534; run doctor as that user") ||
		strings.Contains(r.Stdout+r.Stderr, "chown") {
		t.Errorf("doctor as root: %+v", r)
	}
	if after := names(); !slices.Equal(after, before) {
		t.Errorf("doctor as root changed the files from %[2]v to %[1]v", after, before)
	}
}

// `queuectl doctor` finds faults that the test puts into a running queue. Its advice on how to fix them works.
func TestDoctorFindsPlantedFaults(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("run", "--id", "large", "head -c 200000 /dev/zero | tr '\\0' x; true")
	q.MustRunCLI("run", "true")
	q.MustRunCLI("enqueue", "--delay", "1h", "true")
	q.CheckDoctorHealthy("a new queue")

	execOnDatabase(q, `DROP INDEX jobs_ended`)
	q.CheckDoctorFinding("a missing index", "database", "index jobs_ended is missing")
	q.CheckDoctorFinding("a missing index", "indexes", "no such index", "--verify")
	execOnDatabase(q, `UPDATE meta SET completed = completed + 1`)
	q.CheckDoctorFinding("a counter off by one", "counters", "the counter of completed jobs is 3, but there are 2",
		"--verify")
	repairQueueDatabase(q)

	orphan := q.Path("runner/output/999-1")
	if err := os.WriteFile(orphan, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	q.CheckDoctorFinding("an orphan output", "outputs", "999-1 belongs to no attempt", "--verify")
	os.Remove(orphan)
	outputs, _ := filepath.Glob(q.Path("runner/output/*"))
	if len(outputs) != 1 {
		t.Fatalf("outputs: %v", outputs)
	}
	os.Rename(outputs[0], q.Path("aside"))
	q.CheckDoctorFinding("a missing output", "outputs", filepath.Base(outputs[0])+" is missing", "--verify")
	os.Rename(q.Path("aside"), outputs[0])
	q.CheckDoctorHealthy("with its output back")
	raw, err := os.ReadFile(outputs[0])
	if err != nil {
		t.Fatal(err)
	}
	harmed := bytes.Clone(raw)
	harmed[len(harmed)/2] ^= 1
	if err := os.WriteFile(outputs[0], harmed, 0o600); err != nil {
		t.Fatal(err)
	}
	q.CheckDoctorFinding("a damaged output", "outputs", filepath.Base(outputs[0])+" is damaged: ", "--verify")
	if err := os.WriteFile(outputs[0], raw, 0o600); err != nil {
		t.Fatal(err)
	}
	q.CheckDoctorHealthy("with its output repaired")

	execOnDatabase(q, `UPDATE jobs SET created_at = created_at + 86400000 WHERE id = 'large'`)
	q.CheckDoctorFinding("a row dated in the future", "clock", "1 jobs have dates in the future, for example job large",
		"--verify")
	execOnDatabase(q, `UPDATE jobs SET created_at = created_at - 86400000 WHERE id = 'large'`)
	q.CheckDoctorHealthy("with its date back")

	number := strings.TrimSpace(q.MustRunCLI("enqueue", "--in", "1h", "true"))
	execOnDatabase(q, `UPDATE jobs SET id = '`+number+`' WHERE id = 'large'`)
	q.CheckDoctorFinding("a number that two jobs have", "rows",
		"1 ids belong to two jobs each (the id of one job is the number of the other), for example id "+number, "--verify")
	execOnDatabase(q, `UPDATE jobs SET id = 'large' WHERE id = '`+number+`' AND seq <> `+number)
	q.CheckDoctorHealthy("with its name back")
}

// If the requested directory has no queue yet, the advice of `queuectl doctor` for starting a queue contains
// that directory.
func TestDoctorNamesTheRequestedDir(t *testing.T) {
	q := testrig.NewHarness(t, "")
	r := q.RunCLI("doctor", "--dir", "nothing-yet")
	if want := "create it with: queuectl --dir nothing-yet service start"; !strings.Contains(r.Stdout, want) {
		t.Errorf("doctor: %+v, want %q", r, want)
	}
}
