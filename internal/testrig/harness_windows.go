package testrig

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/Microsoft/go-winio"
	"golang.org/x/sys/windows"
	"mvdan.cc/sh/v3/syntax"
)

const (
	ExecutableSuffix      = ".exe"                  // suffix of executable files
	KilledJobExitCode     = 1                       // exit code of a job that the runner has ended
	NetworkDirFindingText = "is on a network drive" // doctor, about a directory on a network
	MkdirCommand          = "mkdir"                 // command that messages recommend to create a directory

	// Starting a process is slow on Windows. Tests divide their number of jobs by JobCountDivisor and multiply their
	// timeouts by TimeoutFactor.
	JobCountDivisor, TimeoutFactor = 10, 8

	JobsOutliveKilledRunners = false // jobs end with their runner, because Windows ends the runner's job object
	JobsCanUseTerminals      = false // the service cannot give jobs a terminal
	// ServiceStopIsAudited is true if a stop of the service leaves an audit event. Windows has no SIGTERM, so a request
	// stops the service, and such a request is audited.
	ServiceStopIsAudited  = true
	SentDataSurvivesClose = false // the last data sent on a connection is lost when the peer closes it
)

// StartCommand starts a command without pipes. It retries, because under Wine the start of a process
// sometimes fails.
func StartCommand(cmd *exec.Cmd) error {
	unstarted := *cmd
	err := cmd.Start()
	for range 3 {
		if !errors.Is(err, windows.ERROR_INTERNAL_ERROR) {
			break
		}
		*cmd = unstarted
		err = cmd.Start()
	}
	return err
}

// startFailedTemporarily reports whether the client could not start queuectld for a reason that may be temporary. This
// sometimes happens under Wine.
func startFailedTemporarily(r CommandResult) bool {
	return r.ExitCode != 0 && strings.Contains(r.Stderr, windows.ERROR_INTERNAL_ERROR.Error())
}

// osSpecificFields contains the fields of Queue that only one system needs. Windows needs none.
type osSpecificFields struct{}

// serviceProcessAttributes returns the process attributes of the service. The service is in its own process
// group, so the console sends it no Ctrl-C.
func (*osSpecificFields) serviceProcessAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
}

// posixToolDir returns the directory of the shell and the tools for the jobs of the tests; see test/posix.
var posixToolDir = sync.OnceValue(func() string {
	dir := os.Getenv("QUEUECTL_TEST_BIN")
	if dir == "" {
		dir = filepath.Dir(filepath.Dir(builtPrograms.path[""]))
		build := exec.Command("go", "build", "-o", filepath.Join(dir, "posix", "sh.exe"), "./test/posix")
		build.Dir = RepositoryRoot()
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			panic(fmt.Sprintf("build: %v\n%s", err, out))
		}
	}
	dir = filepath.ToSlash(filepath.Join(dir, "posix"))
	if _, err := os.Stat(dir + "/sleep.exe"); err != nil {
		if out, err := exec.Command(dir+"/sh.exe", "--install", dir).CombinedOutput(); err != nil {
			panic(fmt.Sprintf("install: %v\n%s", err, out))
		}
	}
	return dir
})

