package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// bareCommandsEnvVariable is the environment variable that makes this program call runBareCommands instead of running
// the benchmark. Its value has the form "workers,commands". The loop runs in a separate process so that its CPU time
// can be measured.
const bareCommandsEnvVariable = "QUEUECTL_BENCH_BARE"

// noopCommand is the command that runBareCommands executes: a shell that does nothing. The jobs of the service that are
// compared with the loop run the same command.
var noopCommand = []string{"/bin/sh", "-c", "true"}

// runBareCommands runs the command noop many times, with fork and exec, without a queue or a database. It is the
// baseline for the service. workersAndCount is the value of bareCommandsEnvVariable.
func runBareCommands(workersAndCount string) {
	var workers, n int
	if _, err := fmt.Sscanf(workersAndCount, "%d,%d", &workers, &n); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", bareCommandsEnvVariable, err)
		os.Exit(exitCodeFailed)
	}
	// While a thread waits in vfork, the Go scheduler does not give the thread's P (processor of the scheduler) to another
	// thread. So this loop needs more Ps than the machine has processors.
	runtime.GOMAXPROCS(max(8, 2*workers+2))
	var remainingCommands atomic.Int64
	remainingCommands.Store(int64(n))
	var loops sync.WaitGroup
	var failed atomic.Bool
	env := measuredProgramEnv("/")
	for range workers {
		loops.Go(func() {
			buf := make([]byte, 4096)
			for remainingCommands.Add(-1) >= 0 {
				if err := runBareCommand(noopCommand, env, buf); err != nil {
					fmt.Fprintln(os.Stderr, "bench:", err)
					failed.Store(true)
					return
				}
			}
		})
	}
	loops.Wait()
	if failed.Load() {
		os.Exit(exitCodeFailed)
	}
}

// runBareCommand runs one command in a new process group and reads its output into outputBuffer.
func runBareCommand(argv, env []string, outputBuffer []byte) error {
	var readFDs, writeFDs [2]int
	for i := range 2 {
		var p [2]int
		if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC); err != nil {
			return fmt.Errorf("cannot create a pipe: %w", err)
		}
		readFDs[i], writeFDs[i] = p[0], p[1]
	}
	null, err := syscall.Open("/dev/null", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{
		Env:   env,
		Files: []uintptr{uintptr(null), uintptr(writeFDs[0]), uintptr(writeFDs[1])},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	for _, fd := range []int{null, writeFDs[0], writeFDs[1]} {
		syscall.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("cannot start %s: %w", argv[0], err)
	}
	for _, fd := range readFDs {
		for {
			if n, err := syscall.Read(fd, outputBuffer); n <= 0 && err != syscall.EINTR {
				break
			}
		}
		syscall.Close(fd)
	}
	var status syscall.WaitStatus
	for {
		if _, err = syscall.Wait4(pid, &status, 0, nil); err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("cannot wait for %s: %w", argv[0], err)
	}
	if status.ExitStatus() != 0 {
		return fmt.Errorf("%s: exit code %d", argv[0], status.ExitStatus())
	}
	return nil
}

// commandTimes contains the times that a number of commands took together.
type commandTimes struct {
	elapsed, totalCPU time.Duration   // elapsed time, and CPU time of all processes
	serviceCPU        serviceCPUTimes // CPU time of the service, its runner and its jobs; zero for other programs
}

// measureBareCommands measures how long the bare loop takes to run n commands with the given number of workers.
func (b *bench) measureBareCommands(workers, commandCount int) (commandTimes, error) {
	cmd := exec.Command(b.benchProgramPath)
	cmd.Env = append(measuredProgramEnv(b.dir), fmt.Sprintf("%s=%d,%d", bareCommandsEnvVariable, workers, commandCount))
	return timeCommand(cmd)
}

// measureXargs measures how long the program xargs takes to run the given number of commands.
func (b *bench) measureXargs(workers, commandCount int) (commandTimes, error) {
	numbers := make([]byte, 0, 5*commandCount)
	for i := range commandCount {
		numbers = append(strconv.AppendInt(numbers, int64(i), 10), '\n')
	}
	path := filepath.Join(b.dir, "numbers")
	if err := os.WriteFile(path, numbers, 0o600); err != nil {
		return commandTimes{}, err
	}
	in, err := os.Open(path)
	if err != nil {
		return commandTimes{}, err
	}
	defer in.Close()
	cmd := exec.Command("xargs", "-P", strconv.Itoa(workers), "-n", "1", "/bin/sh", "-c", "true")
	cmd.Env, cmd.Stdin = measuredProgramEnv(b.dir), in
	return timeCommand(cmd)
}

// measureMake measures how long the program make takes to run the given number of commands.
func (b *bench) measureMake(workers, commandCount int) (commandTimes, error) {
	var names strings.Builder
	for i := range commandCount {
		fmt.Fprintf(&names, " j%d", i)
	}
	path := filepath.Join(b.dir, "Makefile")
	text := fmt.Sprintf(".PHONY: all%s\nall:%s\n%s:\n\t@/bin/sh -c true\n", names.String(), names.String(),
		names.String()[1:])
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return commandTimes{}, err
	}
	cmd := exec.Command("make", "-r", "-s", "-f", path, "-j"+strconv.Itoa(workers))
	cmd.Env = measuredProgramEnv(b.dir)
	return timeCommand(cmd)
}

// timeCommand runs a command and returns its times. The CPU time includes that of the command's child processes.
func timeCommand(cmd *exec.Cmd) (commandTimes, error) {
	cmd.Stderr = os.Stderr
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return commandTimes{}, fmt.Errorf("%s: %w", filepath.Base(cmd.Path), err)
	}
	state := cmd.ProcessState
	return commandTimes{elapsed: time.Since(began), totalCPU: state.UserTime() + state.SystemTime()}, nil
}
