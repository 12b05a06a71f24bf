//go:build linux || windows

package test

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// diagnosis holds the findings of doctor.
type diagnosis struct {
	Level    string
	Findings []struct{ Check, Level, Message, Next string }
}

func (q *queue) doctor(args ...string) diagnosis {
	q.Helper()
	r := q.cli(append([]string{"doctor", "--json"}, args...)...)
	var d diagnosis
	if err := json.Unmarshal([]byte(r.out), &d); err != nil {
		q.Fatalf("doctor: %+v, %v", r, err)
	}
	if want := map[string]int{"failure": 1}[d.Level]; r.code != want {
		q.Errorf("doctor found %s and ended with %d", d.Level, r.code)
	}
	return d
}

// checkFinding checks that doctor reports a failure for the given check, with the given text in its message
// or advice.
func (q *queue) checkFinding(planted, check, wantText string, args ...string) {
	q.Helper()
	d := q.doctor(args...)
	for _, f := range d.Findings {
		if f.Level == "failure" && f.Check == check && strings.Contains(f.Message+" "+f.Next, wantText) {
			return
		}
	}
	q.Errorf("%s: doctor did not find it: %+v", planted, d)
}

// checkHealthy checks that doctor reports no failure.
func (q *queue) checkHealthy(when string) {
	q.Helper()
	if d := q.doctor("--verify"); d.Level == "failure" {
		q.Errorf("%s: %+v", when, d)
	}
}

