package top

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

func TestMain(m *testing.M) {
	time.Local = time.UTC
	os.Setenv("LC_ALL", "C.UTF-8") // with this locale, screens contain Unicode characters
	flag.Parse()
	os.Exit(m.Run())
}

// testNow is the current time in all tests.
var testNow = time.Date(2026, 11, 25, 14, 2, 7, 0, time.UTC)

// timeBeforeNow returns the time that is d before testNow.
func timeBeforeNow(d time.Duration) control.Time {
	return control.Time(queue.UnixMillisOf(testNow.Add(-d)))
}

// newJob returns a job in a state, after the given function has changed it.
func newJob(id string, state queue.State, edit func(*control.Job)) control.Job {
	j := control.Job{ID: id, State: state.String(), Queue: queue.DefaultQueue, User: "mira", Command: "make " + id,
		MaxAttempts: 4, EffectivePriority: 10}
	switch state {
	case queue.Processing:
		j.StartedAt, j.AttemptCount, j.PID, j.WorkerID = timeBeforeNow(72*time.Second), 1, new(4711), new("w1")
	case queue.Dead:
		j.StartedAt, j.FinishedAt, j.AttemptCount, j.Error = timeBeforeNow(5*time.Minute), timeBeforeNow(4*time.Minute), 4,
			new("exit code 1")
	case queue.Failed:
		j.StartedAt, j.AttemptCount, j.NextRetryAt, j.Error = timeBeforeNow(5*time.Minute), 1, timeBeforeNow(-8*time.Second),
			new("exit code 3")
	}
	if edit != nil {
		edit(&j)
	}
	return j
}

// testSnapshot returns the snapshot with which most tests start.
func testSnapshot(accessRight control.Right) snapshot {
	s := snapshot{whoami: &control.WhoamiResult{User: "mira", Right: accessRight}}
	s.screen = control.OverviewScreen{
		Status: control.Status{Health: "ok", PID: 1, Workers: control.WorkerSummary{Total: 4, Busy: 3},
			ThroughputPerMinute: 412,
			Jobs: map[string]int64{"processing": 3, "pending": 1204, "held": 1, "blocked": 1, "failed": 1, "dead": 2,
				"completed": 1000000}},
		Running: []control.OverviewJob{
			{Job: newJob("build", queue.Processing, func(j *control.Job) {
				j.Progress = &control.JobProgress{Percent: 43,
					Text: "linking"}
			}), LastLine: "compiling 61/140"},
			{Job: newJob("train", queue.Processing, func(j *control.Job) {
				j.Queue, j.User, j.PausedAt, j.PausedBy = "gpu", "ada", timeBeforeNow(time.Minute), new("ada")
			}), LastLine: "epoch 4 of 10"},
			{Job: newJob("naïve 名前\x1b[31m\x07\u202e", queue.Processing,
				func(j *control.Job) { j.Command = strings.Repeat("\x1b]0;owned\x07長い", 200) }), LastLine: "\x1b[2Jgone\x9b31m"},
		},
		Ready: []control.Job{newJob("next", queue.Pending, nil),
			newJob("locked", queue.Pending, func(j *control.Job) {
				j.MainWaitReason = &control.WaitReason{Kind: "lock", CauseKey: "db"}
			})},
		Delayed: []control.Job{newJob("again", queue.Failed, nil),
			newJob("later", queue.Pending, func(j *control.Job) { j.RunAt = timeBeforeNow(-7 * time.Hour) })},
		HeldOrBlocked: []control.Job{newJob("kept", queue.Held, nil),
			newJob("after", queue.Blocked, func(j *control.Job) { j.DependsOn = []string{"build"} })},
		Dead: []control.OverviewJob{{Job: newJob("z3", queue.Dead, nil), LastLine: "bad header in 97.png"},
			{Job: newJob("z4", queue.Dead, func(j *control.Job) { j.User = "ada" })}},
	}
	return s
}

// screenTest is a model in a window, and the effects (requests to the shell) that the model returned last.
type screenTest struct {
	*testing.T
	*model
	effects []effect
}

func newScreenTest(t *testing.T, accessRight control.Right, width, height int) *screenTest {
	s := &screenTest{T: t, model: newModel("build-01", testNow, testSnapshot(accessRight))}
	s.sendMessages(tea.WindowSizeMsg{Width: width, Height: height})
	return s
}

// sendMessages sends messages to the model. It returns all effects (requests to the shell) that the model has returned.
func (s *screenTest) sendMessages(messages ...any) []effect {
	s.effects = nil
	for _, m := range messages {
		s.effects = append(s.effects, s.update(m)...)
	}
	return s.effects
}

// typeKeys presses the keys whose names are in keys, separated by spaces, and returns the effects (requests of the
// model to the shell).
func (s *screenTest) typeKeys(keys string) []effect {
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

// requestedActions returns the actions that the model has requested, such as "cancel job build,train".
func (s *screenTest) requestedActions() (actionTexts []string) {
	for _, e := range s.effects {
		if a, ok := e.(actionEffect); ok {
			actionTexts = append(actionTexts, strings.Join(strings.Fields(a.verb.name+" "+a.verb.objectKind+" "+
				strings.Join(a.objectIDs, ",")),
				" "))
		}
	}
	return actionTexts
}

var colourSequences = regexp.MustCompile("\x1b\\[[0-9;]*m")

// displayedLines returns the displayed lines. The test fails if their number is not the height of the window, or if one
// is too wide.
func (s *screenTest) displayedLines() []string {
	s.Helper()
	lines := strings.Split(colourSequences.ReplaceAllString(s.view(), ""), "\n")
	if len(lines) != s.height {
		s.Errorf("the screen has %d lines in a window of %d lines", len(lines), s.height)
	}
	for i, l := range lines {
		if termtext.DisplayWidth(l) > s.width || strings.ContainsFunc(l, func(r rune) bool {
			return r < ' ' || r >= 0x7f &&
				r < 0xa0 || r == 0x202e
		}) {
			s.Errorf("line %d contains a character that moves the cursor: %q", i, l)
		}
		lines[i] = strings.TrimRight(l, " ")
	}
	return lines
}

func (s *screenTest) wantText(texts ...string) {
	s.Helper()
	all := strings.Join(s.displayedLines(), "\n")
	for _, text := range texts {
		if !strings.Contains(all, text) {
			s.Errorf("the screen does not show %q:\n%s", text, all)
		}
	}
}

func (s *screenTest) wantNoText(texts ...string) {
	s.Helper()
	all := strings.Join(s.displayedLines(), "\n")
	for _, text := range texts {
		if strings.Contains(all, text) {
			s.Errorf("the screen shows %q:\n%s", text, all)
		}
	}
}

// sendSnapshot sends the model a reply to its fetch: a testSnapshot that was changed by the given function. It returns
// the effects (requests of the model to the shell).
func (s *screenTest) sendSnapshot(change func(*snapshot)) []effect {
	got := testSnapshot(s.whoami.Right)
	got.whoami, got.list = nil, s.currentList
	if change != nil {
		change(&got)
	}
	return s.sendMessages(fetchSnapshotResult{snapshot: got})
}

// printOutput simulates output of the job that the screen follows.
func (s *screenTest) printOutput(text string) {
	s.sendMessages(outputUpdate{source: s.followedOutput.source,
		pieces: []outputPiece{{stream: "stdout", time: timeBeforeNow(9 * time.Second), text: text}}})
}
