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
)

// A copy of the program is whole before it is run, and is waited for while somebody reads
// what stands in its place.
func TestCopyIsWhole(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program.exe")
	if err := os.WriteFile(program, []byte("the program"), 0o700); err != nil {
		t.Fatal(err)
	}
	into := filepath.Join(dir, programsName)
	path, err := copied(program, into)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("half"), 0o700); err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(500*time.Millisecond, func() { reader.Close() }).Stop()
	again, err := copied(program, into)
	if text, _ := os.ReadFile(again); string(text) != "the program" || again != path || err != nil {
		t.Errorf("got %q in %s, %v", text, again, err)
	}
	if list, _ := os.ReadDir(into); len(list) != 1 {
		t.Errorf("there are %v", list)
	}
}

// This program is also a service, and the runner that it starts.
func init() {
	if dir := os.Getenv("QUEUECTL_TEST_SERVICE"); dir != "" {
		service(dir)
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == "runner" {
		Ready(strconv.Itoa(os.Getpid()))
		time.Sleep(time.Minute) // no test waits so long
		os.Exit(0)
	}
}

// service starts a runner, once it is told to, and says its number.
func service(dir string) {
	self, _ := os.Executable()
	bufio.NewReader(os.Stdin).ReadString('\n')
	name, err := Home{Dir: dir, Command: []string{self, "runner"}, Log: os.Stderr}.spawn(false)
	os.Stdout.WriteString(name + "\n")
	if err == nil {
		io.Copy(io.Discard, os.Stdin)
	}
}

// A runner outlives its service also where that was ended with the job object that
// somebody had put it in, if that lets processes leave; where it does not there is a runner
// nevertheless.
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
		if _, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation, uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits))); err != nil {
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
		said, err := bufio.NewReader(out).ReadString('\n')
		pid, err2 := strconv.Atoi(strings.TrimSpace(said))
		if err != nil || err2 != nil {
			t.Fatalf("leaves %t: the service said %q, %v", leaves, said, err)
		}
		runner, err := windows.OpenProcess(windows.SYNCHRONIZE|windows.PROCESS_TERMINATE, false, uint32(pid))
		if err != nil {
			t.Fatal(err)
		}
		defer windows.CloseHandle(runner)
		windows.TerminateJobObject(job, 1)
		cmd.Wait()
		event, err := windows.WaitForSingleObject(runner, 2000)
		if lives := event == uint32(windows.WAIT_TIMEOUT); lives != leaves || err != nil {
			t.Errorf("leaves %t: the runner lives %t, %v", leaves, lives, err)
		}
		windows.TerminateProcess(runner, 1)
		windows.WaitForSingleObject(runner, 5000)
	}
}
