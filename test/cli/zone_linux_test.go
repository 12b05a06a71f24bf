package cli

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// runWithTZ runs the program with the given value of the variable TZ.
func runWithTZ(q *testrig.Harness, zone string, args ...string) testrig.CommandResult {
	q.Helper()
	cmd := q.CLICommand(args...)
	cmd.Env = append(cmd.Env, "TZ="+zone)
	return testrig.RunCommand(q, cmd)
}

// Times are read and printed in the zone of the environment variable TZ, in every form that POSIX defines for
// TZ. An unknown zone is an error and does not mean UTC.
func TestTimesUseZoneOfTZ(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	for i, c := range []struct{ zone, text, want, shown string }{
		{"JST-9", "2040-01-02 12:00", "2040-01-02T03:00:00.000Z", "2040-01-02 12:00:00"},
		{"CET-1CEST,M3.5.0,M10.5.0/3", "2040-07-01 12:00", "2040-07-01T10:00:00.000Z", "2040-07-01 12:00:00"},
		{"CET-1CEST", "2040-07-01 12:00", "2040-07-01T10:00:00.000Z", "2040-07-01 12:00:00"},
		{"<+0330>-3:30", "2040-01-02 12:00", "2040-01-02T08:30:00.000Z", "2040-01-02 12:00:00"},
		{":Asia/Tokyo", "2040-01-02 12:00", "2040-01-02T03:00:00.000Z", "2040-01-02 12:00:00"},
		{"America/New_York", "2027-03-14 02:30", "2027-03-14T07:00:00.000Z", "2027-03-14 03:00:00"},
		{"", "2040-01-02 12:00", "2040-01-02T12:00:00.000Z", "2040-01-02 12:00:00"},
	} {
		id := "z" + string(rune('a'+i))
		if got := runWithTZ(q, c.zone, "enqueue", "--id", id, "--at", c.text, "true"); got.ExitCode != 0 {
			t.Errorf("TZ=%s enqueue: %+v", c.zone, got)
			continue
		}
		if got := q.MustRunCLI("show", id, "--json"); !strings.Contains(got, c.want) {
			t.Errorf("TZ=%s --at %s: got %s, want %s", c.zone, c.text, got, c.want)
		}
		if got := runWithTZ(q, c.zone, "show", id); !strings.Contains(got.Stdout, c.shown) {
			t.Errorf("TZ=%s show: got %+v, want %s", c.zone, got, c.shown)
		}
	}
	for _, zone := range []string{"Foo/Bar", "JST", "JST-25", ":/nowhere", "CET-1CEST,M3.5.0", "Local"} {
		for _, verb := range [][]string{{"enqueue", "--at", "23:00", "true"}, {"list"}, {"schedule", "list"}, {"stats"}} {
			if got := runWithTZ(q, zone, verb...); got.ExitCode != 2 ||
				!strings.HasPrefix(got.Stderr, "queuectl: TZ="+zone+": ") ||
				got.Stdout != "" {
				t.Errorf("TZ=%s %v: %+v", zone, verb, got)
			}
		}
	}
	q.MustRunCLI("enqueue", "--id", "waits", "true")
	for _, words := range []string{"version", "--help", "help list", "list --help", "completion bash", "whoami",
		"config list", "hold waits", "release waits", "cancel waits", "rm waits", "service --help", "metrics"} {
		if got := runWithTZ(q, "Foo/Bar", strings.Fields(words)...); got.ExitCode != 0 || got.Stderr != "" {
			t.Errorf("an unknown time zone with %s, which prints no times: %+v", words, got)
		}
	}
	if got := runWithTZ(q, "Foo/Bar", "enqueue", "--at", "23:00", "--", "ls", "--help"); got.ExitCode != 2 {
		t.Errorf("enqueue with an unknown zone and a program with the flag --help: %+v", got)
	}
	if got := runWithTZ(q, ":/etc/localtime", "list"); got.ExitCode != 0 {
		t.Errorf("list with the machine's zone in TZ: %+v", got)
	}
}

