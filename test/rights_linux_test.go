package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// verbOnJob is a command on one job, and how to prepare a job for it.
type verbOnJob struct {
	args    string // the command, with %s for the job's id
	prepare func(q *queue, owner person) (id string)
	others  string // the right that the command needs on a job of another user
}

func waitingJob(q *queue, owner person) string {
	return q.mustAs(owner, "enqueue", "--delay", "1h", "true")
}

func heldJob(q *queue, owner person) string {
	id := waitingJob(q, owner)
	q.must("hold", id)
	return id
}

func runningJob(q *queue, owner person) string {
	id := q.mustAs(owner, "enqueue", "trap '' HUP; echo begun; sleep 600 & wait")
	q.waitUntil("the job runs", 20*time.Second, func() bool {
		return strings.Contains(q.must("logs", id), "begun") && q.show(id).State == "processing"
	})
	return id
}

func deadJob(q *queue, owner person) string {
	id := q.mustAs(owner, "enqueue", "--max-retries", "0", "echo said; exit 3")
	q.cli("wait", id)
	return id
}

var verbsOnJobs = []verbOnJob{
	{"cancel %s", waitingJob, "operate"}, {"cancel %s", runningJob, "operate"},
	{"hold %s", waitingJob, "operate"}, {"release %s", heldJob, "operate"},
	{"retry %s", deadJob, "operate"}, {"dlq retry %s", deadJob, "operate"},
	{"pause %s", runningJob, "operate"}, {"resume %s", runningJob, "operate"},
	{"requeue %s", runningJob, "operate"}, {"kill -s HUP %s", runningJob, "operate"},
	{"edit %s --priority 7", waitingJob, "operate"}, {"rm %s", waitingJob, "operate"},
	{"rm --force %s", runningJob, "operate"},
	{"logs %s", deadJob, "operate"}, {"show %s", deadJob, "read"},
	// A selector matches only the jobs that the caller may change.
	{"cancel --state waiting --id-glob %s", waitingJob, "own"},
}

// Six users execute every command on their own jobs and on jobs of others. Each user may do what the table of
// rights permits, and a refused command changes nothing.
func TestRightsOnJobs(t *testing.T) {
	q := sharedQueue(t, accessOfAll, "--workers", "8")
	for _, p := range everyone {
		for _, v := range verbsOnJobs {
			for _, isOwner := range []bool{true, false} {
				owner := alice
				switch {
				case isOwner && !p.hasRight("submit"):
					continue // a user without the right "submit" has no jobs
				case isOwner:
					owner = p
				case p.name == alice.name:
					owner = bob
				}
				id := v.prepare(q, owner)
				before := q.show(id)
				r := q.runAs(p, strings.Fields(fmt.Sprintf(v.args, id))...)
				what := fmt.Sprintf("%s: %s of %s's job", p.name, v.args, owner.name)
				others := v.others
				if others == "own" {
					others = "operate"
				}
				may := isOwner || p.hasRight(others)
				onMany := v.others == "own" && p.hasRight("submit")
				switch {
				case may && r.code != 0:
					t.Errorf("%s: %+v", what, r)
				case !may && onMany && (r.code != 0 || r.out != ""):
					t.Errorf("%s: %+v, want nothing to match", what, r)
				case !may && !onMany && (r.code != 5 || r.out != "" || !strings.Contains(r.err, "denied: ")):
					t.Errorf("%s: %+v, want a refusal", what, r)
				case !may && !onMany && p.right != "none" && !strings.Contains(r.err, "needs the right"):
					t.Errorf("%s: the refusal does not say what is needed: %s", what, r.err)
				}
				if !may {
					if after := q.show(id); after.State != before.State || after.PID != before.PID {
						t.Errorf("%s: it was refused, and the job is %s", what, after.State)
					}
				}
				if may && v.args == "cancel --state waiting --id-glob %s" && q.show(id).State != "cancelled" {
					t.Errorf("%s: the job is %s", what, q.show(id).State)
				}
				q.cli("rm", "--force", id)
			}
		}
	}
	r := q.runAs(alice, "cancel", "--state", "waiting", "--user", fmt.Sprint(bob.uid))
	if r.code != 5 || !strings.Contains(r.err, "operate") {
		t.Errorf("cancel of all that another has: %+v", r)
	}
	for _, verb := range []string{"pause", "resume"} {
		if r := q.runAs(alice, verb, "--all"); r.code != 5 || !strings.Contains(r.err, `needs the right "operate"`) {
			t.Errorf("%s of everything by who may submit: %+v", verb, r)
		}
	}
	ids := []string{deadJob(q, alice), deadJob(q, bob)}
	q.mustAs(alice, "dlq", "retry", "--all")
	q.cli("wait", ids[0])
	if a, b := q.events("--event", "retried", ids[0]), q.events("--event", "retried", ids[1]); len(a) != 1 || len(b) != 0 {
		t.Errorf("all dead jobs of a submitter: %v, another's: %v", a, b)
	}
}

