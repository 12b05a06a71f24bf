package top

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/queue"
)

var update = flag.Bool("update", false, "write the screens")

func TestMain(m *testing.M) {
	time.Local = time.UTC
	os.Setenv("LC_ALL", "C.UTF-8") // makes the screens use Unicode
	flag.Parse()
	os.Exit(m.Run())
}

// now is the current time in all tests.
var now = time.Date(2026, 11, 25, 14, 2, 7, 0, time.UTC)

// ago returns the time d before now.
func ago(d time.Duration) control.Time { return control.Time(queue.MillisOf(now.Add(-d))) }

func job(id string, state queue.State, more func(*control.Job)) control.Job {
	j := control.Job{ID: id, State: state.String(), Queue: queue.DefaultQueue, User: "mira", Command: "make " + id, MaxAttempts: 4, EffectivePriority: 10}
	switch state {
	case queue.Processing:
		j.StartedAt, j.Attempts, j.PID, j.WorkerID = ago(72*time.Second), 1, new(4711), new("w1")
	case queue.Dead:
		j.StartedAt, j.FinishedAt, j.Attempts, j.Error = ago(5*time.Minute), ago(4*time.Minute), 4, new("exit code 1")
	case queue.Failed:
		j.StartedAt, j.Attempts, j.NextRetryAt, j.Error = ago(5*time.Minute), 1, ago(-8*time.Second), new("exit code 3")
	}
	if more != nil {
		more(&j)
	}
	return j
}

// shown returns the snapshot with which most tests start.
func shown(right control.Right) snapshot {
	s := snapshot{who: &control.Whoami{User: "mira", Right: right}}
	s.screen = control.Screen{
		Status: control.Status{Health: "ok", PID: 1, Workers: control.WorkerSummary{Total: 4, Busy: 3}, Throughput: 412, Jobs: map[string]int64{"processing": 3, "pending": 1204, "held": 1, "blocked": 1, "failed": 1, "dead": 2, "completed": 1000000}},
		Running: []control.ScreenJob{
			{Job: job("build", queue.Processing, func(j *control.Job) { j.Progress = &control.JobProgress{Percent: 43, Text: "linking"} }), LastLine: "compiling 61/140"},
			{Job: job("train", queue.Processing, func(j *control.Job) {
				j.Queue, j.User, j.PausedAt, j.PausedBy = "gpu", "ada", ago(time.Minute), new("ada")
			}), LastLine: "epoch 4 of 10"},
			{Job: job("naïve 名前\x1b[31m\x07\u202e", queue.Processing, func(j *control.Job) { j.Command = strings.Repeat("\x1b]0;owned\x07長い", 200) }), LastLine: "\x1b[2Jgone\x9b31m"},
		},
		Ready: []control.Job{job("next", queue.Pending, nil), job("locked", queue.Pending, func(j *control.Job) { j.WaitsFor = &control.Reason{Kind: "lock", Key: "db"} })},
		Timed: []control.Job{job("again", queue.Failed, nil), job("later", queue.Pending, func(j *control.Job) { j.RunAt = ago(-7 * time.Hour) })},
		Kept:  []control.Job{job("kept", queue.Held, nil), job("after", queue.Blocked, func(j *control.Job) { j.DependsOn = []string{"build"} })},
		Dead:  []control.ScreenJob{{Job: job("z3", queue.Dead, nil), LastLine: "bad header in 97.png"}, {Job: job("z4", queue.Dead, func(j *control.Job) { j.User = "ada" })}},
	}
	return s
}

// screen is a model in a window, with the effects that it returned last.
type screen struct {
	*testing.T
	*model
	did []effect
}

func newScreen(t *testing.T, right control.Right, width, height int) *screen {
	s := &screen{T: t, model: newModel("build-01", now, shown(right))}
	s.does(size{width, height})
	return s
}

// does sends messages to the model and returns their effects.
func (s *screen) does(messages ...any) []effect {
	s.did = nil
	for _, m := range messages {
		s.did = append(s.did, s.update(m)...)
	}
	return s.did
}

// types presses keys, given by their names separated by spaces.
func (s *screen) types(keys string) []effect {
	s.did = nil
	for name := range strings.FieldsSeq(keys) {
		k := key{name: name}
		if len([]rune(name)) == 1 {
			k.text = name
		}
		s.did = append(s.did, s.update(k)...)
	}
	return s.did
}

