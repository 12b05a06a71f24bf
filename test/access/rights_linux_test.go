package access

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

	"github.com/queuectl/queuectl/internal/testrig"
)

// jobCommandCase is a command on one job, together with a function that prepares a job for the command.
type jobCommandCase struct {
	commandLine       string // the command, with %s where the job id must be
	prepareJob        func(q *testrig.Harness, owner testrig.Person) (id string)
	rightOnOthersJobs string // right that a user needs to run the command on another user's job
}

// newWaitingJob enqueues a job that waits, and returns its id.
func newWaitingJob(q *testrig.Harness, owner testrig.Person) string {
	return q.MustRunAs(owner, "enqueue", "--delay", "1h", "true")
}

func newHeldJob(q *testrig.Harness, owner testrig.Person) string {
	id := newWaitingJob(q, owner)
	q.MustRunCLI("hold", id)
	return id
}

func newRunningJob(q *testrig.Harness, owner testrig.Person) string {
	id := q.MustRunAs(owner, "enqueue", "trap '' HUP; echo begun; sleep 600 & wait")
	q.WaitUntil("the job runs", 20*time.Second, func() bool {
		return strings.Contains(q.MustRunCLI("logs", id), "begun") && q.ShowJob(id).State == "processing"
	})
	return id
}

func newDeadJob(q *testrig.Harness, owner testrig.Person) string {
	id := q.MustRunAs(owner, "enqueue", "--max-retries", "0", "echo said; exit 3")
	q.RunCLI("wait", id)
	return id
}

// jobCommandCases lists the commands that TestJobCommandsRequireRights runs.
var jobCommandCases = []jobCommandCase{
	{"cancel %s", newWaitingJob, "operate"}, {"cancel %s", newRunningJob, "operate"},
	{"hold %s", newWaitingJob, "operate"}, {"release %s", newHeldJob, "operate"},
	{"retry %s", newDeadJob, "operate"}, {"dlq retry %s", newDeadJob, "operate"},
	{"pause %s", newRunningJob, "operate"}, {"resume %s", newRunningJob, "operate"},
	{"requeue %s", newRunningJob, "operate"}, {"kill -s HUP %s", newRunningJob, "operate"},
	{"edit %s --priority 7", newWaitingJob, "operate"}, {"rm %s", newWaitingJob, "operate"},
	{"rm --force %s", newRunningJob, "operate"},
	{"logs %s", newDeadJob, "operate"}, {"show %s", newDeadJob, "read"},
	// The selector matches only those jobs that the caller may change.
	{"cancel --state waiting --id-glob %s", newWaitingJob, "own"},
}

