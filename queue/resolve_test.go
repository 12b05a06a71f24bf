package queue_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
)

var serviceDefaults = queue.JobDefaults{Priority: 5, MaxRetries: 3, KillAfter: 10 * time.Second, Shell: "/bin/sh -c",
	OnLost: queue.OnLostRetry, OutputLimit: 1 << 20}

func ptr[T any](v T) *T { return &v }

// A spec with only a command gets the default of every other field.
func TestResolveUsesDefaults(t *testing.T) {
	j, err := queue.ResolveSpec(&queue.Spec{Command: ptr("true")}, serviceDefaults)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%+v", j)
	want := fmt.Sprintf("%+v", queue.Job{
		Queue: "default", State: queue.Pending, ExitCode: -1, Priority: 5, MaxAttempts: 4,
		ExecutionSettings: queue.ExecutionSettings{Command: "true", Env: []string{}, Umask: 0o022, Shell: "/bin/sh -c",
			KillAfter: 10 * time.Second, OnLost: queue.OnLostRetry, OutputLimitBytes: 1 << 20},
	})
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Zero retries mean one attempt. The three ways to request four attempts are equivalent.
func TestResolveConvertsRetriesToAttempts(t *testing.T) {
	for _, c := range []struct {
		retries, attempts *int64
		want              int
	}{{nil, nil, 4}, {ptr[int64](0), nil, 1}, {ptr[int64](3), nil, 4}, {nil, ptr[int64](1), 1},
		{ptr[int64](3), ptr[int64](4), 4}} {
		j, err := queue.ResolveSpec(&queue.Spec{Command: ptr("true"), MaxRetries: c.retries, MaxAttempts: c.attempts},
			serviceDefaults)
		if err != nil || j.MaxAttempts != c.want {
			t.Errorf("retries %v, attempts %v: got %d, %v, want %d", c.retries, c.attempts, j.MaxAttempts, err, c.want)
		}
	}
}

func textOfBytes(n int) string { return strings.Repeat("x", n) }

// envOfBytes returns an environment with a size of n bytes. The size includes names, = and terminating NULs.
func envOfBytes(n int) map[string]string {
	m := map[string]string{}
	for i := 0; n > 0; i++ {
		name := fmt.Sprintf("V%04d", i)
		size := min(n, 100_000)
		if n-size < 100 && n != size {
			size -= 100
		}
		m[name] = textOfBytes(size - len(name) - 2)
		n -= size
	}
	return m
}

func newLabels(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprint("k", i)] = "v"
	}
	return m
}

// fieldLimit describes the limit of a field. atLimit sets a value at the limit, which ResolveSpec must accept.
// beyondLimit sets the next value, which ResolveSpec must reject with an error that names the field.
type fieldLimit struct {
	caseName, field      string
	atLimit, beyondLimit func(*queue.Spec)
}

// specChange returns its argument. It gives a function literal the type that the table in fieldLimits needs.
func specChange(f func(*queue.Spec)) func(*queue.Spec) { return f }

func withCommand(command string) func(*queue.Spec) {
	return func(s *queue.Spec) { s.Command, s.Argv = &command, nil }
}

func withArgv(argv ...string) func(*queue.Spec) {
	return func(s *queue.Spec) { s.Command, s.Argv = nil, argv }
}

func withID(id string) func(*queue.Spec) { return func(s *queue.Spec) { s.ID = &id } }