// Commands that do not concern a job also need the rights of the table. If a user lacks a right, the error
// names that right.
func TestRightsOnOtherCommands(t *testing.T) {
	q := sharedQueue(t, accessOfAll, "--workers", "2")
	file := filepath.Join(q.dir, "out")
	if err := errors.Join(os.Mkdir(file, 0o777), os.Chmod(file, 0o777)); err != nil {
		t.Fatal(err)
	}
	for right, verbs := range map[string][]string{
		"none":    {"whoami"},
		"read":    {"status", "list", "worker list", "config get workers", "config list", "dlq list", "events"},
		"submit":  {"enqueue true"},
		"operate": {"worker scale 2", "worker start -c 1", "worker stop -c 1", "dlq clear --yes", "clear --yes"},
		"admin": {"config set priority 5", "config unset priority", "drain", "drain --off", "reload", "cleanup --dry-run",
			"cleanup", "doctor", "events --audit", "backup out/PERSON"},
	} {
		for _, verb := range verbs {
			for _, p := range everyone {
				r := q.runAs(p, strings.Fields(strings.ReplaceAll(verb, "PERSON", p.name))...)
				switch may := p.hasRight(right); {
				// doctor may fail even with the right, because it finds that other users can access the
				// directory.
				case may && r.code != 0 && verb != "doctor":
					t.Errorf("%s: %s: %+v", p.name, verb, r)
				case !may && (r.code != 5 || r.out != "" || !strings.Contains(r.err, "denied: ") ||
					!strings.Contains(r.err, "[access] of "+q.path("queuectl.toml"))):
					t.Errorf("%s: %s: %+v, want a refusal that helps", p.name, verb, r)
				case !may && p.right != "none" && !strings.Contains(r.err,
					fmt.Sprintf(`needs the right "%s", but you (%d) have "%s"`, right, p.uid, p.right)):
					t.Errorf("%s: %s: %s", p.name, verb, r.err)
				}
			}
		}
	}
	var w struct {
		UID       int
		Right     string
		Rights    []string
		Groups    []struct{ GID int }
		JobsRunAs string `json:"jobs_run_as"`
	}
	if err := json.Unmarshal([]byte(q.mustAs(bob, "whoami", "--json")), &w); err != nil || w.UID != bob.uid ||
		w.Right != "submit" || !slices.Equal(w.Rights, []string{"read", "submit"}) || w.JobsRunAs != "root" {
		t.Errorf("whoami: %+v, %v", w, err)
	}
	if len(w.Groups) != 2 || w.Groups[0].GID != 61298 || w.Groups[1].GID != 61299 {
		t.Errorf("the groups of whoami: %v", w.Groups)
	}
	if text := q.mustAs(outsider, "whoami"); !strings.Contains(text, "none") || !strings.Contains(text, "[access]") {
		t.Errorf("whoami of an outsider:\n%s", text)
	}
	for _, p := range []person{reader, alice, bob, operator} {
		if r := q.runAs(p, "service", "stop"); r.code != 5 || !strings.Contains(r.err, `needs the right "admin"`) {
			t.Errorf("%s stops the service: %+v", p.name, r)
		}
	}
	q.mustAs(admin, "service", "stop")
}

