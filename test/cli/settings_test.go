//go:build linux || windows

package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// A setting's value comes from the first of these sources that contains the setting: a flag, an environment variable,
// "config set", the settings file, the default. `queuectl config list` names the source. A setting can also be named by
// its aliases.
func TestSettingSourcesTakePrecedence(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.WriteFile("queuectl.toml", "max-retries = 7\nbackoff_base = 1.5\nmax_concurrent_jobs = 1\npriority = "+
		"2\nkill_after = \"3s\"\n")
	q.ServiceEnv = []string{"QUEUECTL_JOB_TIMEOUT=1500", "QUEUECTL_PRIORITY=4", "QUEUECTL_DEFAULT_MAX_TRIES=2"}
	q.StartService("--workers", "3")
	q.MustRunCLI("config", "set", "backoff-base", "2.5")
	for key, want := range map[string]testrig.Setting{
		"max_retries":         {Key: "max_retries", Value: "1", Origin: "environment"},
		"default_max_tries":   {Key: "max_retries", Value: "1", Origin: "environment"},
		"timeout":             {Key: "timeout", Value: "1.5s", Origin: "environment"},
		"backoff_base":        {Key: "backoff_base", Value: "2.5", Origin: "stored"},
		"workers":             {Key: "workers", Value: "3", Origin: "flag"},
		"max-concurrent-jobs": {Key: "workers", Value: "3", Origin: "flag"},
		"priority":            {Key: "priority", Value: "4", Origin: "environment"},
		"kill_after":          {Key: "kill_after", Value: "3s", Origin: "file"},
		"jitter":              {Key: "jitter", Value: "0", Origin: "default"},
	} {
		if got := q.GetSetting(key); got != want {
			t.Errorf("%s: got %+v, want %+v", key, got, want)
		}
	}
	if r := q.RunCLI("config", "set", "priority", "9"); r.ExitCode != 0 ||
		!strings.Contains(r.Stderr, "overridden by the environment") || q.GetSetting("priority").Value != "4" {
		t.Errorf("config set of a setting that the environment overrides: %+v", r)
	}
	if r := q.RunCLI("config", "validate"); r.ExitCode != 0 ||
		!strings.Contains(r.Stderr, `setting "backoff_base" in the file has no effect; `+
			`the value 2.5 stored in the database overrides it`) {
		t.Errorf("config validate: %+v", r)
	}
	q.MustRunCLI("config", "unset", "backoff_base")
	if got := q.GetSetting("backoff_base"); got.Value != "1.5" || got.Origin != "file" {
		t.Errorf("the setting after config unset: %+v", got)
	}
	var list []testrig.Setting
	json.Unmarshal([]byte(q.MustRunCLI("config", "list", "--json")), &list)
	if len(list) < 25 {
		t.Errorf("config list has %d settings", len(list))
	}
	q.MustRunCLI("worker", "scale", "2")
	if got := q.GetSetting("workers"); got.Value != "2" {
		t.Errorf("the setting workers after worker scale: %+v", got)
	}
	q.StopService()
	q.StartService("--workers", "3")
	if got := q.GetSetting("workers"); got.Value != "3" || got.Origin != "flag" {
		t.Errorf("the setting workers after a start with --workers: %+v", got)
	}
}

// A setting that is changed while the service runs applies to new jobs. Existing jobs keep the
// values with which they were enqueued.
func TestChangedSettingsApplyToNewJobs(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.WriteFile("queuectl.toml", "workers = 0\n")
	q.StartService()
	w := q.DialService()
	old := w.Enqueue(testrig.JSONFields{"command": "exit 1"})
	for _, kv := range []string{"max_retries 1", "backoff_base 0.03", "priority 8", "timeout 5m", "output_limit 2KiB",
		"output_grace 50ms"} {
		k, v, _ := strings.Cut(kv, " ")
		q.MustRunCLI("config", "set", k, v)
	}
	id := w.Enqueue(testrig.JSONFields{"command": "exit 1"})
	if got := q.MustRunCLI("show", old, "--json"); !strings.Contains(got, `"max_retries":3`) ||
		!strings.Contains(got, `"priority":5`) {
		t.Errorf("the older job changed: %s", got)
	}
	if got := q.MustRunCLI("show", id, "--json"); !strings.Contains(got, `"max_retries":1`) ||
		!strings.Contains(got, `"priority":8`) || !strings.Contains(got, `"timeout_ms":300000`) ||
		!strings.Contains(got, `"output_limit":2048`) {
		t.Errorf("the newer job: %s", got)
	}
	q.MustRunCLI("config", "set", "workers", "2")
	// backoff_base is not stored with the job. The service uses its current value at each failure, so
	// both jobs are retried soon.
	if j := w.WaitJobEnded(old); j.AttemptCount != 4 {
		t.Errorf("the older job: %+v, want 4 attempts", j)
	}
	if j := w.WaitJobEnded(id); j.AttemptCount != 2 {
		t.Errorf("the newer job: %+v, want 2 attempts", j)
	}
}

