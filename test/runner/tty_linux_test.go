package runner

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/testrig"
)

// waitTerminalAttached waits until the client has attached its terminal to the job. The client then turns off the
// flag ISIG of its terminal, which waitTerminalAttached checks.
func waitTerminalAttached(s *testrig.TerminalSession) {
	s.Queue.Helper()
	s.Queue.WaitUntil("the terminal is joined", 20*time.Second, func() bool {
		now, err := unix.IoctlGetTermios(int(s.Tty.Fd()), unix.TCGETS)
		return err == nil && now.Lflag&unix.ISIG == 0
	})
}

// callAttach calls the API method "attach", which types into a job's terminal. errorCode contains the code and the
// field of the error, or is "" if the call succeeded.
func callAttach(conn *testrig.ServiceConn, params testrig.JSONFields) (reply struct{ Attempt, Taken int },
	errorCode string) {
	conn.Helper()
	a := conn.Call("attach", params)
	if a.Error != nil {
		return reply, a.Error.Data.Code + " " + a.Error.Data.Field
	}
	if err := json.Unmarshal(a.Result, &reply); err != nil {
		conn.Fatal(err)
	}
	return reply, ""
}

// waitForJobOutput waits until the output of a job contains text.
func waitForJobOutput(conn *testrig.ServiceConn, id, text string) {
	conn.Helper()
	conn.WaitUntil(fmt.Sprintf("job %s shows %q", id, text), 20*time.Second, func() bool {
		return strings.Contains(conn.ShowJob(id).Output, text)
	})
}

// A job can request a terminal. It then has this terminal as stdin, stdout, stderr and /dev/tty. The terminal
// has the type and size of the user's terminal. The output is stored as one stream.
func TestJobGetsRequestedTerminal(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	s := q.StartOnTerminal(31, 97, "run", "--tty", "--id", "t",
		`test -t 0 && test -t 1 && test -t 2 && stty size </dev/tty; echo $TERM; echo err >&2; read x; stty size; echo "got $x"; exit 3`)
	s.WaitForText("xterm\r\nerr\r\n")
	waitTerminalAttached(s)
	s.TypeText("some\x7f\x7fthing\r")
	s.WaitForText("31 97\r\ngot sothing")
	s.WaitExit(3)
}

// A client without a terminal can also run a job with a terminal. If the request names no terminal type, the
// job gets a common type.
func TestTTYJobRunsWithoutClientTerminal(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	r := q.RunCLIWithInput("not read", "run", "--tty", "--env", "TERM=vt100",
		"stty size; echo $TERM; echo err >&2; exit 4")
	if r.ExitCode != 4 || r.Stdout != "24 80\r\nvt100\r\nerr\r\n" || r.Stderr != "" {
		t.Errorf("run --tty without a terminal: got %+v", r)
	}
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": "echo $TERM; tty", "tty": true})
	if j := w.WaitJobEnded(id); !strings.HasPrefix(j.Output, "xterm-256color\r\n/dev/pts/") || j.Stderr != "" {
		t.Errorf("a job with a terminal and no terminal type: %+v", j)
	}
	if got := q.RunCLIOnTerminal("logs", id).Stdout; testrig.FindFirstControlCharacter(strings.ReplaceAll(got, "\r\n",
		"")) != "" {
		t.Errorf("logs shows %q", got)
	}
}

