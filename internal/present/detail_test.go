package present

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
)

// "queuectl show" prints the input file, and an output limit that is not the default.
func TestDetailRowsListNonDefaultSettings(t *testing.T) {
	rows := jobSettingRows(&control.JobDetail{Spec: map[string]any{
		"stdin_file": "/in", "shell": "/bin/sh -c", "output_limit": 10240.0, "timeout": "5s", "ok_codes": []any{0.0},
		"on_lost": "retry", "kill_after": "10s",
	}})
	if want := [][2]string{{"Timeout", "5s"}, {"Max output", "10.0 KiB per stream"}, {"Stdin", "/in"},
		{"Backoff", ""}}; !slices.Equal(rows, want) {
		t.Errorf("got %q, want %q", rows, want)
	}
	small := jobSettingRows(&control.JobDetail{Spec: map[string]any{"output_limit": 11.0}})
	if want := [2]string{"Max output", "11 bytes per stream"}; small[0] != want {
		t.Errorf("got %q, want %q", small[0], want)
	}
}

// Each limit is shown next to the usage of the last attempt, or with a note that the usage is unknown.
func TestDetailRowsCompareUsageWithLimits(t *testing.T) {
	j := &control.JobDetail{Spec: map[string]any{"tasks": 64.0, "nofile": 77.0}}
	for peak, want := range map[int64]string{0: "at most 64 (usage is unknown)", 12: "peak 12 of 64"} {
		j.History = []control.Attempt{{Attempt: 1, PeakTasks: peak}}
		if got, want := jobLimitRows(j), [][2]string{{"Tasks", want},
			{"Open files", "at most 77 (usage is not measured)"}}; !slices.Equal(got, want) {
			t.Errorf("with a peak of %d: %q, want %q", peak, got, want)
		}
	}
}

// The remarks about an attempt say how many leftover processes were stopped. If the command exited by itself,
// the remarks also name the flag that keeps such processes running.
func TestAttemptRemarksReportLeftoverProcesses(t *testing.T) {
	zero, refused := new(int64), "cut"
	for _, c := range []struct {
		attempt    control.Attempt
		background bool
		want       string
	}{
		{control.Attempt{ExitCode: zero}, false, ""},
		{control.Attempt{ExitCode: zero, LeftoverProcesses: 1}, false,
			"leftover processes stopped: 1 (--allow-background keeps them running)"},
		{control.Attempt{ExitCode: zero, LeftoverProcesses: 3, ResultError: &refused}, false,
			"the job's JSON result was not stored: cut; leftover processes stopped: 3 (--allow-background keeps them running)"},
		{control.Attempt{ExitCode: zero, LeftoverProcesses: 2}, true, "leftover processes stopped: 2"},
		{control.Attempt{Signal: new(int), LeftoverProcesses: 2}, false, "leftover processes stopped: 2"},
	} {
		if got := AttemptRemarks(&c.attempt, c.background); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.attempt, got, c.want)
		}
	}
}

// If it is known when a wait reason ends, the text contains that time with its zone, and also the date unless the time
// is today.
func TestWaitReasonNamesDayAndZone(t *testing.T) {
	now := time.Date(2026, 11, 30, 22, 0, 0, 0, time.Local)
	for wait, layout := range map[time.Duration]string{
		time.Hour: "15:04 MST, in 1h", 4 * time.Hour: "Mon 2 Jan 15:04 MST, in 4h",
		50 * 24 * time.Hour: "Mon 2 Jan 2006 15:04 MST, in 50d",
	} {
		at := now.Add(wait)
		layout, in, _ := strings.Cut(layout, ",")
		want := "not due yet (until " + at.Format(layout) + "," + in + "); next step: queuectl show 1"
		r := control.WaitReason{EndsAt: control.Time(at.UnixMilli()), Text: "not due yet", Advice: "queuectl show 1"}
		if got := WaitReasonLine(&r, now); got != want {
			t.Errorf("a reason that ends in %v: got %q, want %q", wait, got, want)
		}
	}
}