// The output, command and input of a job are visible only to users with the right to see them. No other user
// sees them in responses, events, logs or ps.
func TestOthersJobsAreMasked(t *testing.T) {
	q := sharedQueue(t, "log_level = \"debug\"\n"+accessOfAll, "--workers", "2")
	const value, word, log = "c4n4ry-value", "c4n4ry-word", "c4n4ry-said"
	q.mustAs(alice, "enqueue", "--id", "secret", "--max-retries", "0", "--env", "SECRET="+value, "--stdin", word,
		": "+word+"; printf c4n4ry; echo -said; exit 3")
	q.cli("wait", "secret")
	q.mustAs(alice, "enqueue", "--id", "gone", "--max-retries", "0", "--env", "SECRET="+value, "--", "/no/"+word)
	q.cli("wait", "gone")
	readAll := func(p person) (all string) {
		for _, args := range [][]string{
			{"show", "secret"}, {"show", "secret", "--json", "--full"}, {"show", "gone", "--json", "--full"}, {"list"},
			{"list", "--json"}, {"dlq", "list"}, {"wait", "secret", "--json"}, {"logs", "secret"},
			{"events"}, {"events", "--json"}, {"events", "--audit", "--json"}, {"worker", "list", "--json"},
			{"status", "--json"}, {"whoami", "--json"}, {"doctor", "--json"}, {"edit", "secret", "--priority", "1"},
		} {
			r := q.runAs(p, args...)
			all += r.out + r.err
		}
		return all
	}
	for _, c := range []struct {
		person
		value, command bool
	}{{outsider, false, false}, {reader, false, false}, {bob, false, false}, {operator, false, true}, {alice, true, true},
		{admin, true, true}} {
		all := readAll(c.person)
		if got := strings.Contains(all, value); got != c.value {
			t.Errorf("%s sees the value of a variable: %t\n%s", c.name, got, all)
		}
		if got := strings.Contains(all, word); got != c.command {
			t.Errorf("%s sees the command: %t\n%s", c.name, got, all)
		}
		if got := strings.Contains(all, log); got != c.command {
			t.Errorf("%s sees the output: %t\n%s", c.name, got, all)
		}
	}
	if text := q.mustAs(reader, "list"); strings.Count(text, "(hidden)") != 2 {
		t.Errorf("the table of a reader:\n%s", text)
	}
	if text := q.mustAs(operator, "show", "secret", "--json", "--full"); !strings.Contains(text, `"SECRET":"***"`) ||
		!strings.Contains(text, `"hidden":["env"]`) {
		t.Errorf("shown to an operator: %s", text)
	}
	if r := q.runAs(operator, "edit", "secret", `{"env":{"SECRET":"***"}}`); r.code == 0 {
		t.Errorf("a mask was written in place of a value: %+v", r)
	}
	if log := q.logText(); strings.Contains(log, "c4n4ry") {
		t.Errorf("the log of the service tells it:\n%s", log)
	}
	q.mustAs(alice, "enqueue", "--id", "runs", "--env", "SECRET="+value, "sleep 600")
	q.waitUntil("the job runs", 20*time.Second, func() bool { return q.show("runs").State == "processing" })
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if raw, err := os.ReadFile(name); err == nil && strings.Contains(string(raw), value) {
			t.Errorf("%s has it: %q", name, raw)
		}
	}
}