// A job with a terminal cannot have another input. The API method "attach" accepts only jobs that are running
// and have a terminal.
func TestInvalidTerminalRequestsAreRefused(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	for _, input := range []string{"stdin", "stdin_file"} {
		a := w.Call("enqueue", testrig.JSONFields{"command": "cat", "tty": true, input: "/in"})
		if a.Error == nil || a.Error.Data.Code != "invalid" || a.Error.Data.Field != "tty" ||
			!strings.Contains(a.Error.Message, input) {
			t.Errorf("with %s: got %+v", input, a.Error)
		}
		if r := q.RunCLI("run", "--tty", "--"+strings.ReplaceAll(input, "_", "-"), "/in", "cat"); r.ExitCode != 125 ||
			!strings.Contains(r.Stderr, "--tty") || !strings.Contains(r.Stderr, strings.ReplaceAll(input, "_", "-")) {
			t.Errorf("with %s: got %+v", input, r)
		}
	}
	fed := w.Enqueue(testrig.JSONFields{"command": "cat", "stdin": "x", "delay": "1h"})
	if r := q.RunCLI("edit", fed, "--tty"); r.ExitCode != 2 && r.ExitCode != 5 ||
		!strings.Contains(r.Stderr, "--tty: cannot be combined with --stdin") {
		t.Errorf("edit: got %+v", r)
	}
	plain := w.Enqueue(testrig.JSONFields{"command": "echo up; sleep 600"})
	w.WaitJobRunning(plain)
	delayedJob := w.Enqueue(testrig.JSONFields{"command": "sh", "tty": true, "delay": "1h"})
	endedJob := w.Enqueue(testrig.JSONFields{"command": "true", "tty": true})
	w.WaitJobEnded(endedJob)
	runs := w.Enqueue(testrig.JSONFields{"command": "echo up; sleep 600", "tty": true})
	waitForJobOutput(w, runs, "up")
	for _, c := range []struct {
		params testrig.JSONFields
		want   string
	}{
		{testrig.JSONFields{"id": "none"}, "not_found "}, {testrig.JSONFields{}, "invalid id"},
		{testrig.JSONFields{"id": plain}, "wrong_state "}, {testrig.JSONFields{"id": plain, "text": "x"}, "wrong_state "},
		{testrig.JSONFields{"id": delayedJob}, "wrong_state "}, {testrig.JSONFields{"id": endedJob}, "wrong_state "},
		{testrig.JSONFields{"id": endedJob, "wait": true}, "wrong_state "},
		{testrig.JSONFields{"id": runs, "attempt": 2}, "wrong_state "},
		{testrig.JSONFields{"id": runs, "attempt": -1}, "invalid attempt"},
		{testrig.JSONFields{"id": runs, "rows": 5}, "invalid rows"},
		{testrig.JSONFields{"id": runs, "rows": 5, "cols": 1 << 16}, "invalid cols"},
		{testrig.JSONFields{"id": runs, "rows": -1, "cols": 1}, "invalid rows"},
		{testrig.JSONFields{"id": runs, "rows": 1<<16 - 1, "cols": 1}, ""},
		{testrig.JSONFields{"id": runs, "text": "x", "base64": "eA=="}, "invalid text"},
		{testrig.JSONFields{"id": runs, "base64": "!"}, "invalid base64"},
		{testrig.JSONFields{"id": runs, "text": strings.Repeat("x", 64<<10+1)}, "invalid text"},
		{testrig.JSONFields{"id": runs, "text": strings.Repeat("x", 64<<10)}, ""},
		{testrig.JSONFields{"id": runs, "keys": "x"}, "invalid keys"},
	} {
		if _, got := callAttach(w, c.params); got != c.want {
			t.Errorf("%.80v: got %q, want %q", c.params, got, c.want)
		}
	}
}

// The job gets Ctrl-C, Ctrl-Z, Ctrl-D and changes of the terminal's size. The keys Enter ~ . detach and leave
// the job running, even if they are the first keys that the user types. The keys ~~ type a tilde.
func TestTerminalKeysReachJobOrDetach(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	s := q.StartOnTerminal(24, 80, "run", "--tty", "--id", "t",
		`trap 'echo INT' INT; trap 'stty size' WINCH; stty -echo; echo up; while :; do read x; [ "$x" = end ] && exit 5; echo "got $x"; done`)
	waitTerminalAttached(s)
	s.WaitForText("up")
	s.TypeText("\x03\r")
	s.WaitForText("INT")
	s.Resize(t, 40, 132)
	s.TypeText("\r")
	s.WaitForText("40 132")
	s.TypeText("a~.b\r~~c\r~d\r")
	s.WaitForText("got a~.b\r\ngot ~c\r\ngot ~d\r\n")
	s.TypeText("~?")
	s.WaitForText("~. to detach (the job continues)")
	s.TypeText("\r~") // the client may read "~" and "." together or separately
	s.TypeText(".")
	if text := s.WaitExit(130); !strings.Contains(text, "queuectl attach t") {
		t.Errorf("the client printed %q", text)
	}
	if j := w.ShowJob("t"); j.State != "processing" {
		t.Errorf("the job is %s", j.State)
	}
	s = q.StartOnTerminal(24, 80, "attach", "t")
	waitTerminalAttached(s)
	s.TypeText("~.")
	s.WaitExit(130)
	s = q.StartOnTerminal(24, 80, "attach", "t")
	waitTerminalAttached(s)
	s.TypeText("end\r")
	s.WaitExit(5)
}

