package runner

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/copies"
	"github.com/queuectl/queuectl/runner/rundir"
)

// Depending on the environment, this test program is a service, or the runner that this service starts.
func init() {
	if dir := os.Getenv("QUEUECTL_TEST_SERVICE"); dir != "" {
		spawnRunnerAsService(dir)
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == "runner" {
		ReportReady(strconv.Itoa(os.Getpid()))
		time.Sleep(time.Minute) // longer than any test
		os.Exit(0)
	}
}

// spawnRunnerAsService waits for a line on standard input, starts a runner and prints the runner's pid.
func spawnRunnerAsService(runnersDir string) {
	self, _ := os.Executable()
	bufio.NewReader(os.Stdin).ReadString('\n')
	name, err := RunnersLocation{RunnersDir: runnersDir, RunnerCommand: []string{self, "runner"},
		RunnerLog: os.Stderr}.spawnRunner(false)
	os.Stdout.WriteString(name + "\n")
	if err == nil {
		io.Copy(io.Discard, os.Stdin)
	}
}

// A runner runs the copy of the program that was installed next to the program. If that copy is missing or of
// another version, the runner runs a copy in the runners' directory. If a policy forbids this, the error
// names the policy.
func TestRunnerRunsInstalledProgramCopy(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "programs", "queuectl.exe")
	write := func(text string) {
		t.Helper()
		err := os.MkdirAll(filepath.Dir(program), 0o700)
		if err == nil {
			err = os.WriteFile(program, []byte(text), 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	h := RunnersLocation{RunnersDir: filepath.Join(dir, "state"), RunnerCommand: []string{program, "runner"}}
	checkProgramIn := func(want string) { // starts a runner and checks the directory of its program
		t.Helper()
		started := ""
		_, err := h.spawnRunnerWith(func(cmd *exec.Cmd) error {
			started = cmd.Path
			return &os.PathError{Op: "fork/exec", Path: cmd.Path, Err: windows.ERROR_ACCESS_DISABLED_BY_POLICY}
		}, false)
		if filepath.Dir(started) != want || err == nil || !strings.Contains(err.Error(), "AppLocker") ||
			!strings.Contains(err.Error(), started) {
			t.Errorf("started %s, want one in %s; %v", started, want, err)
		}
	}
	own, installed := filepath.Join(h.RunnersDir, rundir.ProgramsDirName), copies.CopiesDir(program)
	write("one")
	checkProgramIn(own)
	if _, err := copies.EnsureCopy(program, installed); err != nil {
		t.Fatal(err)
	}
	checkProgramIn(installed)
	write("two")
	checkProgramIn(own)
	if list, _ := os.ReadDir(own); len(list) != 1 {
		t.Errorf("earlier copies are left: %v", list)
	}
}

// If a service is in a job object, its runner leaves the job object if this is allowed, and then survives the
// end of the job object. Otherwise the runner starts inside the job object.
func TestRunnerLeavesTheServicesJobObject(t *testing.T) {
	for _, leaves := range []bool{true, false} {
		job, err := windows.CreateJobObject(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer windows.CloseHandle(job)
		var limits windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
		if leaves {
			limits.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_BREAKAWAY_OK
		}
		if _, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
			uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits))); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "QUEUECTL_TEST_SERVICE="+t.TempDir())
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		h, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		defer windows.CloseHandle(h)
		if err := windows.AssignProcessToJobObject(job, h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(in, "\n")
		stdout, err := bufio.NewReader(out).ReadString('\n')
		pid, err2 := strconv.Atoi(strings.TrimSpace(stdout))
		if err != nil || err2 != nil {
			t.Fatalf("leaves %t: the service printed %q, %v", leaves, stdout, err)
		}
		runner, err := windows.OpenProcess(windows.SYNCHRONIZE|windows.PROCESS_TERMINATE, false, uint32(pid))
		if err != nil {
			t.Fatal(err)
		}
		defer windows.CloseHandle(runner)
		windows.TerminateJobObject(job, 1)
		cmd.Wait()
		event, err := windows.WaitForSingleObject(runner, 2000)
		if running := event == uint32(windows.WAIT_TIMEOUT); running != leaves || err != nil {
			t.Errorf("leaves %t: the runner is running: %t, %v", leaves, running, err)
		}
		windows.TerminateProcess(runner, 1)
		windows.WaitForSingleObject(runner, 5000)
	}
}
