package top

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

func TestMain(m *testing.M) {
	time.Local = time.UTC
	os.Setenv("LC_ALL", "C.UTF-8") // screens then contain Unicode characters
	flag.Parse()
	os.Exit(m.Run())
}

// now is the current time in all tests.
var now = time.Date(2026, 11, 25, 14, 2, 7, 0, time.UTC)

// timeAgo returns the time that is d before now.
func timeAgo(d time.Duration) control.Time { return control.Time(queue.MillisOf(now.Add(-d))) }

// job returns a job in a state, after the given function has changed it.
func job(id string, state queue.State, change func(*control.Job)) control.Job {
	j := control.Job{ID: id, State: state.String(), Queue: queue.DefaultQueue, User: "mira", Command: "make " + id,
		MaxAttempts: 4, EffectivePriority: 10}
	switch state {
	case queue.Processing:
		j.StartedAt, j.Attempts, j.PID, j.WorkerID = timeAgo(72*time.Second), 1, new(4711), new("w1")
	case queue.Dead:
		j.StartedAt, j.FinishedAt, j.Attempts, j.Error = timeAgo(5*time.Minute), timeAgo(4*time.Minute), 4, new("exit code 1")
	case queue.Failed:
		j.StartedAt, j.Attempts, j.NextRetryAt, j.Error = timeAgo(5*time.Minute), 1, timeAgo(-8*time.Second),
			new("exit code 3")
	}
	if change != nil {
		change(&j)
	}
	return j
}

// testSnapshot returns the snapshot with which most tests start.
func testSnapshot(accessRight control.Right) snapshot {
	s := snapshot{whoami: &control.Whoami{User: "mira", Right: accessRight}}
	s.screen = control.Screen{
		Status: control.Status{Health: "ok", PID: 1, Workers: control.WorkerSummary{Total: 4, Busy: 3},
			ThroughputPerMinute: 412,
			Jobs: map[string]int64{"processing": 3, "pending": 1204, "held": 1, "blocked": 1, "failed": 1, "dead": 2,
				"completed": 1000000}},
		Running: []control.ScreenJob{
			{Job: job("build", queue.Processing, func(j *control.Job) {
				j.Progress = &control.JobProgress{Percent: 43,
					Text: "linking"}
			}), LastLine: "compiling 61/140"},
			{Job: job("train", queue.Processing, func(j *control.Job) {
				j.Queue, j.User, j.PausedAt, j.PausedBy = "gpu", "ada", timeAgo(time.Minute), new("ada")
			}), LastLine: "epoch 4 of 10"},
			{Job: job("naïve 名前\x1b[31m\x07\u202e", queue.Processing,
				func(j *control.Job) { j.Command = strings.Repeat("\x1b]0;owned\x07長い", 200) }), LastLine: "\x1b[2Jgone\x9b31m"},
		},
		Ready: []control.Job{job("next", queue.Pending, nil),
			job("locked", queue.Pending, func(j *control.Job) { j.WaitsFor = &control.Reason{Kind: "lock", Key: "db"} })},
		Delayed: []control.Job{job("again", queue.Failed, nil),
			job("later", queue.Pending, func(j *control.Job) { j.RunAt = timeAgo(-7 * time.Hour) })},
		HeldOrBlocked: []control.Job{job("kept", queue.Held, nil),
			job("after", queue.Blocked, func(j *control.Job) { j.DependsOn = []string{"build"} })},
		Dead: []control.ScreenJob{{Job: job("z3", queue.Dead, nil), LastLine: "bad header in 97.png"},
			{Job: job("z4", queue.Dead, func(j *control.Job) { j.User = "ada" })}},
	}
	return s
}

// screen is a model in a window, and the effects that the model returned last.
type screen struct {
	*testing.T
	*model
	effects []effect
}

func newScreen(t *testing.T, accessRight control.Right, width, height int) *screen {
	s := &screen{T: t, model: newModel("build-01", now, testSnapshot(accessRight))}
	s.send(windowSize{width, height})
	return s
}

// send sends messages to the model and returns all their effects.
func (s *screen) send(messages ...any) []effect {
	s.effects = nil
	for _, m := range messages {
		s.effects = append(s.effects, s.update(m)...)
	}
	return s.effects
}

// typeKeys presses the keys whose names are in keys, separated by spaces, and returns the effects.
func (s *screen) typeKeys(keys string) []effect {
	s.effects = nil
	for name := range strings.FieldsSeq(keys) {
		k := keyPress{name: name}
		if len([]rune(name)) == 1 {
			k.text = name
		}
		s.effects = append(s.effects, s.update(k)...)
	}
	return s.effects
}

// actions returns the actions that the model has requested, such as "cancel job build,train".
func (s *screen) actions() (list []string) {
	for _, e := range s.effects {
		if a, ok := e.(actEffect); ok {
			list = append(list, strings.Join(strings.Fields(a.verb.name+" "+a.verb.objectKind+" "+strings.Join(a.ids, ",")),
				" "))
		}
	}
	return list
}

var colours = regexp.MustCompile("\x1b\\[[0-9;]*m")

// lines returns the displayed lines. The test fails if their number is not the height of the window, or if one
// is too wide.
func (s *screen) lines() []string {
	s.Helper()
	lines := strings.Split(colours.ReplaceAllString(s.view(), ""), "\n")
	if len(lines) != s.height {
		s.Errorf("the screen has %d lines in a window of %d lines", len(lines), s.height)
	}
	for i, l := range lines {
		if termtext.Width(l) > s.width || strings.ContainsFunc(l, func(r rune) bool {
			return r < ' ' || r >= 0x7f &&
				r < 0xa0 || r == 0x202e
		}) {
			s.Errorf("line %d contains a character that moves the cursor: %q", i, l)
		}
		lines[i] = strings.TrimRight(l, " ")
	}
	return lines
}

func (s *screen) wantText(texts ...string) {
	s.Helper()
	all := strings.Join(s.lines(), "\n")
	for _, text := range texts {
		if !strings.Contains(all, text) {
			s.Errorf("the screen does not show %q:\n%s", text, all)
		}
	}
}

func (s *screen) wantNoText(texts ...string) {
	s.Helper()
	all := strings.Join(s.lines(), "\n")
	for _, text := range texts {
		if strings.Contains(all, text) {
			s.Errorf("the screen shows %q:\n%s", text, all)
		}
	}
}

// refresh sends the model a reply to its fetch: testSnapshot, as changed by the given function. It returns
// the effects.
func (s *screen) refresh(change func(*snapshot)) []effect {
	got := testSnapshot(s.whoami.Right)
	got.whoami, got.list = nil, s.list
	if change != nil {
		change(&got)
	}
	return s.send(fetchResult{snapshot: got})
}

// printOutput simulates output of the job that the screen follows.
func (s *screen) printOutput(text string) {
	s.send(newOutput{source: s.output.source, pieces: []piece{{stream: "stdout", time: timeAgo(9 * time.Second),
		text: text}}})
}