// A job that reads its terminal waits until a client types something. Any connection may type.
func TestTerminalReadWaitsForTypedInput(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": "echo up; read x; echo got $x", "tty": true})
	waitForJobOutput(w, id, "up")
	if j := w.ShowJob(id); j.State != "processing" {
		t.Fatalf("the job that reads its terminal: %+v", j)
	}
	typed := "an\xffswer\r" // not UTF-8
	if got, code := callAttach(w,
		testrig.JSONFields{"id": id, "base64": base64.StdEncoding.EncodeToString([]byte(typed))}); code != "" ||
		got.Attempt != 1 || got.Taken != len(typed) {
		t.Errorf("attach returned %+v, error %q", got, code)
	}
	if j := w.WaitJobEnded(id); j.State != "completed" || !strings.Contains(j.Output, "got an") {
		t.Errorf("the job after it has read its input: %+v", j)
	}
}

// Several clients can attach to a job and type. Each sees the output. The newest client sets the terminal's size.
func TestSeveralClientsAttachToOneJob(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	first := q.StartOnTerminal(24, 80, "run", "--tty", "--id", "t",
		`echo up; while read x; do stty size; echo "got $x"; done`)
	waitTerminalAttached(first)
	first.WaitForText("up")
	second := q.StartOnTerminal(50, 160, "attach", "t")
	waitTerminalAttached(second)
	// When a client attaches, it sets the terminal's size only after it has drawn its screen. So wait until the size is
	// that of the newest client.
	q.WaitUntil("the newest has set the size", 20*time.Second, func() bool {
		first.TypeText("one\r")
		return strings.Contains(first.Output.String(), "50 160\r\ngot one")
	})
	second.WaitForText("50 160\r\ngot one")
	first.Resize(t, 10, 33)
	q.WaitUntil("the job gets the new size", 20*time.Second, func() bool {
		second.TypeText("two\r")
		return strings.Contains(first.Output.String(), "10 33\r\ngot two")
	})
	second.WaitForText("got two")
	first.TypeText("\x04")
	first.WaitExit(0)
	second.WaitExit(0)
}

// If a job never reads its terminal, the service accepts only a bounded number of typed bytes. Other jobs still
// run, and the client that typed can detach.
func TestUnreadTerminalInputIsBounded(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	s := q.StartOnTerminal(24, 80, "run", "--tty", "--id", "t", `stty raw -echo; echo up; exec sleep 600`)
	waitTerminalAttached(s)
	s.WaitForText("up")
	accepted := 0
	for quiet := time.Now(); time.Since(quiet) < 300*time.Millisecond; {
		got, code := callAttach(w, testrig.JSONFields{"id": "t", "text": strings.Repeat("x", 16<<10)})
		if code != "" {
			t.Fatal(code)
		}
		if accepted += got.Taken; got.Taken > 0 {
			quiet = time.Now()
		}
	}
	if accepted < 64<<10 || accepted > 256<<10 {
		t.Errorf("%d bytes were taken", accepted)
	}
	s.TypeText(strings.Repeat("y", 3000) + "\r")
	if out := q.MustRunCLI("run", "echo other"); out != "other" {
		t.Errorf("another job printed %q", out)
	}
	s.TypeText("~.")
	s.WaitExit(130)
	q.MustRunCLI("cancel", "t")
}

