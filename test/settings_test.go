//go:build linux || windows

package test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// setting is the value of a setting and its origin.
type setting struct{ Key, Value, Origin, Note string }

func (q *queue) setting(key string) (s setting) {
	q.Helper()
	if err := json.Unmarshal([]byte(q.must("config", "get", key, "--json")), &s); err != nil {
		q.Fatal(err)
	}
	return s
}

// mustRefuseStart starts a service that must not start, and returns its exit code and output.
func (q *queue) mustRefuseStart(args ...string) result {
	q.Helper()
	cmd := exec.Command(q.bin, append([]string{"serve"}, args...)...)
	cmd.Env = append(environment(q.dir), q.env...)
	ended := time.AfterFunc(15*time.Second, func() { cmd.Process.Kill() })
	defer ended.Stop()
	return runCommand(q, cmd)
}

// The value of a setting comes from the first of these sources that contains it: flag, environment, config
// set, file, default. All spellings of the name of a setting work, and config list shows the source as the
// origin.
func TestSettingsAndOrigins(t *testing.T) {
	t.Parallel()
	q := newQueue(t, "")
	q.writeFile("queuectl.toml", "max-retries = 7\nbackoff_base = 1.5\nmax_concurrent_jobs = 1\npriority = "+
		"2\nkill_after = \"3s\"\n")
	q.env = []string{"QUEUECTL_JOB_TIMEOUT=1500", "QUEUECTL_PRIORITY=4", "QUEUECTL_DEFAULT_MAX_TRIES=2"}
	q.start("--workers", "3")
	q.must("config", "set", "backoff-base", "2.5")
	for key, want := range map[string]setting{
		"max_retries":         {"max_retries", "1", "environment", ""},
		"default_max_tries":   {"max_retries", "1", "environment", ""},
		"timeout":             {"timeout", "1.5s", "environment", ""},
		"backoff_base":        {"backoff_base", "2.5", "stored", ""},
		"workers":             {"workers", "3", "flag", ""},
		"max-concurrent-jobs": {"workers", "3", "flag", ""},
		"priority":            {"priority", "4", "environment", ""},
		"kill_after":          {"kill_after", "3s", "file", ""},
		"jitter":              {"jitter", "0", "default", ""},
	} {
		if got := q.setting(key); got != want {
			t.Errorf("%s: got %+v, want %+v", key, got, want)
		}
	}
	if r := q.cli("config", "set", "priority", "9"); r.code != 0 ||
		!strings.Contains(r.err, "overridden by the environment") || q.setting("priority").Value != "4" {
		t.Errorf("a hidden setting: %+v", r)
	}
	if r := q.cli("config", "validate"); r.code != 0 ||
		!strings.Contains(
			r.err, `setting "backoff_base" in the file has no effect; the value 2.5 (origin: stored) overrides it`) {
		t.Errorf("validate: %+v", r)
	}
	q.must("config", "unset", "backoff_base")
	if got := q.setting("backoff_base"); got.Value != "1.5" || got.Origin != "file" {
		t.Errorf("after unset: %+v", got)
	}
	var list []setting
	json.Unmarshal([]byte(q.must("config", "list", "--json")), &list)
	if len(list) < 25 {
		t.Errorf("config list has %d settings", len(list))
	}
	q.must("worker", "scale", "2")
	if got := q.setting("workers"); got.Value != "2" {
		t.Errorf("workers after scale: %+v", got)
	}
	q.stop()
	q.start("--workers", "3")
	if got := q.setting("workers"); got.Value != "3" || got.Origin != "flag" {
		t.Errorf("workers of the next start: %+v", got)
	}
}

// If a setting is changed while the service runs, the new value applies to new jobs. Existing jobs keep the
// values with which they were enqueued.
func TestLiveSettings(t *testing.T) {
	t.Parallel()
	q := newQueue(t, "")
	q.writeFile("queuectl.toml", "workers = 0\n")
	q.start()
	w := q.dial()
	old := w.enqueue(fields{"command": "exit 1"})
	for _, kv := range []string{"max_retries 1", "backoff_base 0.03", "priority 8", "timeout 5m", "output_limit 2KiB",
		"output_grace 50ms"} {
		k, v, _ := strings.Cut(kv, " ")
		q.must("config", "set", k, v)
	}
	id := w.enqueue(fields{"command": "exit 1"})
	if got := q.must("show", old, "--json"); !strings.Contains(got, `"max_retries":3`) ||
		!strings.Contains(got, `"priority":5`) {
		t.Errorf("the older job changed: %s", got)
	}
	if got := q.must("show", id, "--json"); !strings.Contains(got, `"max_retries":1`) ||
		!strings.Contains(got, `"priority":8`) || !strings.Contains(got, `"timeout_ms":300000`) ||
		!strings.Contains(got, `"output_limit":2048`) {
		t.Errorf("the newer job: %s", got)
	}
	q.must("config", "set", "workers", "2")
	// backoff_base is not stored with the job: the service reads the current value at each failure. So the
	// retries of both jobs are fast.
	if j := w.waitEnded(old); j.Attempts != 4 {
		t.Errorf("got %+v", j)
	}
	if j := w.waitEnded(id); j.Attempts != 2 {
		t.Errorf("got %+v", j)
	}
}

