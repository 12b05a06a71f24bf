package dashboard

import (
	"regexp"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
)

// For a waiting job, a list shows when the job is due, or why the job waits. If the due time has passed, the list does
// not show it.
func TestJobDetailTextSaysWhenJobIsDue(t *testing.T) {
	now := time.Date(2026, 12, 24, 12, 0, 0, 0, time.Local)
	at := func(d time.Duration) control.Time { return control.Time(now.Add(d).UnixMilli()) }
	failed := "exit code 3"
	for _, c := range []struct {
		job          control.Job
		want, moment string
	}{
		{control.Job{State: "pending", RunAt: at(time.Hour)}, "due 13:00:00", "13:00:00"},
		{control.Job{State: "failed", NextRetryAt: at(time.Minute), Error: &failed}, "due 12:01:00: exit code 3", "12:01:00"},
		{control.Job{State: "pending", RunAt: at(-time.Hour), CreatedAt: at(-2 * time.Hour)}, "ready", "10:00:00"},
		{control.Job{State: "held", RunAt: at(time.Hour), MainWaitReason: &control.WaitReason{Kind: "held",
			Text: "it is held"}},
			"it is held", "13:00:00"},
		{control.Job{State: "blocked", CreatedAt: at(-time.Hour)}, "", "11:00:00"},
		{control.Job{State: "completed", RunAt: at(time.Hour), FinishedAt: at(-time.Minute)}, "", "11:59:00"},
		{control.Job{State: "processing", StartedAt: at(-time.Minute), CreatedAt: at(-time.Hour)}, "", "11:59:00"},
	} {
		if got, moment := jobReasonText(c.job, now), narrowListTimeText(c.job, now); got != c.want || moment != c.moment {
			t.Errorf("%s: got %q and %q, want %q and %q", c.job.State, got, moment, c.want, c.moment)
		}
	}
}

// The headline of the overview reports dead jobs if there is no more serious problem.
func TestHealthHeadlineReportsDeadJobs(t *testing.T) {
	for _, c := range []struct {
		health     string
		dead       int64
		kind, want string
	}{
		{"ok", 0, "ok", "All is well"},
		{"ok", 1, "attention", "1 dead job needs attention"},
		{"ok", 1200, "attention", "1,200 dead jobs need attention"},
		{"degraded: no worker runs", 2, "degraded", "no worker runs"},
	} {
		kind, got := healthHeadline(&control.Status{Health: c.health, Jobs: map[string]int64{"dead": c.dead}})
		if kind != c.kind || got != c.want {
			t.Errorf("health %s with %d dead jobs: got %s, %q, want %s, %q", c.health, c.dead, kind, got, c.kind, c.want)
		}
	}
}

// Invisible characters and characters that change the direction of text are escaped. Invisible characters
// that are part of an emoji are kept.
func TestInvisibleCharactersAreEscaped(t *testing.T) {
	for text, want := range map[string]string{
		"a\u200bb": `a\u200bb`, "a\u202eb": `a\u202eb`, "a\u2060b": `a\u2060b`, "a\u00adb": `a\u00adb`,
		"a\u3164b": `a\u3164b`,
		"a\u009bb": `a\u009bb`, "a\x1bb": `a\u001bb`, "👩\u200d💻 ❤\ufe0f": "👩\u200d💻 ❤\ufe0f", "ü 漢\n": "ü 漢\n",
	} {
		if got := escapeInvisibleCharacters(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// The placeholder of every search field says that the field finds jobs by id.
func TestSearchFieldPlaceholdersMentionJobIDs(t *testing.T) {
	field := regexp.MustCompile(`<input type="search" name="q"[^>]* placeholder="([^"]*)"`)
	for _, name := range []string{"layout.html", "jobs.html"} {
		text, err := templateFiles.ReadFile("templates/" + name)
		if err != nil {
			t.Fatal(err)
		}
		found := field.FindSubmatch(text)
		if found == nil || !regexp.MustCompile(`\bid\b.*pattern`).Match(found[1]) {
			t.Errorf("%s: the placeholder of the search field is %q", name, found)
		}
	}
}
