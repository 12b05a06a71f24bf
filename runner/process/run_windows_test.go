package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/output"
)

// The test's own program is every command; its first argument says what it does.
const roleName = "QUEUECTL_TEST_ROLE"

var roles map[string]func(args []string)

func TestMain(m *testing.M) {
	roles = map[string]func([]string){
		"exit":   roleExit,
		"args":   func(args []string) { json.NewEncoder(os.Stdout).Encode(args) },
		"env":    func([]string) { json.NewEncoder(os.Stdout).Encode(os.Environ()) },
		"print":  rolePrint,
		"gaps":   roleGaps,
		"cat":    func([]string) { io.Copy(os.Stdout, os.Stdin) },
		"sleep":  func([]string) { sleep() },
		"tree":   roleTree,
		"behind": roleBehind,
		"spin":   roleSpin,
		"hog":    roleHog,
		"break":  roleBreak,
		"run":    roleRun,
		"boot":   roleBoot,
	}
	if os.Getenv(roleName) != "" {
		roles[os.Args[1]](os.Args[2:])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func sleep() { time.Sleep(time.Minute) } // no test waits so long

func roleExit(args []string) {
	code, _ := strconv.ParseUint(args[0], 10, 32)
	windows.ExitProcess(uint32(code))
}

// everyByte is what a program prints that is no text.
func everyByte() (all []byte) {
	for i := range 1 << 18 {
		all = append(all, byte(i))
	}
	return append(all, "\r\n\n\x1a\x00end"...)
}

func rolePrint([]string) {
	os.Stdout.Write(everyByte())
	os.Stderr.WriteString("err\r\n")
}

// roleGaps writes nothing now and then, which a pipe takes note of.
func roleGaps([]string) {
	for i := range 3 {
		var n uint32
		windows.WriteFile(windows.Stdout, []byte{}, &n, nil)
		fmt.Print(i)
	}
}

// note leaves the number of this process in a folder.
func note(dir string) { os.WriteFile(filepath.Join(dir, strconv.Itoa(os.Getpid())), nil, 0o600) }

// roleTree starts a tree so deep, whose last process holds nothing up.
func roleTree(args []string) {
	if depth, _ := strconv.Atoi(args[1]); depth > 1 {
		c := exec.Command(os.Args[0], "tree", args[0], strconv.Itoa(depth-1))
		if err := c.Start(); err != nil {
			panic(err)
		}
	}
	note(args[0])
	sleep()
}

// roleBehind leaves a process behind, which has the output if it is to hold it, and ends
// when that one runs.
func roleBehind(args []string) {
	c := exec.Command(os.Args[0], "tree", args[0], "1")
	if args[1] == "holds" {
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
	}
	if err := c.Start(); err != nil {
		panic(err)
	}
	for len(noted(args[0])) == 0 {
		time.Sleep(time.Millisecond)
	}
	fmt.Print("left")
}

func roleSpin(args []string) {
	d, _ := time.ParseDuration(args[0])
	for began := time.Now(); time.Since(began) < d; {
	}
}

// roleHog takes memory, and fails when it gets none.
func roleHog(args []string) {
	n, _ := strconv.Atoi(args[0])
	for range n {
		if _, err := windows.VirtualAlloc(0, 1<<20, windows.MEM_COMMIT|windows.MEM_RESERVE, windows.PAGE_READWRITE); err != nil {
			fmt.Print(err)
			os.Exit(3)
		}
	}
}

func roleBreak([]string) {
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, os.Interrupt)
	fmt.Print("ready")
	<-heard
	os.Exit(7)
}

// roleRun runs a tree, as a runner does.
func roleRun(args []string) {
	w := NewWorker(nil)
	c := command(nil, "tree", args[0], "3")
	c.Cookie = args[1]
	w.Run(c)
}

func roleBoot([]string) {
	id, err := BootID()
	fmt.Print(id, " ", err, " ", SelfTicks() > 0)
}

var cookies = 0

// command is this program in a role. t may be nil.
func command(t *testing.T, role string, args ...string) *Command {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cookies++
	c := &Command{
		Argv: append([]string{self, role}, args...), Env: append(os.Environ(), roleName+"=1"),
		OutputGrace: 100 * time.Millisecond, KillAfter: 50 * time.Millisecond, Patience: 20 * time.Second,
		Cookie: fmt.Sprintf("test.%d.%d", os.Getpid(), cookies), Log: output.New(4<<20, nil),
		Started: func(int, time.Time) {}, Forked: func(int, time.Time) {},
	}
	if t != nil {
		c.Log = output.New(4<<20, func() (*os.File, error) { return os.CreateTemp("", "output") })
		t.Cleanup(c.Log.Discard)
	}
	return c
}

// do runs a command with a worker of its own, and says what it printed.
func do(t *testing.T, c *Command) (r Result, stdout, stderr string) {
	t.Helper()
	w := NewWorker(nil)
	defer w.Close()
	return doWith(t, w, c)
}

func doWith(t *testing.T, w *Worker, c *Command) (r Result, stdout, stderr string) {
	t.Helper()
	done := make(chan Result)
	go func() { done <- w.Run(c) }()
	select {
	case r = <-done:
	case <-time.After(45 * time.Second):
		t.Fatalf("%q does not end", c.Argv)
	}
	stdout, stderr = printed(t, c)
	return r, stdout, stderr
}

func printed(t *testing.T, c *Command) (stdout, stderr string) {
	t.Helper()
	var at output.Cursor
	for {
		chunks, next, done, err := c.Log.Read(at, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range chunks {
			if k.Stream == 0 {
				stdout += string(k.Data)
			} else {
				stderr += string(k.Data)
			}
		}
		if at = next; done || len(chunks) == 0 {
			return stdout, stderr
		}
	}
}

// noted are the processes that have left their numbers in a folder.
func noted(dir string) (pids []uint32) {
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		pid, _ := strconv.ParseUint(f.Name(), 10, 32)
		pids = append(pids, uint32(pid))
	}
	return pids
}

// watchTree waits until so many processes have left their numbers, and opens them: what
// is open keeps its number.
func watchTree(t *testing.T, dir string, count int) (processes []windows.Handle) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); len(noted(dir)) < count; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d processes of %d", len(noted(dir)), count)
		}
	}
	for _, pid := range noted(dir) {
		h, err := windows.OpenProcess(windows.SYNCHRONIZE|windows.PROCESS_TERMINATE|windows.PROCESS_QUERY_LIMITED_INFORMATION, false, pid)
		if err != nil {
			t.Fatalf("open process %d: %v", pid, err)
		}
		t.Cleanup(func() {
			windows.TerminateProcess(h, 1)
			windows.CloseHandle(h)
		})
		processes = append(processes, h)
	}
	return processes
}