// A service that cannot start reports the reason and where its cause is, for example the line of the settings
// file.
func TestServeRefusals(t *testing.T) {
	q := startQueue(t, "--workers", "0")
	sub := func(name, file string) string {
		dir := q.path(name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		q.writeFile(name+"/queuectl.toml", file)
		return dir
	}
	var st struct{ PID int }
	// Read the pid of the service from status: on Windows the service is a child of the process that the test
	// has started.
	if err := json.Unmarshal([]byte(q.must("status", "--json")), &st); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		err  string
	}{
		{"unknown key", []string{"--dir", sub("a", "priority = 1\n\nworkrs = 3\n")}, 78, "a/queuectl.toml:3: workrs"},
		{"wrong value", []string{"--dir", sub("b", "# x\nbackoff_strategy = \"linera\"\n")}, 78,
			"b/queuectl.toml:2: backoff_strategy"},
		{"no TOML", []string{"--dir", sub("c", "x = [\n")}, 78, "c/queuectl.toml:"},
		{"given twice", []string{"--dir", sub("d", "workers = 1\nmax_concurrent_jobs = 2\n")}, 78,
			"given twice, under two names"},
		{"file missing", []string{"--dir", sub("e", ""), "--config", "/none.toml"}, 78, "/none.toml"},
		{"bad flag", []string{"--dir", sub("f", ""), "--workers", "many"}, 78, "workers"},
		{"second service", []string{"--dir", q.dir}, 5, fmt.Sprint("pid ", st.PID, " ")},
	} {
		if r := q.mustRefuseStart(c.args...); r.code != c.code || !strings.Contains(filepath.ToSlash(r.err), c.err) {
			t.Errorf("%s: code %d, stderr %q; want %d, %q", c.name, r.code, r.err, c.code, c.err)
		}
	}
	q.env = []string{"QUEUECTL_MAX_RETRIES=x"}
	if r := q.mustRefuseStart("--dir", sub("g", "")); r.code != 78 || !strings.Contains(r.err, "QUEUECTL_MAX_RETRIES") {
		t.Errorf("bad environment: %+v", r)
	}
	q.env = nil
	q.must("status")
}

// After SIGTERM the service starts no other jobs, waits for running jobs, and leaves no process.
func TestStopDrains(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	id := w.enqueue(fields{"command": "echo up; sleep 1; echo done"})
	next := w.enqueue(fields{"command": "echo next"})
	w.waitRunning(id)
	if code := q.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	q.waitUntil("no runner is left", 5*time.Second, func() bool { return len(q.runnerPids()) == 0 })
	q.start("--workers", "0")
	w = q.dial()
	if j := w.show(id); j.State != "completed" || j.Output != "up\ndone\n" || j.Attempts != 1 {
		t.Errorf("the running job: %+v", j)
	}
	if j := w.show(next); j.State != "pending" || len(j.History) != 0 {
		t.Errorf("the waiting job: %+v", j)
	}
}

// With --keep-jobs, SIGTERM ends the service and leaves its jobs running. The next service adopts them.
func TestKeepJobs(t *testing.T) {
	q := startQueue(t, "--workers", "2", "--keep-jobs")
	w := q.dial()
	longJob := w.enqueue(fields{"command": "echo up; while [ ! -e " + q.path("go") +
		" ]; do sleep 0.05; done; echo done; exit 3", "max_retries": 0})
	short := w.enqueue(fields{"command": "echo up; while [ ! -e " + q.path("early") +
		" ]; do sleep 0.05; done; echo done"})
	before, ended := w.waitRunning(longJob), w.waitRunning(short)
	started := time.Now()
	if code := q.stop(); code != 0 || time.Since(started) > 2*timeoutFactor*time.Second {
		t.Errorf("exit code %d after %v", code, time.Since(started))
	}
	q.writeFile("early", "") // the short job ends while no service is running
	q.waitUntil("the short job has ended", 5*time.Second, func() bool { return !isAlive(ended.PID) })
	q.start("--workers", "2", "--keep-jobs")
	w = q.dial()
	if j := w.show(longJob); j.State != "processing" || j.PID != before.PID || !isAlive(j.PID) ||
		j.StartedAt != before.StartedAt {
		t.Errorf("before %+v\nafter %+v", before, j)
	}
	if j := w.waitEnded(short); j.State != "completed" || j.Output != "up\ndone\n" || j.Attempts != 1 {
		t.Errorf("ended meanwhile: %+v", j)
	}
	q.writeFile("go", "")
	if j := w.waitEnded(longJob); j.State != "dead" || deref(j.ExitCode) != 3 || j.Output != "up\ndone\n" ||
		j.Attempts != 1 || len(j.History) != 1 {
		t.Errorf("adopted: %+v", j)
	}
}

