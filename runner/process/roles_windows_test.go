package process

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/output"
)

// testRoleEnvVar is an environment variable. If it is set, this test program runs no tests, but a function from
// testRoles. The first argument is the name of the function's role. All commands of the tests run this program.
const testRoleEnvVar = "QUEUECTL_TEST_ROLE"

// testRoles contains the functions that a command of the tests can run, by the name of the role.
var testRoles map[string]func(args []string)

func TestMain(m *testing.M) {
	testRoles = map[string]func([]string){
		"exit":   roleExit,
		"args":   func(args []string) { json.NewEncoder(os.Stdout).Encode(args) },
		"env":    func([]string) { json.NewEncoder(os.Stdout).Encode(os.Environ()) },
		"print":  rolePrint,
		"gaps":   roleWriteWithGaps,
		"cat":    func([]string) { io.Copy(os.Stdout, os.Stdin) },
		"sleep":  func([]string) { sleepBeyondTest() },
		"tree":   roleStartTree,
		"behind": roleLeaveChild,
		"spin":   roleUseCPU,
		"hog":    roleAllocate,
		"break":  roleAwaitCtrlBreak,
		"parent": roleStartSlowCleanup,
		"saver":  roleSlowCleanup,
		"run":    roleRunTree,
		"boot":   rolePrintBootID,
	}
	if os.Getenv(testRoleEnvVar) != "" {
		testRoles[os.Args[1]](os.Args[2:])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func sleepBeyondTest() { time.Sleep(time.Minute) } // longer than any test

// roleExit prints all arguments except the first, and exits with the code in the first.
func roleExit(args []string) {
	code, _ := strconv.ParseUint(args[0], 10, 32)
	for _, word := range args[1:] {
		fmt.Print(word)
	}
	windows.ExitProcess(uint32(code))
}

// binaryOutput returns binary output: every byte value, and line endings of several kinds.
func binaryOutput() (content []byte) {
	for i := range 1 << 18 {
		content = append(content, byte(i))
	}
	return append(content, "\r\n\n\x1a\x00end"...)
}

// rolePrint prints binaryOutput on standard output, and a line on standard error.
func rolePrint([]string) {
	os.Stdout.Write(binaryOutput())
	os.Stderr.WriteString("err\r\n")
}

// roleWriteWithGaps writes numbers, with a write of length zero before each number. The reader of the pipe sees a write
// of length zero as a read of zero bytes.
func roleWriteWithGaps([]string) {
	for i := range 3 {
		var n uint32
		windows.WriteFile(windows.Stdout, []byte{}, &n, nil)
		fmt.Print(i)
	}
}

// writePIDFile creates a file in dir that has the pid of this process as its name.
func writePIDFile(dir string) {
	os.WriteFile(filepath.Join(dir, strconv.Itoa(os.Getpid())), nil, 0o600)
}

// roleStartTree starts a tree of the given depth. Its child processes do not hold the output open.
func roleStartTree(args []string) {
	if depth, _ := strconv.Atoi(args[1]); depth > 1 {
		c := exec.Command(os.Args[0], "tree", args[0], strconv.Itoa(depth-1))
		if err := c.Start(); err != nil {
			panic(err)
		}
	}
	writePIDFile(args[0])
	sleepBeyondTest()
}

// roleLeaveChild starts a child process, waits until the child runs, and ends. If the second argument is
// "holds", the child keeps the command's input and output open.
func roleLeaveChild(args []string) {
	c := exec.Command(os.Args[0], "tree", args[0], "1")
	if args[1] == "holds" {
		c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	}
	if err := c.Start(); err != nil {
		panic(err)
	}
	for len(readPIDFiles(args[0])) == 0 {
		time.Sleep(time.Millisecond)
	}
	fmt.Print("left")
}

// roleUseCPU uses the processor for the duration in its argument.
func roleUseCPU(args []string) {
	d, _ := time.ParseDuration(args[0])
	for began := time.Now(); time.Since(began) < d; {
	}
}

// roleAllocate allocates memory, and fails if the system refuses memory.
func roleAllocate(args []string) {
	n, _ := strconv.Atoi(args[0])
	for range n {
		if _, err := windows.VirtualAlloc(0, 1<<20, windows.MEM_COMMIT|windows.MEM_RESERVE,
			windows.PAGE_READWRITE); err != nil {
			fmt.Print(err)
			os.Exit(3)
		}
	}
}

// roleAwaitCtrlBreak waits for CTRL_BREAK, and then exits with code 7.
func roleAwaitCtrlBreak([]string) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt)
	fmt.Print("ready")
	<-signals
	os.Exit(7)
}