func living(processes []windows.Handle, wait time.Duration) (n int) {
	for _, h := range processes {
		if event, _ := windows.WaitForSingleObject(h, uint32(wait.Milliseconds())); event != windows.WAIT_OBJECT_0 {
			n++
		}
	}
	return n
}

func notUnderWine(t *testing.T) {
	t.Helper()
	if windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil {
		t.Skip("needs a real Windows")
	}
}

// An exit code is the 32-bit number that the program gave.
func TestExitCodesAreWhole(t *testing.T) {
	w := NewWorker(nil)
	defer w.Close()
	for _, code := range []int64{0, 1, 255, 256, 259, 3221225786, 4294967295} {
		r, _, _ := doWith(t, w, command(t, "exit", strconv.FormatInt(code, 10)))
		if r.ExitCode != code || r.Signal != 0 || r.Error != "" || r.Leftovers != 0 {
			t.Errorf("exit %d: %+v", code, r)
		}
	}
}

// Output is kept byte by byte.
func TestOutputIsBytes(t *testing.T) {
	_, stdout, stderr := do(t, command(t, "print"))
	if stdout != string(everyByte()) || stderr != "err\r\n" {
		t.Errorf("got %d bytes and %q", len(stdout), stderr)
	}
	if _, stdout, _ = do(t, command(t, "gaps")); stdout != "012" {
		t.Errorf("with empty writes between: %q", stdout)
	}
}

// A pipe that was written nothing to is open; one whose writers are gone is not.
func TestPipeKnowsItsEnd(t *testing.T) {
	ours, theirs, err := pipe(windows.PIPE_ACCESS_INBOUND)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	if !connected(ours) {
		t.Error("not open")
	}
	if windows.CloseHandle(theirs); connected(ours) {
		t.Error("still open")
	}
}