// config set rejects values that would keep the service from starting again, because undoing them needs a
// running service. If an environment variable overrides the stored value, config set cannot notice that. If
// the service is later started without the variable, the error says how to remove the value.
func TestStoredSettingsLetTheServiceStart(t *testing.T) {
	t.Parallel()
	q := newQueue(t, "")
	q.start("--workers", "0")
	for _, c := range unusableSettings {
		r := q.cli("config", "set", c.key, c.value)
		if r.code != 2 || !strings.Contains(r.err, c.key+": ") || !strings.Contains(r.err, c.wantText) ||
			q.setting(c.key).Origin != "default" {
			t.Errorf("%s %s: %+v", c.key, c.value, r)
		}
	}
	q.stop()
	q.env = []string{"QUEUECTL_RUN_AS=service"}
	q.start("--workers", "0")
	q.must("config", "set", "run_as", "submitter") // config set accepts this value because the variable overrides it
	q.stop()
	q.env = nil
	if r := q.mustRefuseStart("--dir", q.dir); r.code != 78 || !strings.Contains(r.err, "QUEUECTL_RUN_AS=service") ||
		!strings.Contains(r.err, "config unset run_as") {
		t.Errorf("a stored run_as: %+v", r)
	}
	q.env = []string{"QUEUECTL_RUN_AS=service"}
	q.start("--workers", "0")
	q.must("config", "unset", "run_as")
	q.stop()
	q.env = nil
	q.start("--workers", "0")
}

// A service refuses a database with a newer schema with exit code 78 and does not change it, unless the
// database permits older readers.
func TestNewerSchema(t *testing.T) {
	q := startQueue(t, "--workers", "0")
	q.must("enqueue", "true")
	q.stop()
	q.corrupt("PRAGMA user_version = 99; UPDATE meta SET min_reader = 99;")
	before := q.readFile("queuectl.db")
	if r := q.mustRefuseStart("--dir", q.dir); r.code != 78 || !strings.Contains(r.err, "schema version 99") {
		t.Errorf("newer schema: %+v", r)
	}
	if q.readFile("queuectl.db") != before {
		t.Error("the file was changed")
	}
	q.corrupt("UPDATE meta SET min_reader = 1;")
	q.start("--workers", "1")
	if r := q.cli("wait", "1"); r.code != 0 {
		t.Errorf("a newer file that may be read: %+v", r)
	}
}

// If the settings file would keep the service from starting again, service restart does not stop the service.
func TestRestartRefusesInvalidSettings(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	pid := func() string {
		text, _, _ := strings.Cut(q.must("service", "status"), "\n")
		return text
	}
	oldPID := pid()
	bad := []string{"workers = \"many\"\n", "wrokers = 2\n", "workers = \n"}
	if runtime.GOOS != "windows" { // Windows has neither of these settings
		bad = append(bad, "socket_group = \"nosuchgroup\"\n", "run_as = \"fixed:nosuchuser\"\n")
	}
	for _, settings := range bad {
		q.writeFile("queuectl.toml", settings)
		if got := q.cli("service", "restart"); got.code != 2 || !strings.Contains(got.err, "the service was not restarted") ||
			!strings.Contains(got.err, "config validate") {
			t.Errorf("with %q: %+v", settings, got)
		}
	}
	q.writeFile("queuectl.toml", "")
	cmd := q.command("service", "restart")
	cmd.Env = append(cmd.Env, "QUEUECTL_MAX_PENDING=many")
	if got := runCommand(t, cmd); got.code != 2 || !strings.Contains(got.err, "QUEUECTL_MAX_PENDING") {
		t.Errorf("with an environment that does not hold: %+v", got)
	}
	if now := pid(); now != oldPID || !strings.Contains(now, "pid") {
		t.Errorf("it was %q and is %q", oldPID, now)
	}
}
