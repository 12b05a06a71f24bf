package test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/test/pgserver"
)

// onServer returns a queue whose database is on a new PostgreSQL server.
func onServer(t *testing.T) (*queue, *pgserver.Server) {
	p := pgserver.New(t)
	t.Cleanup(p.Remove)
	q := newQueue(t, "")
	q.store = p.URL("postgres")
	return q, p
}

// The guarantees for a killed service also hold if the database is on a PostgreSQL server.
func TestServiceKilledOnAServer(t *testing.T) {
	t.Parallel()
	p := pgserver.New(t)
	t.Cleanup(p.Remove)
	serviceKilled(t, 10, p.URL("postgres"))
}

// A PostgreSQL server that is killed repeatedly under load loses no acknowledged job, and no job runs twice.
// The service waits for the server, and returns an error to clients in the meantime.
func TestDatabaseServerKilled(t *testing.T) {
	t.Parallel()
	p := pgserver.New(t)
	t.Cleanup(p.Remove)
	l := &killLoad{rig: newRig(t, ""), kills: map[string]int{}, failures: make(chan error, 8)}
	l.store = p.URL("postgres")
	l.start("--workers", "6")
	pid := l.cmd.Process.Pid
	for i := range 4 {
		l.clients.Go(func() { l.enqueueShort(string(rune('a' + i))) })
	}
	l.clients.Go(l.enqueueLong)
	for n := range 6 {
		time.Sleep(time.Duration(300+170*n) * time.Millisecond) // the time at which the server is killed
		p.Kill()
		p.Start(t)
	}
	l.stop.Store(true)
	l.clients.Wait()
	close(l.failures)
	for err := range l.failures {
		t.Error(err)
	}
	l.waitDrained()
	l.checkSettled()
	if l.cmd.Process.Pid != pid || l.waitKilled(0) {
		t.Errorf("the service ended:\n%s", l.log)
	}
	l.checkNothingLeft()
	t.Logf("%d jobs, requests repeated %d, of them known %d", len(l.acked), l.resent, l.duplicates)
}

// While the PostgreSQL server is down, running jobs continue and clients get an error in time. Everything
// works again once the server is back. A second service with the same node name is always refused.
func TestDatabaseServerAway(t *testing.T) {
	t.Parallel()
	q, p := onServer(t)
	q.start("--workers", "2")
	q.must("enqueue", "--id", "long", "while [ ! -e "+q.path("go")+" ]; do sleep 0.05; done; echo done")
	q.waitUntil("it runs", 20*time.Second, func() bool {
		return strings.Contains(q.must("list", "-s", "processing"), "long")
	})
	other := newQueue(t, "")
	other.store = q.store
	if err := other.tryStart(); err == nil || !strings.Contains(fmt.Sprint(err), "another service already runs as node") {
		t.Errorf("a second service of the same name: %v", err)
	}
	p.Kill()
	started := time.Now()
	r := q.cli("enqueue", "--id", "late", "true")
	if r.code == 0 || !strings.Contains(r.err, "cannot be reached") || time.Since(started) > 10*time.Second {
		t.Errorf("without its server: %+v after %v", r, time.Since(started))
	}
	q.writeFile("go", "")
	p.Start(t)
	q.must("wait", "--timeout", "20s", "long")
	q.must("run", "--", "true")
	if out := q.must("logs", "long"); out != "done" {
		t.Errorf("output %q", out)
	}
	if code := q.stop(); code != 0 {
		t.Errorf("stopped with %d:\n%s", code, q.log)
	}
	doctor := func() result {
		cmd := q.command("doctor")
		cmd.Env = append(cmd.Env, "QUEUECTL_STORE="+q.store)
		return runCommand(t, cmd)
	}
	if r := doctor(); !strings.Contains(r.out, "PostgreSQL") || strings.Contains(r.out, "FAILURE  database") {
		t.Errorf("doctor, without the service: %+v", r)
	}
	p.Kill()
	if r := doctor(); !strings.Contains(r.out, "FAILURE  database") || !strings.Contains(r.out, "cannot be reached") {
		t.Errorf("doctor, without the server: %+v", r)
	}
	p.Start(t)
}

