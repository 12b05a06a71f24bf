package test

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
	extension  = ".exe" // of a program's file
	cutOff     = 1      // the exit code of a job that is ended
	network    = "is on a network drive"
	makeFolder = "mkdir" // as people are told to

	// Where it takes long to start a process there are fewer jobs, by this factor, and
	// more patience.
	fewer, patience = 10, 8

	treesOutliveRunners = false // they end with their job object
	terminals           = false // of jobs, given by the service
	stopIsAnEvent       = true  // of the audit, which has its number; there is no signal to stop by
	lastWordsLast       = false // what was said on a connection is lost when it is closed
)

// begin starts a command that has no pipes, and again where Wine failed to, as it does now and then.
func begin(cmd *exec.Cmd) error {
	again := *cmd
	err := cmd.Start()
	for range 3 {
		if !errors.Is(err, windows.ERROR_INTERNAL_ERROR) {
			break
		}
		*cmd = again
		err = cmd.Start()
	}
	return err
}

// neverBegan reports whether the client could not start the service's program, as happens under Wine.
func neverBegan(r result) bool {
	return r.code != 0 && strings.Contains(r.err, windows.ERROR_INTERNAL_ERROR.Error())
}

// role plays what this program is started as, if it is no test.
func role() (code int, played bool) {
	if os.Getenv(explorerRole) != "" {
		return explore(), true
	}
	return 0, false
}

// host is what a queue may have on this system alone.
type host struct{}

// attributes are those of the service's process, which no key reaches.
func (*host) attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
}

