package durability

import (
	"os/user"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
	"github.com/queuectl/queuectl/test/pgserver"
)

// An application can enqueue a job in its own database transaction. If the transaction commits, the job exists
// exactly once, even if no service is running. If the transaction rolls back, the job does not exist. The
// setting store_roles assigns a user to the application's database role, and the job belongs to that user. The
// role has no other rights.
func TestEnqueueFollowsApplicationTransaction(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	q, _ := newPostgresQueue(t)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	q.StartService("--workers", "2")
	q.MustRunCLI("config", "set", "store_roles", "app="+me.Username+" ghost=no-such-account shop="+me.Username+" chief="+
		me.Username)
	pgserver.Query(t, q.StoreURL,
		`CREATE ROLE chief LOGIN SUPERUSER; CREATE ROLE app LOGIN; CREATE ROLE ghost LOGIN; CREATE ROLE other LOGIN; CREATE ROLE shop LOGIN; GRANT USAGE ON SCHEMA queuectl TO app, ghost, other, shop; GRANT EXECUTE ON FUNCTION queuectl.enqueue(jsonb) TO app, ghost, other, shop`)
	app := pgserver.URLWithRole(q.StoreURL, "app")
	q.WaitUntil("the roles are known", 2*time.Second,
		func() bool { return pgserver.Query(t, q.StoreURL, `SELECT count(*) FROM queuectl.roles`) == "4" })
	if out, err := pgserver.TryQuery(pgserver.URLWithRole(q.StoreURL, "chief"),
		`SELECT queuectl.enqueue('{"command":"true"}')`); err == nil || !strings.Contains(out, "superuser") {
		t.Errorf("enqueue by a superuser: %s, %v; want an error", out, err)
	}
	q.MustRunCLI("enqueue", "--id", "given", "true")
	number := strings.TrimSpace(q.MustRunCLI("enqueue", "true"))
	w := q.DialService()
	var staged struct{ IDs []string }
	w.MustCall("enqueue.batch", testrig.JSONFields{"batch": "staged",
		"jobs": []testrig.JSONFields{{"command": "true", "cwd": "/"}}}, &staged)
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
	go pgserver.TryQuery(pgserver.URLWithRole(q.StoreURL, "shop"),
		`BEGIN; SELECT queuectl.enqueue('{"command":"true","id":"both"}'); SELECT pg_sleep(20); ROLLBACK`)
	q.WaitUntil("the other transaction is open", 20*time.Second, func() bool {
		return pgserver.Query(
			t, q.StoreURL, `SELECT count(*) FROM pg_stat_activity WHERE usename = 'shop' AND wait_event = 'PgSleep'`) != "0"
	})
	if out, err := pgserver.TryQuery(app, `SELECT queuectl.enqueue('{"command":"true","id":"both"}')`); err == nil ||
		!strings.Contains(out, "an open transaction has also enqueued a job with the id both") {
		t.Errorf("enqueue with the id of a submission of another role: %s, %v", out, err)
	}
	if out, err := pgserver.TryQuery(pgserver.URLWithRole(q.StoreURL, "other"),
		`SELECT queuectl.enqueue('{"command":"true"}')`); err == nil || !strings.Contains(out, "store_roles") {
		t.Errorf("enqueue by a role without a user: %s, %v", out, err)
	}
	if out, err := pgserver.TryQuery(
		q.StoreURL,
		`BEGIN; INSERT INTO queuectl.submissions (role, id, spec, before) SELECT 'app', 'large' || i, repeat('x', 1000000), -200000 FROM generate_series(1, 269) AS of (i); SET SESSION AUTHORIZATION app; SELECT queuectl.enqueue('{"command":"true"}'); ROLLBACK`); err == nil || !strings.Contains(out, "have not been read by the queuectl service yet") {
		t.Errorf("enqueue after 256 MiB of other submissions: %s, %v", out, err)
	}
	pgserver.Query(t, app, `BEGIN; SELECT queuectl.enqueue('{"command":"true","id":"undone"}'); ROLLBACK`)
	pgserver.Query(t, app,
		`CREATE TEMP TABLE roles (role text); CREATE TEMP TABLE jobs (id text); SELECT queuectl.enqueue('{"command":"echo hi","id":"done","labels":{"a":"b"}}')`)
	q.WaitUntil("the submission is enqueued", 20*time.Second,
		func() bool { return q.RunCLI("show", "done").ExitCode == 0 })
	q.MustRunCLI("wait", "--timeout", "20s", "done")
	if j := q.ShowJob("done"); j.State != "completed" || q.MustRunCLI("logs", "done") != "hi" {
		t.Errorf("the job of the transaction: %+v", j)
	}
	q.MustRunCLI("queue", "set", "narrow", "--max-pending", "1", "--concurrency", "1")
	q.MustRunCLI("queue", "pause", "narrow")
	pgserver.Query(t, app,
		`SELECT queuectl.enqueue('{"command":"true","id":"fits","queue":"narrow"}'), queuectl.enqueue('{"command":"true","id":"full","queue":"narrow"}'), queuectl.enqueue('{"command":"true","id":"behind"}')`)
	pgserver.Query(t, pgserver.URLWithRole(q.StoreURL, "shop"),
		`SELECT queuectl.enqueue('{"command":"true","id":"of-shop"}')`)
	q.WaitUntil("job of-shop is enqueued", 20*time.Second, func() bool {
		return q.RunCLI("show", "of-shop").ExitCode == 0
	})
	if q.RunCLI("show", "full").ExitCode == 0 || q.RunCLI("show", "behind").ExitCode == 0 {
		t.Error("a queue exceeds its maximum, or the jobs of a role are enqueued out of order")
	}
	if r := q.RunCLI("enqueue", "--id", "behind", "true"); r.ExitCode == 0 ||
		!strings.Contains(r.Stderr, `another job has the id "behind"`) {
		t.Errorf("enqueue with the id of a submission that waits in the inbox: %+v", r)
	}
	q.MustRunCLI("queue", "resume", "narrow")
	q.WaitUntil("the queue has room", 20*time.Second, func() bool { return q.RunCLI("show", "behind").ExitCode == 0 })
	if code := q.StopService(); code != 0 {
		t.Fatalf("stopped with %d", code)
	}
	id := pgserver.Query(t, app, `SELECT queuectl.enqueue('{"argv":["echo","later"]}')`)
	if out, err := pgserver.TryQuery(app, `SELECT queuectl.enqueue('{"command":"true","id":"done"}')`); err == nil ||
		!strings.Contains(out, "is already used") {
		t.Errorf("enqueue with the id of an existing job: %s, %v", out, err)
	}
	pgserver.Query(t, app, `SELECT queuectl.enqueue('{"command":"true","id":"wrong","priority":"high"}')`)
	pgserver.Query(t, pgserver.URLWithRole(q.StoreURL, "ghost"),
		`SELECT queuectl.enqueue('{"command":"true","id":"nobodys"}')`)
	// Insert a submission directly, without the checks of the SQL function queuectl.enqueue. Its id is that of an existing
	// job.
	pgserver.Query(t, q.StoreURL,
		`INSERT INTO queuectl.submissions (role, id, spec, before) VALUES ('app', 'done', '{"command":"echo again","id":"done"}', 0)`)
	q.StartService("--workers", "2")
	q.WaitUntil("all are taken", 20*time.Second, func() bool {
		return pgserver.Query(t, q.StoreURL, `SELECT count(*) FROM queuectl.submissions WHERE refused IS NULL`) == "0"
	})
	q.MustRunCLI("wait", "--timeout", "20s", id)
	if out := q.MustRunCLI("logs", id); out != "later" {
		t.Errorf("the job of the later submission printed %q", out)
	}
	if out := q.MustRunCLI("logs", "done"); out != "hi" {
		t.Errorf("the job that was enqueued earlier printed %q", out)
	}
	if q.RunCLI("show", "undone").ExitCode == 0 || q.RunCLI("show", "wrong").ExitCode == 0 {
		t.Error("a submission that was rolled back or is invalid was enqueued")
	}
	why := pgserver.Query(t, q.StoreURL, `SELECT id || ': ' || refused FROM queuectl.submissions ORDER BY id`)
	if !strings.Contains(why, "nobodys: ") || !strings.Contains(why, `done: id: another job has the id "done"`) ||
		!strings.Contains(why, "wrong: ") || !strings.Contains(why, "priority") {
		t.Errorf("the refused submissions are %s", why)
	}
	if out := q.RunCLI("doctor").Stdout; !strings.Contains(out,
		"3 jobs enqueued with the SQL function queuectl.enqueue were refused") {
		t.Errorf("doctor says %s", out)
	}
}