// While the PostgreSQL server is frozen, clients get an error within a bounded time. A job whose request has
// failed in this way is stored once or not at all after the server has resumed. The service survives.
func TestFrozenDatabaseServerFailsInTime(t *testing.T) {
	t.Parallel()
	q, p := onServer(t)
	q.start("--workers", "2")
	q.must("run", "--", "true")
	p.Freeze(true)
	t.Cleanup(func() { p.Freeze(false) })
	started := time.Now()
	for _, verb := range [][]string{{"enqueue", "--id", "late", "--key", "once", "true"}, {"list"}} {
		if r := q.cli(verb...); r.code == 0 || !strings.Contains(r.err, "try again later") ||
			time.Since(started) > 60*time.Second {
			t.Errorf("%v of a server that stands still: %+v after %v", verb, r, time.Since(started))
		}
	}
	p.Freeze(false)
	q.must("enqueue", "--id", "late", "--key", "once", "true")
	q.must("wait", "--timeout", "20s", "late")
	if q.waitKilled(0) {
		t.Errorf("the service ended:\n%s", q.log)
	}
}

// While the disk of the PostgreSQL server is full, clients get an error, and no job of a failed request is
// stored. Running jobs continue, and everything works again once the disk has room.
func TestDatabaseServerHasNoSpace(t *testing.T) {
	skip.UnlessRoot(t, "needs root to mount a disk; .ci/run runs it as root")
	q := newQueue(t, "")
	disk, err := os.MkdirTemp("", "queuectl-pg")
	if err == nil {
		err = errors.Join(os.Chmod(disk, 0o755), syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=160m,mode=755"))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unmount(disk), os.Remove(disk)); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("TMPDIR", disk)
	p := pgserver.New(t, "max_wal_size=32MB", "min_wal_size=32MB")
	t.Cleanup(p.Remove)
	q.store = p.URL("postgres")
	q.start("--workers", "2")
	q.must("enqueue", "--id", "long", gatedJob(q.path("go"))+"; echo done")
	pid := q.dial().waitRunning("long").PID
	filler, err := os.Create(filepath.Join(disk, "filler"))
	for chunk := make([]byte, 1<<20); err == nil; {
		_, err = filler.Write(chunk)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	filler.Close()
	big := strings.Repeat("x", 100<<10)
	outcome, stored := result{}, 0
	for n := 0; n < 400 && outcome.code == 0; n++ {
		if outcome = q.cli("enqueue", "--id", fmt.Sprint("big", n), "--in", "1h", "--command",
			": "+big[n:]); outcome.code == 0 {
			stored++
		}
	}
	if outcome.code == 0 || !strings.Contains(outcome.err, "try again") {
		t.Fatalf("on a full disk, after %d jobs: %+v", stored, outcome)
	}
	t.Logf("after %d jobs of 100 KiB: %s", stored, outcome.err)
	if err := os.Remove(filler.Name()); err != nil {
		t.Fatal(err)
	}
	// A server that has no room for its WAL ends.
	if _, err := pgserver.TryQuery(q.store, "SELECT 1"); err != nil {
		p.Kill()
		p.Start(t)
	}
	q.waitUntil("it goes on", 30*time.Second, func() bool { return q.cli("run", "--", "true").code == 0 })
	if j := q.dial().show("long"); j.State != "processing" || j.PID != pid {
		t.Errorf("what ran is %s with pid %d, was %d", j.State, j.PID, pid)
	}
	if got := strings.Count(q.must("list", "-q", "-s", "pending"), "big"); got != stored {
		t.Errorf("%d of the large jobs are there, and %d were acknowledged", got, stored)
	}
	q.writeFile("go", "")
	q.must("wait", "--timeout", "20s", "long")
	if q.waitKilled(0) {
		t.Errorf("the service ended:\n%s", q.log)
	}
}

// While the database server accepts no changes, "status --check" and doctor report that the node cannot renew
// its lease. They do not advise to remove the node.
func TestDatabaseServerIsReadOnly(t *testing.T) {
	t.Parallel()
	q, p := onServer(t)
	q.start("--workers", "2")
	q.must("run", "--", "true")
	set := func(value string) {
		for _, sql := range []string{"ALTER SYSTEM SET default_transaction_read_only = " + value, "SELECT pg_reload_conf()"} {
			url := p.URL("postgres") + "&options=-c%20default_transaction_read_only%3Doff"
			if _, err := pgserver.TryQuery(url, sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	set("on")
	trouble := "this node cannot renew its right to run jobs (node lease): "
	q.waitUntil("the read-only server is reported", 60*time.Second, func() bool {
		got := q.cli("status", "--check")
		if strings.Contains(got.out, "node rm") {
			t.Fatalf("the node advises to remove itself: %s", got.out)
		}
		return got.code == 2 && strings.HasPrefix(got.out, "failing: "+trouble) &&
			strings.Contains(got.out, "; check the database server")
	})
	if got := q.cli("doctor"); got.code != 1 || !strings.Contains(got.out, "FAILURE  work         "+trouble) ||
		strings.Contains(got.out, "node rm") {
		t.Errorf("doctor: %+v", got)
	}
	set("off")
	q.waitUntil("the node is healthy again", 60*time.Second, func() bool { return q.cli("status", "--check").code == 0 })
	q.must("run", "--", "true")
}

// A queue can be moved to a server and back while one of its jobs runs. The queue keeps the job, its history
// and its outputs. After a move, a service refuses to start on the old store.
func TestQueueMoves(t *testing.T) {
	t.Parallel()
	p := pgserver.New(t)
	t.Cleanup(p.Remove)
	q := newQueue(t, "")
	q.start("--workers", "2", "--keep-jobs")
	q.must("run", "--id", "before", "--", "echo", "first")
	q.must("enqueue", "--id", "long", gatedJob(q.path("go"))+"; echo last")
	w := q.dial()
	pid := w.waitRunning("long").PID
	url := q.writeFile("store", p.URL("postgres")+"\n")
	if r := q.cli("migrate", "--to-file", url); r.code != 5 || !strings.Contains(r.err, "service stop") {
		t.Errorf("while its service runs: %+v", r)
	}
	q.must("worker", "scale", "0")
	q.must("enqueue", "--id", "waits", "echo after")
	if code := q.stop(); code != 0 {
		t.Fatalf("stopped with %d", code)
	}
	if r := q.cli("migrate"); r.code != 2 || !strings.Contains(r.err, "--to") {
		t.Errorf("without a place: %+v", r)
	}
	if r := q.cli("migrate", "--to", "sqlite", "--to-file", url); r.code != 2 ||
		!strings.Contains(r.err, "cannot be combined") {
		t.Errorf("to two places: %+v", r)
	}
	if r := q.cli("migrate", "--to", "sqlite"); r.code != 2 {
		t.Errorf("to where it is: %+v", r)
	}
	if out := q.must("migrate", "--to-file", url, "--json"); !strings.Contains(out, `"jobs":3,`) {
		t.Errorf("moved %s", out)
	}
	if err := q.tryStart(); err == nil || !strings.Contains(fmt.Sprint(err), "has moved") {
		t.Errorf("where it was: %v", err)
	}
	q.store = p.URL("postgres")
	q.start("--workers", "2", "--keep-jobs")
	w = q.dial()
	if j := w.show("long"); j.State != "processing" || j.PID != pid {
		t.Errorf("what ran is %s with pid %d, was %d", j.State, j.PID, pid)
	}
	q.writeFile("go", "")
	q.must("wait", "--timeout", "20s", "long", "waits")
	for id, out := range map[string]string{"before": "first", "long": "last", "waits": "after"} {
		if got := q.must("logs", id); !strings.HasSuffix(got, out) {
			t.Errorf("%s printed %q", id, got)
		}
	}
	if code := q.stop(); code != 0 {
		t.Fatalf("stopped with %d", code)
	}
	oldStore := q.store
	q.store = ""
	q.must("migrate", "--from", oldStore, "--to", "sqlite")
	q.start("--workers", "2")
	if out := q.must("logs", "long"); !strings.HasSuffix(out, "last") {
		t.Errorf("back it printed %q", out)
	}
	q.must("run", "--", "true")
}

// If a service gets another store, it starts with the jobs of that store. If it gets its first store back, it
// finds its own jobs again. It refuses a store while its runners still have jobs or results of another store.
func TestServiceCanSwitchStores(t *testing.T) {
	t.Parallel()
	p := pgserver.New(t)
	t.Cleanup(p.Remove)
	q := newQueue(t, "")
	url := p.URL("postgres")
	for range 3 { // each start raises the epoch above that of a new store
		q.start("--workers", "2", "--keep-jobs")
		q.must("run", "--", "true")
		if code := q.stop(); code != 0 {
			t.Fatalf("stopped with %d", code)
		}
	}
	q.store = url
	q.start("--workers", "2", "--keep-jobs")
	if out := q.must("run", "--id", "there", "--", "echo", "here"); out != "here" {
		t.Errorf("on the server it printed %q", out)
	}
	q.must("enqueue", "--id", "long", gatedJob(q.path("go"))+"; echo last")
	pid := q.dial().waitRunning("long").PID
	if code := q.stop(); code != 0 {
		t.Fatalf("stopped with %d", code)
	}
	q.store = ""
	if err := q.tryStart(); err == nil || !strings.Contains(fmt.Sprint(err), "jobs of the previous store") ||
		!strings.Contains(fmt.Sprint(err), "migrate") {
		t.Errorf("while a job of the other store runs: %v", err)
	}
	q.store = url
	q.start("--workers", "2", "--keep-jobs")
	w := q.dial()
	if j := w.show("long"); j.State != "processing" || j.PID != pid {
		t.Errorf("what ran is %s with pid %d, was %d", j.State, j.PID, pid)
	}
	q.writeFile("go", "")
	q.must("wait", "--timeout", "20s", "long")
	if code := q.stop(); code != 0 {
		t.Fatalf("stopped with %d", code)
	}
	q.store = ""
	q.start("--workers", "2", "--keep-jobs")
	if r := q.cli("show", "there"); r.code != 4 {
		t.Errorf("the other store's job here: %+v", r)
	}
	q.must("enqueue", "--id", "ends", "echo ran >>"+q.path("runs")+"; "+gatedJob(q.path("end")))
	pid = q.dial().waitRunning("ends").PID
	if code := q.stop(); code != 0 {
		t.Fatalf("stopped with %d", code)
	}
	q.writeFile("end", "")
	q.waitUntil("it ends while no service runs", 20*time.Second, func() bool { return syscall.Kill(pid, 0) != nil })
	q.store = url
	if err := q.tryStart(); err == nil || !strings.Contains(fmt.Sprint(err), "jobs of the previous store") {
		t.Errorf("while an end of the other store's job is to be told: %v", err)
	}
	q.store = ""
	q.start("--workers", "2", "--keep-jobs")
	q.must("wait", "--timeout", "20s", "ends")
	if raw, err := os.ReadFile(q.path("runs")); err != nil || string(raw) != "ran\n" {
		t.Errorf("it ran %q, %v", raw, err)
	}
}

// The output files of a queue stay while its service uses another store in the same state directory. A file
// that belongs to no attempt is removed only if it was written after the service had switched to the current
// store.
func TestOutputsStayWhileAnotherStoreIsUsed(t *testing.T) {
	t.Parallel()
	p := pgserver.New(t)
	t.Cleanup(p.Remove)
	q := newQueue(t, "")
	logs := map[string]string{}
	use := func(store, id string) {
		t.Helper()
		q.store = store
		q.start("--workers", "1")
		if logs[id] == "" {
			q.must("run", "--id", id, "--", "sh", "-c", "seq 30000 | sed s/^/"+id+"/")
			logs[id] = q.must("logs", id)
		}
		q.stop()
		orphan := q.writeFile(filepath.Join("runner", "output", "99-7"), "")
		q.start("--workers", "1")
		q.waitUntil("the file without an attempt is removed", 20*time.Second, func() bool {
			_, err := os.Stat(orphan)
			return err != nil
		})
		if got := q.cli("logs", id); strings.TrimSpace(got.out) != logs[id] || got.code != 0 {
			t.Errorf("logs of %s: exit code %d, %d bytes, %s; want %d bytes", id, got.code, len(got.out), got.err, len(logs[id]))
		}
		if got := q.cli("doctor", "--verify"); strings.Contains(got.out, "FAILURE") {
			t.Errorf("doctor --verify: %s", got.out)
		}
		q.stop()
	}
	for range 2 {
		use("", "here")
		use(p.URL("postgres"), "there")
	}
	use("", "here")
	for _, name := range []string{"queuectl.db", "queuectl.db-wal", "queuectl.db-shm", "initialized"} {
		if err := os.Rename(q.path(name), q.path(name+".away")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	use("", "new")
	for _, name := range []string{"queuectl.db", "queuectl.db-wal", "queuectl.db-shm", "initialized"} {
		os.Remove(q.path(name))
		if err := os.Rename(q.path(name+".away"), q.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	use("", "here")
}

// An application can enqueue a job in its own transaction. If the transaction commits, the job exists exactly
// once, even if no service is running. If it does not commit, the job does not exist. The job belongs to the
// user in the setting store_roles. The database role of the application has no other rights.
func TestEnqueueInATransaction(t *testing.T) {
	t.Parallel()
	q, _ := onServer(t)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	q.start("--workers", "2")
	q.must("config", "set", "store_roles", "app="+me.Username+" ghost=nobody-of-this-name shop="+me.Username+" chief="+
		me.Username)
	pgserver.Query(t, q.store, `CREATE ROLE chief LOGIN SUPERUSER; CREATE ROLE app LOGIN; CREATE ROLE ghost LOGIN; CREATE ROLE other LOGIN; CREATE ROLE shop LOGIN; GRANT USAGE ON SCHEMA queuectl TO app, ghost, other, shop; GRANT EXECUTE ON FUNCTION queuectl.enqueue(jsonb) TO app, ghost, other, shop`)
	app := pgserver.WithRole(q.store, "app")
	q.waitUntil("the roles are known", 2*time.Second,
		func() bool { return pgserver.Query(t, q.store, `SELECT count(*) FROM queuectl.roles`) == "4" })
	if out, err := pgserver.TryQuery(pgserver.WithRole(q.store, "chief"),
		`SELECT queuectl.enqueue('{"command":"true"}')`); err == nil || !strings.Contains(out, "superuser") {
		t.Errorf("a superuser, by whom functions of others are called: %s, %v", out, err)
	}
	q.must("enqueue", "--id", "given", "true")
	number := strings.TrimSpace(q.must("enqueue", "true"))
	w := q.dial()
	var staged struct{ IDs []string }
	w.mustCall("enqueue.batch", fields{"batch": "staged", "jobs": []fields{{"command": "true", "cwd": "/"}}}, &staged)
	for statement, want := range map[string]string{
		`SELECT queuectl.enqueue('{"command":"true","id":"` + staged.IDs[0] + `"}')`: "id: " + staged.IDs[0] +
			" is already used",
		`SELECT queuectl.enqueue('{"command":"true","id":"given"}')`:          "id: given is already used",
		`SELECT queuectl.enqueue('{"command":"true","id":"` + number + `"}')`: "id: " + number + " is already used",
		`SELECT queuectl.enqueue('{"comand":"true"}')`:                        "unknown job field comand",
		`SELECT queuectl.enqueue('{"command":"true","argv":["true"]}')`: "command: cannot be combined with " +
			"argv; set only one of them",
		`SELECT queuectl.enqueue('{"id":"neither"}')`:                                  "no command given; set command or argv",
		`SELECT queuectl.enqueue('{"command":null,"argv":null}')`:                      "no command given; set command or argv",
		`SELECT queuectl.enqueue('[]')`:                                                "not a JSON object",
		`SELECT queuectl.enqueue('{"command":"true","id":" "}')`:                       "id: invalid characters or length",
		`SELECT count(*) FROM queuectl.jobs`:                                           "permission denied",
		`INSERT INTO queuectl.submissions (role, id, spec) VALUES ('root', 'x', '{}')`: "permission denied",
		`INSERT INTO queuectl.roles VALUES (0, 'app')`:                                 "permission denied",
	} {
		if out, err := pgserver.TryQuery(app, statement); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %s, %v, want %q", statement, out, err, want)
		}
	}
	go pgserver.TryQuery(pgserver.WithRole(q.store, "shop"),
		`BEGIN; SELECT queuectl.enqueue('{"command":"true","id":"both"}'); SELECT pg_sleep(20); ROLLBACK`)
	q.waitUntil("it is being handed in", 20*time.Second, func() bool {
		return pgserver.Query(
			t, q.store, `SELECT count(*) FROM pg_stat_activity WHERE usename = 'shop' AND wait_event = 'PgSleep'`) != "0"
	})
	if out, err := pgserver.TryQuery(app, `SELECT queuectl.enqueue('{"command":"true","id":"both"}')`); err == nil ||
		!strings.Contains(out, "an open transaction has also enqueued a job with the id both") {
		t.Errorf("an id that another role hands in: %s, %v", out, err)
	}
	if out, err := pgserver.TryQuery(pgserver.WithRole(q.store, "other"),
		`SELECT queuectl.enqueue('{"command":"true"}')`); err == nil || !strings.Contains(out, "store_roles") {
		t.Errorf("a role of no user: %s, %v", out, err)
	}
	if out, err := pgserver.TryQuery(
		q.store, `BEGIN; INSERT INTO queuectl.submissions (role, id, spec, before) SELECT 'app', 'large' || i, repeat('x', 1000000), -200000 FROM generate_series(1, 269) AS of (i); SET SESSION AUTHORIZATION app; SELECT queuectl.enqueue('{"command":"true"}'); ROLLBACK`); err == nil || !strings.Contains(out, "have not been read by the queuectl service yet") {
		t.Errorf("a job behind 256 MiB of others: %s, %v", out, err)
	}
	pgserver.Query(t, app, `BEGIN; SELECT queuectl.enqueue('{"command":"true","id":"undone"}'); ROLLBACK`)
	pgserver.Query(t, app, `CREATE TEMP TABLE roles (role text); CREATE TEMP TABLE jobs (id text); SELECT queuectl.enqueue('{"command":"echo hi","id":"done","labels":{"a":"b"}}')`)
	q.waitUntil("it is there", 20*time.Second, func() bool { return q.cli("show", "done").code == 0 })
	q.must("wait", "--timeout", "20s", "done")
	if j := q.show("done"); j.State != "completed" || q.must("logs", "done") != "hi" {
		t.Errorf("%+v", j)
	}
	q.must("queue", "set", "narrow", "--max-pending", "1", "--concurrency", "1")
	q.must("queue", "pause", "narrow")
	pgserver.Query(t, app, `SELECT queuectl.enqueue('{"command":"true","id":"fits","queue":"narrow"}'), queuectl.enqueue('{"command":"true","id":"full","queue":"narrow"}'), queuectl.enqueue('{"command":"true","id":"behind"}')`)
	pgserver.Query(t, pgserver.WithRole(q.store, "shop"), `SELECT queuectl.enqueue('{"command":"true","id":"of-shop"}')`)
	q.waitUntil("another role's is there", 20*time.Second, func() bool { return q.cli("show", "of-shop").code == 0 })
	if q.cli("show", "full").code == 0 || q.cli("show", "behind").code == 0 {
		t.Error("a queue has more than it may, or a role's jobs pass each other")
	}
	if r := q.cli("enqueue", "--id", "behind", "true"); r.code == 0 ||
		!strings.Contains(r.err, `another job has the id "behind"`) {
		t.Errorf("the id of what waits to be taken: %+v", r)
	}
	q.must("queue", "resume", "narrow")
	q.waitUntil("the queue has room", 20*time.Second, func() bool { return q.cli("show", "behind").code == 0 })
	if code := q.stop(); code != 0 {
		t.Fatalf("stopped with %d", code)
	}
	id := pgserver.Query(t, app, `SELECT queuectl.enqueue('{"argv":["echo","later"]}')`)
	if out, err := pgserver.TryQuery(app, `SELECT queuectl.enqueue('{"command":"true","id":"done"}')`); err == nil ||
		!strings.Contains(out, "is already used") {
		t.Errorf("an id that is taken: %s, %v", out, err)
	}
	pgserver.Query(t, app, `SELECT queuectl.enqueue('{"command":"true","id":"wrong","priority":"high"}')`)
	pgserver.Query(t, pgserver.WithRole(q.store, "ghost"), `SELECT queuectl.enqueue('{"command":"true","id":"nobodys"}')`)
	// Bypass the check of queuectl.enqueue: insert a submission with the id of an existing job.
	pgserver.Query(t, q.store, `INSERT INTO queuectl.submissions (role, id, spec, before) VALUES ('app', 'done', '{"command":"echo again","id":"done"}', 0)`)
	q.start("--workers", "2")
	q.waitUntil("all are taken", 20*time.Second, func() bool {
		return pgserver.Query(t, q.store, `SELECT count(*) FROM queuectl.submissions WHERE refused IS NULL`) == "0"
	})
	q.must("wait", "--timeout", "20s", id)
	if out := q.must("logs", id); out != "later" {
		t.Errorf("it printed %q", out)
	}
	if out := q.must("logs", "done"); out != "hi" {
		t.Errorf("what was taken already printed %q", out)
	}
	if q.cli("show", "undone").code == 0 || q.cli("show", "wrong").code == 0 {
		t.Error("a job is there of what was undone, or is none")
	}
	why := pgserver.Query(t, q.store, `SELECT id || ': ' || refused FROM queuectl.submissions ORDER BY id`)
	if !strings.Contains(why, "nobodys: ") || !strings.Contains(why, `done: id: another job has the id "done"`) ||
		!strings.Contains(why, "wrong: ") || !strings.Contains(why, "priority") {
		t.Errorf("refused are %s", why)
	}
	if out := q.cli("doctor").out; !strings.Contains(out,
		"3 jobs enqueued with the SQL function queuectl.enqueue were refused") {
		t.Errorf("doctor says %s", out)
	}
}

// If the quota of a user is full, a job that an application enqueues by SQL for that user deletes older data
// of the user. Other requests of the user do so too.
func TestEnqueueInATransactionMakesRoom(t *testing.T) {
	t.Parallel()
	q, _ := onServer(t)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	q.start("--workers", "1")
	q.must("run", "--id", "old", "head -c 60000 /dev/zero | tr '\\0' x")
	q.must("config", "set", "store_roles", "app="+me.Username)
	pgserver.Query(t, q.store, `CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA queuectl TO app; GRANT EXECUTE ON FUNCTION queuectl.enqueue(jsonb) TO app`)
	q.waitUntil("the role is known", 20*time.Second,
		func() bool { return pgserver.Query(t, q.store, `SELECT count(*) FROM queuectl.roles`) == "1" })
	// Upkeep keeps the user's data below 90 % of the quota, which is 63,000 bytes here.
	q.must("config", "set", "max_bytes_per_user", "70000")
	pgserver.Query(t, pgserver.WithRole(q.store, "app"),
		`SELECT queuectl.enqueue(jsonb_build_object('command', 'cat', 'id', 'new', 'cwd', '/', 'stdin', repeat('y', 30000)))`)
	q.waitUntil("it is there", 20*time.Second, func() bool { return q.cli("show", "new").code == 0 })
	if r := q.cli("logs", "old"); !strings.Contains(r.err, "was removed to make room (setting max_bytes_per_user)") {
		t.Errorf("logs of the job that made room: %+v", r)
	}
}