// A job gets all bytes of a paste, even if it reads slowly.
func TestJobGetsAllPastedBytes(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	s := q.StartOnTerminal(24, 80, "run", "--tty", "--id", "t",
		`stty raw -echo; echo up; sleep 1; head -c 300000 | md5sum; stty sane`)
	waitTerminalAttached(s)
	s.WaitForText("up")
	line := strings.Repeat("0123456789", 9) + "abcdefghi\r" // 100 bytes
	// This goroutine ends before the test does, because the job reads everything.
	go io.WriteString(s.Master, strings.Repeat(line, 3000))
	want := testrig.RunCommand(t, exec.Command("sh", "-c",
		fmt.Sprintf(`yes '%s' | head -n 3000 | tr '\n' '\r' | md5sum`, strings.TrimSuffix(line, "\r"))))
	s.WaitForText(strings.TrimSpace(want.Stdout))
	s.WaitExit(0)
}

// If the service dies, a job with a terminal keeps running, and the client prints how to attach again. Clients
// can attach to the job's terminal through the next service.
func TestJobTerminalOutlivesService(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1", "--keep-jobs")
	s := q.StartOnTerminal(24, 80, "run", "--tty", "--id", "t",
		`stty -echo; echo up; printf '\033[?1049h\033[?25l'; while read x; do echo "got $x"; done; exit 6`)
	waitTerminalAttached(s)
	s.WaitForText("\x1b[?25l")
	pid := q.ShowJob("t").PID
	q.KillService()
	if text := s.WaitExit(125); !strings.Contains(text, "queuectl attach t") ||
		!strings.HasSuffix(strings.SplitAfter(text, "\x1b[?1049l")[0], "\x1b[?25h\x1b[?1049l") &&
			!strings.Contains(text, "\x1b[?1049l\x1b[?25h") {
		t.Errorf("the client printed %q", text)
	}
	q.StartService("--workers", "1", "--keep-jobs")
	s = q.StartOnTerminal(24, 80, "attach", "t")
	waitTerminalAttached(s)
	s.TypeText("again\r")
	s.WaitForText("got again")
	if text := s.Output.String(); !strings.Contains(text, "\x1b[?1049h") || strings.Contains(text, "up") {
		t.Errorf("the client shows %q", text)
	}
	if now := q.ShowJob("t").PID; now != pid {
		t.Errorf("the pid changed from %d to %d", pid, now)
	}
	s.TypeText("\x04")
	s.WaitExit(6)
}

// Each attempt gets a new terminal, and the client attaches to it when the attempt starts. Between attempts, the
// client's terminal is in its normal mode, so that Ctrl-C ends the client.
func TestEachAttemptGetsNewTerminal(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "1")
	s := q.StartOnTerminal(24, 80, "run", "--tty", "--id", "t", "--max-retries", "2", "--backoff-base", "0.3",
		"--backoff-strategy", "linear", `echo "up $QUEUECTL_ATTEMPT"; read x; echo "got $x"; exit 1`)
	for n := 1; n <= 2; n++ {
		s.WaitForText(fmt.Sprintf("up %d", n))
		waitTerminalAttached(s)
		s.TypeText(fmt.Sprintf("x%d\r", n))
		s.WaitForText(fmt.Sprintf("got x%d\r\nqueuectl: attempt %d failed", n, n))
	}
	s.WaitForText("up 3")
	waitTerminalAttached(s)
	s.TypeText("\x03")
	s.WaitExit(130)
	if j := q.ShowJob("t"); j.State != "dead" || testrig.ValueOrMinusOne(j.Signal) != 2 {
		t.Errorf("the job after Ctrl-C: %+v", j)
	}
	s = q.StartOnTerminal(24, 80, "run", "--tty", "--id", "w", "--delay", "1h", "true")
	s.WaitForText("job w is waiting: not due yet")
	s.TypeText("\x03")
	s.WaitForText("queuectl attach w")
	s.WaitExit(130)
}

