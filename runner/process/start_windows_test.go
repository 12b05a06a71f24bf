package process

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/runner/runas"
)

// isPipeOpen returns true for a pipe without data, and false for a pipe whose writers have closed it.
func TestIsPipeOpenDetectsClosedWriters(t *testing.T) {
	parentEnd, childEnd, err := createPipe(windows.PIPE_ACCESS_INBOUND)
	if err != nil {
		t.Fatal(err)
	}
	defer parentEnd.Close()
	if !isPipeOpen(parentEnd) {
		t.Error("a pipe whose writer exists counts as closed")
	}
	if windows.CloseHandle(childEnd); isPipeOpen(parentEnd) {
		t.Error("a pipe whose writer is gone counts as open")
	}
}

// A pipe can be opened only once, and only by this account. Its name is random.
func TestPipeAdmitsOnlyOwnAccount(t *testing.T) {
	parentEnd, childEnd, err := createPipe(windows.PIPE_ACCESS_OUTBOUND)
	if err != nil {
		t.Fatal(err)
	}
	defer parentEnd.Close()
	defer windows.CloseHandle(childEnd)
	if h, err := openInheritableFile(parentEnd.Name(), windows.GENERIC_READ, 0); err == nil {
		windows.CloseHandle(h)
		t.Error("the pipe could be opened twice")
	}
	sd, err := windows.GetSecurityInfo(childEnd, windows.SE_KERNEL_OBJECT, windows.DACL_SECURITY_INFORMATION)
	user, err2 := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil || err2 != nil || strings.Count(sd.String(), "(") != 1 ||
		!strings.Contains(sd.String(), user.User.Sid.String()) {
		t.Errorf("the pipe has the security descriptor %v, want rights for this account only; errors %v, %v",
			sd, err, err2)
	}
}

// A command gets all of its standard input text. A command that does not read the text ends without delay.
func TestCommandGetsWholeStdinText(t *testing.T) {
	text := strings.Repeat("line\r\n\x1a\x00", 1<<17)
	c := newTestCommand(t, "cat")
	c.Stdin = text
	if r, stdout, _ := runCommand(t, c); stdout != text || r.ExitCode != 0 {
		t.Errorf("the command read %d of %d bytes; the result is %+v", len(stdout), len(text), r)
	}
	c = newTestCommand(t, "exit", "0")
	c.Stdin = text
	if r, _, _ := runCommand(t, c); r.ExitCode != 0 || r.Error != "" {
		t.Errorf("a command that reads nothing: the result is %+v", r)
	}
	if r, stdout, _ := runCommand(t, newTestCommand(t, "cat")); stdout != "" || r.ExitCode != 0 {
		t.Errorf("a command without input read %q; the result is %+v", stdout, r)
	}
}