// UserEnvironment returns the environment of a user with the given home directory.
func UserEnvironment(homeDir string) []string {
	env := []string{"HOME=" + homeDir, "USERPROFILE=" + homeDir, "LOCALAPPDATA=" + homeDir,
		"PATH=" + posixToolDir() + ";" + os.Getenv("PATH"), "QUEUECTL_SHELL=" + posixToolDir() + "/sh.exe -c"}
	for _, name := range []string{"SystemRoot", "SystemDrive", "ProgramData", "ComSpec", "PATHEXT", "TEMP", "TMP",
		"USERNAME"} {
		if value, set := os.LookupEnv(name); set {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// ServiceCommand returns a command that runs the service with the given arguments.
func (q *Harness) ServiceCommand(args []string) *exec.Cmd {
	cmd := exec.Command(q.ClientPath, args...)
	cmd.SysProcAttr = q.serviceProcessAttributes()
	return cmd
}

// ShellCommand returns a command that runs a line in a shell.
func ShellCommand(line string) *exec.Cmd { return exec.Command(posixToolDir()+"/sh.exe", "-c", line) }

// ToolPath returns a path by which a job can start a standard program without using its PATH.
func ToolPath(toolName string) string { return posixToolDir() + "/" + toolName + ".exe" }

// newPrivateTempDir creates a directory that other users cannot access.
func newPrivateTempDir() (string, error) {
	u, err := user.Current()
	if err != nil {
		return "", err
	}
	sd, err := windows.SecurityDescriptorFromString("D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;" + u.Uid + ")")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(os.TempDir(), "qt"+strconv.FormatUint(uint64(rand.Uint32()), 10))
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return "", err
	}
	attributes := &windows.SecurityAttributes{SecurityDescriptor: sd}
	attributes.Length = uint32(unsafe.Sizeof(*attributes))
	return dir, windows.CreateDirectory(name, attributes)
}

// RequestServiceStop stops the service with "queuectl service stop". Windows has no SIGTERM, and Ctrl-Break would need
// a separate console.
func (q *Harness) RequestServiceStop() {
	q.Helper()
	args := []string{"service", "stop"}
	if slices.Contains(q.ServiceCmd.Args, "--keep-jobs") {
		args = append(args, "--keep-jobs")
	}
	q.MustRunCLI(args...)
}

// KillProcess kills a process.
func KillProcess(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		p.Kill()
		p.Release()
	}
}

// terminateRunner kills a runner. On Windows, that also ends the runner's jobs.
func terminateRunner(pid int) { KillProcess(pid) }

// wasKilledByFailpoint reports whether err, the error of an ended program, shows that a failpoint killed the program.
func wasKilledByFailpoint(err error) bool {
	var exitErr *exec.ExitError
	return errors.As(err, &exitErr) && exitErr.ExitCode() == 1
}

// RunnerDir returns the directory of the queue's runners.
func (q *Harness) RunnerDir() string { return q.Path("runner") }

// IsRunnerProcess reports whether a process is a runner with the given directory.
func IsRunnerProcess(pid int, runnerDir string) bool {
	cmdline, _ := processCommandLineAndEnv(pid)
	return strings.Contains(cmdline, " runner ") && strings.Contains(normalizePaths(cmdline), normalizePaths(runnerDir))
}

// pipeName returns the name of the pipe on which the service with the given state directory listens.
func pipeName(stateDir string) string {
	abs, err := filepath.Abs(stateDir)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256([]byte(strings.ToLower(abs)))
	return `\\.\pipe\queuectl-` + hex.EncodeToString(sum[:8])
}

// DialService connects to the service that has the given state directory.
func DialService(stateDir string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := winio.DialPipeAccessImpLevel(ctx, pipeName(stateDir), windows.GENERIC_READ|windows.GENERIC_WRITE,
		winio.PipeImpLevelIdentification)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: err}
	}
	return c, nil
}

// ListenAsService listens at the address at which the service with the given state directory would listen.
func ListenAsService(stateDir string) (net.Listener, error) {
	l, err := winio.ListenPipe(pipeName(stateDir), nil)
	if err != nil {
		return nil, err
	}
	if first, err := DialService(stateDir); err == nil {
		first.Close() // under Wine, the data that the first client sends is lost
	}
	return l, nil
}

// SocketAddress returns the name of the service's pipe as it appears in the environment of jobs.
func (q *Harness) SocketAddress() string { return pipeName(q.StateDir) }

// HalfClose closes the sending direction of a connection. It returns false if the connection does
// not support that.
func HalfClose(c net.Conn) bool {
	w, ok := c.(interface{ CloseWrite() error })
	return ok && w.CloseWrite() == nil
}

// PrefetchFailpoints lists failpoints with which a service prefetches every job: it sends jobs to a runner before a
// worker is free. PrefetchBuildTag is the build tag of a program with these failpoints. Without these failpoints, the
// service prefetches only short jobs. On Windows, no job is short enough.
const PrefetchFailpoints, PrefetchBuildTag = "ahead", "failpoint"

// runnerHelperCommandText is a text that identifies a runner's helper process, the console host, by its command line.
const runnerHelperCommandText = "conhost.exe"

// LockingCommand returns a shell command that takes a lock for a job. The lock is released when all processes
// of the job have ended. The command fails if the lock is taken.
func LockingCommand(lockPath string) string { return `hold "` + lockPath + `"` }

// IsFileUnlocked reports whether no process holds the lock on a file.
func IsFileUnlocked(t testing.TB, path string) bool {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o600)
	if errors.Is(err, windows.ERROR_SHARING_VIOLATION) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	return true
}

// IsProcessAlive reports whether a process is alive.
func IsProcessAlive(pid int) bool {
	h, err := windows.OpenProcess(windows.SYNCHRONIZE, false, uint32(pid))
	if err != nil {
		return false
	}
	defer windows.CloseHandle(h)
	event, err := windows.WaitForSingleObject(h, 0)
	return err == nil && event == uint32(windows.WAIT_TIMEOUT)
}