// A pipe can be opened once, by its name, which nobody can guess, and not by others.
func TestPipeIsPrivate(t *testing.T) {
	ours, theirs, err := pipe(windows.PIPE_ACCESS_OUTBOUND)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	defer windows.CloseHandle(theirs)
	if h, err := openInherited(ours.Name(), windows.GENERIC_READ, 0); err == nil {
		windows.CloseHandle(h)
		t.Error("opened twice")
	}
	sd, err := windows.GetSecurityInfo(theirs, windows.SE_KERNEL_OBJECT, windows.DACL_SECURITY_INFORMATION)
	user, err2 := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil || err2 != nil || strings.Count(sd.String(), "(") != 1 || !strings.Contains(sd.String(), user.User.Sid.String()) {
		t.Errorf("%v, %v, %v", sd, err, err2)
	}
}

// A timeout ends the whole tree.
func TestTimeoutEndsTheTree(t *testing.T) {
	dir := t.TempDir()
	c := command(t, "tree", dir, "3")
	c.Timeout = 10 * time.Millisecond // and looked at after Started
	var processes []windows.Handle
	c.Started = func(int, time.Time) { processes = watchTree(t, dir, 3) }
	r, _, _ := do(t, c)
	if !r.TimedOut || r.ExitCode != 1 || r.StuckPID != 0 {
		t.Errorf("%+v", r)
	}
	if n := living(processes, 0); n != 0 || len(processes) != 3 {
		t.Errorf("%d of %d live", n, len(processes))
	}
}

// What prints nothing for too long is ended; what prints is not.
func TestSilenceIsEnded(t *testing.T) {
	c := command(t, "sleep")
	c.IdleTimeout = time.Second
	if r, _, _ := do(t, c); !r.TimedOut || !r.Silent {
		t.Errorf("%+v", r)
	}
}

// A kill ends the tree and gives its cause; one that comes after the end does not.
func TestKill(t *testing.T) {
	w := NewWorker(nil)
	defer w.Close()
	if w.Kill(1, 0) {
		t.Error("killed what does not run")
	}
	dir := t.TempDir()
	c := command(t, "tree", dir, "2")
	var processes []windows.Handle
	c.Started = func(int, time.Time) {
		processes = watchTree(t, dir, 2)
		if !w.Kill(5, time.Hour) || !w.Kill(6, time.Millisecond) {
			t.Error("not killed")
		}
	}
	r, _, _ := doWith(t, w, c)
	if r.Cause != 5 || r.ExitCode != 1 || r.TimedOut || living(processes, 0) != 0 {
		t.Errorf("%+v, %d live", r, living(processes, 0))
	}
	if w.Kill(1, 0) {
		t.Error("killed what has ended")
	}
	if r, _, _ = doWith(t, w, command(t, "exit", "3")); r.Cause != 0 || r.ExitCode != 3 {
		t.Errorf("the next one: %+v", r)
	}
}

// What is left behind ends with the command, whether it holds the output or not.
func TestLeftoversAreEnded(t *testing.T) {
	for _, how := range []string{"holds", "lets go"} {
		dir := t.TempDir()
		c := command(t, "behind", dir, how)
		var processes []windows.Handle
		c.Started = func(int, time.Time) { processes = watchTree(t, dir, 1) }
		r, stdout, _ := do(t, c)
		if r.ExitCode != 0 || r.Leftovers != 1 || r.Spared || stdout != "left" {
			t.Errorf("%s: %+v, %q", how, r, stdout)
		}
		if living(processes, 0) != 0 {
			t.Errorf("%s: it lives", how)
		}
	}
}

// What may live on does, when the command has ended and when its worker has.
func TestBackgroundLivesOn(t *testing.T) {
	for _, how := range []string{"holds", "lets go"} {
		dir := t.TempDir()
		c := command(t, "behind", dir, how)
		c.Background = true
		r, stdout, _ := do(t, c)
		processes := watchTree(t, dir, 1)
		if !r.Spared || r.Leftovers != 0 || r.ExitCode != 0 || stdout != "left" {
			t.Errorf("%s: %+v, %q", how, r, stdout)
		}
		if living(processes, 300*time.Millisecond) != 1 {
			t.Errorf("%s: it was ended", how)
		}
	}
}