// A job with a terminal ends like any other job, together with its foreground and background processes, even if its
// runner dies. A background process with the permission to outlive its job continues after the job, unless the process
// uses the terminal.
func TestTerminalJobsProcessTreesEnd(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	pidsOf := func(id string) (pids []int) {
		for _, marker := range strings.Fields(w.ShowJob(id).Output) {
			if n, isPid := strings.CutPrefix(marker, "pid="); isPid {
				var pid int
				fmt.Sscan(n, &pid)
				pids = append(pids, pid)
			}
		}
		return pids
	}
	tree := `sleep 600 & echo pid=$!; setsid sleep 600 & echo pid=$!; echo up; exec bash --norc -i`
	checkGone := func(what string, pids []int) {
		t.Helper()
		if len(pids) != 2 {
			t.Fatalf("%s: %v", what, pids)
		}
		q.WaitUntil(what+": its process tree has ended", 10*time.Second, func() bool {
			return !slices.ContainsFunc(pids, testrig.IsProcessAlive)
		})
	}
	id := w.Enqueue(testrig.JSONFields{"command": tree, "tty": true, "kill_after": "20s"})
	waitForJobOutput(w, id, "up")
	pids := pidsOf(id)
	started := time.Now()
	q.MustRunCLI("cancel", id)
	if elapsed := time.Since(started); elapsed > 10*time.Second {
		t.Errorf("a shell took %v to end", elapsed)
	}
	checkGone("cancelled", pids)

	id = w.Enqueue(testrig.JSONFields{"command": tree, "tty": true, "max_retries": 0, "on_lost": "dead"})
	waitForJobOutput(w, id, "up")
	pids = pidsOf(id)
	q.KillRunners()
	if j := w.WaitJobEnded(id); j.Reason != "lost" {
		t.Errorf("the job of the killed runner: %+v", j)
	}
	checkGone("lost", pids)

	// When the terminal closes, the processes of its session get SIGHUP. The shell command in leaveBehind starts a
	// process in another session, which SIGHUP does not reach.
	leaveBehind := `setsid sleep 600 & until [ $(ps -o sid= -p $!) = $! ]; do sleep 0.01; done; echo pid=$!`
	id = w.Enqueue(testrig.JSONFields{"command": leaveBehind, "tty": true})
	if j := w.WaitJobEnded(id); j.AttemptHistory[0].LeftoverProcessCount != 1 {
		t.Errorf("a job that leaves a background process: %+v", j)
	}
	id = w.Enqueue(testrig.JSONFields{"command": leaveBehind, "tty": true, "allow_background": true})
	if j := w.WaitJobEnded(id); j.AttemptHistory[0].LeftoverProcessCount != 0 || !testrig.IsProcessAlive(pidsOf(id)[0]) {
		t.Errorf("a job with allow_background that leaves a background process: %+v", j)
	}
	testrig.KillProcess(pidsOf(id)[0])
}

// Only the owner of a job and admins may type into the terminal of the job. The service stores one
// audit event for each client process that types. No event contains the typed text.
func TestOnlyOwnersAndAdminsTypeIntoTerminals(t *testing.T) {
	q := testrig.StartSharedQueue(t, testrig.AllPersonsAccessSettings, "--workers", "4")
	id := q.MustRunAs(testrig.Alice, "enqueue", "--tty", "--cwd", "/",
		`printf 'up\033]0;title\007'; while read x; do echo "got $x"; done`)
	q.WaitUntil("the job runs", 20*time.Second, func() bool { return strings.Contains(q.MustRunCLI("logs", id), "up") })
	for _, p := range testrig.AllPersons {
		w := q.DialAs(p)
		_, code := callAttach(w, testrig.JSONFields{"id": id, "text": "secret" + p.Name + "\r"})
		if may := p.Name == testrig.Alice.Name || p.HasRight("admin"); may != (code == "") || !may && code != "denied " {
			t.Errorf("%s: got %q", p.Name, code)
		}
		if p.HasRight("submit") {
			callAttach(w, testrig.JSONFields{"id": id, "text": "secret\r"})
		}
	}
	var audited []string
	for line := range strings.Lines(q.MustRunCLI("events", "--audit", "--jsonl")) {
		var e struct {
			Event, Verb, Target string
			UID                 int
		}
		if json.Unmarshal([]byte(line), &e); e.Verb == "attach" {
			audited = append(audited, fmt.Sprintf("%d %s", e.UID, e.Target))
		}
		if strings.Contains(line, "secret") {
			t.Errorf("an event contains the typed text: %s", line)
		}
	}
	if want := []string{fmt.Sprintf("%d %s the terminal of attempt 1", testrig.Alice.Uid, id),
		fmt.Sprintf("%d %s the terminal of attempt 1", testrig.Admin.Uid, id)}; !slices.Equal(audited, want) {
		t.Errorf("audited %q, want %q", audited, want)
	}
	s := testrig.NewPseudoTerminal(t, 80)
	viewer := s.StartCommand(q, testrig.CommandAs(q.CLICommand("attach", id), testrig.Operator))
	viewer.WaitForText("view only")
	viewer.WaitForText("got secretalice")
	if found := testrig.FindFirstControlCharacter(strings.ReplaceAll(s.Output.String(), "\r", "")); found != "" {
		t.Errorf("the terminal of a viewer got the control sequence %q", found)
	}
	viewer.TypeText("\x03")
	viewer.WaitExit(130)
	q.MustRunCLI("cancel", id)
}