// listOtherPIDs lists the pids of all processes except this one.
func listOtherPIDs() (otherPIDs []int) {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		panic(err)
	}
	defer windows.CloseHandle(snapshot)
	entry := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err = windows.Process32First(snapshot, &entry); err == nil; err = windows.Process32Next(snapshot, &entry) {
		if pid := int(entry.ProcessID); pid != os.Getpid() {
			otherPIDs = append(otherPIDs, pid)
		}
	}
	return otherPIDs
}

// processCommandLineAndEnv returns the command line and the environment that a process got at its start. Both are ""
// if the process has ended.
func processCommandLineAndEnv(pid int) (commandLine, env string) {
	h, err := windows.OpenProcess(windows.PROCESS_QUERY_INFORMATION|windows.PROCESS_VM_READ, false, uint32(pid))
	if err != nil || !IsProcessAlive(pid) {
		return "", ""
	}
	defer windows.CloseHandle(h)
	var basic windows.PROCESS_BASIC_INFORMATION
	if err := windows.NtQueryInformationProcess(h, windows.ProcessBasicInformation, unsafe.Pointer(&basic),
		uint32(unsafe.Sizeof(basic)), nil); err != nil {
		return "", ""
	}
	read := func(address uintptr, buffer unsafe.Pointer, size uintptr) bool {
		return windows.ReadProcessMemory(h, address, (*byte)(buffer), size, nil) == nil
	}
	var peb windows.PEB
	var params windows.RTL_USER_PROCESS_PARAMETERS
	if !read(uintptr(unsafe.Pointer(basic.PebBaseAddress)), unsafe.Pointer(&peb), unsafe.Sizeof(peb)) ||
		!read(uintptr(unsafe.Pointer(peb.ProcessParameters)), unsafe.Pointer(&params), unsafe.Sizeof(params)) {
		return "", ""
	}
	text := func(address uintptr, size uintptr) string {
		chars := make([]uint16, size/2)
		if len(chars) == 0 || !read(address, unsafe.Pointer(&chars[0]), size) {
			return ""
		}
		return string(windows.UTF16ToString(chars))
	}
	commandLine = text(uintptr(unsafe.Pointer(params.CommandLine.Buffer)), uintptr(params.CommandLine.Length))
	chars := make([]uint16, params.EnvironmentSize/2)
	if len(chars) > 0 && read(uintptr(params.Environment), unsafe.Pointer(&chars[0]), uintptr(len(chars))*2) {
		env = strings.ReplaceAll(string(runesOfUTF16(chars)), "\x00", "\n")
	}
	return commandLine, env
}

func runesOfUTF16(chars []uint16) (runes []rune) {
	for _, c := range chars {
		runes = append(runes, rune(c))
	}
	return runes
}