// Standard input may be a regular file, which other processes can still change. Any other kind of file is
// rejected.
func TestStdinFileMustBeRegular(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in put")
	if err := os.WriteFile(path, []byte("from\x1a a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newTestCommand(t, "cat")
	c.StdinFile = path
	if r, stdout, _ := runCommand(t, c); stdout != "from\x1a a file" || r.ExitCode != 0 {
		t.Errorf("the command read %q from the file; the result is %+v", stdout, r)
	}
	for path, want := range map[string]string{
		filepath.Dir(path): "not a regular file", "NUL": "not a regular file", path + ".none": "stdin_file: open",
	} {
		c := newTestCommand(t, "cat")
		c.StdinFile = path
		if r, _, _ := runCommand(t, c); r.ExitCode != 126 || !strings.Contains(r.Error, want) || r.ResourceShortage {
			t.Errorf("input %s: the result is %+v, want that it is rejected", path, r)
		}
	}
}

// The result of a command that cannot start has the exit code that a shell would return.
func TestFailedStartHasShellExitCode(t *testing.T) {
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
		{func(c *Command) { c.Argv[0], c.WorkingDir = "text", dir }, 127, "in PATH"},
		{func(c *Command) { c.WorkingDir = filepath.Join(dir, "none") }, 126, "cwd: "},
		{func(c *Command) { c.WorkingDir = file }, 126, "not a directory"},
		{func(c *Command) { c.WorkingDir = `\\no-such-machine\share` }, 126, "cwd: "},
		{func(c *Command) { c.Argv = append(c.Argv, "a\x00b") }, 126, "NUL"},
		{func(c *Command) { c.Env = append(c.Env, "a=\x00b") }, 126, "NUL"},
		{func(c *Command) { c.RunAs = &runas.Identity{} }, 126, "another account"},
	} {
		cmd := newTestCommand(t, "exit", "0")
		c.change(cmd)
		r, _, _ := runCommand(t, cmd)
		if r.ExitCode != c.code || !strings.Contains(r.Error, c.want) || r.ResourceShortage || r.PID != 0 {
			t.Errorf("%q in %q: the result is %+v; want exit code %d and %q", cmd.Argv, cmd.WorkingDir, r, c.code, c.want)
		} else if c.code == 127 && !r.StartFailedPermanently {
			t.Errorf("%q in %q: CannotStart is not set: %+v", cmd.Argv, cmd.WorkingDir, r)
		}
	}
}

// A network path is recognised in all its spellings.
func TestUNCPathsAreRecognised(t *testing.T) {
	for dir, want := range map[string]bool{
		`C:\x`: false, `\\?\C:\x`: false, `\\.\C:\x`: false, `C:`: false, ``: false,
		`\\server\share`: true, `\\server\share\x`: true, `//server/share/x`: true, `\\?\UNC\server\share\x`: true,
		`\\?\unc\server\share`: true,
	} {
		if isUNCPath(dir) != want {
			t.Errorf("isUNCPath(%q) returned %v", dir, !want)
		}
	}
}

// In a network directory, cmd.exe and batch files are rejected. Other programs run there.
func TestCmdExeIsRejectedInNetworkDirectory(t *testing.T) {
	root := `\\localhost\` + strings.Replace(filepath.VolumeName(t.TempDir()), ":", "$", 1)
	h, err := openWorkingDir(root)
	if err != nil {
		skip.MissingRequirement(t, "windows",
			"needs a network directory, which Wine does not have; the workflow windows runs it, "+
				"and TestUNCPathsAreRecognised tests which paths are in one")
	}
	windows.CloseHandle(h)
	for path, want := range map[string]string{"cmd.exe": "pushd", "cmd": "pushd", "hostname": ""} {
		c := newTestCommand(t, "exit", "0")
		c.Argv, c.WorkingDir = []string{path, "/c", "exit"}, root
		if r, _, _ := runCommand(t, c); (want != "") != (r.ExitCode == 126 && strings.Contains(r.Error, want)) {
			t.Errorf("program %s: the result is %+v", path, r)
		}
	}
}

// If a program ends with the status for a full desktop heap and has printed nothing, it could not start. This counts as
// a resource shortage. If the program has printed something, the result has the program's exit code.
func TestFullDesktopHeapIsShortage(t *testing.T) {
	if r, _, _ := runCommand(t, newTestCommand(t, "exit", "3221225794")); !r.ResourceShortage || r.ExitCode != -1 ||
		!strings.Contains(r.Error, "desktop heap") {
		t.Errorf("without output: %+v", r)
	}
	if r, _, _ := runCommand(t, newTestCommand(t, "exit", "3221225794", "said")); r.ResourceShortage ||
		r.ExitCode != 3221225794 {
		t.Errorf("with output: %+v", r)
	}
	if r, _, _ := runCommand(t, newTestCommand(t, "exit", "3221225781")); r.ResourceShortage || r.ExitCode != 3221225781 {
		t.Errorf("another exit code: %+v", r)
	}
}

// A lack of memory or handles is a resource shortage, not the fault of the command. It is also a resource shortage if
// another process already uses the name of the job object that the command needs.
func TestResourceShortageIsNotCommandFault(t *testing.T) {
	for _, errno := range []syscall.Errno{windows.ERROR_COMMITMENT_LIMIT, windows.ERROR_TOO_MANY_OPEN_FILES,
		windows.ERROR_NO_SYSTEM_RESOURCES, windows.ERROR_INTERNAL_ERROR} {
		w := NewWorker(nil)
		defer w.Close()
		sys := realSystemCalls
		sys.setJobInfo = func(windows.Handle, uint32, unsafe.Pointer, uintptr) error { return errno }
		w.systemCalls = &sys
		if r, _, _ := runOnWorker(t, w, newTestCommand(t, "exit", "0")); !r.ResourceShortage || r.ExitCode != -1 ||
			r.PID != 0 {
			t.Errorf("error %v: the result is %+v, want a shortage", errno, r)
		}
	}
	c := newTestCommand(t, "exit", "0")
	squatter, err := newTree(&realSystemCalls, c.Cookie, TreeLimits{})
	if err != nil {
		t.Fatal(err)
	}
	defer squatter.close()
	if r, _, _ := runCommand(t, c); !r.ResourceShortage || !strings.Contains(r.Error, "already uses the name") {
		t.Errorf("another process's job object: %+v", r)
	}
}

// If a policy of the machine blocks a program, the error names the policy and the event log with the
// details.
func TestStartErrorNamesBlockingPolicy(t *testing.T) {
	for code, want := range map[syscall.Errno]string{1260: "AppLocker", 4551: "WDAC", 225: "virus scanner",
		windows.ERROR_ACCESS_DENIED: ""} {
		w := NewWorker(nil)
		defer w.Close()
		sys := realSystemCalls
		sys.createProcess = func(_, _ *uint16, _, _ *windows.SecurityAttributes, _ bool, _ uint32, _, _ *uint16,
			_ *windows.StartupInfo, _ *windows.ProcessInformation) error {
			return code
		}
		w.systemCalls = &sys
		c := newTestCommand(t, "exit", "0")
		r, _, _ := runOnWorker(t, w, c)
		if r.ResourceShortage || r.ExitCode != 126 || !strings.Contains(r.Error, want) ||
			strings.Contains(r.Error, "Event Viewer") != (want != "") || !strings.Contains(r.Error, c.Argv[0]) {
			t.Errorf("error %d: the result is %+v, want an error that names the policy", code, r)
		}
	}
}

// If a program's own memory limit prevents its start, this does not count as a resource shortage, because a job with a
// resource shortage is retried without limit. But if the machine has less free memory than the limit, the failed start
// is a resource shortage.
func TestLowMemoryLimitIsNotShortage(t *testing.T) {
	w := NewWorker(nil)
	defer w.Close()
	sys := realSystemCalls
	w.systemCalls = &sys
	for _, c := range []struct {
		limit int64
		room  uint64
		errno syscall.Errno
		own   bool
	}{
		{1 << 20, 1 << 30, windows.ERROR_COMMITMENT_LIMIT, true},
		{1 << 20, 1 << 30, windows.ERROR_NOT_ENOUGH_QUOTA, true},
		{1 << 30, 1 << 20, windows.ERROR_COMMITMENT_LIMIT, false},
		{0, 1 << 30, windows.ERROR_COMMITMENT_LIMIT, false},
		{1 << 20, 1 << 30, windows.ERROR_NO_SYSTEM_RESOURCES, false},
	} {
		sys.freeMemoryBytes = func() uint64 { return c.room }
		var result Result
		r := &runningCommand{runState: runState{worker: w, result: &result, command: &Command{Argv: []string{"x"},
			Limits: TreeLimits{MemoryBytes: c.limit}}}}
		result.ExitCode = -1
		r.recordStartFailure(r.memoryLimitError(c.errno))
		if result.ResourceShortage == c.own || c.own && (result.ExitCode != 126 ||
			!strings.Contains(result.Error, "the limit is too low")) {
			t.Errorf("case %+v: the result is %+v", c, result)
		}
	}
	if room := realSystemCalls.freeMemoryBytes(); room < 1<<20 || room > 1<<60 {
		t.Errorf("the machine has %d bytes", room)
	}
}

// Arguments reach the program unchanged.
func TestProgramGetsArgumentsUnchanged(t *testing.T) {
	want := []string{"", "a b", `"`, `\"`, `a\\b`, `c:\dir\`, `c:\a dir\`, "tab\tline\n", "%PATH%", "^&|<>!", "é😀",
		`"a" "b"`}
	_, stdout, _ := runCommand(t, newTestCommand(t, "args", want...))
	var got []string
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || !slices.Equal(got, want) {
		t.Errorf("the program received the arguments %s, error %v", stdout, err)
	}
}