// A service that cannot start reports the reason and its origin, for example the line of the settings file.
func TestServiceReportsWhyItCannotStart(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	sub := func(name, file string) string {
		dir := q.Path(name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		q.WriteFile(name+"/queuectl.toml", file)
		return dir
	}
	var st struct{ PID int }
	// Read the pid of the service from `queuectl status`, because on Windows the service is a child of the process
	// that the test has started.
	if err := json.Unmarshal([]byte(q.MustRunCLI("status", "--json")), &st); err != nil {
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
		{"second service", []string{"--dir", q.StateDir}, 5, fmt.Sprint("pid ", st.PID, " ")},
	} {
		if r := q.RunServiceExpectingRefusal(c.args...); r.ExitCode != c.code || !strings.Contains(filepath.ToSlash(r.Stderr),
			c.err) {
			t.Errorf("%s: code %d, stderr %q; want %d, %q", c.name, r.ExitCode, r.Stderr, c.code, c.err)
		}
	}
	q.ServiceEnv = []string{"QUEUECTL_MAX_RETRIES=x"}
	r := q.RunServiceExpectingRefusal("--dir", sub("g", ""))
	if r.ExitCode != 78 || !strings.Contains(r.Stderr, "QUEUECTL_MAX_RETRIES") {
		t.Errorf("start with an invalid environment variable: %+v", r)
	}
	q.ServiceEnv = nil
	q.MustRunCLI("status")
}

// After SIGTERM the service starts no other jobs, waits for running jobs, and leaves no process
// running.
func TestSIGTERMWaitsForRunningJobs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": "echo up; sleep 1; echo done"})
	next := w.Enqueue(testrig.JSONFields{"command": "echo next"})
	w.WaitJobRunning(id)
	if code := q.StopService(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	q.WaitUntil("no runner is left", 5*time.Second, func() bool { return len(q.RunnerPIDs()) == 0 })
	q.StartService("--workers", "0")
	w = q.DialService()
	if j := w.ShowJob(id); j.State != "completed" || j.Output != "up\ndone\n" || j.AttemptCount != 1 {
		t.Errorf("the running job: %+v", j)
	}
	if j := w.ShowJob(next); j.State != "pending" || len(j.AttemptHistory) != 0 {
		t.Errorf("the waiting job: %+v", j)
	}
}

// With --keep-jobs, SIGTERM ends the service and leaves its jobs running. The next service takes over these
// jobs.
func TestKeepJobsLeavesJobsRunning(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2", "--keep-jobs")
	w := q.DialService()
	longJob := w.Enqueue(testrig.JSONFields{"command": "echo up; while [ ! -e " + q.Path("go") +
		" ]; do sleep 0.05; done; echo done; exit 3", "max_retries": 0})
	short := w.Enqueue(testrig.JSONFields{"command": "echo up; while [ ! -e " + q.Path("early") +
		" ]; do sleep 0.05; done; echo done"})
	before, ended := w.WaitJobRunning(longJob), w.WaitJobRunning(short)
	started := time.Now()
	if code := q.StopService(); code != 0 || time.Since(started) > 2*testrig.TimeoutFactor*time.Second {
		t.Errorf("exit code %d after %v", code, time.Since(started))
	}
	q.WriteFile("early", "") // the short job ends while no service runs
	q.WaitUntil("the short job has ended", 5*time.Second, func() bool { return !testrig.IsProcessAlive(ended.PID) })
	q.StartService("--workers", "2", "--keep-jobs")
	w = q.DialService()
	if j := w.ShowJob(longJob); j.State != "processing" || j.PID != before.PID || !testrig.IsProcessAlive(j.PID) ||
		j.StartedAt != before.StartedAt {
		t.Errorf("the adopted job was %+v\nand is now %+v", before, j)
	}
	if j := w.WaitJobEnded(short); j.State != "completed" || j.Output != "up\ndone\n" || j.AttemptCount != 1 {
		t.Errorf("the job that ended before the new start: %+v", j)
	}
	q.WriteFile("go", "")
	if j := w.WaitJobEnded(longJob); j.State != "dead" || testrig.ValueOrMinusOne(j.ExitCode) != 3 ||
		j.Output != "up\ndone\n" ||
		j.AttemptCount != 1 || len(j.AttemptHistory) != 1 {
		t.Errorf("the adopted job after its end: %+v", j)
	}
}

// `queuectl config set` rejects values with which the service could not start again, because only a running service can
// remove stored values. The command accepts such a value if an environment variable overrides it. If the service is
// later started without the variable, it cannot start, and its error says how to remove the value.
func TestConfigSetRejectsUnstartableSettings(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "0")
	for _, c := range unusableSettings {
		r := q.RunCLI("config", "set", c.key, c.value)
		if r.ExitCode != 2 || !strings.Contains(r.Stderr, c.key+": ") || !strings.Contains(r.Stderr, c.wantText) ||
			q.GetSetting(c.key).Origin != "default" {
			t.Errorf("%s %s: %+v", c.key, c.value, r)
		}
	}
	q.StopService()
	q.ServiceEnv = []string{"QUEUECTL_RUN_AS=service"}
	q.StartService("--workers", "0")
	q.MustRunCLI("config", "set", "run_as", "submitter") // accepted, because the variable overrides this value
	q.StopService()
	q.ServiceEnv = nil
	if r := q.RunServiceExpectingRefusal("--dir", q.StateDir); r.ExitCode != 78 ||
		!strings.Contains(r.Stderr, "QUEUECTL_RUN_AS=service") ||
		!strings.Contains(r.Stderr, "config unset run_as") {
		t.Errorf("start with the stored run_as: %+v", r)
	}
	q.ServiceEnv = []string{"QUEUECTL_RUN_AS=service"}
	q.StartService("--workers", "0")
	q.MustRunCLI("config", "unset", "run_as")
	q.StopService()
	q.ServiceEnv = nil
	q.StartService("--workers", "0")
}