// Six users run every command on their own and on others' jobs. The service permits exactly what the users' rights
// permit. A refused command changes nothing.
func TestJobCommandsRequireRights(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartSharedQueue(t, testrig.AllPersonsAccessSettings, "--workers", "8")
	for _, p := range testrig.AllPersons {
		for _, v := range jobCommandCases {
			for _, isOwner := range []bool{true, false} {
				owner := testrig.Alice
				switch {
				case isOwner && !p.HasRight("submit"):
					continue // a user without the right "submit" has no jobs
				case isOwner:
					owner = p
				case p.Name == testrig.Alice.Name:
					owner = testrig.Bob
				}
				id := v.prepareJob(q, owner)
				before := q.ShowJob(id)
				r := q.RunAs(p, strings.Fields(fmt.Sprintf(v.commandLine, id))...)
				what := fmt.Sprintf("%s: %s of %s's job", p.Name, v.commandLine, owner.Name)
				others := v.rightOnOthersJobs
				if others == "own" {
					others = "operate"
				}
				may := isOwner || p.HasRight(others)
				onMany := v.rightOnOthersJobs == "own" && p.HasRight("submit")
				switch {
				case may && r.ExitCode != 0:
					t.Errorf("%s: %+v", what, r)
				case !may && onMany && (r.ExitCode != 0 || r.Stdout != ""):
					t.Errorf("%s: %+v, want nothing to match", what, r)
				case !may && !onMany && (r.ExitCode != 5 || r.Stdout != "" || !strings.Contains(r.Stderr, "denied: ")):
					t.Errorf("%s: %+v, want a refusal", what, r)
				case !may && !onMany && p.AccessRight != "none" && !strings.Contains(r.Stderr, "needs the right"):
					t.Errorf("%s: the error does not name the required right: %s", what, r.Stderr)
				}
				if !may {
					if after := q.ShowJob(id); after.State != before.State || after.PID != before.PID {
						t.Errorf("%s: it was refused, and the job is %s", what, after.State)
					}
				}
				if may && v.commandLine == "cancel --state waiting --id-glob %s" && q.ShowJob(id).State != "cancelled" {
					t.Errorf("%s: the job is %s", what, q.ShowJob(id).State)
				}
				q.RunCLI("rm", "--force", id)
			}
		}
	}
	r := q.RunAs(testrig.Alice, "cancel", "--state", "waiting", "--user", fmt.Sprint(testrig.Bob.Uid))
	if r.ExitCode != 5 || !strings.Contains(r.Stderr, "operate") {
		t.Errorf("cancel of all jobs of another user: %+v", r)
	}
	for _, verb := range []string{"pause", "resume"} {
		if r := q.RunAs(testrig.Alice, verb, "--all"); r.ExitCode != 5 ||
			!strings.Contains(r.Stderr, `needs the right "operate"`) {
			t.Errorf("%s --all by a user with the right to submit: %+v", verb, r)
		}
	}
	ids := []string{newDeadJob(q, testrig.Alice), newDeadJob(q, testrig.Bob)}
	q.MustRunAs(testrig.Alice, "dlq", "retry", "--all")
	q.RunCLI("wait", ids[0])
	if a, b := q.ListEvents("--event", "retried", ids[0]), q.ListEvents("--event", "retried", ids[1]); len(a) != 1 ||
		len(b) != 0 {
		t.Errorf("dlq retry --all: dead jobs of the submitter %v, of another user %v", a, b)
	}
}

