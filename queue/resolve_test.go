package queue_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
)

var defaults = queue.Defaults{Priority: 5, MaxRetries: 3, KillAfter: 10 * time.Second, Shell: "/bin/sh -c",
	OnLost: queue.OnLostRetry, OutputLimit: 1 << 20}

func p[T any](v T) *T { return &v }

// A spec with only a command gets the default of every other field.
func TestResolveCompletesWithTheDefaults(t *testing.T) {
	j, err := queue.Resolve(&queue.Spec{Command: p("true")}, defaults)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%+v", j)
	want := fmt.Sprintf("%+v", queue.Job{
		Queue: "default", State: queue.Pending, ExitCode: -1, Priority: 5, MaxAttempts: 4,
		Execution: queue.Execution{Command: "true", Env: []string{}, Umask: 0o022, Shell: "/bin/sh -c",
			KillAfter: 10 * time.Second, OnLost: queue.OnLostRetry, OutputLimit: 1 << 20},
	})
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Without retries, a job has one attempt. The three ways to request four attempts are equivalent.
func TestResolveAttempts(t *testing.T) {
	for _, c := range []struct {
		retries, attempts *int64
		want              int
	}{{nil, nil, 4}, {p[int64](0), nil, 1}, {p[int64](3), nil, 4}, {nil, p[int64](1), 1}, {p[int64](3), p[int64](4), 4}} {
		j, err := queue.Resolve(&queue.Spec{Command: p("true"), MaxRetries: c.retries, MaxAttempts: c.attempts}, defaults)
		if err != nil || j.MaxAttempts != c.want {
			t.Errorf("retries %v, attempts %v: got %d, %v, want %d", c.retries, c.attempts, j.MaxAttempts, err, c.want)
		}
	}
}

func bytes(n int) string { return strings.Repeat("x", n) }

// envOf returns an environment of n bytes. The size includes names, = and terminators.
func envOf(n int) map[string]string {
	m := map[string]string{}
	for i := 0; n > 0; i++ {
		name := fmt.Sprintf("V%04d", i)
		size := min(n, 100_000)
		if n-size < 100 && n != size {
			size -= 100
		}
		m[name] = bytes(size - len(name) - 2)
		n -= size
	}
	return m
}

func labelsOf(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprint("k", i)] = "v"
	}
	return m
}

// limit describes a limit of a field. Resolve accepts a spec after atLimit has changed it. It rejects a spec
// after beyondLimit has changed it, with an error that names the field.
type limit struct {
	name, field          string
	atLimit, beyondLimit func(*queue.Spec)
}

// set returns f. It marks f as a change of a spec in the table of fieldLimits.
func set(f func(*queue.Spec)) func(*queue.Spec) { return f }

func withCommand(text string) func(*queue.Spec) {
	return func(s *queue.Spec) { s.Command, s.Argv = &text, nil }
}

func withArgv(list ...string) func(*queue.Spec) {
	return func(s *queue.Spec) { s.Command, s.Argv = nil, list }
}

func withID(text string) func(*queue.Spec) { return func(s *queue.Spec) { s.ID = &text } }

// withInt returns a function that turns a number into a change of a spec. The change sets the named field to
// this number.
func withInt(name string) func(n int64) func(*queue.Spec) {
	return func(n int64) func(*queue.Spec) {
		return func(s *queue.Spec) {
			switch name {
			case "priority":
				s.Priority = &n
			case "max_retries":
				s.MaxRetries = &n
			case "max_attempts":
				s.MaxAttempts = &n
			case "output_limit":
				s.OutputLimit = &n
			}
		}
	}
}