// wants returns the requested actions, such as "cancel job build,train".
func (s *screen) wants() (list []string) {
	for _, e := range s.did {
		if a, ok := e.(act); ok {
			list = append(list, strings.Join(strings.Fields(a.verb.name+" "+a.verb.object+" "+strings.Join(a.ids, ",")), " "))
		}
	}
	return list
}

var colours = regexp.MustCompile("\x1b\\[[0-9;]*m")

// lines returns the displayed lines. It fails the test if there are not as many as the window has, or if one
// is too wide.
func (s *screen) lines() []string {
	s.Helper()
	lines := strings.Split(colours.ReplaceAllString(s.view(), ""), "\n")
	if len(lines) != s.height {
		s.Errorf("%d lines in a window of %d", len(lines), s.height)
	}
	for i, l := range lines {
		if cli.Room(l) > s.width || strings.ContainsFunc(l, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x202e }) {
			s.Errorf("line %d does not stay in its place: %q", i, l)
		}
		lines[i] = strings.TrimRight(l, " ")
	}
	return lines
}

func (s *screen) sees(texts ...string) {
	s.Helper()
	all := strings.Join(s.lines(), "\n")
	for _, text := range texts {
		if !strings.Contains(all, text) {
			s.Errorf("%q is not seen:\n%s", text, all)
		}
	}
}

func (s *screen) sawNot(texts ...string) {
	s.Helper()
	all := strings.Join(s.lines(), "\n")
	for _, text := range texts {
		if strings.Contains(all, text) {
			s.Errorf("%q is seen:\n%s", text, all)
		}
	}
}

// look answers the model's fetch.
func (s *screen) look(change func(*snapshot)) []effect {
	got := shown(s.who.Right)
	got.who, got.list = nil, s.list
	if change != nil {
		change(&got)
	}
	return s.does(fetched{snapshot: got})
}

// prints simulates output of the followed job.
func (s *screen) prints(text string) {
	s.does(printed{source: s.output.source, text: []piece{{stream: "stdout", at: ago(9 * time.Second), text: text}}})
}

var sizes = [][2]int{{80, 24}, {40, 10}, {200, 60}}