// cmd.exe gets its text unchanged, and parses the text by its own rules.
func TestCmdExeGetsTextUnchanged(t *testing.T) {
	self, _ := os.Executable()
	for text, want := range map[string]string{
		`echo "a & b" & echo c`:            "\"a & b\" \r\nc\r\n",
		`echo %QUEUECTL_X% ^& ^^`:          "a value & ^\r\n",
		`"` + self + `" args "x y" & echo`: "[\"x y\"]\n",
		`echo (a)>&2 & exit /b 5`:          "",
	} {
		c := newTestCommand(t, "")
		c.Argv, c.Env = []string{"cmd.exe", "/C", text}, append(c.Env, "QUEUECTL_X=a value")
		r, stdout, stderr := runCommand(t, c)
		if !strings.HasPrefix(stdout, want) || strings.Contains(text, "exit") &&
			(r.ExitCode != 5 || !strings.HasPrefix(stderr, "(a)")) {
			t.Errorf("cmd.exe with the text %s printed %q and %q; the result is %+v", text, stdout, stderr, r)
		}
	}
}

// A batch file gets its arguments unchanged. An argument that cannot be passed unchanged is rejected.
func TestBatchFileGetsArgumentsUnchanged(t *testing.T) {
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
	for _, name := range []string{filepath.Join(dir, "echoes.bat"), filepath.Join(dir, "echoes"), `.\echoes.bat`,
		"echoes"} {
		c := newTestCommand(t, "")
		c.Argv, c.WorkingDir, c.Env = append([]string{name}, want...), dir, append(c.Env, "path="+dir)
		r, stdout, stderr := runCommand(t, c)
		var got []string
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || !slices.Equal(got, want) || r.ExitCode != 6 {
			t.Errorf("%s received the arguments %s; error output %s, error %v; the result is %+v",
				name, stdout, stderr, err, r)
		}
	}
	c := newTestCommand(t, "")
	c.Argv = []string{filepath.Join(dir, "echoes.bat"), `"&calc`}
	if r, _, _ := runCommand(t, c); r.ExitCode != 126 || !strings.Contains(r.Error, "cmd.exe") {
		t.Errorf("the result is %+v, want that the argument is rejected", r)
	}
}