// For each action of a user, the service stores an audit row with the user, the action and its target. Only
// admins can read these rows, and the rows are not among the events that other users see.
func TestActionsAreAudited(t *testing.T) {
	q := sharedQueue(t, accessOfAll, "--workers", "4")
	w := func(id string) { q.mustAs(alice, "enqueue", "--id", id, "--delay", "1h", "true") }
	r := func(id string) {
		q.mustAs(alice, "enqueue", "--id", id, "echo begun; sleep 600")
		q.waitUntil(id+" runs", 20*time.Second, func() bool { return q.show(id).State == "processing" })
	}
	var want []string
	does := func(p person, words string, audited ...string) {
		t.Helper()
		q.mustAs(p, strings.Fields(words)...)
		for _, a := range audited {
			want = append(want, fmt.Sprintf("%d %s", p.uid, a))
		}
	}
	enqueued := func(id string) { want = append(want, fmt.Sprintf("%d enqueue %s", alice.uid, id)) }
	w("a")
	enqueued("a")
	does(alice, "hold a", "hold a")
	does(operator, "release a", "release a")
	does(operator, "edit a --priority 3", "edit a")
	does(alice, "cancel a", "cancel a")
	does(operator, "retry a", "retry a")
	does(admin, "show a", "show a environment")
	q.mustAs(alice, "wait", "a") // wait until the retried job has run
	does(alice, "rm a", "rm a")
	r("b")
	enqueued("b")
	does(operator, "pause b", "pause b")
	does(alice, "resume b", "resume b")
	does(operator, "kill -s CONT b", "kill b signal 18 (SIGCONT)")
	does(operator, "requeue b", "requeue b")
	q.waitUntil("b runs again", 20*time.Second, func() bool { return q.show("b").State == "processing" })
	does(alice, "cancel b", "cancel b")
	r("c")
	enqueued("c")
	does(operator, "rm --force c", "cancel c", "rm c")
	r("d")
	enqueued("d")
	does(operator, "worker stop --all --force", "config workers", "worker.stop d")
	does(operator, "worker scale 1", "config workers")
	q.waitUntil("d runs again", 20*time.Second, func() bool { return q.show("d").State == "processing" })
	does(alice, "cancel d", "cancel d")
	w("e")
	enqueued("e")
	does(operator, "clear --yes", "clear", "rm e", "rm b", "rm d")
	does(operator, "dlq clear --yes", "dlq.clear")
	does(admin, "config set priority 6", "config priority")
	does(admin, "config unset priority", "config priority")
	does(admin, "drain", "config drain")
	does(admin, "drain --off", "config drain")
	does(admin, "reload", "reload "+q.path("queuectl.toml"))
	does(admin, "cleanup --days 0", "cleanup 0 jobs")
	q.stop() // stop the service, because audit rows must survive a restart
	q.start("--workers", "0")

	type row struct {
		Event, User, Verb, Target, Key string
		UID                            *int
		PeerPID                        int `json:"peer_pid"`
	}
	var got []string
	for line := range strings.Lines(q.mustAs(admin, "events", "--audit", "--jsonl")) {
		var e row
		err := json.Unmarshal([]byte(line), &e)
		if e.User == "root" && e.Verb == "show" { // this row was caused by the test itself
			continue
		}
		if err != nil || e.UID == nil || e.User != fmt.Sprint(*e.UID) || e.Event == "audit" && e.PeerPID == 0 {
			t.Errorf("%v: %s", err, line)
			continue
		}
		got = append(got, strings.TrimSpace(fmt.Sprintf("%d %s %s", *e.UID, e.Verb, e.Target)))
	}
	// The audit rows of one command have no defined order.
	sorted := func(list []string) string { return strings.Join(slices.Sorted(slices.Values(list)), "\n") }
	if sorted(got) != sorted(want) {
		t.Errorf("got\n%s\n\nwant\n%s", sorted(got), sorted(want))
	}
	for _, p := range []person{reader, alice, operator, admin} {
		if text := q.mustAs(p, "events", "--jsonl"); strings.Contains(text, `"audit"`) || strings.Contains(text, `"verb"`) {
			t.Errorf("%s is told of it as news:\n%s", p.name, text)
		}
		if r := q.runAs(p, "events", "--event", "audit"); r.code != 2 || !strings.Contains(r.err, "audit") {
			t.Errorf("%s asks for the kind: %+v", p.name, r)
		}
	}
	if text := q.mustAs(admin, "events", "--audit", "--event", "audit"); !strings.Contains(text,
		fmt.Sprintf("kill b signal 18 (SIGCONT)  by %d (uid %[1]d)", operator.uid)) {
		t.Errorf("for people:\n%s", text)
	}
}