// If all times of a table column have the same zone, only the heading of the column contains the zone.
// Otherwise, each time is printed with its zone, so that the two times of a repeated hour differ. Outside
// tables, each time is printed with its zone.
func TestPrintedTimesNameTheirZone(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	for id, runAt := range map[string]string{"july-1": "2040-07-01T10:00:00Z", "july-2": "2040-07-02T10:00:00Z",
		"october-1": "2040-10-28T00:30:00Z", "october-2": "2040-10-28T01:30:00Z"} {
		q.MustRunCLI("enqueue", "--id", id, "--at", runAt, "true")
	}
	berlin := func(args ...string) string {
		r := runWithTZ(q, "Europe/Berlin", args...)
		if r.ExitCode != 0 {
			t.Fatalf("%v: %+v", args, r)
		}
		return r.Stdout
	}
	checkLines := func(text string, lines ...string) {
		t.Helper()
		for _, line := range lines {
			if !strings.Contains(text, line) {
				t.Errorf("the output lacks %q: %s", line, text)
			}
		}
	}
	summer := strings.Fields(berlin("list", "--columns", "id,run_at", "--id-glob", "july-*", "--sort", "run_at"))
	if got, want := strings.Join(
		summer, " "), "ID RUN_AT (CEST) july-1 2040-07-01 12:00:00 july-2 2040-07-02 12:00:00"; got != want {
		t.Errorf("list with times in one zone: %q, want %q", got, want)
	}
	mixed := berlin("list", "--columns", "run_at,id,retry")
	if head := strings.Join(strings.Fields(mixed)[:3], " "); head != "RUN_AT ID RETRY" {
		t.Errorf("heading of a column with times in two zones: %q", head)
	}
	checkLines(mixed, "2040-07-01 12:00:00 CEST  july-1", "2040-10-28 02:30:00 CEST  october-1",
		"2040-10-28 02:30:00 CET   october-2")
	checkLines(berlin("show", "october-2"), "2040-10-28 02:30:00 CET\n")
	checkLines(berlin("show", "july-1"), "2040-07-01 12:00:00 CEST\n")
	berlin("schedule", "add", "july", "0 12 1 7 *", "true")
	berlin("schedule", "add", "january", "0 12 1 1 *", "true")
	checkLines(berlin("schedule", "list"), "-07-01 12:00:00 CEST", "-01-01 12:00:00 CET")
	if first := strings.Join(strings.Fields(berlin("events"))[:4], " "); !strings.Contains(first, " CE") {
		t.Errorf("the first event begins with %q, want its zone", first)
	}
}

// Even if the zone in TZ is unknown, a job can report its progress and a service can be stopped. A service
// cannot be started.
func TestUnknownZoneAllowsCommandsWithoutTimes(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("run", "--id", "reports", "--env", "TZ=Foo/Bar", q.ClientPath+" progress 50 half")
	if got := q.MustRunCLI("show", "reports"); !strings.Contains(got, "50 %") && !strings.Contains(got, "completed") {
		t.Errorf("show: %s", got)
	}
	if got := runWithTZ(q, "Foo/Bar", "service", "stop"); got.ExitCode != 0 || strings.Contains(got.Stderr, "TZ") {
		t.Errorf("service stop: %+v", got)
	}
	if got := runWithTZ(q, "Foo/Bar", "service", "start"); got.ExitCode == 0 ||
		!strings.Contains(got.Stderr, "TZ=Foo/Bar") {
		t.Errorf("service start: %+v", got)
	}
}

// A schedule that names no zone uses the zone in its creator's variable TZ, in any form of TZ.
func TestSchedulesUseZoneOfTZ(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	for i, c := range []struct{ zone, flag, want string }{
		{"JST-9", "", "(JST-9)"}, {":Asia/Tokyo", "", "(Asia/Tokyo)"}, {"/usr/share/zoneinfo/Asia/Tokyo", "", "(Asia/Tokyo)"},
		{"Asia/Tokyo", "CET-1CEST,M3.5.0,M10.5.0/3", "(CET-1CEST,M3.5.0,M10.5.0/3)"}, {"", "", "(UTC)"},
	} {
		words := []string{"schedule", "add", "s" + string(rune('a'+i)), "0 3 * * *", "true"}
		if c.flag != "" {
			words = append(words, "--tz", c.flag)
		}
		if got := runWithTZ(q, c.zone, words...); got.ExitCode != 0 || !strings.Contains(got.Stdout, c.want) {
			t.Errorf("TZ=%s --tz=%s: got %+v, want %s", c.zone, c.flag, got, c.want)
		}
	}
	if got := q.RunCLI("schedule", "add", "bad", "0 3 * * *", "true", "--tz", "JST-25"); got.ExitCode != 2 ||
		!strings.Contains(got.Stderr, `tz: there is no time zone "JST-25"`) {
		t.Errorf("schedule add with an invalid zone: %+v", got)
	}
}

// Names of time zones also work on a machine without time zone files.
func TestZoneNamesWorkWithoutZoneFiles(t *testing.T) {
	skip.UnlessProgram(t, "unshare", "needs unshare; .ci/run installs it")
	q := testrig.StartQueue(t, "--workers", "0")
	without := func(zone string, args ...string) testrig.CommandResult {
		script := `mount -t tmpfs none /usr/share/zoneinfo && exec "$@"`
		cmd := exec.Command("unshare", append([]string{"--mount", "--map-root-user", "sh", "-c", script, "sh", q.ClientPath,
			"--dir", q.StateDir}, args...)...)
		cmd.Env = append(testrig.UserEnvironment(q.StateDir), "TZ="+zone)
		return testrig.RunCommand(t, cmd)
	}
	if got := without("UTC", "version"); got.ExitCode != 0 {
		skip.MissingRequirement(t, "mount", "needs the right to mount; .ci/run runs it as root")
	}
	if got := without("Europe/Berlin", "enqueue", "--id", "a", "--at", "2040-07-01 12:00", "true"); got.ExitCode != 0 {
		t.Fatalf("enqueue: %+v", got)
	}
	if got := q.MustRunCLI("show", "a", "--json"); !strings.Contains(got, "2040-07-01T10:00:00.000Z") {
		t.Errorf("the job is %s, want it due at 10:00 UTC", got)
	}
	if got := without("Foo/Bar", "list"); got.ExitCode != 2 || !strings.Contains(got.Stderr, "TZ=Foo/Bar") {
		t.Errorf("list with an unknown zone: %+v", got)
	}
}