// If a job does not fit into the quota of its user, the service deletes older data of that user. This also
// applies to a job that an application enqueues by SQL.
func TestEnqueueBySQLFreesUsersQuota(t *testing.T) {
	t.Parallel()
	q, _ := newPostgresQueue(t)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	q.StartService("--workers", "1")
	q.MustRunCLI("run", "--id", "old", "head -c 60000 /dev/zero | tr '\\0' x")
	q.MustRunCLI("config", "set", "store_roles", "app="+me.Username)
	pgserver.Query(t, q.StoreURL,
		`CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA queuectl TO app; GRANT EXECUTE ON FUNCTION queuectl.enqueue(jsonb) TO app`)
	q.WaitUntil("the role is known", 20*time.Second,
		func() bool { return pgserver.Query(t, q.StoreURL, `SELECT count(*) FROM queuectl.roles`) == "1" })
	// The service keeps the user's data below 90 % of the quota, which is 63,000 bytes here.
	q.MustRunCLI("config", "set", "max_bytes_per_user", "70000")
	pgserver.Query(t, pgserver.URLWithRole(q.StoreURL, "app"),
		`SELECT queuectl.enqueue(jsonb_build_object('command', 'cat', 'id', 'new', 'cwd', '/', 'stdin', repeat('y', 30000)))`)
	q.WaitUntil("the submission is enqueued", 20*time.Second, func() bool { return q.RunCLI("show", "new").ExitCode == 0 })
	if r := q.RunCLI("logs", "old"); !strings.Contains(r.Stderr, "was removed to make room (setting max_bytes_per_user)") {
		t.Errorf("logs of the job whose output was removed to free space: %+v", r)
	}
}