// A connection keeps the groups that its process had when it connected. A user who leaves a group keeps the
// group's right until the next connection. A change of [access] takes effect at the next request.
func TestConnectionKeepsItsGroups(t *testing.T) {
	q := sharedQueue(t, accessOfAll, "--workers", "0")
	w := q.dialAs(person{uid: 61250, groups: []uint32{61298}})
	if a := w.call("enqueue", fields{"command": "true"}); a.Error != nil {
		t.Fatalf("in the group: %+v", a.Error)
	}
	without := person{name: "who left the group", uid: 61250}
	if r := q.runAs(without, "list"); r.code != 5 {
		t.Errorf("who came again without the group: %+v", r)
	}
	if a := w.call("enqueue", fields{"command": "true"}); a.Error != nil {
		t.Errorf("on the connection from before: %+v", a.Error)
	}
	q.writeFile("queuectl.toml", strings.Replace(accessOfAll, `"@61298"`, `"@61296"`, 1))
	q.must("reload")
	if a := w.call("enqueue", fields{"command": "true"}); a.Error == nil || a.Error.Data.Code != "denied" {
		t.Errorf("after [access] was changed, on the same connection: %+v", a)
	}
	q.must("config", "set", "access.submit", "61250")
	if a := w.call("enqueue", fields{"command": "true"}); a.Error != nil {
		t.Errorf("after it was given again: %+v", a.Error)
	}
}