// roleStartSlowCleanup starts a child process with the role "saver". Only the child handles CTRL_BREAK.
func roleStartSlowCleanup(args []string) {
	c := exec.Command(os.Args[0], "saver", args[0])
	c.Stdout = os.Stdout
	if err := c.Start(); err != nil {
		panic(err)
	}
	sleepBeyondTest()
}

// roleSlowCleanup waits for a file. Then it runs for longer than the output grace period before it ends.
func roleSlowCleanup(args []string) {
	writePIDFile(args[0])
	for {
		if _, err := os.Stat(filepath.Join(args[0], "end")); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	time.Sleep(300 * time.Millisecond)
	fmt.Print("saved")
}

// roleRunTree runs a command with a process tree, as a runner does.
func roleRunTree(args []string) {
	w := NewWorker(nil)
	c := newTestCommand(nil, "tree", args[0], "3")
	c.Cookie = args[1]
	w.Run(c)
}

// rolePrintBootID prints the boot ID, and whether ThisProcessStartTicks returns a start time.
func rolePrintBootID([]string) {
	id, err := BootID()
	fmt.Print(id, " ", err, " ", ThisProcessStartTicks() > 0)
}

// testCookieCount counts the commands of the tests, so that each command gets a unique cookie.
var testCookieCount = 0

// newTestCommand returns a command that runs this program in a role. t may be nil.
func newTestCommand(t *testing.T, role string, args ...string) *Command {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	testCookieCount++
	c := &Command{
		Argv: append([]string{self, role}, args...), Env: append(os.Environ(), testRoleEnvVar+"=1"),
		LeftoverGracePeriod: 100 * time.Millisecond, KillAfter: 50 * time.Millisecond, SigkillTimeout: 20 * time.Second,
		Cookie: fmt.Sprintf("test.%d.%d", os.Getpid(), testCookieCount), OutputLog: output.NewLog(4<<20, nil),
		OnStarted: func(int, time.Time) {}, OnForked: func(int, time.Time) {},
	}
	if t != nil {
		c.OutputLog = output.NewLog(4<<20, func() (*os.File, error) { return os.CreateTemp("", "output") })
		t.Cleanup(c.OutputLog.Discard)
	}
	return c
}

// runCommand runs a command on a new worker and returns its output.
func runCommand(t *testing.T, c *Command) (r Result, stdout, stderr string) {
	t.Helper()
	w := NewWorker(nil)
	defer w.Close()
	return runOnWorker(t, w, c)
}

// runOnWorker runs a command on a worker and returns its output.
func runOnWorker(t *testing.T, w *Worker, c *Command) (r Result, stdout, stderr string) {
	t.Helper()
	done := make(chan Result)
	go func() { done <- w.Run(c) }()
	select {
	case r = <-done:
	case <-time.After(45 * time.Second):
		t.Fatalf("%q does not end", c.Argv)
	}
	stdout, stderr = printedOutput(t, c)
	return r, stdout, stderr
}

// printedOutput returns the output that a command has printed until now.
func printedOutput(t *testing.T, c *Command) (stdout, stderr string) {
	t.Helper()
	var cursor output.StreamCursor
	for {
		chunks, next, done, err := c.OutputLog.Read(cursor, 1<<20)
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
		if cursor = next; done || len(chunks) == 0 {
			return stdout, stderr
		}
	}
}

// readPIDFiles returns the pids of the processes that have called writePIDFile with this directory.
func readPIDFiles(dir string) (pids []uint32) {
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		pid, _ := strconv.ParseUint(f.Name(), 10, 32)
		pids = append(pids, uint32(pid))
	}
	return pids
}

// openTreeHandles waits until count processes have called writePIDFile, and opens handles of them. While the
// handles are open, Windows does not reuse the pids.
func openTreeHandles(t *testing.T, dir string, count int) (processes []windows.Handle) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); len(readPIDFiles(dir)) < count; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d processes have started within 30 s", len(readPIDFiles(dir)), count)
		}
	}
	for _, pid := range readPIDFiles(dir) {
		h, err := windows.OpenProcess(windows.SYNCHRONIZE|windows.PROCESS_TERMINATE|windows.PROCESS_QUERY_LIMITED_INFORMATION,
			false, pid)
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

// countLivingProcesses waits for the end of each process, for at most the given time. It returns how many processes
// have not ended.
func countLivingProcesses(processes []windows.Handle, timeout time.Duration) (n int) {
	for _, h := range processes {
		if event, _ := windows.WaitForSingleObject(h, uint32(timeout.Milliseconds())); event != windows.WAIT_OBJECT_0 {
			n++
		}
	}
	return n
}