func fieldLimits() []limit {
	priority, retries, attempts, output := withInt("priority"), withInt("max_retries"), withInt("max_attempts"),
		withInt("output_limit")
	codes := func(n int) []int { return make([]int, n) }
	return []limit{
		{"command", "command", withCommand(bytes(131_071)), withCommand(bytes(131_072))},
		{"entry of argv", "argv", withArgv("p", bytes(131_071)), withArgv("p", bytes(131_072))},
		{"argv in all", "env", withArgv(bytes(131_071), bytes(131_071), bytes(131_071), bytes(131_071)),
			withArgv(bytes(131_071), bytes(131_071), bytes(131_071), bytes(131_071), "")},
		{"entry of env", "env", set(func(s *queue.Spec) { s.Env = map[string]string{"A": bytes(131_069)} }),
			set(func(s *queue.Spec) { s.Env = map[string]string{"A": bytes(131_070)} })},
		{"env in all", "env", set(func(s *queue.Spec) { s.Env = envOf(512 << 10) }),
			set(func(s *queue.Spec) { s.Env = envOf(512<<10 + 1) })},
		{"stdin", "stdin", set(func(s *queue.Spec) { s.Stdin = p(bytes(256 << 10)) }),
			set(func(s *queue.Spec) { s.Stdin = p(bytes(256<<10 + 1)) })},
		{"length of id", "id", withID(bytes(128)), withID(bytes(129))},
		{"highest priority", "priority", priority(1_000_000), priority(1_000_001)},
		{"lowest priority", "priority", priority(-1_000_000), priority(-1_000_001)},
		{"fewest retries", "max_retries", retries(0), retries(-1)},
		{"most retries", "max_retries", retries(999_999), retries(1_000_000)},
		{"huge retries", "max_retries", retries(1), retries(1<<63 - 1)},
		{"fewest attempts", "max_attempts", attempts(1), attempts(0)},
		{"most attempts", "max_attempts", attempts(1_000_000), attempts(1_000_001)},
		{"labels", "labels", set(func(s *queue.Spec) { s.Labels = labelsOf(32) }),
			set(func(s *queue.Spec) { s.Labels = labelsOf(33) })},
		{"label", "labels", set(func(s *queue.Spec) { s.Labels = map[string]string{"k": bytes(255)} }),
			set(func(s *queue.Spec) { s.Labels = map[string]string{"k": bytes(256)} })},
		{"jitter", "jitter", set(func(s *queue.Spec) { s.BackoffJitter = p(1.0) }),
			set(func(s *queue.Spec) { s.BackoffJitter = p(1.0000001) })},
		{"no jitter", "jitter", set(func(s *queue.Spec) { s.BackoffJitter = p(0.0) }),
			set(func(s *queue.Spec) { s.BackoffJitter = p(-0.0000001) })},
		{"least base", "backoff_base", set(func(s *queue.Spec) { s.BackoffBase = p(1e-9) }),
			set(func(s *queue.Spec) { s.BackoffBase = p(0.0) })},
		{"most base", "backoff_base", set(func(s *queue.Spec) { s.BackoffBase = p(1e9) }),
			set(func(s *queue.Spec) { s.BackoffBase = p(1.1e9) })},
		{"least cap", "backoff_max", set(func(s *queue.Spec) { s.BackoffMax = p(time.Nanosecond) }),
			set(func(s *queue.Spec) { s.BackoffMax = p(time.Duration(0)) })},
		{"least output", "output_limit", output(0), output(-1)},
		{"most output", "output_limit", output(1 << 30), output(1<<30 + 1)},
		{"ok_codes", "ok_codes", set(func(s *queue.Spec) { s.OkCodes = codes(256) }),
			set(func(s *queue.Spec) { s.OkCodes = codes(257) })},
		{"no ok_codes", "ok_codes", set(func(s *queue.Spec) { s.OkCodes = codes(1) }),
			set(func(s *queue.Spec) { s.OkCodes = codes(0) })},
		{"no_retry_codes", "no_retry_codes", set(func(s *queue.Spec) { s.NoRetryCodes = codes(256) }),
			set(func(s *queue.Spec) { s.NoRetryCodes = codes(257) })},
	}
}

// Every limit is exact: Resolve accepts a value at the limit, and rejects the next value with an error that
// names the field.
func TestResolveKeepsEveryLimit(t *testing.T) {
	for _, l := range fieldLimits() {
		at, beyond := queue.Spec{Command: p("true")}, queue.Spec{Command: p("true")}
		l.atLimit(&at)
		l.beyondLimit(&beyond)
		if _, err := queue.Resolve(&at, defaults); err != nil {
			t.Errorf("%s: at the limit: got error %v, want none", l.name, err)
		}
		checkRefused(t, l.name+" beyond the limit", &beyond, l.field)
	}
}