// If root's runner creates a terminal for a job, the terminal belongs to the account of the job. If an admin
// has changed that account, the job's owner cannot type into the terminal.
func TestRootRunnersTerminalBelongsToJobAccount(t *testing.T) {
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	id := q.MustRunAs(testrig.DaemonUser, "enqueue", "--tty", "--cwd", "/",
		`stat -Lc '%u %a' /dev/stdin; echo up >/dev/tty; read x; echo "got $x"`)
	w := q.DialAs(testrig.DaemonUser)
	q.WaitUntil("job is up", 20*time.Second, func() bool { return strings.Contains(q.MustRunCLI("logs", id), "up") })
	if _, code := callAttach(w, testrig.JSONFields{"id": id, "text": "mine\r"}); code != "" {
		t.Errorf("the owner: got %q", code)
	}
	q.MustRunAs(testrig.DaemonUser, "wait", id)
	if got, want := q.MustRunCLI("logs", "--raw", id),
		fmt.Sprintf("%d 600\r\nup\r\nmine\r\ngot mine", testrig.DaemonUser.Uid); got != want {
		t.Errorf("the job printed %q, want %q", got, want)
	}

	id = q.MustRunAs(testrig.DaemonUser, "enqueue", "--tty", "--cwd", "/", "--delay", "1h", "echo up; id -u; read x")
	q.MustRunCLI("edit", id, `{"user":"news"}`)
	q.MustRunCLI("edit", id, "--delay", "0s")
	q.WaitUntil("it waits", 20*time.Second, func() bool {
		return strings.HasSuffix(q.MustRunCLI("logs", "--raw", id), "up\r\n9")
	})
	if _, code := callAttach(w, testrig.JSONFields{"id": id, "text": "echo owned\r"}); code != "denied " {
		t.Errorf("attach by the owner of a job that runs as another user: got %q", code)
	}
	if _, code := callAttach(q.DialService(), testrig.JSONFields{"id": id, "text": "root\r"}); code != "" {
		t.Errorf("an admin: got %q", code)
	}
	q.MustRunAs(testrig.DaemonUser, "wait", id)
}

// The number of requests of one user that wait for a job's terminal is limited.
func TestWaitingTerminalRequestsPerUserAreLimited(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	id := q.DialService().Enqueue(testrig.JSONFields{"command": "true", "tty": true, "delay": "1h"})
	const each = 13 // 13 requests on each of five connections are 65, one more than the limit of 64
	answers := make(chan testrig.ServiceMessage, 5)
	for range cap(answers) {
		w := q.DialService()
		defer w.Close()
		for i := range each {
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%d,"method":"attach","params":{"id":%q,"wait":true}}`+"\n", i+1, id)
		}
		go func() { // this goroutine ends when the connection is closed
			if a, err := w.ReadMessage(); err == nil {
				answers <- a
			}
		}()
	}
	select {
	case a := <-answers:
		if a.Error == nil || a.Error.Data.Code != "unavailable" || !strings.Contains(a.Error.Message, "64 open streams") {
			t.Errorf("the wait that exceeds the limit: %+v", a)
		}
	case <-time.After(20 * time.Second):
		t.Error("no wait was refused, want a limit of 64")
	}
}