// posix is the folder of the shell of the tests' jobs, and of what they call.
var posix = sync.OnceValue(func() string {
	dir := os.Getenv("QUEUECTL_TEST_BIN")
	if dir == "" {
		dir = filepath.Dir(filepath.Dir(binaries.path[""]))
		build := exec.Command("go", "build", "-o", filepath.Join(dir, "posix", "sh.exe"), "./posix")
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

// environment is that of a user whose home is a folder.
func environment(home string) []string {
	env := []string{"HOME=" + home, "USERPROFILE=" + home, "LOCALAPPDATA=" + home, "PATH=" + posix() + ";" + os.Getenv("PATH"), "QUEUECTL_SHELL=" + posix() + "/sh.exe -c"}
	for _, name := range []string{"SystemRoot", "SystemDrive", "ProgramData", "ComSpec", "PATHEXT", "TEMP", "TMP", "USERNAME"} {
		if value, set := os.LookupEnv(name); set {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// serve is the service, not started yet.
func (q *queue) serve(args []string) *exec.Cmd {
	cmd := exec.Command(q.bin, args...)
	cmd.SysProcAttr = q.attributes()
	return cmd
}

// shellOf is a shell that runs a text.
func shellOf(text string) *exec.Cmd { return exec.Command(posix()+"/sh.exe", "-c", text) }

// tool is the word by which a job calls a program, whatever its PATH is.
func tool(name string) string { return posix() + "/" + name + ".exe" }

// tempFolder makes a folder that others are kept out of.
func tempFolder() (string, error) {
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

// askToStop tells the service to end: there is no SIGTERM, and a console of its own
// would be needed for a Ctrl-Break.
func (q *queue) askToStop() {
	q.Helper()
	args := []string{"service", "stop"}
	if slices.Contains(q.cmd.Args, "--keep-jobs") {
		args = append(args, "--keep-jobs")
	}
	q.must(args...)
}

// kill ends a process, whatever it does.
func kill(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		p.Kill()
		p.Release()
	}
}

// askToEnd has a runner end with its jobs, as it does in whatever way it ends.
func askToEnd(pid int) { kill(pid) }

// wasKilled reports whether a failpoint of the program ended it.
func wasKilled(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.ExitCode() == 1
}

// runners is the folder of the queue's runners.
func (q *queue) runners() string { return q.path("runner") }

// isRunner reports whether a process is a runner of the folder.
func isRunner(pid int, folder string) bool {
	words, _ := told(pid)
	return strings.Contains(words, " runner ") && strings.Contains(slashed(words), slashed(folder))
}

// pipeName is the name of the pipe on which the service of a folder listens.
func pipeName(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256([]byte(strings.ToLower(abs)))
	return `\\.\pipe\queuectl-` + hex.EncodeToString(sum[:8])
}

// dial connects to the service of a folder.
func dial(dir string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := winio.DialPipeAccessImpLevel(ctx, pipeName(dir), windows.GENERIC_READ|windows.GENERIC_WRITE, winio.PipeImpLevelIdentification)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: err}
	}
	return c, nil
}

// listen takes the place of the service of a folder.
func listen(dir string) (net.Listener, error) {
	l, err := winio.ListenPipe(pipeName(dir), nil)
	if err != nil {
		return nil, err
	}
	if first, err := dial(dir); err == nil {
		first.Close() // Wine swallows what the first client says
	}
	return l, nil
}

// socketOf is what jobs are told of the service's socket.
func (q *queue) socketOf() string { return pipeName(q.dir) }

// halfClose ends what we say on a connection, if that can be done.
func halfClose(c net.Conn) bool {
	w, ok := c.(interface{ CloseWrite() error })
	return ok && w.CloseWrite() == nil
}

// ahead are the failpoints of a service that reserves jobs ahead, and aheadTag is the
// program that has them: of itself it does so for short jobs, and here none is short.
const ahead, aheadTag = "ahead", "failpoint"

// ofRunner is in the words of what a runner has beside itself: its console.
const ofRunner = "conhost.exe"

// holding is the text of a job that takes a lock, which is held while the job or a
// process that it has started lives.
func holding(path string) string { return `hold "` + path + `"` }

// free reports whether nobody holds the lock on a file.
func free(t testing.TB, path string) bool {
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

// lives reports whether a process runs.
func lives(pid int) bool {
	h, err := windows.OpenProcess(windows.SYNCHRONIZE, false, uint32(pid))
	if err != nil {
		return false
	}
	defer windows.CloseHandle(h)
	event, err := windows.WaitForSingleObject(h, 0)
	return err == nil && event == uint32(windows.WAIT_TIMEOUT)
}

// pids lists all processes but this one.
func pids() (list []int) {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		panic(err)
	}
	defer windows.CloseHandle(snapshot)
	entry := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err = windows.Process32First(snapshot, &entry); err == nil; err = windows.Process32Next(snapshot, &entry) {
		if pid := int(entry.ProcessID); pid != os.Getpid() {
			list = append(list, pid)
		}
	}
	return list
}

// told is the command line and the environment that a process was started with, ""
// when it has ended.
func told(pid int) (words, env string) {
	h, err := windows.OpenProcess(windows.PROCESS_QUERY_INFORMATION|windows.PROCESS_VM_READ, false, uint32(pid))
	if err != nil || !lives(pid) {
		return "", ""
	}
	defer windows.CloseHandle(h)
	var basic windows.PROCESS_BASIC_INFORMATION
	if err := windows.NtQueryInformationProcess(h, windows.ProcessBasicInformation, unsafe.Pointer(&basic), uint32(unsafe.Sizeof(basic)), nil); err != nil {
		return "", ""
	}
	read := func(from uintptr, to unsafe.Pointer, size uintptr) bool {
		return windows.ReadProcessMemory(h, from, (*byte)(to), size, nil) == nil
	}
	var peb windows.PEB
	var params windows.RTL_USER_PROCESS_PARAMETERS
	if !read(uintptr(unsafe.Pointer(basic.PebBaseAddress)), unsafe.Pointer(&peb), unsafe.Sizeof(peb)) ||
		!read(uintptr(unsafe.Pointer(peb.ProcessParameters)), unsafe.Pointer(&params), unsafe.Sizeof(params)) {
		return "", ""
	}
	text := func(from uintptr, size uintptr) string {
		chars := make([]uint16, size/2)
		if len(chars) == 0 || !read(from, unsafe.Pointer(&chars[0]), size) {
			return ""
		}
		return string(windows.UTF16ToString(chars))
	}
	words = text(uintptr(unsafe.Pointer(params.CommandLine.Buffer)), uintptr(params.CommandLine.Length))
	chars := make([]uint16, params.EnvironmentSize/2)
	if len(chars) > 0 && read(uintptr(params.Environment), unsafe.Pointer(&chars[0]), uintptr(len(chars))*2) {
		env = strings.ReplaceAll(string(runes(chars)), "\x00", "\n")
	}
	return words, env
}

func runes(chars []uint16) (list []rune) {
	for _, c := range chars {
		list = append(list, rune(c))
	}
	return list
}

// slashed is a text in which paths can be compared.
func slashed(text string) string { return strings.ToLower(strings.ReplaceAll(text, `\`, "/")) }

// processes lists those whose command line holds a word.
func processes(word string) (lines []string) {
	for _, pid := range pids() {
		if words, _ := told(pid); strings.Contains(slashed(words), slashed(word)) {
			lines = append(lines, strconv.Itoa(pid)+" "+words)
		}
	}
	return lines
}

// related lists the processes whose command line or environment contains a folder, with their command lines; this
// process is not listed.
func related(dir string) map[int]string {
	list := map[int]string{}
	for _, pid := range pids() {
		if words, env := told(pid); strings.Contains(slashed(words+env), slashed(dir)) && !isWineDesktop(words) {
			list[pid] = words
		}
	}
	return list
}

// isWineDesktop reports whether a command line is that of Wine's desktop. The first program that needs a desktop
// starts it, so it may have the environment of a job, and outlives that.
func isWineDesktop(words string) bool {
	return strings.Contains(slashed(words), "/system32/explorer.exe") && strings.HasSuffix(strings.TrimSpace(words), "/desktop")
}

// peak is the most memory that a process has held, in bytes.
func peak(t testing.TB, pid int) int64 {
	t.Helper()
	h, err := windows.OpenProcess(windows.PROCESS_QUERY_INFORMATION|windows.PROCESS_VM_READ, false, uint32(pid))
	if err != nil {
		t.Fatal(err)
	}
	defer windows.CloseHandle(h)
	var counters struct {
		size, faults uint32
		peak         uintptr
		more         [7]uintptr
	}
	counters.size = uint32(unsafe.Sizeof(counters))
	if ok, _, err := windows.NewLazySystemDLL("kernel32.dll").NewProc("K32GetProcessMemoryInfo").Call(uintptr(h), uintptr(unsafe.Pointer(&counters)), uintptr(counters.size)); ok == 0 {
		t.Fatal(err)
	}
	return int64(counters.peak)
}

// copyFolder copies all that a folder holds into another, but what nobody may read now.
func copyFolder(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, name), 0o700)
		}
		raw, err := os.ReadFile(path)
		if errors.Is(err, windows.ERROR_SHARING_VIOLATION) || errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), raw, 0o600)
	})
}

// settle makes the home of a script: the program on the PATH, and the settings where
// they are here.
func (s *shell) settle(bin string) error {
	state := filepath.Join(s.home, ".local", "state")
	for _, v := range environment(s.home) {
		name, value, _ := strings.Cut(v, "=")
		switch name {
		case "LOCALAPPDATA":
			v = name + "=" + state
		case "PATH":
			v = name + "=" + filepath.Join(s.home, "bin") + ";" + value
		}
		s.env = append(s.env, v)
	}
	s.env = append(s.env, "TZ=UTC")
	raw, err := os.ReadFile(filepath.Join(s.home, ".config", "queuectl", "queuectl.toml"))
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Join(state, "queuectl"), 0o700), os.WriteFile(filepath.Join(state, "queuectl", "queuectl.toml"), raw, 0o600))
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	for _, name := range programs {
		err = errors.Join(err, os.Link(filepath.Join(filepath.Dir(bin), name), filepath.Join(s.home, "bin", name)))
	}
	return err
}

// settingsHere is where a user's settings are, settingsThere where scripts have them.
const (
	settingsHere  = "~/.local/state/queuectl/queuectl.toml"
	settingsThere = "~/.config/queuectl/queuectl.toml"
)

// shellOf is a shell that runs a line of the script, or, if the line has nothing that a
// shell would read, what the shell would start.
func (s *shell) shellOf(line string) *exec.Cmd {
	words, err := syntaxless(line)
	if err != nil || len(words) == 0 || words[0] != "queuectl" {
		return shellOf(line)
	}
	return exec.Command(filepath.Join(s.home, "bin", "queuectl"+extension), words[1:]...)
}

// syntaxless are the words of a line that is one command of words alone.
func syntaxless(line string) (words []string, err error) {
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

// typed is a line of a script as a person of this system types it.
func (s *shell) typed(line string) string {
	return strings.NewReplacer(settingsThere, settingsHere, "nowhere.sock", `'\\.\pipe\nowhere.sock'`).Replace(line)
}

// here is what is printed otherwise than on Unix, and there what Unix prints.
var here = []struct{ find, there string }{
	{`\\\\\.\\pipe\\nowhere\.sock`, "nowhere.sock"},
	{`sh\.exe -c`, "sh -c"}, {`[^" ]*/posix/sh -c`, "/bin/sh -c"},
	{`"PATH":"[^"]*","PATHEXT":"[^"]*"`, `"PATH":"~/bin:/usr/local/bin:/usr/bin:/bin"`},
	{`GetFileAttributesEx ([^:]+): .*`, "stat $1: no such file or directory"},
	{`create it with: mkdir `, "create it with: mkdir -p "},
	{` \\?"(%s[^"]*?|two words|with space|y z\.png(?:\.webp)?|echo hi)\\?"`, " '$1'"}, // how shells quote
	{`(?m)^(\S+ +(?:ORIGIN|default|file|stored) *) {4}(\S)`, "$1$2"},
	{`(?m)^(shell +)environment  `, "${1}default  "},
}

// timeZone matches the name that Windows uses for UTC.
var timeZone = regexp.MustCompile(`([( ])GMT([),; \n])`)

// pathsHere are paths below the home.
var pathsHere = regexp.MustCompile(`~[^ :;"']*`)

// defaults are the lines of settings that are so by default.
var defaults = regexp.MustCompile(`(?m)^\S+ +default  .*\n`)

// seen is what is printed as one of Unix sees it.
func (s *shell) seen(text string) string {
	text = strings.NewReplacer(
		pipeName(filepath.Join(s.home, ".local", "state", "queuectl")), "~/.local/state/queuectl/queuectl.sock",
		pipeName(filepath.Join(s.work, "nowhere")), "$WORK/nowhere/queuectl.sock",
		strings.ReplaceAll(s.home, `\`, `\\`), "~", s.home, "~", filepath.ToSlash(s.home), "~",
		strings.ReplaceAll(s.work, `\`, `\\`), s.work, filepath.ToSlash(s.work), s.work,
	).Replace(text)
	text = timeZone.ReplaceAllString(text, "${1}UTC$2")
	text = pathsHere.ReplaceAllStringFunc(text, func(path string) string {
		return strings.ReplaceAll(strings.ReplaceAll(path, `\\`, "/"), `\`, "/")
	})
	belowWork := regexp.MustCompile(regexp.QuoteMeta(s.work) + `\\[^ :;"']*`)
	text = belowWork.ReplaceAllStringFunc(text, func(path string) string {
		return s.work + strings.ReplaceAll(strings.ReplaceAll(path[len(s.work):], `\\`, "/"), `\`, "/")
	})
	for _, h := range here {
		text = regexp.MustCompile(h.find).ReplaceAllString(text, h.there)
	}
	if shown := defaults.FindAllString(text, -1); len(shown) == 1 { // who asks for what is not by default
		text = strings.Replace(text, shown[0], "", 1)
	}
	return strings.ReplaceAll(text, settingsHere, settingsThere)
}

// userName is the name of the user of the tests.
func userName(t testing.TB) string {
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	_, name, _ := strings.Cut(u.Username, `\`)
	return name
}

// onScreen is not to be called: a terminal of Windows is not ours to make.
func onScreen(t testing.TB, _ *exec.Cmd, _ int) (text string, code int) {
	t.Fatal("there is no terminal here")
	return "", 0
}

// ownersAlone reports whether a file is its owner's alone: the access list of the folder
// says so here, which is tested with the service's.
func ownersAlone(os.FileInfo) bool { return true }

// copyProgram copies a program to a path, in the place of what is there: if that runs, it
// is put aside.
func copyProgram(t testing.TB, from, to string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to+".new", raw, 0o700)
	}
	if err == nil {
		os.Rename(to, to+".old") // there may be none
		err = os.Rename(to+".new", to)
	}
	if err != nil {
		t.Fatal(err)
	}
}
