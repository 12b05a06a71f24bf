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

// bareVariable is the environment variable that makes this program run the bare loop (bareMain) instead of the
// benchmark. Its value is the number of workers and the number of commands to run. The loop runs in a separate
// process so that its CPU time can be measured.
const bareVariable = "QUEUECTL_BENCH_BARE"

// noop is the command of every job in a drain, a measurement that empties a full queue.
var noop = []string{"/bin/sh", "-c", "true"}

// bareMain runs the command noop n times in the cheapest way that Go offers, without a queue or a database.
// spec is the value of bareVariable.
func bareMain(spec string) {
	var workers, n int
	if _, err := fmt.Sscanf(spec, "%d,%d", &workers, &n); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", bareVariable, err)
		os.Exit(exitFailed)
	}
	// A thread that blocks in vfork keeps its P (a processor of the Go scheduler). Therefore the loop needs more Ps
	// than the machine has processors. The runner also has more of them.
	runtime.GOMAXPROCS(max(8, 2*workers+2))
	var left atomic.Int64
	left.Store(int64(n))
	var loops sync.WaitGroup
	var failed atomic.Bool
	env := plainEnv("/")
	for range workers {
		loops.Go(func() {
			buf := make([]byte, 4096)
			for left.Add(-1) >= 0 {
				if err := runBare(noop, env, buf); err != nil {
					fmt.Fprintln(os.Stderr, "bench:", err)
					failed.Store(true)
					return
				}
			}
		})
	}
	loops.Wait()
	if failed.Load() {
		os.Exit(exitFailed)
	}
}

// runBare runs one command in a new process group and reads its output into buf.
func runBare(argv, env []string, buf []byte) error {
	var read, write [2]int
	for i := range 2 {
		var p [2]int
		if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC); err != nil {
			return fmt.Errorf("cannot create a pipe: %w", err)
		}
		read[i], write[i] = p[0], p[1]
	}
	null, err := syscall.Open("/dev/null", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{
		Env:   env,
		Files: []uintptr{uintptr(null), uintptr(write[0]), uintptr(write[1])},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	for _, fd := range []int{null, write[0], write[1]} {
		syscall.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("cannot start %s: %w", argv[0], err)
	}
	for _, fd := range read {
		for {
			if n, err := syscall.Read(fd, buf); n <= 0 && err != syscall.EINTR {
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

// effort is the time that it took to run a number of commands.
type effort struct {
	wall, cpu time.Duration // elapsed time, and CPU time of all processes
	ownCost   cost          // CPU time of the service, its runner and its jobs; zero for other programs
}

// measureBareCommands measures how long the bare loop takes for n commands with a number of workers.
func (b *bench) measureBareCommands(workers, n int) (effort, error) {
	cmd := exec.Command(b.self)
	cmd.Env = append(plainEnv(b.dir), fmt.Sprintf("%s=%d,%d", bareVariable, workers, n))
	return effortOf(cmd)
}

// measureXargs measures how long the program xargs takes to run n commands.
func (b *bench) measureXargs(workers, n int) (effort, error) {
	numbers := make([]byte, 0, 5*n)
	for i := range n {
		numbers = append(strconv.AppendInt(numbers, int64(i), 10), '\n')
	}
	path := filepath.Join(b.dir, "numbers")
	if err := os.WriteFile(path, numbers, 0o600); err != nil {
		return effort{}, err
	}
	in, err := os.Open(path)
	if err != nil {
		return effort{}, err
	}
	defer in.Close()
	cmd := exec.Command("xargs", "-P", strconv.Itoa(workers), "-n", "1", "/bin/sh", "-c", "true")
	cmd.Env, cmd.Stdin = plainEnv(b.dir), in
	return effortOf(cmd)
}

// measureMake measures how long the program make takes to run n commands.
func (b *bench) measureMake(workers, n int) (effort, error) {
	var names strings.Builder
	for i := range n {
		fmt.Fprintf(&names, " j%d", i)
	}
	path := filepath.Join(b.dir, "Makefile")
	text := fmt.Sprintf(".PHONY: all%s\nall:%s\n%s:\n\t@/bin/sh -c true\n", names.String(), names.String(),
		names.String()[1:])
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return effort{}, err
	}
	cmd := exec.Command("make", "-r", "-s", "-f", path, "-j"+strconv.Itoa(workers))
	cmd.Env = plainEnv(b.dir)
	return effortOf(cmd)
}

// effortOf runs a command and returns its times. They include the CPU time of its child processes.
func effortOf(cmd *exec.Cmd) (effort, error) {
	cmd.Stderr = os.Stderr
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return effort{}, fmt.Errorf("%s: %w", filepath.Base(cmd.Path), err)
	}
	state := cmd.ProcessState
	return effort{wall: time.Since(began), cpu: state.UserTime() + state.SystemTime()}, nil
}