// If a variable occurs several times, ignoring case, the command gets only the last one. Variables that
// Windows needs are always set.
func TestEnvironmentKeepsLastDuplicate(t *testing.T) {
	c := newTestCommand(t, "env")
	c.Env = []string{testRoleEnvVar + "=1", "a=1", "A=2", "b=", "=C:=C:\\x", "systemroot=" + os.Getenv("SystemRoot"),
		"zz=é"}
	_, stdout, _ := runCommand(t, c)
	var got []string
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatalf("the command printed %q: %v", stdout, err)
	}
	values := map[string]string{}
	for _, e := range got {
		name, value, _ := strings.Cut(e, "=")
		if _, twice := values[strings.ToUpper(name)]; twice && name != "" {
			t.Errorf("%s occurs twice", name)
		}
		values[strings.ToUpper(name)] = value
	}
	for name, want := range map[string]string{
		"A": "2", "B": "", "ZZ": "é", CookieEnvVar: c.Cookie, "SYSTEMROOT": os.Getenv("SystemRoot"),
		"TEMP": os.Getenv("TEMP"),
	} {
		if got, ok := values[name]; got != want || !ok {
			t.Errorf("the variable %s is %q, want %q", name, got, want)
		}
	}
}

// A command inherits only its three standard handles.
func TestCommandInheritsOnlyStandardHandles(t *testing.T) {
	parentEnd, childEnd, err := createPipe(windows.PIPE_ACCESS_INBOUND)
	if err != nil {
		t.Fatal(err)
	}
	defer parentEnd.Close()
	w := NewWorker(nil)
	defer w.Close()
	c := newTestCommand(t, "sleep")
	c.OnStarted = func(int, time.Time) {
		windows.CloseHandle(childEnd)
		parentEnd.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, err := parentEnd.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("a pipe of another command: %d, %v", n, err)
		}
		w.Kill(1, 0)
	}
	runOnWorker(t, w, c)
}