// A service refuses a database with a newer schema, with exit code 78, and does not change the database. It accepts the
// database only if the database itself permits services with an older schema.
func TestServiceRefusesNewerSchema(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	q.MustRunCLI("enqueue", "true")
	q.StopService()
	execOnDatabase(q, "PRAGMA user_version = 99; UPDATE meta SET min_reader = 99;")
	before := q.ReadFile("queuectl.db")
	if r := q.RunServiceExpectingRefusal("--dir", q.StateDir); r.ExitCode != 78 ||
		!strings.Contains(r.Stderr, "schema version 99") {
		t.Errorf("start on a database with a newer schema: %+v", r)
	}
	if q.ReadFile("queuectl.db") != before {
		t.Error("the refused start changed the database file")
	}
	execOnDatabase(q, "UPDATE meta SET min_reader = 1;")
	q.StartService("--workers", "1")
	if r := q.RunCLI("wait", "1"); r.ExitCode != 0 {
		t.Errorf("wait with a database that permits older readers: %+v", r)
	}
}

// If the service could not start again with its settings file, `queuectl service restart` does not stop the
// service.
func TestRestartRefusesInvalidSettings(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	pid := func() string {
		text, _, _ := strings.Cut(q.MustRunCLI("service", "status"), "\n")
		return text
	}
	oldPID := pid()
	bad := []string{"workers = \"many\"\n", "wrokers = 2\n", "workers = \n"}
	if runtime.GOOS != "windows" { // these settings do not exist on Windows
		bad = append(bad, "socket_group = \"nosuchgroup\"\n", "run_as = \"fixed:nosuchuser\"\n")
	}
	for _, settings := range bad {
		q.WriteFile("queuectl.toml", settings)
		if got := q.RunCLI("service", "restart"); got.ExitCode != 2 ||
			!strings.Contains(got.Stderr, "the service was not restarted") ||
			!strings.Contains(got.Stderr, "config validate") {
			t.Errorf("service restart with the settings %q: %+v", settings, got)
		}
	}
	q.WriteFile("queuectl.toml", "")
	cmd := q.CLICommand("service", "restart")
	cmd.Env = append(cmd.Env, "QUEUECTL_MAX_PENDING=many")
	if got := testrig.RunCommand(t, cmd); got.ExitCode != 2 || !strings.Contains(got.Stderr, "QUEUECTL_MAX_PENDING") {
		t.Errorf("service restart with an invalid environment variable: %+v", got)
	}
	if now := pid(); now != oldPID || !strings.Contains(now, "pid") {
		t.Errorf("the pid changed from %q to %q", oldPID, now)
	}
}
