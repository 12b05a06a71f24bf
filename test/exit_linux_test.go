package test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Ctrl-C leaves the job running and says how to come back; a second one, or
// --cancel-on-exit, cancels it. All end with 130, and so does wait.
func TestInterrupted(t *testing.T) {
	q := serving(t, "--workers", "4")
	w := q.dial()
	const again = "press Ctrl-C again to cancel it"
	for i, c := range []struct {
		verb  string
		flags []string
		times int
		state string
		says  string
	}{
		{"run", nil, 1, "processing", "queuectl logs -f job0"}, {"run", nil, 2, "cancelled", "job job1 cancelled"},
		{"run", []string{"--cancel-on-exit"}, 1, "cancelled", "job job2 cancelled"}, {"wait", nil, 1, "processing", ""},
	} {
		f := w.follow(fmt.Sprint("job", i), c.verb, c.flags...)
		f.Process.Signal(os.Interrupt)
		if c.times > 1 {
			w.until("it asks for a second one", 20*time.Second, func() bool { return strings.Contains(f.said.String(), again) })
			f.Process.Signal(os.Interrupt)
		}
		if said := f.ends(t, 130); !strings.Contains(said, c.says) {
			t.Errorf("%s %v says %q, want %q", c.verb, c.flags, said, c.says)
		}
		if j := w.show(fmt.Sprint("job", i)); j.State != c.state {
			t.Errorf("after %s %v the job is %s, want %s", c.verb, c.flags, j.State, c.state)
		}
	}
	q.must("cancel", "job0", "job3")
}

// Each way in which a job ends has its exit code, from run as from wait, before the
// end as after it. What is wrong in the words is 125: test/script/run.txtar has it.
func TestExitCodeOfEachEnd(t *testing.T) {
	q := serving(t, "--workers", "8")
	script := q.write("not-executable", "#!/bin/sh\n")
	for _, c := range []struct {
		args   string
		code   int
		reason string // of the job
		says   string // on stderr of run, beside what the job says
	}{
		{"true", 0, "", ""},
		{"--ok-code=3 -- sh -c 'exit 3'", 0, "", ""},
		{"--max-retries=2 --backoff-base=0.02 -- sh -c 'exit $((2-QUEUECTL_ATTEMPT))'", 0, "", ""}, // 1, then 0
		{"exit 1", 1, "", ""}, {"exit 2", 2, "", ""}, {"exit 3", 3, "", ""}, {"exit 4", 4, "", ""}, {"exit 5", 5, "", ""}, // not ours
		{"exit 123", 123, "", ""}, {"exit 124", 124, "", ""}, {"exit 125", 125, "", ""}, {"exit 128", 128, "", ""}, {"exit 130", 130, "", ""}, {"exit 255", 255, "", ""},
		{"--max-retries=3 --no-retry-code=9 -- sh -c 'exit 9'", 9, "", ""},
		{"--max-retries=1 --backoff-base=0.02 -- sh -c 'exit $((2+QUEUECTL_ATTEMPT))'", 4, "", ""}, // of the last attempt
		{"--timeout=0.1 -- sleep 60", 124, "timed_out", "timed out after 100ms"},
		{"--timeout=0.1 -- sh -c 'trap \"exit 0\" TERM; sleep 60 & wait'", 124, "timed_out", "timed out"},
		{"--timeout=0.1 --kill-after=0.1 -- sh -c 'trap \"\" TERM; sleep 60 & wait'", 124, "timed_out", "timed out"},
		{"--idle-timeout=0.1 -- sleep 60", 124, "timed_out", "printed nothing"},
		{"--delay=1h --expires-at=+0.1s -- true", 125, "expired", "expired"},
		{"-- " + script, 126, "not_runnable", "permission denied"}, {"--cwd=/no/such/folder -- true", 126, "not_runnable", "/no/such/folder"}, {"exit 126", 126, "not_runnable", ""},
		{"-- no-such-program", 127, "not_found", "no-such-program"}, {"no-such-program", 127, "not_found", ""},
		{"kill -HUP $$", 129, "signal", "signal 1"}, {"kill -INT $$", 130, "signal", "signal 2"}, {"kill -KILL $$", 137, "signal", "signal 9"},
		{"kill -SEGV $$", 139, "signal", "signal 11"}, {"kill -TERM $$", 143, "signal", "signal 15"}, {"kill -64 $$", 192, "signal", "signal 64"},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			asRun, asWait := q.submitting("run", c.args), q.submitting("run -d", c.args)
			detached := ran(t, asWait)
			id := strings.TrimSpace(detached.out)
			if r := q.cli("wait", id); r.code != c.code || r.out+r.err != "" {
				t.Errorf("wait: %+v, want code %d", r, c.code)
			}
			if r := q.cli("wait", id, "--timeout", "0.01"); r.code != c.code {
				t.Errorf("wait after the end: %+v, want code %d", r, c.code)
			}
			if j := q.show(id); j.Reason != c.reason {
				t.Errorf("the job's reason is %q, want %q", j.Reason, c.reason)
			}
			if r := ran(t, asRun); r.code != c.code || !strings.Contains(r.err, c.says) || c.says == "" && c.reason == "" && r.err != "" {
				t.Errorf("run: %+v, want code %d, %q", r, c.code, c.says)
			}
		})
	}
}

// submitting is a verb that enqueues a job without retries, of words that a shell
// reads, or of one line if they hold no flag.
func (q *queue) submitting(verb, words string) *exec.Cmd {
	if !strings.HasPrefix(words, "-") {
		words = "'" + words + "'"
	}
	if !strings.Contains(words, "--max-retries") {
		verb += " --max-retries 0"
	}
	cmd := q.command()
	cmd.Env = append(cmd.Env, "PATH=/usr/bin:/bin") // one that anybody may search: else it is 126, not 127
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", strings.Join([]string{q.bin, "--dir", q.dir, verb, words}, " ")}
	return cmd
}
