//go:build linux || windows

package test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// private is a folder in which run --private is called.
type private struct {
	*queue
	work string
}

func newPrivate(t *testing.T) *private {
	q := newQueue(t, "")
	work := filepath.Join(q.dir, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	q.dir = filepath.Join(work, ".queuectl") // where its service and runners are
	t.Cleanup(func() { os.RemoveAll(filepath.Dir(work)) })
	return &private{q, work}
}

// command is run --private in the folder, with stdin.
func (p *private) command(stdin string, args ...string) *exec.Cmd {
	cmd := exec.Command(p.bin, append([]string{"run", "--private"}, args...)...)
	cmd.Env = environment(p.work)
	cmd.Dir = p.work
	cmd.Stdin = strings.NewReader(stdin)
	return cmd
}

func (p *private) run(stdin string, args ...string) result {
	p.Helper()
	cmd := p.command(stdin, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		p.Fatal(err)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// killAll kills, with SIGKILL, all that a run of it has started, by pid: what has
// the folder in its arguments or its environment.
func (p *private) killAll(cmd *exec.Cmd) {
	cmd.Process.Kill()
	cmd.Wait()
	for left := 1; left > 0; {
		left = 0
		for pid, words := range related(p.dir) {
			if !strings.Contains(words, " events ") {
				kill(pid)
				left++
			}
		}
	}
}

// effects counts what each job has done: a line of its number each time.
func (p *private) effects() (counts map[string]int, lines int) {
	counts = map[string]int{}
	files, _ := filepath.Glob(filepath.Join(p.work, "effects*"))
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			p.Fatal(err)
		}
		for line := range strings.FieldsSeq(string(raw)) {
			counts[line]++
			lines++
		}
	}
	return counts, lines
}

// A run of 2,000 jobs, or fewer, that is killed ten times, with all its processes, goes on by the
// same command: each job is done, and none again that events had told to be completed.
// A line that was changed is refused by its number, and nothing is run.
func TestPrivateRunIsResumed(t *testing.T) {
	const count, kills = 2000 / fewer, 10
	p := newPrivate(t)
	var file strings.Builder
	for i := range count {
		fmt.Fprintf(&file, `{"command":"echo %d >>effects%[1]d","backoff_base":0.01}`+"\n", i+1)
	}
	if err := os.WriteFile(filepath.Join(p.work, "jobs.jsonl"), []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--workers", "4", "--file", "jobs.jsonl"}
	told := map[string]int{} // jobs that events had told to be completed, with their effects by then
	for n := range kills {
		cmd := p.command("", args...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		completed := p.followCompleted()
		p.until(fmt.Sprintf("progress before kill %d", n+1), 60*time.Second, func() bool {
			_, lines := p.effects()
			return lines > (n+1)*count/(kills+2)
		})
		p.killAll(cmd)
		counts, _ := p.effects()
		for _, id := range completed() {
			number, _, _ := strings.Cut(id, "-")
			if _, known := told[number]; !known {
				told[number] = counts[number]
			}
		}
	}
	if len(told) < count/4 {
		t.Errorf("events told of %d completed jobs only", len(told))
	}
	changed := strings.Replace(file.String(), "echo 17 ", "echo 17x ", 1)
	if err := os.WriteFile(filepath.Join(p.work, "changed"), []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	_, before := p.effects()
	if r := p.run("", "--workers", "4", "--file", "changed"); r.code != 125 || !strings.Contains(r.err, "line 17 was changed") {
		t.Errorf("a changed line: %+v", r)
	}
	if _, after := p.effects(); after != before {
		t.Errorf("a refused run ran %d jobs", after-before)
	}
	if r := p.run("", args...); r.code != 0 || !strings.Contains(r.err, fmt.Sprintf("%d jobs: %[1]d completed", count)) {
		t.Errorf("the last run: %+v", r)
	}
	counts, lines := p.effects()
	for i := range count {
		if counts[strconv.Itoa(i+1)] == 0 {
			t.Errorf("job %d was lost", i+1)
		}
	}
	for number, was := range told {
		if counts[number] != was {
			t.Errorf("job %s ran again after events had told that it was completed", number)
		}
	}
	t.Logf("%d jobs, %d kills: %d were run again; events had told of %d before the kills", count, kills, lines-count, len(told))
}

// followCompleted follows the events of a run that has just begun, and says at its end
// which jobs they told to be completed.
func (p *private) followCompleted() (ids func() []string) {
	var mu sync.Mutex
	var list []string
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			cmd := exec.Command(p.bin, "--dir", p.dir, "events", "-f", "--since", "0", "--event", "ended", "--jsonl")
			cmd.Env = environment(p.work)
			out, err := cmd.StdoutPipe()
			if err != nil || cmd.Start() != nil {
				p.Errorf("follow events: %v", err)
				return
			}
			any := false
			for lines := bufio.NewScanner(out); lines.Scan(); any = true {
				var e event
				if json.Unmarshal(lines.Bytes(), &e) == nil && e.State == "completed" {
					mu.Lock()
					list = append(list, e.ID)
					mu.Unlock()
				}
			}
			cmd.Wait()
			if any {
				return
			}
		}
	}()
	return func() []string {
		<-ended
		mu.Lock()
		defer mu.Unlock()
		return list
	}
}

// The three forms of a file; what jobs print comes whole, each stream on its own.
func TestPrivateForms(t *testing.T) {
	t.Parallel()
	p := newPrivate(t)
	for _, c := range []struct {
		name, stdin, out string
		args             []string
	}{
		{"lines", "echo a; echo b >&2\n\n  echo 'c d'\n", "a\nc d\n", []string{"--lines", "-"}},
		{"arguments in place of {}", "x y\nz'\"$HOME\n", "<x y>\n<z'\"$HOME>\n", []string{"--arg-file", "-", "--", "echo", "<{}>"}},
		{"arguments at the end", "1\n2\n", "n 1\nn 2\n", []string{"--arg-file", "-", "--", "echo", "n"}},
		{"an array", `[{"command":"echo 1"}, {"argv":["echo","2"]}]`, "1\n2\n", []string{"--file", "-"}},
		{"flags for all", `{"command":"echo $A$B","env":{"B":"2"}}`, "12\n", []string{"--file", "-", "--env", "A=1"}},
		{"no file end", "echo last", "last\n", []string{"--lines", "-"}},
	} {
		r := p.run(c.stdin, append([]string{"--workers", "1", "--dir", filepath.Join(p.work, c.name)}, c.args...)...)
		if r.code != 0 || r.out != c.out {
			t.Errorf("%s: exit %d, %q, want %q\n%s", c.name, r.code, r.out, c.out, r.err)
		}
		if c.name == "lines" && !strings.Contains(r.err, "b\n") {
			t.Errorf("standard error was %q", r.err)
		}
	}
}

// A dead job makes the exit code 1, is named with its error, and runs again when
// that is asked for. Lines may be added; what was is not run again.
func TestPrivateDeadAndMore(t *testing.T) {
	t.Parallel()
	p := newPrivate(t)
	jobs := "echo ran >>effects\ntest -e ready || exit 3\n"
	args := []string{"--lines", "-", "--max-retries", "0"}
	r := p.run(jobs, args...)
	if r.code != 1 || !strings.Contains(r.err, "2 jobs: 1 completed, 1 dead") || !strings.Contains(r.err, "is dead: exit code 3: test -e ready") {
		t.Errorf("a dead job: %+v", r)
	}
	if r = p.run(jobs, args...); r.code != 1 {
		t.Errorf("once more: %+v", r)
	}
	if err := os.WriteFile(filepath.Join(p.work, "ready"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r = p.run(jobs+"echo more\necho most\n", append(args, "--retry-dead")...); r.code != 125 || !strings.Contains(r.err, "2 lines are new, from line 3 on; take them too with --add-new") {
		t.Errorf("with two lines more: %+v", r)
	}
	r = p.run(jobs+"echo more\n", append(args, "--add-new", "--retry-dead", "--json")...)
	var sum struct {
		Jobs map[string]int
	}
	if err := json.Unmarshal([]byte(r.out), &sum); err != nil || r.code != 0 || sum.Jobs["completed"] != 3 {
		t.Errorf("with --retry-dead and a line more: %+v, %v", r, err)
	}
	if _, lines := p.effects(); lines != 1 {
		t.Errorf("the job that was completed ran %d times", lines)
	}
	for name, c := range map[string]struct {
		stdin, want string
		args        []string
	}{
		"shortened":       {"echo ran >>effects\n", "line 3 is gone", args},
		"other flags":     {jobs + "echo more\n", "--env was not given, is {\"A\":\"b\"} now; --max-retries was 0, is 1 now; give the same ones", []string{"--lines", "-", "--max-retries", "1", "--env", "A=b"}},
		"other line":      {"echo run\n" + jobs[strings.Index(jobs, "\n")+1:] + "echo more\n", "line 1 was changed", args},
		"other and new":   {"echo run\n" + jobs[strings.Index(jobs, "\n")+1:] + "echo more\necho most\n", "line 1 was changed", append(args, "--add-new")},
		"other jobs":      {`{"command":"true"}`, "--lines was given, is not given now", []string{"--file", "-"}},
		"wrong line":      {"{\n", "line 1: ", []string{"--file", "-", "--dir", "fresh"}},
		"wrong field":     {`{"command":"x"}` + "\n" + `{"comand":"x"}`, "line 2: comand", []string{"--file", "-", "--dir", "fresh"}},
		"no jobs":         {"\n", "no jobs", []string{"--lines", "-", "--dir", "fresh"}},
		"no file":         {"", "needs many jobs", nil},
		"words":           {"", "needs many jobs", []string{"echo", "x"}},
		"a program wants": {"", "needs a program after --", []string{"--arg-file", "-"}},
		"workers":         {"", "--workers", []string{"--lines", "-", "--workers", "none"}},
		"socket":          {"", "--socket does not go with", []string{"--lines", "-", "--socket", "s"}},
		"detach":          {"", "--detach does not go with", []string{"--lines", "-", "-d"}},
	} {
		if r := p.run(c.stdin, c.args...); r.code != 125 || !strings.Contains(r.err, c.want) {
			t.Errorf("%s: %+v, want %q", name, r, c.want)
		}
	}
}