// The lists, their pages and questions are drawn in windows of three sizes as in testdata. The flag -update
// writes testdata.
func TestScreens(t *testing.T) {
	scenes := map[string]func(*screen){
		"running": func(s *screen) { s.prints("one\ntwo\tthree\n\x1b[32mfour\x1b[0m \x1b[2J\n 10 %\r 20 %") },
		"machines": func(s *screen) {
			s.look(func(s *snapshot) {
				for i, node := range []string{"web1", "web2"} {
					s.screen.Running[i].Node = node
				}
			})
		},
		"waiting":  func(s *screen) { s.types("2 j") },
		"failed":   func(s *screen) { s.types("3 j") },
		"queues":   func(s *screen) { s.types("4"); s.look(withQueues) },
		"cron":     func(s *screen) { s.types("5"); s.look(withSchedules) },
		"marked":   func(s *screen) { s.types("2 x x c") },
		"priority": func(s *screen) { s.types("2 P 5 0") },
		"find":     func(s *screen) { s.types("2 / l a") },
		"output":   func(s *screen) { s.types("f"); s.prints(strings.Repeat("a line of output\n", 100) + "the last") },
		"keys":     func(s *screen) { s.types("?") },
		"why": func(s *screen) {
			s.types("2 j w")
			s.does(explained{id: "locked", why: control.Why{ID: "locked", State: "pending", Reasons: []control.Reason{{Kind: "lock", Text: "the lock db is taken by build", Next: "it starts when that has ended"}}, Ahead: new(3)}})
		},
		"refused": func(s *screen) {
			s.types("c y")
			s.does(acted{act: act{verb: &verbs()[1]}, result: control.BulkResult{Refused: []control.Refusal{{ID: "build", Code: queue.CodeDenied, Message: "job build is ada's; " + strings.Repeat("to cancel it takes the right operate ", 8)}}}})
		},
		"lost": func(s *screen) {
			s.does(tick{now}, fetched{err: queue.Errorf(queue.CodeUnavailable, "the service is not running (/run/q.sock); start it with: queuectl service start")}, tick{now.Add(500 * time.Millisecond)})
		},
	}
	for _, name := range slices.Sorted(maps.Keys(scenes)) {
		var got strings.Builder
		for _, to := range sizes {
			s := newScreen(t, control.Admin, to[0], to[1])
			scenes[name](s)
			fmt.Fprintf(&got, "-- %dx%d --\n%s\n", to[0], to[1], strings.Join(s.lines(), "\n"))
		}
		golden := filepath.Join("testdata", name+".txt")
		if *update {
			if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(golden); err != nil || string(want) != got.String() {
			t.Errorf("%s is\n%s\nand was (%v)\n%s", name, &got, err, want)
		}
	}
}

func withQueues(s *snapshot) {
	s.queues = []control.QueueView{{Queue: "default", Running: 2, Waiting: 7, Weight: 1, Throughput: 300}, {Queue: "render", Waiting: 40, Weight: 3, Concurrency: 2, Paused: true, PausedBy: new("ada"), PausedAt: ago(time.Hour), PauseReason: new("driver update")}}
}

func withSchedules(s *snapshot) {
	s.schedules = []control.Schedule{{Name: "nightly", Cron: "0 3 * * *", TZ: "UTC", NextAt: ago(-13 * time.Hour), User: "mira", Command: "make backup"}, {Name: "poll", Cron: "@every 90s", TZ: "UTC", User: "ada", Paused: true, PausedBy: new("ada"), Command: "curl -s", Argv: []string{"curl", "-s"}}}
}

// In any window of at least 40x10, each screen has exactly as many lines as the window. A smaller window says
// which size is needed.
func TestAnySize(t *testing.T) {
	for _, keys := range []string{"", "2", "3", "4", "5", "f", "?", "2 x x c", "2 P", "/"} {
		s := newScreen(t, control.Admin, 80, 24)
		s.types(keys)
		s.prints(strings.Repeat("長い a line of output ", 40) + "\n")
		for width := 40; width <= 210; width += 10 {
			for height := 10; height <= 60; height += 3 {
				s.does(size{width, height})
				s.lines()
				if t.Failed() {
					t.Fatalf("%q in %dx%d", keys, width, height)
				}
			}
		}
		for _, to := range [][2]int{{39, 24}, {80, 9}, {1, 1}, {5, 3}} {
			s.does(size{to[0], to[1]})
			text := strings.Join(strings.Fields(s.view()), "")
			if want := fmt.Sprintf("40x10;thisoneis%dx%d", to[0], to[1]); !strings.HasSuffix(strings.ReplaceAll(text, "\n", ""), want) {
				t.Errorf("in %v: %q", to, text)
			}
		}
		if got := s.types("c"); len(got) != 0 {
			t.Errorf("what is not seen does something: %v", got)
		}
	}
}

// Each key requests its action for the selected row or for the marked rows, after a confirmation if it needs
// one.
func TestKeys(t *testing.T) {
	for _, c := range []struct{ keys, want string }{
		{"c y", "cancel job build"}, {"j c y", "cancel job train"}, {"c n", ""}, {"c esc", ""}, {"c j y", "cancel job build"}, {"c enter", ""}, {"p y", "pause job build"}, {"j p y", "resume job train"},
		{"2 h y", "hold job next"}, {"2 G k h y", "release job kept"}, {"2 x x x c y", "cancel job next,locked,again"}, {"2 x x esc c y", "cancel job again"}, {"2 P 4 2 enter", "priority job next"}, {"2 P enter", ""}, {"2 P x enter", ""},
		{"3 r y", "retry job again"}, {"3 j r y", "retry job z3"}, {"r", ""}, {"2 p", ""}, {"+", "add a worker"}, {"-", "remove a worker"}, {"down up pgdown pgup home end g G tab shift+tab g c y", "cancel job build"},
		{"2 / l o c k enter c y", "cancel job locked"}, {"2 / l o c k esc g c y", "cancel job next"},
	} {
		s := newScreen(t, control.Admin, 80, 24)
		s.types(c.keys)
		if got := strings.Join(s.wants(), "; "); got != c.want {
			t.Errorf("%s: %q, want %q", c.keys, got, c.want)
		}
	}
	for keys, want := range map[string]effect{"q": quit{}, "ctrl+c": quit{}, "c ctrl+c": quit{}, "? ctrl+c": quit{}, "ctrl+z": suspend{}, "ctrl+l": redraw{}, "2 e": edit{"next"}, "2 w": explain{"next"}} {
		s := newScreen(t, control.Admin, 80, 24)
		if got := s.types(keys); !slices.Contains(got, want) {
			t.Errorf("%s: %v, want %v", keys, got, want)
		}
	}
	s := newScreen(t, control.Admin, 80, 24)
	if got := s.types("2 P - 4 2 enter"); len(got) == 0 || got[len(got)-1].(act).number != -42 {
		t.Errorf("the priority: %v", got)
	}
	s = newScreen(t, control.Admin, 80, 24)
	for range 2 * maxActs { // a key that is held down
		s.types("+")
	}
	s.sees("add a worker …")
	ended := 0
	for s.types("c y"); len(s.model.acts) > 0; ended++ {
		s.does(acted{act: s.model.acts[0]})
		if n := len(s.wants()); n != min(len(s.model.acts), 1) {
			t.Fatalf("%d acts at once", n)
		}
	}
	if ended != maxActs {
		t.Errorf("%d acts, want %d", ended, maxActs)
	}
	s = newScreen(t, control.Admin, 80, 24)
	s.types("4")
	s.look(withQueues)
	if s.types("p y"); strings.Join(s.wants(), "") != "pause queue default" {
		t.Errorf("of a queue: %v", s.did)
	}
	s.does(acted{act: act{verb: s.did[0].(act).verb}, result: control.BulkResult{Done: []string{"default"}}})
	s.sees("queue default: paused")
	s.types("5")
	s.look(withSchedules)
	if s.types("r y"); strings.Join(s.wants(), "") != "run schedule nightly" {
		t.Errorf("of a schedule: %v", s.did)
	}
}

// A search also asks the service, which has more rows than the screen.
func TestSearchAsksTheService(t *testing.T) {
	s := newScreen(t, control.Admin, 80, 24)
	s.look(nil)
	s.types("2")
	s.look(nil)
	if got := s.types("/ l a enter"); len(got) != 1 || got[0].(fetch).search != "la" {
		t.Errorf("it wants %v", got)
	}
	s.look(func(got *snapshot) {
		got.found = []control.Job{job("later", queue.Pending, nil), job("plan", queue.Pending, nil)}
	})
	s.sees("later", "○ plan", "matching la")
	s.sawNot("next")
	if rows := len(s.table().rows); rows != 2 {
		t.Errorf("%d rows", rows)
	}
	s.types("G c y")
	if got := s.wants(); !slices.Equal(got, []string{"cancel job plan"}) {
		t.Errorf("it wants %v", got)
	}
	s.types("esc")
	s.sees("next")
	s.sawNot("○ plan")
}

// Pasted text answers a question, but is not handled as key presses.
func TestPastedTextIsNoKey(t *testing.T) {
	s := newScreen(t, control.Admin, 80, 24)
	if s.does(pasted{"cy"}, pasted{"q"}); len(s.did) != 0 {
		t.Errorf("pasted keys did %v", s.did)
	}
	s.types("c")
	if s.does(pasted{"y"}); len(s.wants()) != 0 {
		t.Errorf("a pasted yes did %v", s.did)
	}
	s.types("n 2 /")
	s.does(pasted{"lo\x1b[31mck"})
	s.sees("locked", "/lock")
	s.sawNot("next")
}

// Actions without the required right are not offered, and their keys do nothing.
func TestOnlyWhatMayBeDoneIsOffered(t *testing.T) {
	keys := []string{"c", "r", "p", "h", "e", "P", "+", "-"}
	for _, list := range []string{"1", "2", "3"} {
		s := newScreen(t, control.Read, 200, 24)
		s.types(list)
		s.sawNot("cancel", "retry", "pause ", "hold", "edit", "+ -")
		for _, k := range keys {
			if got := s.types(k + " y"); len(got) != 0 {
				t.Errorf("%s of %s does %v", k, list, got)
			}
		}
		s.sees("does nothing here")
		s.types("?")
		s.sawNot("cancel", "retry", "pause", "hold", "$EDITOR", "+ -")
	}
	s := newScreen(t, control.Submit, 200, 24)
	s.sees("c cancel", "p pause")
	s.sawNot("+ -")
	s.types("j") // a job of the user ada
	s.sawNot("c cancel", "f follow")
	s.sees("you may not read the output of this job")
	s = newScreen(t, control.Operate, 200, 24)
	s.types("j")
	s.sees("c cancel", "p resume", "f follow", "+ - workers")
}

// The selected row stays selected when rows before it are added or removed.
func TestChosenRowStays(t *testing.T) {
	s := newScreen(t, control.Admin, 80, 24)
	s.types("2 j j")
	s.sees("> ↻ again")
	s.look(func(got *snapshot) { got.screen.Ready = nil })
	s.sees("> ↻ again")
	s.look(func(got *snapshot) {
		for i := range 90 {
			got.screen.Ready = append(got.screen.Ready, job(fmt.Sprint("new", i), queue.Pending, nil))
		}
	})
	s.sees("> ↻ again")
	s.look(func(got *snapshot) { got.screen.Timed = nil })
	s.sees("> ")
	s.types("1")
	s.look(func(got *snapshot) { got.screen.Running, got.screen.Status.Jobs["processing"] = nil, 0 })
	s.sees("nothing running", "[1 Running 0]")
	if s.types("c f w e P x"); len(s.wants()) != 0 {
		t.Errorf("of no row: %v", s.did)
	}
}

// Output from a terminal is shown as text: each line as it was in the end, in whatever pieces it comes.
func TestOutputOfATerminalIsText(t *testing.T) {
	s := newScreen(t, control.Admin, 80, 24)
	s.types("f")
	for _, one := range []piece{
		{text: "\x1b]0;title\a 10%\r\x1b[K 2"}, {text: "0%\b\b\b30%\x1b[?1049hscr"}, {text: "een\x1b[?1049l\r\n\x1b(0lqk\x1b(B more"},
		{text: "[3 bytes were not kept]\n", gap: true}, {text: "ask\x1b[2K\rsure? "},
	} {
		one.stream, one.tty = "stdout", true
		s.does(printed{source: s.output.source, text: []piece{one}})
	}
	if got := s.lines()[1:5]; !slices.Equal(got, []string{" 30%", "┌─┐ more", "[3 bytes were not kept]", "sure?"}) {
		t.Errorf("the output is %q", got)
	}
}

// A note about missing output is on a separate line, even after output that does not end with a newline.
func TestMissingOutputHasItsOwnLine(t *testing.T) {
	s := newScreen(t, control.Admin, 80, 24)
	s.types("f")
	for _, one := range []piece{{text: "first"}, {text: "[3 bytes were not kept]\n", gap: true}, {text: "last\n"}} {
		one.stream = "stdout"
		s.does(printed{source: s.output.source, text: []piece{one}})
	}
	if got := s.lines()[1:4]; !slices.Equal(got, []string{"first", "[3 bytes were not kept]", "last"}) {
		t.Errorf("the output is %q", got)
	}
}

// Only the output of the selected job is read. It is read again when the job starts a new attempt.
func TestOutputOfTheChosenJob(t *testing.T) {
	s := newScreen(t, control.Admin, 80, 24)
	reads := func() (list []string) {
		for _, e := range s.did {
			if f, ok := e.(follow); ok {
				list = append(list, fmt.Sprintf("%s %t", f.id, f.running))
			}
		}
		return list
	}
	source := s.output.source
	if source.id != "build" || !source.running {
		t.Errorf("at first it reads %+v", source)
	}
	s.types("j")
	if got := reads(); !slices.Equal(got, []string{"train true"}) {
		t.Errorf("it reads %v", got)
	}
	s.does(printed{source: source, text: []piece{{stream: "stdout", text: "of another job\n"}}})
	s.sawNot("of another job")
	s.types("2")
	if got := reads(); !slices.Equal(got, []string{" false"}) {
		t.Errorf("of a job that has not begun: %v", got)
	}
	s.types("1 g f")
	s.prints("a")
	s.does(printed{source: s.output.source, text: []piece{{stream: "stderr", text: "bad\n"}, {stream: "stdout", text: "bc\nmore"}}})
	if got := s.lines()[1:4]; !slices.Equal(got, []string{"bad", "abc", "more"}) {
		t.Errorf("the output is %q", got)
	}
	s.look(func(got *snapshot) { got.screen.Running = got.screen.Running[1:] })
	if len(reads()) != 0 {
		t.Errorf("a page whose job has ended is read again: %v", s.did)
	}
	s.look(func(got *snapshot) { got.screen.Running[0].StartedAt = ago(0) })
	if got := reads(); !slices.Equal(got, []string{"build true"}) {
		t.Errorf("of its next attempt it reads %v", got)
	}
	s.does(printed{source: s.output.source, ended: true, err: queue.Errorf(queue.CodeUnavailable, "the service went away")})
	s.sawNot("went away")
	s.look(func(got *snapshot) { got.screen.Running[0].StartedAt = ago(0) })
	if got := reads(); !slices.Equal(got, []string{"build true"}) {
		t.Errorf("after a restart of the service it reads %v", got)
	}
	s.does(printed{source: s.output.source, ended: true, err: errors.New("denied: no")})
	s.sees("denied: no")
}

// A page scrolls by its keys, and follows its end until it is scrolled up.
func TestPageScrolls(t *testing.T) {
	s := newScreen(t, control.Admin, 80, 24)
	s.types("f")
	first := func() string { s.Helper(); return s.lines()[1] }
	var text strings.Builder
	for i := range 100 {
		fmt.Fprintf(&text, "line %d\n", i)
	}
	s.prints(text.String())
	if first() != "line 78" {
		t.Errorf("it begins with %q", first())
	}
	for _, c := range []struct{ keys, first string }{{"k", "line 77"}, {"pgup", "line 55"}, {"j", "line 56"}, {"pgdown", "line 78"}, {"g", "line 0"}, {"pgup", "line 0"}, {"j", "line 1"}} {
		if s.types(c.keys); first() != c.first {
			t.Errorf("after %s it begins with %q", c.keys, first())
		}
	}
	s.prints("line 100\n")
	if first() != "line 1" {
		t.Errorf("it moved to %q", first())
	}
	s.types("G")
	s.prints("line 101\n")
	s.sees("line 101")
	s.prints(strings.Repeat("x\n", 2*pageOutputLines))
	if n := len(s.output.lines); n != pageOutputLines {
		t.Errorf("%d lines are kept", n)
	}
	s.prints(strings.Repeat("y", 3*maxLineBytes))
	if n := len(s.output.parts[0].text); n != maxLineBytes {
		t.Errorf("%d bytes of a line are kept", n)
	}
	for _, k := range []string{"q", "esc"} {
		s.types(k)
		s.sees("[1 Running 3]")
		s.types("f")
	}
}

// Only one fetch is pending at a time. If the service does not answer, the interval between fetches grows to
// 30 s. The old state stays on the screen, with the time of the last answer. Everything resumes when the
// service answers.
func TestLostService(t *testing.T) {
	s := newScreen(t, control.Admin, 80, 24)
	at := now
	fetchesAfter := func(d time.Duration) (n int) {
		for end := at.Add(d); at.Before(end); {
			at = at.Add(time.Second)
			for _, e := range s.does(tick{at}) {
				if _, ok := e.(fetch); ok {
					n++
				}
			}
		}
		return n
	}
	if n := fetchesAfter(5 * time.Second); n != 1 {
		t.Errorf("%d looks while there was no answer", n)
	}
	s.prints("last words\n")
	fail := func() { s.does(fetched{err: queue.Errorf(queue.CodeUnavailable, "the service is not running")}) }
	for range 8 {
		fail()
		s.sees("no answer since 14:02:07", "the service is not running", "build", "last words")
		for i, l := range strings.Split(s.view(), "\n")[1 : s.height-1] {
			if grey := "\x1b[2m" + colours.ReplaceAllString(l, "") + "\x1b[0m"; l != "" && l != grey {
				t.Fatalf("line %d is not grey: %q", i, l)
			}
		}
		before := at
		for fetchesAfter(time.Second) == 0 {
			if at.Sub(before) > 31*time.Second {
				t.Fatal("it is not asked again within 30 s")
			}
		}
	}
	if s.types("j"); len(s.did) != 0 {
		t.Errorf("of a lost service it wants %v", s.did)
	}
	s.sawNot("last words") // of another job
	s.types("k")
	s.sees("last words")
	fail()
	if n := fetchesAfter(29 * time.Second); n != 0 {
		t.Errorf("after many tries it is asked %d times in 29 s", n)
	}
	if n := fetchesAfter(2 * time.Second); n != 1 {
		t.Errorf("after 30 s it is asked %d times", n)
	}
	s.look(nil)
	s.sawNot("no answer")
	if want := (follow{outputSource{"build", ago(72 * time.Second), true, paneOutputLines}}); len(s.did) != 1 || s.did[0] != want {
		t.Errorf("the output is not read on: %v", s.did)
	}
	fetchesAfter(time.Second)
	fail()
	who := control.Whoami{User: "mira", Right: control.Read}
	s.does(fetched{snapshot: snapshot{screen: s.snapshot.screen, who: &who}})
	s.sawNot("no answer", "c cancel") // the user may have lost the right in the meantime
}