// Commands that do not concern one job also require rights. If a user lacks a right, the error names the right.
func TestCommandsWithoutJobRequireRights(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartSharedQueue(t, testrig.AllPersonsAccessSettings, "--workers", "2")
	file := filepath.Join(q.StateDir, "out")
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
			for _, p := range testrig.AllPersons {
				r := q.RunAs(p, strings.Fields(strings.ReplaceAll(verb, "PERSON", p.Name))...)
				switch may := p.HasRight(right); {
				// `queuectl doctor` may exit with an error even for a user with the required right, because in this test it finds
				// that other users can access the queue's directory.
				case may && r.ExitCode != 0 && verb != "doctor":
					t.Errorf("%s: %s: %+v", p.Name, verb, r)
				case !may && (r.ExitCode != 5 || r.Stdout != "" || !strings.Contains(r.Stderr, "denied: ") ||
					!strings.Contains(r.Stderr, "[access] of "+q.Path("queuectl.toml"))):
					t.Errorf("%s: %s: %+v, want a refusal that says how to get the right", p.Name, verb, r)
				case !may && p.AccessRight != "none" && !strings.Contains(r.Stderr,
					fmt.Sprintf(`needs the right "%s", but you (%d) have "%s"`, right, p.Uid, p.AccessRight)):
					t.Errorf("%s: %s: %s", p.Name, verb, r.Stderr)
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
	if err := json.Unmarshal([]byte(q.MustRunAs(testrig.Bob, "whoami", "--json")), &w); err != nil ||
		w.UID != testrig.Bob.Uid ||
		w.Right != "submit" || !slices.Equal(w.Rights, []string{"read", "submit"}) || w.JobsRunAs != "root" {
		t.Errorf("whoami: %+v, %v", w, err)
	}
	if len(w.Groups) != 2 || w.Groups[0].GID != 61298 || w.Groups[1].GID != 61299 {
		t.Errorf("the groups of whoami: %v", w.Groups)
	}
	if text := q.MustRunAs(testrig.Outsider, "whoami"); !strings.Contains(text, "none") ||
		!strings.Contains(text, "[access]") {
		t.Errorf("whoami of an outsider:\n%s", text)
	}
	for _, p := range []testrig.Person{testrig.Reader, testrig.Alice, testrig.Bob, testrig.Operator} {
		if r := q.RunAs(p, "service", "stop"); r.ExitCode != 5 || !strings.Contains(r.Stderr, `needs the right "admin"`) {
			t.Errorf("%s stops the service: %+v", p.Name, r)
		}
	}
	q.MustRunAs(testrig.Admin, "service", "stop")
}

// Only users with the required right see the output, command and input of a job. Other users find them neither
// in replies and events, nor in `queuectl logs` and `queuectl ps`.
func TestOthersJobDetailsAreHidden(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartSharedQueue(t, "log_level = \"debug\"\n"+testrig.AllPersonsAccessSettings, "--workers", "2")
	const value, word, log = "c4n4ry-value", "c4n4ry-word", "c4n4ry-said"
	q.MustRunAs(testrig.Alice, "enqueue", "--id", "secret", "--max-retries", "0", "--env",
		"SECRET="+value, "--stdin", word,
		": "+word+"; printf c4n4ry; echo -said; exit 3")
	q.RunCLI("wait", "secret")
	q.MustRunAs(testrig.Alice, "enqueue", "--id", "gone", "--max-retries", "0", "--env", "SECRET="+value,
		"--", "/no/"+word)
	q.RunCLI("wait", "gone")
	readAll := func(p testrig.Person) (all string) {
		for _, args := range [][]string{
			{"show", "secret"}, {"show", "secret", "--json", "--full"}, {"show", "gone", "--json", "--full"}, {"list"},
			{"list", "--json"}, {"dlq", "list"}, {"wait", "secret", "--json"}, {"logs", "secret"},
			{"events"}, {"events", "--json"}, {"events", "--audit", "--json"}, {"worker", "list", "--json"},
			{"status", "--json"}, {"whoami", "--json"}, {"doctor", "--json"}, {"edit", "secret", "--priority", "1"},
		} {
			r := q.RunAs(p, args...)
			all += r.Stdout + r.Stderr
		}
		return all
	}
	for _, c := range []struct {
		testrig.Person
		value, command bool
	}{{testrig.Outsider, false, false}, {testrig.Reader, false, false}, {testrig.Bob, false, false},
		{testrig.Operator, false, true}, {testrig.Alice, true, true},
		{testrig.Admin, true, true}} {
		all := readAll(c.Person)
		if got := strings.Contains(all, value); got != c.value {
			t.Errorf("%s sees the value of a variable: %t\n%s", c.Name, got, all)
		}
		if got := strings.Contains(all, word); got != c.command {
			t.Errorf("%s sees the command: %t\n%s", c.Name, got, all)
		}
		if got := strings.Contains(all, log); got != c.command {
			t.Errorf("%s sees the output: %t\n%s", c.Name, got, all)
		}
	}
	if text := q.MustRunAs(testrig.Reader, "list"); strings.Count(text, "(hidden)") != 2 {
		t.Errorf("the table of a reader:\n%s", text)
	}
	if text := q.MustRunAs(testrig.Operator, "show", "secret", "--json", "--full"); !strings.Contains(text,
		`"SECRET":"***"`) ||
		!strings.Contains(text, `"hidden":["env"]`) {
		t.Errorf("show by an operator: %s", text)
	}
	if r := q.RunAs(testrig.Operator, "edit", "secret", `{"env":{"SECRET":"***"}}`); r.ExitCode == 0 {
		t.Errorf("edit stored the mask *** as a value: %+v", r)
	}
	if log := q.ReadAllLogs(); strings.Contains(log, "c4n4ry") {
		t.Errorf("the service's log contains the secret:\n%s", log)
	}
	q.MustRunAs(testrig.Alice, "enqueue", "--id", "runs", "--env", "SECRET="+value, "sleep 600")
	q.WaitUntil("the job runs", 20*time.Second, func() bool { return q.ShowJob("runs").State == "processing" })
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if raw, err := os.ReadFile(name); err == nil && strings.Contains(string(raw), value) {
			t.Errorf("%s contains the secret: %q", name, raw)
		}
	}
}

// For each action of a user, the service stores an audit event with the user, the action and its target. Only
// admins can read these events.
func TestUserActionsAreAudited(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartSharedQueue(t, testrig.AllPersonsAccessSettings, "--workers", "4")
	w := func(id string) { q.MustRunAs(testrig.Alice, "enqueue", "--id", id, "--delay", "1h", "true") }
	r := func(id string) {
		q.MustRunAs(testrig.Alice, "enqueue", "--id", id, "echo begun; sleep 600")
		q.WaitUntil(id+" runs", 20*time.Second, func() bool { return q.ShowJob(id).State == "processing" })
	}
	var want []string
	does := func(p testrig.Person, words string, audited ...string) {
		t.Helper()
		q.MustRunAs(p, strings.Fields(words)...)
		for _, a := range audited {
			want = append(want, fmt.Sprintf("%d %s", p.Uid, a))
		}
	}
	enqueued := func(id string) { want = append(want, fmt.Sprintf("%d enqueue %s", testrig.Alice.Uid, id)) }
	w("a")
	enqueued("a")
	does(testrig.Alice, "hold a", "hold a")
	does(testrig.Operator, "release a", "release a")
	does(testrig.Operator, "edit a --priority 3", "edit a")
	does(testrig.Alice, "cancel a", "cancel a")
	does(testrig.Operator, "retry a", "retry a")
	does(testrig.Admin, "show a", "show a environment")
	q.MustRunAs(testrig.Alice, "wait", "a") // the retried job must have run
	does(testrig.Alice, "rm a", "rm a")
	r("b")
	enqueued("b")
	does(testrig.Operator, "pause b", "pause b")
	does(testrig.Alice, "resume b", "resume b")
	does(testrig.Operator, "kill -s CONT b", "kill b signal 18 (SIGCONT)")
	does(testrig.Operator, "requeue b", "requeue b")
	q.WaitUntil("b runs again", 20*time.Second, func() bool { return q.ShowJob("b").State == "processing" })
	does(testrig.Alice, "cancel b", "cancel b")
	r("c")
	enqueued("c")
	does(testrig.Operator, "rm --force c", "cancel c", "rm c")
	r("d")
	enqueued("d")
	does(testrig.Operator, "worker stop --all --force", "config workers", "worker.stop d")
	does(testrig.Operator, "worker scale 1", "config workers")
	q.WaitUntil("d runs again", 20*time.Second, func() bool { return q.ShowJob("d").State == "processing" })
	does(testrig.Alice, "cancel d", "cancel d")
	w("e")
	enqueued("e")
	does(testrig.Operator, "clear --yes", "clear", "rm e", "rm b", "rm d")
	does(testrig.Operator, "dlq clear --yes", "dlq.clear")
	does(testrig.Admin, "config set priority 6", "config priority")
	does(testrig.Admin, "config unset priority", "config priority")
	does(testrig.Admin, "drain", "config drain")
	does(testrig.Admin, "drain --off", "config drain")
	does(testrig.Admin, "reload", "reload "+q.Path("queuectl.toml"))
	does(testrig.Admin, "cleanup --days 0", "cleanup 0 jobs")
	q.StopService() // audit events must survive a restart
	q.StartService("--workers", "0")

	type row struct {
		Event, User, Verb, Target, Key string
		UID                            *int
		PeerPID                        int `json:"peer_pid"`
	}
	var got []string
	for line := range strings.Lines(q.MustRunAs(testrig.Admin, "events", "--audit", "--jsonl")) {
		var e row
		err := json.Unmarshal([]byte(line), &e)
		if e.User == "root" && e.Verb == "show" { // the test itself caused this event
			continue
		}
		if err != nil || e.UID == nil || e.User != fmt.Sprint(*e.UID) || e.Event == "audit" && e.PeerPID == 0 {
			t.Errorf("%v: %s", err, line)
			continue
		}
		got = append(got, strings.TrimSpace(fmt.Sprintf("%d %s %s", *e.UID, e.Verb, e.Target)))
	}
	// The audit events of one command have no defined order.
	sorted := func(list []string) string { return strings.Join(slices.Sorted(slices.Values(list)), "\n") }
	if sorted(got) != sorted(want) {
		t.Errorf("got\n%s\n\nwant\n%s", sorted(got), sorted(want))
	}
	for _, p := range []testrig.Person{testrig.Reader, testrig.Alice, testrig.Operator, testrig.Admin} {
		if text := q.MustRunAs(p, "events", "--jsonl"); strings.Contains(text, `"audit"`) ||
			strings.Contains(text, `"verb"`) {
			t.Errorf("%s received audit events:\n%s", p.Name, text)
		}
		if r := q.RunAs(p, "events", "--event", "audit"); r.ExitCode != 2 || !strings.Contains(r.Stderr, "audit") {
			t.Errorf("%s, events --event audit: %+v", p.Name, r)
		}
	}
	if text := q.MustRunAs(testrig.Admin, "events", "--audit", "--event", "audit"); !strings.Contains(text,
		fmt.Sprintf("kill b signal 18 (SIGCONT)  by %d (uid %[1]d)", testrig.Operator.Uid)) {
		t.Errorf("events --audit --event audit:\n%s", text)
	}
}

// A connection keeps the groups that the client had when it connected. So a user who leaves a group keeps
// the rights of the group until the client connects again. A change of the settings in [access] takes
// effect at the next request.
func TestConnectionKeepsClientsGroups(t *testing.T) {
	q := testrig.StartSharedQueue(t, testrig.AllPersonsAccessSettings, "--workers", "0")
	w := q.DialAs(testrig.Person{Uid: 61250, Groups: []uint32{61298}})
	if a := w.Call("enqueue", testrig.JSONFields{"command": "true"}); a.Error != nil {
		t.Fatalf("enqueue by a user in the group: %+v", a.Error)
	}
	without := testrig.Person{Name: "who left the group", Uid: 61250}
	if r := q.RunAs(without, "list"); r.ExitCode != 5 {
		t.Errorf("list by a user outside the group: %+v", r)
	}
	if a := w.Call("enqueue", testrig.JSONFields{"command": "true"}); a.Error != nil {
		t.Errorf("enqueue over the connection from before the user left the group: %+v", a.Error)
	}
	q.WriteFile("queuectl.toml", strings.Replace(testrig.AllPersonsAccessSettings, `"@61298"`, `"@61296"`, 1))
	q.MustRunCLI("reload")
	if a := w.Call("enqueue", testrig.JSONFields{"command": "true"}); a.Error == nil || a.Error.Data.Code != "denied" {
		t.Errorf("after [access] was changed, on the same connection: %+v", a)
	}
	q.MustRunCLI("config", "set", "access.submit", "61250")
	if a := w.Call("enqueue", testrig.JSONFields{"command": "true"}); a.Error != nil {
		t.Errorf("after the right was granted again: %+v", a.Error)
	}
}

// In a user namespace, all users from outside have the same id, 65534 (the overflow id). A service cannot distinguish
// them, so it refuses all of them, whatever rights the settings in [access] give to that id.
func TestUsersOutsideNamespaceAreRefused(t *testing.T) {
	q := testrig.StartSharedQueue(t, testrig.AllPersonsAccessSettings, "--workers", "0")
	q.StopService()
	q.WriteFile("queuectl.toml", "socket_mode = \"0666\"\n[access]\nadmin = [\"65534\", \"@65534\"]\n")
	cmd := exec.Command("unshare", "--user", "--map-root-user", q.ClientPath, "serve", "--dir", q.StateDir, "--workers",
		"0")
	cmd.Env = testrig.UserEnvironment(q.StateDir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	}()
	q.WaitUntil("it answers", 20*time.Second, q.IsServiceAnswering)
	if r := q.RunAs(testrig.Alice, "status"); r.ExitCode != 5 || !strings.Contains(r.Stderr, "user namespace") {
		t.Errorf("status for a user from outside the namespace: %+v", r)
	}
	if w := q.MustRunCLI("whoami", "--json"); !strings.Contains(w, `"uid":0`) || !strings.Contains(w, `"right":"admin"`) {
		t.Errorf("whoami of root in the namespace: %s", w)
	}
}

// Unknown users and groups in [access] cause a warning in the log and in `queuectl doctor`, and have no other
// effect.
func TestUnknownAccessNamesCauseWarning(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.WriteFile("queuectl.toml", "[access]\nread = [\"no.such.user\"]\n")
	q.StartService("--workers", "0")
	const words = "the settings section [access] names unknown users or groups: no.such.user"
	if log := q.ReadAllLogs(); strings.Count(log, words) != 1 {
		t.Errorf("the log contains the warning about unknown names %d times, want once:\n%s", strings.Count(log, words), log)
	}
	if d := q.RunDoctor(); d.Level != "warning" || !strings.Contains(fmt.Sprint(d.Findings), words) {
		t.Errorf("doctor: %+v", d)
	}
	if r := q.RunCLI("config", "set", "access.submit", "@no.such.group"); r.ExitCode != 0 ||
		!strings.Contains(r.Stderr, "@no.such.group") {
		t.Errorf("config set: %+v", r)
	}
	if r := q.RunCLI("config", "set", "access.submit", "a,b"); r.ExitCode != 2 {
		t.Errorf("config set with a,b, which is not the name of a user: %+v", r)
	}
	q.MustRunCLI("config", "set", "access.submit", "none")
	q.MustRunCLI("config", "set", "access.read", "none")
	q.CheckDoctorHealthy("without it")
}

// A job may name the user that it would run as anyway. If it names another existing user, the error names the
// setting that would permit this. If the user does not exist, the error names the user.
func TestJobMayNameOnlyUserItRunsAs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	me := strconv.Itoa(os.Geteuid()) // the account may have no name
	id := q.MustRunCLI("enqueue", "--user", me, "id -u")
	q.MustRunCLI("wait", id)
	if out := q.MustRunCLI("logs", id); out != me {
		t.Errorf("the job ran as %s, want %s", out, me)
	}
	var j struct {
		User string
		Spec struct{ User string }
	}
	if err := json.Unmarshal([]byte(q.MustRunCLI("show", id, "--json")), &j); err != nil || j.User == "" ||
		j.Spec.User != j.User {
		t.Errorf("show of the job: %+v, %v", j, err)
	}
	other := "daemon"
	if r := q.RunCLI("enqueue", "--user", other, "true"); r.ExitCode != 5 ||
		!strings.Contains(r.Stderr, `run_as = "submitter"`) {
		t.Errorf("enqueue for another user: %+v", r)
	}
	if r := q.RunCLIWithInput(`{"command":"true"}`+"\n"+`{"command":"true","user":"`+other+`"}`, "enqueue", "--file",
		"-"); r.ExitCode != 5 {
		t.Errorf("enqueue of a batch with a job for another user: %+v", r)
	}
	if r := q.RunCLI("enqueue", "--user", "no.such.user", "true"); r.ExitCode != 2 ||
		!strings.Contains(r.Stderr, `there is no user "no.such.user"`) {
		t.Errorf("enqueue for a user that does not exist: %+v", r)
	}
	if n := len(q.ListEvents("--event", "enqueued")); n != 1 {
		t.Errorf("%d jobs were enqueued", n)
	}
}