// checkRefused checks that Resolve rejects a spec as invalid, with an error that begins with the field's name.
func checkRefused(t *testing.T, what string, s *queue.Spec, field string) {
	t.Helper()
	_, err := queue.Resolve(s, defaults)
	var e *queue.Error
	if !errors.As(err, &e) || e.Code != queue.CodeInvalid || e.Field != field ||
		!strings.HasPrefix(e.Error(), field+": ") {
		t.Errorf("%s: got %.200v, want invalid %s", what, err, field)
	}
}

// A spec that can never be a job is rejected with an error that names the field.
func TestResolveRejectsWithFieldName(t *testing.T) {
	word := func(at func(*queue.Spec) **string, text string) func(*queue.Spec) {
		return func(s *queue.Spec) { *at(s) = &text }
	}
	cwd := func(s *queue.Spec) **string { return &s.Cwd }
	shell := func(s *queue.Spec) **string { return &s.Shell }
	queueOf := func(s *queue.Spec) **string { return &s.Queue }
	lock := func(s *queue.Spec) **string { return &s.Lock }
	rate := func(s *queue.Spec) **string { return &s.RateLimit }
	on := func(s *queue.Spec) **string { return &s.NodeSelector }
	unique := func(s *queue.Spec) **string { return &s.Unique }
	resource := func(name, n string) func(*queue.Spec) {
		return func(s *queue.Spec) { s.Resources = map[string]string{name: n} }
	}
	after := func(list ...string) func(*queue.Spec) { return func(s *queue.Spec) { s.DependsOn = list } }
	for _, c := range []struct {
		what, field string
		set         func(*queue.Spec)
	}{
		{"neither command nor argv", "command", func(s *queue.Spec) { s.Command = nil }},
		{"command and argv", "command", func(s *queue.Spec) { s.Argv = []string{"x"} }},
		{"empty command", "command", withCommand("")},
		{"blank command", "command", withCommand(" \t\n")},
		{"NUL in the command", "command", withCommand("a\x00b")},
		{"empty argv", "argv", withArgv([]string{}...)},
		{"argv without a program", "argv", withArgv("", "x")},
		{"NUL in argv", "argv", withArgv("x", "a\x00b")},
		{"shell with argv", "shell", func(s *queue.Spec) { s.Command, s.Argv, s.Shell = nil, []string{"x"}, p("sh") }},
		{"blank shell", "shell", word(shell, " ")},
		{"a user without a name", "user", word(func(s *queue.Spec) **string { return &s.User }, "")},
		{"NUL in the user", "user", word(func(s *queue.Spec) **string { return &s.User }, "a\x00")},
		{"relative cwd", "cwd", word(cwd, "../x")},
		{"NUL in cwd", "cwd", word(cwd, "/a\x00")},
		{"long cwd", "cwd", word(cwd, "/"+bytes(4096))},
		{"env_pass on the wire", "env_pass", func(s *queue.Spec) { s.EnvPass = []string{"HOME"} }},
		{"env without a name", "env", func(s *queue.Spec) { s.Env = map[string]string{"": "x"} }},
		{"env with = in its name", "env", func(s *queue.Spec) { s.Env = map[string]string{"A=B": "x"} }},
		{"env with a NUL", "env", func(s *queue.Spec) { s.Env = map[string]string{"A": "x\x00"} }},
		{"env with a reserved name", "env", func(s *queue.Spec) { s.Env = map[string]string{"QUEUECTL_JOB_ID": "x"} }},
		{"env with the name of the cookie", "env",
			func(s *queue.Spec) { s.Env = map[string]string{queue.CookieVariable: "x"} }},
		{"delay and run_at", "delay", func(s *queue.Spec) { s.Delay, s.RunAt = p(time.Second), p(queue.Millis(1)) }},
		{"retries and other attempts", "max_attempts",
			func(s *queue.Spec) { s.MaxRetries, s.MaxAttempts = p[int64](3), p[int64](3) }},
		{"unknown strategy", "backoff_strategy", func(s *queue.Spec) { s.BackoffStrategy = p("") }},
		{"unknown on_lost", "on_lost", func(s *queue.Spec) { s.OnLost = p("retri") }},
		{"label without a name", "labels", func(s *queue.Spec) { s.Labels = map[string]string{"": "v"} }},
		{"label with a NUL", "labels", func(s *queue.Spec) { s.Labels = map[string]string{"k": "\x00"} }},
		{"id with a path", "id", withID("../x")},
		{"empty id", "id", withID("")},
		{"a queue name with a path", "queue", word(queueOf, "../x")},
		{"a queue of 65 bytes", "queue", word(queueOf, bytes(65))},
		{"an empty node name", "on", word(on, "")},
		{"a node name with a space", "on", word(on, "web 1")},
		{"a node label without a name", "on", word(on, "=a")},
		{"an empty lock", "lock", word(lock, "")},
		{"a lock for no job", "lock", word(lock, "db:0")},
		{"a lock for too many jobs", "lock", word(lock, "db:10001")},
		{"a rate without a period", "rate_limit", word(rate, "api=10")},
		{"a rate with an unknown period", "rate_limit", word(rate, "api=10/w")},
		{"a rate without a number", "rate_limit", word(rate, "api")},
		{"a rate of zero", "rate_limit", word(rate, "api=0/s")},
		{"zero units of a resource", "resources", resource("gpu", "0")},
		{"units that are not a number", "resources", resource("gpu", "two")},
		{"a resource without a name", "resources", resource("", "1")},
		{"a parent that is not an id", "depends_on", after("a:done")},
		{"a parent twice", "depends_on", after("a", "a:dead")},
		{"a dependency on the job itself", "depends_on", func(s *queue.Spec) { s.ID, s.DependsOn = p("a"), []string{"a"} }},
		{"unknown on_dependency_failure", "on_dependency_failure", func(s *queue.Spec) { s.OnDependencyFailure = p("fail") }},
		{"a unique key with a space", "unique", word(unique, "a b")},
		{"unique_for alone", "unique_for", func(s *queue.Spec) { s.UniqueFor = p(time.Hour) }},
		{"on_conflict alone", "on_conflict", func(s *queue.Spec) { s.OnConflict = p("reject") }},
		{"unknown on_conflict", "on_conflict", func(s *queue.Spec) { s.Unique, s.OnConflict = p("k"), p("wait") }},
	} {
		s := queue.Spec{Command: p("true")}
		c.set(&s)
		checkRefused(t, c.what, &s, c.field)
	}
}

// The error of Resolve contains all problems of a spec.
func TestResolveReportsAllProblems(t *testing.T) {
	_, err := queue.Resolve(&queue.Spec{Priority: p[int64](1 << 40), MaxRetries: p[int64](-1), Cwd: p("x")}, defaults)
	for _, field := range []string{"command", "priority", "max_retries", "cwd"} {
		if err == nil || !strings.Contains(err.Error(), field+": ") {
			t.Errorf("got %v, want it to name %s", err, field)
		}
	}
}

// ValidID accepts exactly the documented ids: no paths, no control characters, only ASCII letters.
func TestValidIDAcceptsOnlyDocumentedIDs(t *testing.T) {
	for _, good := range []string{"a", "0", "job_1", "a.b-c@d/e", "A/../b", bytes(128)} {
		if !queue.ValidID(good) {
			t.Errorf("ValidID(%q) returned false, want true", good)
		}
	}
	for _, bad := range []string{"", ".", "..", "../x", "/etc", "-f", "_a", "@a", "a b", "a\n", "a\x00", "ä", "a;b", "a*",
		"a\\b", bytes(129)} {
		if queue.ValidID(bad) {
			t.Errorf("ValidID(%q) returned true, want false", bad)
		}
	}
}
