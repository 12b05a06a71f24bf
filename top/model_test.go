package top

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

var updateScreenFiles = flag.Bool("update", false, "write the screens")

// windowSizes lists the widths and heights of the windows that TestScreensMatchStoredFiles uses.
var windowSizes = [][2]int{{80, 24}, {40, 10}, {200, 60}}

// In windows of three sizes, the lists, pages and questions look as in the files in testdata. The flag -update
// writes these files.
func TestScreensMatchStoredFiles(t *testing.T) {
	screens := map[string]func(*screenTest){
		"running": func(s *screenTest) { s.printOutput("one\ntwo\tthree\n\x1b[32mfour\x1b[0m \x1b[2J\n 10 %\r 20 %") },
		"machines": func(s *screenTest) {
			s.sendSnapshot(func(s *snapshot) {
				for i, node := range []string{"web1", "web2"} {
					s.screen.Running[i].Node = node
				}
			})
		},
		"waiting":  func(s *screenTest) { s.typeKeys("2 j") },
		"failed":   func(s *screenTest) { s.typeKeys("3 j") },
		"queues":   func(s *screenTest) { s.typeKeys("4"); s.sendSnapshot(withQueues) },
		"cron":     func(s *screenTest) { s.typeKeys("5"); s.sendSnapshot(withSchedules) },
		"marked":   func(s *screenTest) { s.typeKeys("2 x x c") },
		"priority": func(s *screenTest) { s.typeKeys("2 P 5 0") },
		"find":     func(s *screenTest) { s.typeKeys("2 / l a") },
		"output": func(s *screenTest) {
			s.typeKeys("f")
			s.printOutput(strings.Repeat("a line of output\n", 100) + "the last")
		},
		"keys": func(s *screenTest) { s.typeKeys("?") },
		"why": func(s *screenTest) {
			s.typeKeys("2 j w")
			s.sendMessages(explainJobResult{id: "locked", reasons: control.WaitingExplanation{ID: "locked", State: "pending",
				Reasons: []control.WaitReason{{Kind: "lock", Text: "the lock db is taken by build",
					Advice: "queuectl list -s processing"}}, JobsAhead: new(3)}})
		},
		"refused": func(s *screenTest) {
			s.typeKeys("c y")
			s.sendMessages(actionResult{actionEffect: actionEffect{verb: &verbs()[1]},
				result: control.BulkResult{Refusals: []control.Refusal{{JobID: "build",
					Code: queue.CodeDenied, Message: "job build is ada's; " +
						strings.Repeat("to cancel it takes the right operate ", 8)}}}})
		},
		"lost": func(s *screenTest) {
			s.sendMessages(clockTick{testNow}, fetchSnapshotResult{err: queue.Errorf(queue.CodeUnavailable,
				"the service is not running (/run/q.sock); start it with: queuectl service start")},
				clockTick{testNow.Add(500 * time.Millisecond)})
		},
	}
	for _, name := range slices.Sorted(maps.Keys(screens)) {
		var got strings.Builder
		for _, window := range windowSizes {
			s := newScreenTest(t, control.RightAdmin, window[0], window[1])
			screens[name](s)
			fmt.Fprintf(&got, "-- %dx%d --\n%s\n", window[0], window[1], strings.Join(s.displayedLines(), "\n"))
		}
		golden := filepath.Join("testdata", name+".txt")
		if *updateScreenFiles {
			if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(golden); err != nil || string(want) != got.String() {
			t.Errorf("the screens of %s are\n%s\nwant (%v)\n%s", name, &got, err, want)
		}
	}
}

// withQueues adds queues to a snapshot.
func withQueues(s *snapshot) {
	s.queues = []control.QueueView{{Queue: "default", Running: 2, Waiting: 7, Weight: 1, ThroughputPerMinute: 300},
		{Queue: "render", Waiting: 40, Weight: 3, Concurrency: 2, Paused: true, PausedBy: new("ada"),
			PausedAt: timeBeforeNow(time.Hour), PauseReason: new("driver update")}}
}

// withSchedules adds schedules to a snapshot.
func withSchedules(s *snapshot) {
	s.schedules = []control.Schedule{{Name: "nightly", Cron: "0 3 * * *", TimeZone: "UTC",
		NextAt: timeBeforeNow(-13 * time.Hour),
		User:   "mira", Command: "make backup"}, {Name: "poll", Cron: "@every 90s", TimeZone: "UTC", User: "ada",
		Paused:   true,
		PausedBy: new("ada"), Command: "curl -s", Argv: []string{"curl", "-s"}}}
}

// In any window of at least 40x10, each screen has exactly as many lines as the window. A smaller window shows
// the required size.
func TestScreenFitsAnyWindowSize(t *testing.T) {
	for _, keys := range []string{"", "2", "3", "4", "5", "f", "?", "2 x x c", "2 P", "/"} {
		s := newScreenTest(t, control.RightAdmin, 80, 24)
		s.typeKeys(keys)
		s.printOutput(strings.Repeat("長い a line of output ", 40) + "\n")
		for width := 40; width <= 210; width += 10 {
			for height := 10; height <= 60; height += 3 {
				s.sendMessages(tea.WindowSizeMsg{Width: width, Height: height})
				s.displayedLines()
				if t.Failed() {
					t.Fatalf("after the keys %q in a window of %dx%d", keys, width, height)
				}
			}
		}
		for _, window := range [][2]int{{39, 24}, {80, 9}, {1, 1}, {5, 3}} {
			s.sendMessages(tea.WindowSizeMsg{Width: window[0], Height: window[1]})
			text := strings.Join(strings.Fields(s.view()), "")
			if want := fmt.Sprintf("40x10;thisoneis%dx%d", window[0],
				window[1]); !strings.HasSuffix(strings.ReplaceAll(text, "\n", ""), want) {
				t.Errorf("the text in a window of %v is %q", window, text)
			}
		}
		if got := s.typeKeys("c"); len(got) != 0 {
			t.Errorf("a key has the effects %v in a window that is too small", got)
		}
	}
}

// Each key starts its action on the selected row or on the marked rows, if necessary after a confirmation.
func TestKeysStartTheirActions(t *testing.T) {
	for _, c := range []struct{ keys, want string }{
		{"c y", "cancel job build"}, {"j c y", "cancel job train"}, {"c n", ""}, {"c esc", ""}, {"c j y", "cancel job build"},
		{"c enter", ""}, {"p y", "pause job build"}, {"j p y", "resume job train"},
		{"2 h y", "hold job next"}, {"2 G k h y", "release job kept"}, {"2 x x x c y", "cancel job next,locked,again"},
		{"2 x x esc c y", "cancel job again"}, {"2 P 4 2 enter", "priority job next"}, {"2 P enter", ""}, {"2 P x enter", ""},
		{"3 r y", "retry job again"}, {"3 j r y", "retry job z3"}, {"r", ""}, {"2 p", ""}, {"+", "add a worker"},
		{"-", "remove a worker"}, {"down up pgdown pgup home end g G tab shift+tab g c y", "cancel job build"},
		{"2 / l o c k enter c y", "cancel job locked"}, {"2 / l o c k esc g c y", "cancel job next"},
	} {
		s := newScreenTest(t, control.RightAdmin, 80, 24)
		s.typeKeys(c.keys)
		if got := strings.Join(s.requestedActions(), "; "); got != c.want {
			t.Errorf("keys %s: got actions %q, want %q", c.keys, got, c.want)
		}
	}
	for keys, want := range map[string]effect{"q": quitEffect{}, "ctrl+c": quitEffect{}, "c ctrl+c": quitEffect{},
		"? ctrl+c": quitEffect{}, "ctrl+z": suspendEffect{}, "ctrl+l": redrawEffect{}, "2 e": editJobEffect{"next"},
		"2 w": explainJobEffect{"next"}} {
		s := newScreenTest(t, control.RightAdmin, 80, 24)
		if got := s.typeKeys(keys); !slices.Contains(got, want) {
			t.Errorf("keys %s: got effects %v, want %v", keys, got, want)
		}
	}
	s := newScreenTest(t, control.RightAdmin, 80, 24)
	if got := s.typeKeys("2 P - 4 2 enter"); len(got) == 0 || got[len(got)-1].(actionEffect).newPriority != -42 {
		t.Errorf("entering the priority -42: got effects %v", got)
	}
	s = newScreenTest(t, control.RightAdmin, 80, 24)
	for range 2 * maxPendingActions { // simulates a key that is held down
		s.typeKeys("+")
	}
	s.wantText("add a worker …")
	ended := 0
	for s.typeKeys("c y"); len(s.model.pendingActions) > 0; ended++ {
		s.sendMessages(actionResult{actionEffect: s.model.pendingActions[0]})
		if n := len(s.requestedActions()); n != min(len(s.model.pendingActions), 1) {
			t.Fatalf("%d actions were requested at the same time", n)
		}
	}
	if ended != maxPendingActions {
		t.Errorf("%d actions were executed, want %d", ended, maxPendingActions)
	}
	s = newScreenTest(t, control.RightAdmin, 80, 24)
	s.typeKeys("4")
	s.sendSnapshot(withQueues)
	if s.typeKeys("p y"); strings.Join(s.requestedActions(), "") != "pause queue default" {
		t.Errorf("pausing a queue: got effects %v", s.effects)
	}
	s.sendMessages(actionResult{actionEffect: actionEffect{verb: s.effects[0].(actionEffect).verb},
		result: control.BulkResult{ChangedJobIDs: []string{"default"}}})
	s.wantText("queue default: paused")
	s.typeKeys("5")
	s.sendSnapshot(withSchedules)
	if s.typeKeys("r y"); strings.Join(s.requestedActions(), "") != "run schedule nightly" {
		t.Errorf("running a schedule: got effects %v", s.effects)
	}
}

// A search also queries the service, because the screen has only some of the rows.
func TestSearchQueriesService(t *testing.T) {
	s := newScreenTest(t, control.RightAdmin, 80, 24)
	s.sendSnapshot(nil)
	s.typeKeys("2")
	s.sendSnapshot(nil)
	if got := s.typeKeys("/ l a enter"); len(got) != 1 || got[0].(fetchSnapshotEffect).searchText != "la" {
		t.Errorf("a search has the effects %v, want a fetch with the text", got)
	}
	s.sendSnapshot(func(got *snapshot) {
		got.searchMatches = []control.Job{newJob("later", queue.Pending, nil), newJob("plan", queue.Pending, nil)}
	})
	s.wantText("later", "○ plan", `matching "la"`)
	s.wantNoText("next")
	if rows := len(s.currentTable().rows); rows != 2 {
		t.Errorf("the list has %d rows after the search, want 2", rows)
	}
	s.typeKeys("G c y")
	if got := s.requestedActions(); !slices.Equal(got, []string{"cancel job plan"}) {
		t.Errorf("cancelling the found job: got actions %v", got)
	}
	s.typeKeys("esc")
	s.wantText("next")
	s.wantNoText("○ plan")
}

// Pasted text is inserted into the answer to a question. It is never handled as key presses.
func TestPastedTextIsNotHandledAsKeys(t *testing.T) {
	s := newScreenTest(t, control.RightAdmin, 80, 24)
	if s.sendMessages(tea.PasteMsg{Content: "cy"}, tea.PasteMsg{Content: "q"}); len(s.effects) != 0 {
		t.Errorf("pasted text that contains keys has the effects %v", s.effects)
	}
	s.typeKeys("c")
	if s.sendMessages(tea.PasteMsg{Content: "y"}); len(s.requestedActions()) != 0 {
		t.Errorf("a pasted y has the effects %v", s.effects)
	}
	s.typeKeys("n 2 /")
	s.sendMessages(tea.PasteMsg{Content: "lo\x1b[31mck"})
	s.wantText("locked", "/lock")
	s.wantNoText("next")
}

// The screen does not offer actions that the user may not use, and their keys do nothing.
func TestOnlyPermittedActionsAreOffered(t *testing.T) {
	keys := []string{"c", "r", "p", "h", "e", "P", "+", "-"}
	for _, list := range []string{"1", "2", "3"} {
		s := newScreenTest(t, control.RightRead, 200, 24)
		s.typeKeys(list)
		s.wantNoText("cancel", "retry", "pause ", "hold", "edit", "+ -")
		for _, k := range keys {
			if got := s.typeKeys(k + " y"); len(got) != 0 {
				t.Errorf("key %s in the list %s has the effects %v", k, list, got)
			}
		}
		s.wantText("does nothing here")
		s.typeKeys("?")
		s.wantNoText("cancel", "retry", "pause", "hold", "$EDITOR", "+ -")
	}
	s := newScreenTest(t, control.RightSubmit, 200, 24)
	s.wantText("c cancel", "p pause")
	s.wantNoText("+ -")
	s.typeKeys("j") // selects a job of another user
	s.wantNoText("c cancel", "f follow")
	s.wantText("you may not read the output of this job")
	s = newScreenTest(t, control.RightOperate, 200, 24)
	s.typeKeys("j")
	s.wantText("c cancel", "p resume", "f follow", "+ - workers")
}

// The selected row stays selected when rows before it are added or removed.
func TestSelectedRowStaysSelected(t *testing.T) {
	s := newScreenTest(t, control.RightAdmin, 80, 24)
	s.typeKeys("2 j j")
	s.wantText("> ↻ again")
	s.sendSnapshot(func(got *snapshot) { got.screen.Ready = nil })
	s.wantText("> ↻ again")
	s.sendSnapshot(func(got *snapshot) {
		for i := range 90 {
			got.screen.Ready = append(got.screen.Ready, newJob(fmt.Sprint("new", i), queue.Pending, nil))
		}
	})
	s.wantText("> ↻ again")
	s.sendSnapshot(func(got *snapshot) { got.screen.Delayed = nil })
	s.wantText("> ")
	s.typeKeys("1")
	s.sendSnapshot(func(got *snapshot) { got.screen.Running, got.screen.Status.Jobs["processing"] = nil, 0 })
	s.wantText("nothing running", "[1 Running 0]")
	if s.typeKeys("c f w e P x"); len(s.requestedActions()) != 0 {
		t.Errorf("keys without a selected row have the effects %v", s.effects)
	}
}

// Output from a terminal is shown as text, with each line in its final state. It does not matter how the output
// is split into pieces.
func TestTerminalOutputIsShownAsText(t *testing.T) {
	s := newScreenTest(t, control.RightAdmin, 80, 24)
	s.typeKeys("f")
	for _, one := range []outputPiece{
		{text: "\x1b]0;title\a 10%\r\x1b[K 2"}, {text: "0%\b\b\b30%\x1b[?1049hscr"},
		{text: "een\x1b[?1049l\r\n\x1b(0lqk\x1b(B more"},
		{text: "[3 bytes were not kept]\n", isGapNote: true}, {text: "ask\x1b[2K\rsure? "},
	} {
		one.stream, one.isFromTerminal = "stdout", true
		s.sendMessages(outputUpdate{source: s.followedOutput.source, pieces: []outputPiece{one}})
	}
	if got := s.displayedLines()[1:5]; !slices.Equal(got, []string{" 30%", "┌─┐ more", "[3 bytes were not kept]",
		"sure?"}) {
		t.Errorf("the page shows the output %q", got)
	}
}

// A note about missing output is on its own line, even if the output before it does not end with a newline.
func TestMissingOutputNoteHasItsOwnLine(t *testing.T) {
	s := newScreenTest(t, control.RightAdmin, 80, 24)
	s.typeKeys("f")
	for _, one := range []outputPiece{{text: "first"}, {text: "[3 bytes were not kept]\n", isGapNote: true},
		{text: "last\n"}} {
		one.stream = "stdout"
		s.sendMessages(outputUpdate{source: s.followedOutput.source, pieces: []outputPiece{one}})
	}
	if got := s.displayedLines()[1:4]; !slices.Equal(got, []string{"first", "[3 bytes were not kept]", "last"}) {
		t.Errorf("the page shows the output %q", got)
	}
}

// The screen reads only the output of the selected job. When the job starts a new attempt, the screen reads
// the output of that attempt.
func TestOnlySelectedJobsOutputIsRead(t *testing.T) {
	s := newScreenTest(t, control.RightAdmin, 80, 24)
	reads := func() (list []string) {
		for _, e := range s.effects {
			if f, ok := e.(followOutputEffect); ok {
				list = append(list, fmt.Sprintf("%s %t", f.jobID, f.isRunning))
			}
		}
		return list
	}
	source := s.followedOutput.source
	if source.jobID != "build" || !source.isRunning {
		t.Errorf("at first the screen reads the output of %+v", source)
	}
	s.typeKeys("j")
	if got := reads(); !slices.Equal(got, []string{"train true"}) {
		t.Errorf("after another job was selected, the screen reads %v", got)
	}
	s.sendMessages(outputUpdate{source: source, pieces: []outputPiece{{stream: "stdout", text: "of another job\n"}}})
	s.wantNoText("of another job")
	s.typeKeys("2")
	if got := reads(); !slices.Equal(got, []string{" false"}) {
		t.Errorf("for a job that has not started, the screen reads %v", got)
	}
	s.typeKeys("1 g f")
	s.printOutput("a")
	s.sendMessages(outputUpdate{source: s.followedOutput.source, pieces: []outputPiece{{stream: "stderr", text: "bad\n"},
		{stream: "stdout", text: "bc\nmore"}}})
	if got := s.displayedLines()[1:4]; !slices.Equal(got, []string{"bad", "abc", "more"}) {
		t.Errorf("the page shows the output %q", got)
	}
	s.sendSnapshot(func(got *snapshot) { got.screen.Running = got.screen.Running[1:] })
	if len(reads()) != 0 {
		t.Errorf("the output of an ended job is read again: %v", s.effects)
	}
	s.sendSnapshot(func(got *snapshot) { got.screen.Running[0].StartedAt = timeBeforeNow(0) })
	if got := reads(); !slices.Equal(got, []string{"build true"}) {
		t.Errorf("after the job's next attempt has started, the screen reads %v", got)
	}
	s.sendMessages(outputUpdate{source: s.followedOutput.source, isComplete: true,
		err: queue.Errorf(queue.CodeUnavailable, "the service went away")})
	s.wantNoText("went away")
	s.sendSnapshot(func(got *snapshot) { got.screen.Running[0].StartedAt = timeBeforeNow(0) })
	if got := reads(); !slices.Equal(got, []string{"build true"}) {
		t.Errorf("after a restart of the service, the screen reads %v", got)
	}
	s.sendMessages(outputUpdate{source: s.followedOutput.source, isComplete: true, err: errors.New("denied: no")})
	s.wantText("denied: no")
}

// The keys scroll a page. A page that follows its end stops doing so when the user scrolls up.
func TestKeysScrollFullScreenPage(t *testing.T) {
	s := newScreenTest(t, control.RightAdmin, 80, 24)
	s.typeKeys("f")
	first := func() string { s.Helper(); return s.displayedLines()[1] }
	var text strings.Builder
	for i := range 100 {
		fmt.Fprintf(&text, "line %d\n", i)
	}
	s.printOutput(text.String())
	if first() != "line 78" {
		t.Errorf("the page begins with %q", first())
	}
	for _, c := range []struct{ keys, first string }{{"k", "line 77"}, {"pgup", "line 55"}, {"j", "line 56"},
		{"pgdown", "line 78"}, {"g", "line 0"}, {"pgup", "line 0"}, {"j", "line 1"}} {
		if s.typeKeys(c.keys); first() != c.first {
			t.Errorf("after the keys %s the page begins with %q", c.keys, first())
		}
	}
	s.printOutput("line 100\n")
	if first() != "line 1" {
		t.Errorf("the page moved to %q", first())
	}
	s.typeKeys("G")
	s.printOutput("line 101\n")
	s.wantText("line 101")
	s.printOutput(strings.Repeat("x\n", 2*maxPageOutputLines))
	if n := len(s.followedOutput.lines); n != maxPageOutputLines {
		t.Errorf("the page keeps %d lines", n)
	}
	s.printOutput(strings.Repeat("y", 3*maxOutputLineBytes))
	if n := len(s.followedOutput.unfinishedLineByStream[0].text); n != maxOutputLineBytes {
		t.Errorf("the page keeps %d bytes of a line", n)
	}
	for _, k := range []string{"q", "esc"} {
		s.typeKeys(k)
		s.wantText("[1 Running 3]")
		s.typeKeys("f")
	}
}

// Only one fetch is pending at a time. If the service does not reply, the interval between fetches
// grows to 30 s. The old state stays on the screen, with the time of the last reply. When the
// service replies again, the screen continues as before.
func TestScreenKeepsStateWhileServiceIsDown(t *testing.T) {
	s := newScreenTest(t, control.RightAdmin, 80, 24)
	at := testNow
	fetchesAfter := func(d time.Duration) (n int) {
		for end := at.Add(d); at.Before(end); {
			at = at.Add(time.Second)
			for _, e := range s.sendMessages(clockTick{at}) {
				if _, ok := e.(fetchSnapshotEffect); ok {
					n++
				}
			}
		}
		return n
	}
	if n := fetchesAfter(5 * time.Second); n != 1 {
		t.Errorf("%d fetches were sent while a reply was pending, want 1", n)
	}
	s.printOutput("last words\n")
	fail := func() {
		s.sendMessages(fetchSnapshotResult{err: queue.Errorf(queue.CodeUnavailable, "the service is not running")})
	}
	for range 8 {
		fail()
		s.wantText("no answer since 14:02:07", "the service is not running", "build", "last words")
		for i, l := range strings.Split(s.view(), "\n")[1 : s.height-1] {
			if grey := "\x1b[2m" + colourSequences.ReplaceAllString(l, "") + "\x1b[0m"; l != "" && l != grey {
				t.Fatalf("line %d is not grey: %q", i, l)
			}
		}
		before := at
		for fetchesAfter(time.Second) == 0 {
			if at.Sub(before) > 31*time.Second {
				t.Fatal("no fetch was sent within 30 s")
			}
		}
	}
	if s.typeKeys("j"); len(s.effects) != 0 {
		t.Errorf("a key has the effects %v while the service does not reply", s.effects)
	}
	s.wantNoText("last words") // another job is selected, and its output was not read
	s.typeKeys("k")
	s.wantText("last words")
	fail()
	if n := fetchesAfter(29 * time.Second); n != 0 {
		t.Errorf("after many failed fetches, %d fetches were sent in 29 s", n)
	}
	if n := fetchesAfter(2 * time.Second); n != 1 {
		t.Errorf("%d fetches were sent after 30 s, want 1", n)
	}
	s.sendSnapshot(nil)
	s.wantNoText("no answer")
	if want := (followOutputEffect{
		outputSource{"build", timeBeforeNow(72 * time.Second), true, maxPaneOutputLines},
	}); len(s.effects) != 1 || s.effects[0] != want {
		t.Errorf("the screen does not continue reading the output: %v", s.effects)
	}
	fetchesAfter(time.Second)
	fail()
	who := control.WhoamiResult{User: "mira", Right: control.RightRead}
	s.sendMessages(fetchSnapshotResult{snapshot: snapshot{screen: s.snapshot.screen, whoami: &who}})
	s.wantNoText("no answer", "c cancel") // the user has no right to cancel now
}