// normalizePaths converts a text to lower case and forward slashes, so that the paths in it can be
// compared.
func normalizePaths(text string) string { return strings.ToLower(strings.ReplaceAll(text, `\`, "/")) }

// ProcessesWithArg lists the processes whose command line contains a text. Each line begins with the pid.
func ProcessesWithArg(arg string) (lines []string) {
	for _, pid := range listOtherPIDs() {
		if cmdline, _ := processCommandLineAndEnv(pid); strings.Contains(normalizePaths(cmdline), normalizePaths(arg)) {
			lines = append(lines, strconv.Itoa(pid)+" "+cmdline)
		}
	}
	return lines
}

// ProcessesUsingDir returns the command line, by pid, of each other process whose command line or environment
// contains the path of a directory.
func ProcessesUsingDir(dir string) map[int]string {
	list := map[int]string{}
	for _, pid := range listOtherPIDs() {
		if cmdline, env := processCommandLineAndEnv(pid); strings.Contains(normalizePaths(cmdline+env),
			normalizePaths(dir)) && !isWineDesktop(cmdline) {
			list[pid] = cmdline
		}
	}
	return list
}

// isWineDesktop reports whether a command line is that of Wine's desktop process. The first program that needs a
// desktop starts this process. If a job starts it, it has the job's environment but outlives the job.
func isWineDesktop(cmdline string) bool {
	return strings.Contains(normalizePaths(cmdline), "/system32/explorer.exe") &&
		strings.HasSuffix(strings.TrimSpace(cmdline), "/desktop")
}

// PeakMemoryBytes returns the highest memory use of a process since it started, in bytes.
func PeakMemoryBytes(t testing.TB, pid int) int64 {
	t.Helper()
	h, err := windows.OpenProcess(windows.PROCESS_QUERY_INFORMATION|windows.PROCESS_VM_READ, false, uint32(pid))
	if err != nil {
		t.Fatal(err)
	}
	defer windows.CloseHandle(h)
	var counters struct {
		size, faults uint32
		peak         uintptr
		unused       [7]uintptr
	}
	counters.size = uint32(unsafe.Sizeof(counters))
	if ok, _, err := windows.NewLazySystemDLL("kernel32.dll").NewProc("K32GetProcessMemoryInfo").Call(uintptr(h),
		uintptr(unsafe.Pointer(&counters)), uintptr(counters.size)); ok == 0 {
		t.Fatal(err)
	}
	return int64(counters.peak)
}

// CopyDir copies the contents of a directory into another one. It skips files that another
// process has locked.
func CopyDir(src, dst string) error {
	return filepath.WalkDir(src, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(dst, name), 0o700)
		}
		raw, err := os.ReadFile(path)
		if errors.Is(err, windows.ERROR_SHARING_VIOLATION) || errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dst, name), raw, 0o600)
	})
}

// SetUpHome prepares the home directory of a script. It puts the program at programPath into a directory in PATH, and
// the settings file at the path that queuectl uses on Windows.
func (s *ScriptShell) SetUpHome(programPath string) error {
	state := filepath.Join(s.HomeDir, ".local", "state")
	for _, v := range UserEnvironment(s.HomeDir) {
		name, value, _ := strings.Cut(v, "=")
		switch name {
		case "LOCALAPPDATA":
			v = name + "=" + state
		case "PATH":
			v = name + "=" + filepath.Join(s.HomeDir, "bin") + ";" + value
		}
		s.env = append(s.env, v)
	}
	s.env = append(s.env, "TZ=UTC")
	raw, err := os.ReadFile(filepath.Join(s.HomeDir, ".config", "queuectl", "queuectl.toml"))
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Join(state, "queuectl"), 0o700),
			os.WriteFile(filepath.Join(state, "queuectl", "queuectl.toml"), raw, 0o600))
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	for _, name := range ProgramFileNames {
		err = errors.Join(err, os.Link(filepath.Join(filepath.Dir(programPath), name), filepath.Join(s.HomeDir, "bin", name)))
	}
	return err
}

// These are the paths of a user's settings file on Windows and on Unix. The scripts use the Unix path.
const (
	windowsSettingsPath = "~/.local/state/queuectl/queuectl.toml"
	unixSettingsPath    = "~/.config/queuectl/queuectl.toml"
)

// scriptLineCommand returns a command that runs a line of the script in a shell. A line that is a single queuectl
// command without shell syntax runs without a shell.
func (s *ScriptShell) scriptLineCommand(line string) *exec.Cmd {
	words, err := plainCommandWords(line)
	if err != nil || len(words) == 0 || words[0] != "queuectl" {
		return ShellCommand(line)
	}
	return exec.Command(filepath.Join(s.HomeDir, "bin", "queuectl"+ExecutableSuffix), words[1:]...)
}

// plainCommandWords returns the words of a line that is a single command without shell syntax. For
// other lines it returns no words.
func plainCommandWords(line string) (words []string, err error) {
	file, err := syntax.NewParser().Parse(strings.NewReader(line), "")
	if err != nil || len(file.Stmts) != 1 || len(file.Stmts[0].Redirs) > 0 {
		return nil, err
	}
	call, ok := file.Stmts[0].Cmd.(*syntax.CallExpr)
	if !ok || len(call.Assigns) > 0 {
		return nil, nil
	}
	for _, w := range call.Args {
		if len(w.Parts) != 1 {
			return nil, nil
		}
		switch part := w.Parts[0].(type) {
		case *syntax.SglQuoted:
			words = append(words, part.Value)
		case *syntax.Lit:
			if strings.ContainsAny(part.Value, `\~*?[`) {
				return nil, nil
			}
			words = append(words, part.Value)
		default:
			return nil, nil
		}
	}
	return words, nil
}

// PlatformScriptLine converts a line of a script to the form for this system. Scripts are written for Unix.
func (s *ScriptShell) PlatformScriptLine(line string) string {
	return strings.NewReplacer(unixSettingsPath, windowsSettingsPath, "nowhere.sock",
		`'\\.\pipe\nowhere.sock'`).Replace(line)
}

// outputReplacements lists regular expressions for output that differs on Windows, and the text that Unix prints.
var outputReplacements = []struct{ windowsText, unixText string }{
	{`\\\\\.\\pipe\\nowhere\.sock`, "nowhere.sock"},
	{`sh\.exe -c`, "sh -c"}, {`[^" ]*/posix/sh -c`, "/bin/sh -c"},
	{`"PATH":"[^"]*","PATHEXT":"[^"]*"`, `"PATH":"~/bin:/usr/local/bin:/usr/bin:/bin"`},
	{`GetFileAttributesEx ([^:]+): .*`, "stat $1: no such file or directory"},
	{`create it with: mkdir `, "create it with: mkdir -p "},
	// The shells of the two systems quote arguments differently.
	{` \\?"(%s[^"]*?|two words|with space|y z\.png(?:\.webp)?|echo hi)\\?"`, " '$1'"},
	{`(?m)^(\S+ +(?:ORIGIN|default|file|stored) *) {4}(\S)`, "$1$2"},
	{`(?m)^(shell +)environment  `, "${1}default  "},
}

// gmtZonePattern matches GMT, the name that Windows uses for UTC.
var gmtZonePattern = regexp.MustCompile(`([( ])GMT([),; \n])`)

// homePathPattern matches paths below the home directory.
var homePathPattern = regexp.MustCompile(`~[^ :;"']*`)

// defaultSettingLinePattern matches the output lines of settings that have their default value.
var defaultSettingLinePattern = regexp.MustCompile(`(?m)^\S+ +default  .*\n`)

// ToUnixOutput converts the output of a line to the form that it has on Unix, because the scripts contain that form.
func (s *ScriptShell) ToUnixOutput(text string) string {
	text = strings.NewReplacer(
		pipeName(filepath.Join(s.HomeDir, ".local", "state", "queuectl")), "~/.local/state/queuectl/queuectl.sock",
		pipeName(filepath.Join(s.WorkDir, "nowhere")), "$WORK/nowhere/queuectl.sock",
		strings.ReplaceAll(s.HomeDir, `\`, `\\`), "~", s.HomeDir, "~", filepath.ToSlash(s.HomeDir), "~",
		strings.ReplaceAll(s.WorkDir, `\`, `\\`), s.WorkDir, filepath.ToSlash(s.WorkDir), s.WorkDir,
	).Replace(text)
	text = gmtZonePattern.ReplaceAllString(text, "${1}UTC$2")
	text = homePathPattern.ReplaceAllStringFunc(text, func(path string) string {
		return strings.ReplaceAll(strings.ReplaceAll(path, `\\`, "/"), `\`, "/")
	})
	belowWork := regexp.MustCompile(regexp.QuoteMeta(s.WorkDir) + `\\[^ :;"']*`)
	text = belowWork.ReplaceAllStringFunc(text, func(path string) string {
		return s.WorkDir + strings.ReplaceAll(strings.ReplaceAll(path[len(s.WorkDir):], `\\`, "/"), `\`, "/")
	})
	for _, h := range outputReplacements {
		text = regexp.MustCompile(h.windowsText).ReplaceAllString(text, h.unixText)
	}
	// On Unix, the output of scripts contains no settings that have their default value. On Windows it contains the
	// setting shell, whose origin the replacements above have changed to "default". Remove that line.
	if found := defaultSettingLinePattern.FindAllString(text, -1); len(found) == 1 {
		text = strings.Replace(text, found[0], "", 1)
	}
	return strings.ReplaceAll(text, windowsSettingsPath, unixSettingsPath)
}

// CurrentUserName returns the name of the account that runs the tests.
func CurrentUserName(t testing.TB) string {
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	_, name, _ := strings.Cut(u.Username, `\`)
	return name
}

// RunOnTerminal fails the test, because the tests cannot create a Windows terminal.
func RunOnTerminal(t testing.TB, _ *exec.Cmd, _ int) (text string, exitCode int) {
	t.Fatal("the tests cannot create a terminal on Windows")
	return "", 0
}

// IsAccessibleOnlyByOwner always returns true. On Windows the access list of the directory protects the file, and tests
// of the service check that list.
func IsAccessibleOnlyByOwner(os.FileInfo) bool { return true }

// CopyProgram copies a program to a path and replaces the file there. It renames the old file
// first, because that file may be running.
func CopyProgram(t testing.TB, from, to string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to+".new", raw, 0o700)
	}
	if err == nil {
		os.Rename(to, to+".old") // fails harmlessly if no old file exists
		err = os.Rename(to+".new", to)
	}
	if err != nil {
		t.Fatal(err)
	}
}