// From the start of the service, the socket has the mode and group of the settings. If a client may not
// connect, it exits with 5 and says how to get access. It does not start a second service.
func TestSocketLetsItsGroupIn(t *testing.T) {
	q := sharedQueue(t, "socket_mode = \"0660\"\nsocket_group = \"61298\"\n"+
		strings.ReplaceAll(accessOfAll, "socket_mode = \"0666\"\n", ""), "--workers", "0")
	info, err := os.Lstat(q.path(socketName))
	if err != nil || info.Mode().Perm() != 0o660 || info.Sys().(*syscall.Stat_t).Gid != 61298 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	q.mustAs(bob, "enqueue", "true")
	for _, p := range []person{alice, outsider} {
		r := q.runAs(p, "enqueue", "true")
		want := fmt.Sprintf("queuectl: %d cannot use the socket %s: only the group 61298 is admitted; join the group with: "+
			"sudo usermod -aG 61298 %[1]d, then log in again\n", p.uid, q.path(socketName))
		if r.code != 5 || r.out != "" || r.err != want {
			t.Errorf("%s: %+v\nwant %s", p.name, r, want)
		}
	}
	for _, c := range []struct{ key, value string }{{"socket_mode", "0600"}, {"socket_group", "none"}} {
		r := q.cli("config", "set", c.key, c.value)
		if now := q.setting(c.key); r.code != 0 || !strings.Contains(r.err, "after a restart of the service") ||
			now.Value == c.value || now.Origin != "file" {
			t.Errorf("%s: %+v, now %+v", c.key, r, now)
		}
		q.must("config", "unset", c.key)
	}
	if d := q.doctor(); strings.Contains(fmt.Sprint(d), socketName+" can be accessed") {
		t.Errorf("doctor: %+v", d)
	}
	q.stop()
	q.writeFile("queuectl.toml", "workers = 0\n")
	q.start()
	if r := q.runAs(alice, "status"); r.code != 5 || !strings.Contains(r.err, "only root is admitted") {
		t.Errorf("a socket of its owner alone: %+v", r)
	}
	if err := os.Chmod(q.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := asPerson(exec.Command(binaryForAll(t), "--dir", q.dir, "status"), alice)
	cmd.Dir = "/"
	if r := runCommand(t, cmd); r.code != 5 || !strings.Contains(r.err,
		"this account has no access to the directory "+q.dir) {
		t.Errorf("a folder that cannot be entered: %+v", r)
	}
	q.stop()
	q.writeFile("queuectl.toml", "socket_group = \"no.such.group\"\n")
	if r := q.mustRefuseStart("--dir", q.dir); r.code != 78 ||
		!strings.Contains(r.err, `socket_group: there is no group "no.such.group"`) {
		t.Errorf("a group that is not there: %+v", r)
	}
}

// In a user namespace, all users from outside the namespace appear with the overflow id 65534, so a service
// cannot distinguish them. It refuses them, whatever [access] says about that id.
func TestUsersFromOutsideTheNamespace(t *testing.T) {
	q := sharedQueue(t, accessOfAll, "--workers", "0")
	q.stop()
	q.writeFile("queuectl.toml", "socket_mode = \"0666\"\n[access]\nadmin = [\"65534\", \"@65534\"]\n")
	cmd := exec.Command("unshare", "--user", "--map-root-user", q.bin, "serve", "--dir", q.dir, "--workers", "0")
	cmd.Env = environment(q.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	}()
	q.waitUntil("it answers", 20*time.Second, q.isAnswering)
	if r := q.runAs(alice, "status"); r.code != 5 || !strings.Contains(r.err, "user namespace") {
		t.Errorf("from outside: %+v", r)
	}
	if w := q.must("whoami", "--json"); !strings.Contains(w, `"uid":0`) || !strings.Contains(w, `"right":"admin"`) {
		t.Errorf("root of the namespace: %s", w)
	}
}

// Unknown users and groups in [access] cause a warning in the log and in doctor. They have no other effect.
func TestUnknownNamesAreAWarning(t *testing.T) {
	t.Parallel()
	q := newQueue(t, "")
	q.writeFile("queuectl.toml", "[access]\nread = [\"no.such.user\"]\n")
	q.start("--workers", "0")
	const words = "the settings section [access] names unknown users or groups: no.such.user"
	if log := q.logText(); strings.Count(log, words) != 1 {
		t.Errorf("the log says %d times what is not here:\n%s", strings.Count(log, words), log)
	}
	if d := q.doctor(); d.Level != "warning" || !strings.Contains(fmt.Sprint(d.Findings), words) {
		t.Errorf("doctor: %+v", d)
	}
	if r := q.cli("config", "set", "access.submit", "@no.such.group"); r.code != 0 ||
		!strings.Contains(r.err, "@no.such.group") {
		t.Errorf("config set: %+v", r)
	}
	if r := q.cli("config", "set", "access.submit", "a,b"); r.code != 2 {
		t.Errorf("no name: %+v", r)
	}
	q.must("config", "set", "access.submit", "none")
	q.must("config", "set", "access.read", "none")
	q.checkHealthy("without it")
}

// A job may name a user only if that is the user whose rights it would get anyway. If it names another user,
// the error names the setting that would permit this. If the user does not exist, the error names the user.
func TestJobMayNameItsOwnUser(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	me := strconv.Itoa(os.Geteuid()) // the account may have no name
	id := q.must("enqueue", "--user", me, "id -u")
	q.must("wait", id)
	if out := q.must("logs", id); out != me {
		t.Errorf("it ran as %s, want %s", out, me)
	}
	var j struct {
		User string
		Spec struct{ User string }
	}
	if err := json.Unmarshal([]byte(q.must("show", id, "--json")), &j); err != nil || j.User == "" ||
		j.Spec.User != j.User {
		t.Errorf("shown: %+v, %v", j, err)
	}
	other := "daemon"
	if r := q.cli("enqueue", "--user", other, "true"); r.code != 5 || !strings.Contains(r.err, `run_as = "submitter"`) {
		t.Errorf("another user: %+v", r)
	}
	if r := q.cliWithInput(`{"command":"true"}`+"\n"+`{"command":"true","user":"`+other+`"}`, "enqueue", "--file",
		"-"); r.code != 5 {
		t.Errorf("another user in a batch: %+v", r)
	}
	if r := q.cli("enqueue", "--user", "no.such.user", "true"); r.code != 2 ||
		!strings.Contains(r.err, `there is no user "no.such.user"`) {
		t.Errorf("no user: %+v", r)
	}
	if n := len(q.events("--event", "enqueued")); n != 1 {
		t.Errorf("%d jobs were enqueued", n)
	}
}