// withIntField returns a function that takes a number, and returns a change of a spec: the change sets the field
// fieldName to the number.
func withIntField(fieldName string) func(n int64) func(*queue.Spec) {
	return func(n int64) func(*queue.Spec) {
		return func(s *queue.Spec) {
			switch fieldName {
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

func fieldLimits() []fieldLimit {
	priority, retries, attempts, output := withIntField("priority"), withIntField("max_retries"),
		withIntField("max_attempts"), withIntField("output_limit")
	codes := func(n int) []int { return make([]int, n) }
	return []fieldLimit{
		{"command", "command", withCommand(textOfBytes(131_071)), withCommand(textOfBytes(131_072))},
		{"entry of argv", "argv", withArgv("p", textOfBytes(131_071)), withArgv("p", textOfBytes(131_072))},
		{"argv in all", "env",
			withArgv(textOfBytes(131_071), textOfBytes(131_071), textOfBytes(131_071), textOfBytes(131_071)),
			withArgv(textOfBytes(131_071), textOfBytes(131_071), textOfBytes(131_071), textOfBytes(131_071), "")},
		{"entry of env", "env", specChange(func(s *queue.Spec) { s.Env = map[string]string{"A": textOfBytes(131_069)} }),
			specChange(func(s *queue.Spec) { s.Env = map[string]string{"A": textOfBytes(131_070)} })},
		{"env in all", "env", specChange(func(s *queue.Spec) { s.Env = envOfBytes(512 << 10) }),
			specChange(func(s *queue.Spec) { s.Env = envOfBytes(512<<10 + 1) })},
		{"stdin", "stdin", specChange(func(s *queue.Spec) { s.Stdin = ptr(textOfBytes(256 << 10)) }),
			specChange(func(s *queue.Spec) { s.Stdin = ptr(textOfBytes(256<<10 + 1)) })},
		{"length of id", "id", withID(textOfBytes(128)), withID(textOfBytes(129))},
		{"highest priority", "priority", priority(1_000_000), priority(1_000_001)},
		{"lowest priority", "priority", priority(-1_000_000), priority(-1_000_001)},
		{"fewest retries", "max_retries", retries(0), retries(-1)},
		{"most retries", "max_retries", retries(999_999), retries(1_000_000)},
		{"huge retries", "max_retries", retries(1), retries(1<<63 - 1)},
		{"fewest attempts", "max_attempts", attempts(1), attempts(0)},
		{"most attempts", "max_attempts", attempts(1_000_000), attempts(1_000_001)},
		{"labels", "labels", specChange(func(s *queue.Spec) { s.Labels = newLabels(32) }),
			specChange(func(s *queue.Spec) { s.Labels = newLabels(33) })},
		{"label", "labels", specChange(func(s *queue.Spec) { s.Labels = map[string]string{"k": textOfBytes(255)} }),
			specChange(func(s *queue.Spec) { s.Labels = map[string]string{"k": textOfBytes(256)} })},
		{"jitter", "jitter", specChange(func(s *queue.Spec) { s.BackoffJitter = ptr(1.0) }),
			specChange(func(s *queue.Spec) { s.BackoffJitter = ptr(1.0000001) })},
		{"no jitter", "jitter", specChange(func(s *queue.Spec) { s.BackoffJitter = ptr(0.0) }),
			specChange(func(s *queue.Spec) { s.BackoffJitter = ptr(-0.0000001) })},
		{"least base", "backoff_base", specChange(func(s *queue.Spec) { s.BackoffBase = ptr(1e-9) }),
			specChange(func(s *queue.Spec) { s.BackoffBase = ptr(0.0) })},
		{"most base", "backoff_base", specChange(func(s *queue.Spec) { s.BackoffBase = ptr(1e9) }),
			specChange(func(s *queue.Spec) { s.BackoffBase = ptr(1.1e9) })},
		{"least cap", "backoff_max", specChange(func(s *queue.Spec) { s.BackoffMax = ptr(time.Nanosecond) }),
			specChange(func(s *queue.Spec) { s.BackoffMax = ptr(time.Duration(0)) })},
		{"least output", "output_limit", output(0), output(-1)},
		{"most output", "output_limit", output(1 << 30), output(1<<30 + 1)},
		{"ok_codes", "ok_codes", specChange(func(s *queue.Spec) { s.OkCodes = codes(256) }),
			specChange(func(s *queue.Spec) { s.OkCodes = codes(257) })},
		{"no ok_codes", "ok_codes", specChange(func(s *queue.Spec) { s.OkCodes = codes(1) }),
			specChange(func(s *queue.Spec) { s.OkCodes = codes(0) })},
		{"no_retry_codes", "no_retry_codes", specChange(func(s *queue.Spec) { s.NoRetryCodes = codes(256) }),
			specChange(func(s *queue.Spec) { s.NoRetryCodes = codes(257) })},
	}
}

// Every limit is exact: ResolveSpec accepts a value at the limit, and rejects the next value with an error that names
// the field.
func TestResolveRejectsValuesBeyondLimits(t *testing.T) {
	for _, l := range fieldLimits() {
		at, beyond := queue.Spec{Command: ptr("true")}, queue.Spec{Command: ptr("true")}
		l.atLimit(&at)
		l.beyondLimit(&beyond)
		if _, err := queue.ResolveSpec(&at, serviceDefaults); err != nil {
			t.Errorf("%s: at the limit: got error %v, want none", l.caseName, err)
		}
		checkSpecRefused(t, l.caseName+" beyond the limit", &beyond, l.field)
	}
}

// checkSpecRefused checks that ResolveSpec rejects a spec as invalid, with an error that begins with the field's name.
func checkSpecRefused(t *testing.T, caseName string, s *queue.Spec, field string) {
	t.Helper()
	_, err := queue.ResolveSpec(s, serviceDefaults)
	var e *queue.Error
	if !errors.As(err, &e) || e.Code != queue.CodeInvalid || e.Field != field ||
		!strings.HasPrefix(e.Error(), field+": ") {
		t.Errorf("%s: got %.200v, want invalid %s", caseName, err, field)
	}
}

// A spec that no job can have is rejected with an error that names the field.
func TestResolveErrorNamesInvalidField(t *testing.T) {
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
		{"shell with argv", "shell", func(s *queue.Spec) { s.Command, s.Argv, s.Shell = nil, []string{"x"}, ptr("sh") }},
		{"blank shell", "shell", word(shell, " ")},
		{"a user without a name", "user", word(func(s *queue.Spec) **string { return &s.User }, "")},
		{"NUL in the user", "user", word(func(s *queue.Spec) **string { return &s.User }, "a\x00")},
		{"relative cwd", "cwd", word(cwd, "../x")},
		{"NUL in cwd", "cwd", word(cwd, "/a\x00")},
		{"long cwd", "cwd", word(cwd, "/"+textOfBytes(4096))},
		{"env_pass on the wire", "env_pass", func(s *queue.Spec) { s.EnvPass = []string{"HOME"} }},
		{"env without a name", "env", func(s *queue.Spec) { s.Env = map[string]string{"": "x"} }},
		{"env with = in its name", "env", func(s *queue.Spec) { s.Env = map[string]string{"A=B": "x"} }},
		{"env with a NUL", "env", func(s *queue.Spec) { s.Env = map[string]string{"A": "x\x00"} }},
		{"env with a reserved name", "env", func(s *queue.Spec) { s.Env = map[string]string{"QUEUECTL_JOB_ID": "x"} }},
		{"env with the name of the cookie", "env",
			func(s *queue.Spec) { s.Env = map[string]string{queue.AttemptCookieVariable: "x"} }},
		{"delay and run_at", "delay", func(s *queue.Spec) { s.Delay, s.RunAt = ptr(time.Second), ptr(queue.UnixMillis(1)) }},
		{"retries and other attempts", "max_attempts",
			func(s *queue.Spec) { s.MaxRetries, s.MaxAttempts = ptr[int64](3), ptr[int64](3) }},
		{"unknown strategy", "backoff_strategy", func(s *queue.Spec) { s.BackoffStrategy = ptr("") }},
		{"unknown on_lost", "on_lost", func(s *queue.Spec) { s.OnLost = ptr("retri") }},
		{"label without a name", "labels", func(s *queue.Spec) { s.Labels = map[string]string{"": "v"} }},
		{"label with a NUL", "labels", func(s *queue.Spec) { s.Labels = map[string]string{"k": "\x00"} }},
		{"id with a path", "id", withID("../x")},
		{"empty id", "id", withID("")},
		{"a queue name with a path", "queue", word(queueOf, "../x")},
		{"a queue of 65 bytes", "queue", word(queueOf, textOfBytes(65))},
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
		{"a dependency on the job itself", "depends_on", func(s *queue.Spec) { s.ID, s.DependsOn = ptr("a"), []string{"a"} }},
		{"unknown on_dependency_failure", "on_dependency_failure",
			func(s *queue.Spec) { s.OnDependencyFailure = ptr("fail") }},
		{"a unique key with a space", "unique", word(unique, "a b")},
		{"unique_for alone", "unique_for", func(s *queue.Spec) { s.UniqueFor = ptr(time.Hour) }},
		{"on_conflict alone", "on_conflict", func(s *queue.Spec) { s.OnConflict = ptr("reject") }},
		{"unknown on_conflict", "on_conflict", func(s *queue.Spec) { s.Unique, s.OnConflict = ptr("k"), ptr("wait") }},
	} {
		s := queue.Spec{Command: ptr("true")}
		c.set(&s)
		checkSpecRefused(t, c.what, &s, c.field)
	}
}

// The error of ResolveSpec contains all problems of a spec.
func TestResolveReportsAllProblems(t *testing.T) {
	_, err := queue.ResolveSpec(
		&queue.Spec{Priority: ptr[int64](1 << 40), MaxRetries: ptr[int64](-1), Cwd: ptr("x")}, serviceDefaults)
	for _, field := range []string{"command", "priority", "max_retries", "cwd"} {
		if err == nil || !strings.Contains(err.Error(), field+": ") {
			t.Errorf("got %v, want it to name %s", err, field)
		}
	}
}

// ValidID accepts exactly the documented ids. It rejects paths, control characters, and characters outside
// ASCII.
func TestValidIDAcceptsOnlyDocumentedIDs(t *testing.T) {
	for _, good := range []string{"a", "0", "job_1", "a.b-c@d/e", "A/../b", textOfBytes(128)} {
		if !queue.ValidID(good) {
			t.Errorf("ValidID(%q) returned false, want true", good)
		}
	}
	for _, bad := range []string{"", ".", "..", "../x", "/etc", "-f", "_a", "@a", "a b", "a\n", "a\x00", "ä", "a;b", "a*",
		"a\\b", textOfBytes(129)} {
		if queue.ValidID(bad) {
			t.Errorf("ValidID(%q) returned true, want false", bad)
		}
	}
}