// corrupt changes the database directly, so that the service does not notice the change.
func (q *queue) corrupt(statement string) {
	q.Helper()
	db, err := sql.Open("sqlite", "file:"+q.path("queuectl.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		q.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(statement); err != nil {
		q.Fatalf("%s: %v", statement, err)
	}
}

// repair follows doctor's advice for inconsistent rows.
func (q *queue) repair() {
	q.Helper()
	file := q.path("mend.db")
	q.must("backup", file)
	q.must("service", "stop")
	<-q.ended
	q.must("restore", file)
	q.start("--workers", "1")
	q.checkHealthy("after backup and restore")
}

// doctor reports that the program on disk is newer than the running service, and recommends a restart. After
// the restart it reports nothing.
func TestDoctorFindsANewerProgram(t *testing.T) {
	t.Parallel()
	q := newQueue(t, "")
	if err := os.Mkdir(q.path("bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	q.bin = install(t, binary(t, ""), q.path("bin"))
	q.start("--workers", "1")
	q.checkHealthy("just started")
	q.bin = install(t, binary(t, ""), q.path("bin"))
	q.checkFinding("a newer program", "program", "has changed since the service")
	q.must("service", "stop", "--keep-jobs")
	<-q.ended
	q.start("--workers", "1")
	q.checkHealthy("after a restart")
	if err := os.Rename(filepath.Join(filepath.Dir(q.bin), "queuectld"+extension), q.path("taken")); err != nil {
		t.Fatal(err)
	}
	q.bin = binary(t, "")
	q.checkFinding("without the service's program", "program", "is missing")
}

// The service does not start on a network file system, and doctor says why.
func TestNetworkFileSystem(t *testing.T) {
	t.Parallel()
	q := newQueue(t, "failpoint")
	q.start("--workers", "0")
	q.must("enqueue", "true")
	q.stop()
	q.env = []string{"QUEUECTL_FAILPOINTS=nfs"}
	if err := q.tryStart(); err == nil || !strings.Contains(err.Error(), networkFinding) ||
		q.cmd.ProcessState.ExitCode() != 78 {
		t.Errorf("started on NFS: %v", err)
	}
	q.cmd = nil
	cmd := q.command("doctor", "--json", "--verify")
	cmd.Env = append(cmd.Env, q.env...)
	if r := runCommand(t, cmd); r.code != 1 || !strings.Contains(r.out, networkFinding) ||
		!strings.Contains(r.out, `"check":"counters","level":"ok"`) {
		t.Errorf("doctor: %+v", r)
	}
}

// Without a running service, doctor reads the files of the queue. It reports damage by other
// programs and says how to fix it.
func TestDoctorOfAStoppedQueue(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	q.must("run", "true")
	q.stop()
	q.checkHealthy("stopped")
	q.corrupt(`UPDATE meta SET dead = dead + 1`)
	q.checkFinding("a counter off by one", "counters", "the counter of dead jobs is 1, but there are 0", "--verify")
	f, err := os.OpenFile(q.path("queuectl.db"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteAt(make([]byte, 2048), 100)
	f.Close()
	q.checkFinding("a damaged database", "database", "queuectl restore")
	q.checkFinding("a damaged database", "database", "queuectl restore", "--verify")
	os.Remove(q.path("queuectl.db"))
	q.checkFinding("a missing database", "database", "queuectl.db is missing")
}

// Doctor creates no files for a stopped queue, regardless of the user who runs it. Files created
// by root would prevent the owner's service from starting.
func TestDoctorCreatesNoFiles(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	q.must("run", "true")
	q.stop()
	os.Remove(q.path("service.lock"))
	names := func() (list []string) {
		entries, err := os.ReadDir(q.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			list = append(list, e.Name())
		}
		return list
	}
	before := names()
	q.checkHealthy("stopped")
	if after := names(); !slices.Equal(after, before) {
		t.Errorf("it made %v of %v", after, before)
	}
	if os.Geteuid() != 0 {
		return // only root can access another user's directory
	}
	const other = 65534
	if err := os.Chown(q.dir, other, other); err != nil {
		t.Fatal(err)
	}
	if r := q.cli("doctor"); r.code != 5 || !strings.Contains(r.err, "belongs to uid 65534; run doctor as that user") ||
		strings.Contains(r.out+r.err, "chown") {
		t.Errorf("as root: %+v", r)
	}
	if after := names(); !slices.Equal(after, before) {
		t.Errorf("root made %v of %v", after, before)
	}
}

// Doctor finds faults planted in a running queue and says how to fix them, and the advice works.
func TestDoctorFindsPlantedFaults(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	q.must("run", "--id", "large", "head -c 200000 /dev/zero | tr '\\0' x; true")
	q.must("run", "true")
	q.must("enqueue", "--delay", "1h", "true")
	q.checkHealthy("a new queue")

	q.corrupt(`DROP INDEX jobs_ended`)
	q.checkFinding("a missing index", "database", "index jobs_ended is missing")
	q.checkFinding("a missing index", "indexes", "no such index", "--verify")
	q.corrupt(`UPDATE meta SET completed = completed + 1`)
	q.checkFinding("a counter off by one", "counters", "the counter of completed jobs is 3, but there are 2", "--verify")
	q.repair()

	orphan := q.path("runner/output/999-1")
	if err := os.WriteFile(orphan, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	q.checkFinding("an orphan output", "outputs", "999-1 belongs to no attempt", "--verify")
	os.Remove(orphan)
	outputs, _ := filepath.Glob(q.path("runner/output/*"))
	if len(outputs) != 1 {
		t.Fatalf("outputs: %v", outputs)
	}
	os.Rename(outputs[0], q.path("aside"))
	q.checkFinding("a missing output", "outputs", filepath.Base(outputs[0])+" of an attempt is missing", "--verify")
	os.Rename(q.path("aside"), outputs[0])
	q.checkHealthy("with its output back")
	raw, err := os.ReadFile(outputs[0])
	if err != nil {
		t.Fatal(err)
	}
	harmed := bytes.Clone(raw)
	harmed[len(harmed)/2] ^= 1
	if err := os.WriteFile(outputs[0], harmed, 0o600); err != nil {
		t.Fatal(err)
	}
	q.checkFinding("a damaged output", "outputs", filepath.Base(outputs[0])+" is damaged: ", "--verify")
	if err := os.WriteFile(outputs[0], raw, 0o600); err != nil {
		t.Fatal(err)
	}
	q.checkHealthy("with its output repaired")

	q.corrupt(`UPDATE jobs SET created_at = created_at + 86400000 WHERE id = 'large'`)
	q.checkFinding("a row dated in the future", "rows", "1 jobs have dates in the future, for example job large",
		"--verify")
	q.corrupt(`UPDATE jobs SET created_at = created_at - 86400000 WHERE id = 'large'`)
	q.checkHealthy("with its date back")

	number := strings.TrimSpace(q.must("enqueue", "--in", "1h", "true"))
	q.corrupt(`UPDATE jobs SET id = '` + number + `' WHERE id = 'large'`)
	q.checkFinding("a number that two jobs have", "rows",
		"1 jobs have the number of another job as their id, for example "+number, "--verify")
	q.corrupt(`UPDATE jobs SET id = 'large' WHERE id = '` + number + `' AND seq <> ` + number)
	q.checkHealthy("with its name back")
}

// If no queue exists in the requested directory yet, the advice of doctor for starting a queue names that
// directory.
func TestDoctorNamesTheRequestedDir(t *testing.T) {
	q := newQueue(t, "")
	r := q.cli("doctor", "--dir", "nothing-yet")
	if want := "start with: queuectl --dir nothing-yet service start"; !strings.Contains(r.out, want) {
		t.Errorf("doctor: %+v, want %q", r, want)
	}
}