// Text is read to its end, and a command that reads none of it holds nobody up.
func TestStdinText(t *testing.T) {
	text := strings.Repeat("line\r\n\x1a\x00", 1<<17)
	c := command(t, "cat")
	c.Stdin = text
	if r, stdout, _ := do(t, c); stdout != text || r.ExitCode != 0 {
		t.Errorf("%d bytes of %d, %+v", len(stdout), len(text), r)
	}
	c = command(t, "exit", "0")
	c.Stdin = text
	if r, _, _ := do(t, c); r.ExitCode != 0 || r.Error != "" {
		t.Errorf("unread: %+v", r)
	}
	if r, stdout, _ := do(t, command(t, "cat")); stdout != "" || r.ExitCode != 0 {
		t.Errorf("none: %q, %+v", stdout, r)
	}
}

// Input may be a regular file, which others may change meanwhile, and nothing else.
func TestStdinFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in put")
	if err := os.WriteFile(path, []byte("from\x1a a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := command(t, "cat")
	c.StdinFile = path
	if r, stdout, _ := do(t, c); stdout != "from\x1a a file" || r.ExitCode != 0 {
		t.Errorf("%q, %+v", stdout, r)
	}
	for path, want := range map[string]string{
		filepath.Dir(path): "not a regular file", "NUL": "not a regular file", path + ".none": "stdin_file: open",
	} {
		c := command(t, "cat")
		c.StdinFile = path
		if r, _, _ := do(t, c); r.ExitCode != 126 || !strings.Contains(r.Error, want) || r.Shortage {
			t.Errorf("%s: %+v", path, r)
		}
	}
}

// A command that cannot be started gets the code that a shell would give.
func TestStartFails(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "text.exe")
	if err := os.WriteFile(file, []byte("no program"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change func(*Command)
		code   int64
		want   string
	}{
		{func(c *Command) { c.Argv[0] = "no-such-program" }, 127, "in PATH"},
		{func(c *Command) { c.Argv[0] = `C:\no\such` }, 127, "start"},
		{func(c *Command) { c.Argv[0] = file }, 126, "start"},
		{func(c *Command) { c.Argv[0] = dir }, 127, "start"},
		{func(c *Command) { c.Argv[0], c.Dir = "text", dir }, 127, "in PATH"},
		{func(c *Command) { c.Dir = filepath.Join(dir, "none") }, 126, "cwd: "},
		{func(c *Command) { c.Dir = file }, 126, "not a folder"},
		{func(c *Command) { c.Argv = append(c.Argv, "a\x00b") }, 126, "NUL"},
		{func(c *Command) { c.Env = append(c.Env, "a=\x00b") }, 126, "NUL"},
		{func(c *Command) { c.As = &Identity{} }, 126, "another account"},
	} {
		cmd := command(t, "exit", "0")
		c.change(cmd)
		if r, _, _ := do(t, cmd); r.ExitCode != c.code || !strings.Contains(r.Error, c.want) || r.Shortage || r.PID != 0 {
			t.Errorf("%q in %q: %+v; want %d and %q", cmd.Argv, cmd.Dir, r, c.code, c.want)
		}
	}
}

// Want of memory or handles is a shortage and not the command's fault, and so is a job
// object that somebody else has made in its name.
func TestShortage(t *testing.T) {
	for _, errno := range []syscall.Errno{windows.ERROR_COMMITMENT_LIMIT, windows.ERROR_TOO_MANY_OPEN_FILES, windows.ERROR_NO_SYSTEM_RESOURCES} {
		w := NewWorker(nil)
		defer w.Close()
		sys := kernel
		sys.setJob = func(windows.Handle, uint32, unsafe.Pointer, uintptr) error { return errno }
		w.sys = &sys
		if r, _, _ := doWith(t, w, command(t, "exit", "0")); !r.Shortage || r.ExitCode != -1 || r.PID != 0 {
			t.Errorf("%v: %+v", errno, r)
		}
	}
	c := command(t, "exit", "0")
	squatter, err := newTree(&kernel, c.Cookie, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer squatter.close()
	if r, _, _ := do(t, c); !r.Shortage || !strings.Contains(r.Error, "has its name") {
		t.Errorf("a stranger's job object: %+v", r)
	}
}

// Programs get their arguments as they were given.
func TestArgumentsReachTheProgram(t *testing.T) {
	want := []string{"", "a b", `"`, `\"`, `a\\b`, `c:\dir\`, `c:\a dir\`, "tab\tline\n", "%PATH%", "^&|<>!", "é😀", `"a" "b"`}
	_, stdout, _ := do(t, command(t, "args", want...))
	var got []string
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %s, %v", stdout, err)
	}
}

// cmd.exe reads its text by its own rules.
func TestCmdReadsItsText(t *testing.T) {
	self, _ := os.Executable()
	for text, want := range map[string]string{
		`echo "a & b" & echo c`:            "\"a & b\" \r\nc\r\n",
		`echo %QUEUECTL_X% ^& ^^`:          "a value & ^\r\n",
		`"` + self + `" args "x y" & echo`: "[\"x y\"]\n",
		`echo (a)>&2 & exit /b 5`:          "",
	} {
		c := command(t, "")
		c.Argv, c.Env = []string{"cmd.exe", "/C", text}, append(c.Env, "QUEUECTL_X=a value")
		r, stdout, stderr := do(t, c)
		if !strings.HasPrefix(stdout, want) || strings.Contains(text, "exit") && (r.ExitCode != 5 || !strings.HasPrefix(stderr, "(a)")) {
			t.Errorf("%s: %q, %q, %+v", text, stdout, stderr, r)
		}
	}
}

// A batch file gets its arguments; what it would not get as it is, is refused.
func TestBatchFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a dir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	self, _ := os.Executable()
	batch := "@\"" + self + "\" args %*\r\n@exit /b 6\r\n"
	if err := os.WriteFile(filepath.Join(dir, "echoes.bat"), []byte(batch), 0o700); err != nil {
		t.Fatal(err)
	}
	want := []string{"plain", "a b", "", "&echo", "a|b<c>d^e", "a,b;c=d", `c:\a dir\`, `c:\dir\`, "(x)"}
	for _, name := range []string{filepath.Join(dir, "echoes.bat"), filepath.Join(dir, "echoes"), `.\echoes.bat`, "echoes"} {
		c := command(t, "")
		c.Argv, c.Dir, c.Env = append([]string{name}, want...), dir, append(c.Env, "path="+dir)
		r, stdout, stderr := do(t, c)
		var got []string
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || !slices.Equal(got, want) || r.ExitCode != 6 {
			t.Errorf("%s: %s %s, %v, %+v", name, stdout, stderr, err, r)
		}
	}
	c := command(t, "")
	c.Argv = []string{filepath.Join(dir, "echoes.bat"), `"&calc`}
	if r, _, _ := do(t, c); r.ExitCode != 126 || !strings.Contains(r.Error, "cmd.exe") {
		t.Errorf("%+v", r)
	}
}

// The last variable of a name is the one, in whatever case; what Windows needs is there.
func TestEnvironment(t *testing.T) {
	c := command(t, "env")
	c.Env = []string{roleName + "=1", "a=1", "A=2", "b=", "=C:=C:\\x", "systemroot=" + os.Getenv("SystemRoot"), "zz=é"}
	_, stdout, _ := do(t, c)
	var got []string
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatalf("%q: %v", stdout, err)
	}
	values := map[string]string{}
	for _, e := range got {
		name, value, _ := strings.Cut(e, "=")
		if _, twice := values[strings.ToUpper(name)]; twice && name != "" {
			t.Errorf("%s is there twice", name)
		}
		values[strings.ToUpper(name)] = value
	}
	for name, want := range map[string]string{
		"A": "2", "B": "", "ZZ": "é", CookieName: c.Cookie, "SYSTEMROOT": os.Getenv("SystemRoot"), "TEMP": os.Getenv("TEMP"),
	} {
		if got, ok := values[name]; got != want || !ok {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

// A runner that is killed takes its trees along.
func TestTreesEndWithTheRunner(t *testing.T) {
	dir := t.TempDir()
	self, _ := os.Executable()
	cookie := fmt.Sprintf("dead.%d", os.Getpid())
	runner := exec.Command(self, "run", dir, cookie)
	runner.Env = append(os.Environ(), roleName+"=1")
	if err := runner.Start(); err != nil {
		t.Fatal(err)
	}
	processes := watchTree(t, dir, 3)
	if h, err := openTree(cookie); err != nil {
		t.Errorf("the tree has no name: %v", err)
	} else {
		h.close()
	}
	runner.Process.Kill()
	runner.Wait()
	if n := living(processes, 5*time.Second); n != 0 {
		t.Errorf("%d processes outlive the runner", n)
	}
	if left := EndTrees(0, 0, []string{cookie}, nil, time.Second); left != nil {
		t.Errorf("left: %v", left)
	}
}

// Where somebody holds a dead runner's job object, its tree is ended by its cookie.
func TestEndTrees(t *testing.T) {
	dir := t.TempDir()
	c := command(t, "tree", dir, "3")
	w := NewWorker(nil)
	defer w.Close()
	c.Started = func(int, time.Time) {
		processes := watchTree(t, dir, 3)
		if left := EndTrees(0, 0, []string{"none", c.Cookie}, nil, 20*time.Second); left != nil {
			t.Errorf("left: %v", left)
		}
		if n := living(processes, time.Second); n != 0 {
			t.Errorf("%d live", n)
		}
	}
	if r, _, _ := doWith(t, w, c); r.ExitCode != 1 {
		t.Errorf("%+v", r)
	}
}

// The time of the processors that a command used is told.
func TestCPUTime(t *testing.T) {
	r, _, _ := do(t, command(t, "spin", "300ms"))
	if r.CPU < 50*time.Millisecond || r.CPU > 10*time.Second {
		t.Error(r.CPU)
	}
}

// The most memory that a process of the command had is told.
func TestPeakMemory(t *testing.T) {
	notUnderWine(t)
	if r, _, _ := do(t, command(t, "hog", "100")); r.ExitCode != 0 || r.PeakRSS < 100<<20 || r.PeakRSS > 1<<30 {
		t.Errorf("%d bytes", r.PeakRSS)
	}
}

// A boot has one name for all processes.
func TestBootID(t *testing.T) {
	id, err := BootID()
	_, stdout, _ := do(t, command(t, "boot"))
	if err != nil || stdout != id+" <nil> true" || id == "0" {
		t.Errorf("%s (%v) and %s", id, err, stdout)
	}
}

// A command has its three handles of ours and no other.
func TestNothingElseIsInherited(t *testing.T) {
	ours, theirs, err := pipe(windows.PIPE_ACCESS_INBOUND)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	w := NewWorker(nil)
	defer w.Close()
	c := command(t, "sleep")
	c.Started = func(int, time.Time) {
		windows.CloseHandle(theirs)
		ours.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, err := ours.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("a pipe of another command: %d, %v", n, err)
		}
		w.Kill(1, 0)
	}
	doWith(t, w, c)
}

var isHandle = kernel32.NewProc("GetHandleInformation")

// Nothing of a command is held when it has ended.
func TestNoHandlesAreLeft(t *testing.T) {
	w := NewWorker(nil)
	defer w.Close()
	count := func() (n int) {
		for h := windows.Handle(4); h < 1<<16; h += 4 {
			if ok, _, _ := isHandle.Call(uintptr(h), uintptr(unsafe.Pointer(new(uint32)))); ok != 0 {
				n++
			}
		}
		return n
	}
	some := func() {
		c := command(t, "cat")
		c.Stdin, c.Limits = "text", Limits{Memory: 1 << 30}
		doWith(t, w, c)
		c = command(t, "exit")
		c.Stdin, c.Argv[0] = "text", "no-such-program"
		doWith(t, w, c)
	}
	sys, _ := fake(0)
	w.sys = &sys
	for range 5 { // the threads of this process have handles too
		some()
	}
	before := count()
	for range 20 {
		some()
	}
	if after := count(); after > before+10 {
		t.Errorf("%d handles, then %d", before, after)
	}
}

// What outlives its end is given up after a while, and waited for.
func TestStuckProcess(t *testing.T) {
	for _, role := range []string{"sleep", "behind"} {
		w := NewWorker(nil)
		defer w.Close()
		sys := kernel
		sys.terminate = func(windows.Handle) {}
		w.sys = &sys
		dir := t.TempDir()
		c := command(t, role, dir, "holds")
		c.Patience = 100 * time.Millisecond
		if role == "sleep" {
			c.Timeout = 100 * time.Millisecond
		}
		r, _, _ := doWith(t, w, c)
		main := role == "sleep"
		if main && (r.StuckPID != r.PID || r.ExitCode != -1 || !r.TimedOut) || !main && (r.StuckPID != int(noted(dir)[0]) || r.ExitCode != 0) || r.Error == "" {
			t.Errorf("%s: %+v", role, r)
		}
		stop := make(chan struct{})
		close(stop)
		if w.Linger(stop); w.stuck == nil {
			t.Errorf("%s: not waited for", role)
			continue
		}
		kernel.terminate(w.stuck.job)
		if w.Linger(nil); w.stuck != nil {
			t.Errorf("%s: still waited for", role)
		}
		if r, _, _ = doWith(t, w, command(t, "exit", "3")); r.ExitCode != 3 {
			t.Errorf("%s: the next one: %+v", role, r)
		}
	}
}

// fake is a system whose job objects keep limits, and which tells what it was asked.
func fake(refuse uint32) (sys calls, asked *[]string) {
	sys, asked = kernel, new([]string)
	sys.setJob = func(job windows.Handle, class uint32, info unsafe.Pointer, size uintptr) error {
		if class == refuse {
			return errors.New("refused")
		}
		switch class {
		case windows.JobObjectExtendedLimitInformation:
			l := (*windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION)(info)
			*asked = append(*asked, fmt.Sprintf("%#x memory %d tasks %d", l.BasicLimitInformation.LimitFlags, l.JobMemoryLimit, l.BasicLimitInformation.ActiveProcessLimit))
			return kernel.setJob(job, class, info, size)
		case windows.JobObjectCpuRateControlInformation:
			rate := (*[2]uint32)(info)
			*asked = append(*asked, fmt.Sprintf("flags %d rate %d", rate[0], rate[1]))
		case windows.JobObjectAssociateCompletionPortInformation:
			*asked = append(*asked, "port")
		}
		return nil
	}
	return sys, asked
}

// Limits are set before the command starts, together for its whole tree.
func TestLimitsAreSet(t *testing.T) {
	w := NewWorker(nil)
	defer w.Close()
	sys, asked := fake(0)
	w.sys = &sys
	c := command(t, "exit", "0")
	all := windows.GetActiveProcessorCount(windows.ALL_PROCESSOR_GROUPS)
	c.Limits = Limits{Memory: 1 << 30, CPUs: 0.5, Tasks: 20}
	if r, _, _ := doWith(t, w, c); r.ExitCode != 0 || r.OutOfMemory {
		t.Errorf("%+v", r)
	}
	want := []string{
		"0x2000 memory 0 tasks 0", "0x2200 memory 1073741824 tasks 0", "port", "0x2208 memory 1073741824 tasks 20",
		fmt.Sprintf("flags 5 rate %d", 5000/all),
	}
	if !slices.Equal(*asked, want) {
		t.Errorf("got  %q\nwant %q", *asked, want)
	}
	for cpus, want := range map[float64]string{1e-9: "rate 1", 1e9: "rate 10000"} {
		c := command(t, "exit", "0")
		c.Limits = Limits{CPUs: cpus}
		if doWith(t, w, c); !strings.HasSuffix((*asked)[len(*asked)-1], want) {
			t.Errorf("%v CPUs: %q", cpus, *asked)
		}
	}
}

// A limit that cannot be set keeps the command from starting, and is named.
func TestLimitThatCannotBeSet(t *testing.T) {
	for class, want := range map[uint32]string{
		windows.JobObjectCpuRateControlInformation:          "limit of cpus",
		windows.JobObjectAssociateCompletionPortInformation: "limit of memory",
	} {
		w := NewWorker(nil)
		defer w.Close()
		sys, _ := fake(class)
		w.sys = &sys
		c := command(t, "exit", "0")
		c.Limits = Limits{Memory: 1 << 30, CPUs: 1}
		if r, _, _ := doWith(t, w, c); r.ExitCode != 126 || !strings.Contains(r.Error, want) || r.PID != 0 {
			t.Errorf("%s: %+v", want, r)
		}
	}
}

// A command that fails after it was refused memory has run out of it; one that does not
// fail, or that met no limit, has not.
func TestOutOfMemoryIsTold(t *testing.T) {
	for _, c := range []struct {
		code     string
		messages []uint32
		want     bool
	}{
		{"3", []uint32{6, messageMemoryLimit, 7}, true},
		{"0", []uint32{messageMemoryLimit}, false},
		{"3", []uint32{6, 7}, false},
	} {
		w := NewWorker(nil)
		defer w.Close()
		sys, _ := fake(0)
		sys.message = func(windows.Handle) (message uint32, ok bool) {
			if len(c.messages) == 0 {
				return 0, false
			}
			message, c.messages = c.messages[0], c.messages[1:]
			return message, true
		}
		w.sys = &sys
		cmd := command(t, "exit", c.code)
		cmd.Limits = Limits{Memory: 1 << 30}
		if r, _, _ := doWith(t, w, cmd); r.OutOfMemory != c.want {
			t.Errorf("%+v: %+v", c, r)
		}
	}
}

// Who is to end is asked by CTRL_BREAK first, has the grace, and is ended once.
func TestGroupIsAskedFirst(t *testing.T) {
	w := NewWorker(nil)
	defer w.Close()
	sys := kernel
	var asked []uint32
	sys.interrupt = func(group uint32) error {
		asked = append(asked, group)
		h, err := windows.OpenProcess(windows.PROCESS_TERMINATE, false, group)
		if err == nil {
			defer windows.CloseHandle(h)
			err = windows.TerminateProcess(h, 0xC000013A) // as one that does not listen
		}
		return err
	}
	w.sys = &sys
	c := command(t, "sleep")
	c.Timeout, c.KillAfter = time.Second, time.Hour
	r, _, _ := doWith(t, w, c)
	if !slices.Equal(asked, []uint32{uint32(r.PID)}) || r.ExitCode != 3221225786 || !r.TimedOut {
		t.Errorf("%v, %+v", asked, r)
	}
	c = command(t, "sleep")
	asked = nil
	c.Started = func(pid int, _ time.Time) {
		w.Signal(pid+4, "", sigterm)
		w.Signal(pid, "", 1)
		go w.Signal(pid, "", sigterm)
	}
	if r, _, _ = doWith(t, w, c); !slices.Equal(asked, []uint32{uint32(r.PID)}) || r.TimedOut {
		t.Errorf("signal: %v, %+v", asked, r)
	}
	c = command(t, "sleep")
	c.Started = func(pid int, _ time.Time) { w.Signal(pid, "", sigkill) }
	if r, _, _ = doWith(t, w, c); r.ExitCode != 1 || r.Cause != 0 {
		t.Errorf("kill: %+v", r)
	}
}

// A command hears CTRL_BREAK and may end by itself.
func TestBreakIsHeard(t *testing.T) {
	notUnderWine(t)
	c := command(t, "break")
	c.Timeout, c.KillAfter = 3*time.Second, 20*time.Second
	if r, stdout, _ := do(t, c); r.ExitCode != 7 || !r.TimedOut || stdout != "ready" {
		t.Errorf("%+v, %q", r, stdout)
	}
}

// The kernel keeps a command within its limits, and what it was refused is told.
func TestLimitsHold(t *testing.T) {
	notUnderWine(t)
	c := command(t, "hog", "300")
	c.Limits = Limits{Memory: 128 << 20}
	if r, _, _ := do(t, c); r.ExitCode == 0 || !r.OutOfMemory {
		t.Errorf("memory: %+v", r)
	}
	c = command(t, "behind", t.TempDir(), "lets go")
	c.Limits = Limits{Tasks: 1}
	if r, _, _ := do(t, c); r.ExitCode == 0 {
		t.Errorf("tasks: %+v", r)
	}
	c = command(t, "spin", "2s")
	c.Limits = Limits{CPUs: 0.1}
	if r, _, _ := do(t, c); r.CPU > time.Second {
		t.Errorf("cpus: %+v", r)
	}
}
