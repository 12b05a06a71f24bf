package access

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// unusualCallerEnvVar is the environment variable that makes this test binary set unusual process attributes, such as
// limits and signal masks, and then execute the program in its arguments.
const unusualCallerEnvVar = "QUEUECTL_TEST_CALLER"

// execAsUnusualCaller changes every process attribute that exec keeps and that an unprivileged account may
// change. Then it executes the program in its arguments.
func execAsUnusualCaller() error {
	runtime.LockOSThread()
	prctl := func(option int, value uintptr) error { return unix.Prctl(option, value, 0, 0, 0) }
	write := func(name, text string) error { return os.WriteFile("/proc/self/"+name, []byte(text), 0) }
	limit := func(resource int, soft uint64) error {
		var l unix.Rlimit
		err := unix.Getrlimit(resource, &l)
		l.Cur = min(soft, l.Max)
		return errors.Join(err, unix.Setrlimit(resource, &l))
	}
	raw := func(number uintptr, args ...uintptr) error {
		args = append(args, 0, 0, 0, 0)
		if _, _, errno := unix.RawSyscall6(number, args[0], args[1], args[2], args[3], 0, 0); errno != 0 {
			return errno
		}
		return nil
	}
	ignore, mask := [8]uintptr{1}, uint64(1<<(unix.SIGTERM-1)|1<<(unix.SIGUSR1-1))
	var cpus unix.CPUSet
	cpus.Set(0)
	err := errors.Join(
		limit(unix.RLIMIT_CPU, 3600), limit(unix.RLIMIT_FSIZE, 1<<30), limit(unix.RLIMIT_DATA, 1<<40),
		limit(unix.RLIMIT_STACK, 1<<20),
		limit(unix.RLIMIT_NOFILE, 256), limit(unix.RLIMIT_MEMLOCK, 4096), limit(unix.RLIMIT_SIGPENDING, 100),
		raw(unix.SYS_PERSONALITY, 0x0040000), // ADDR_NO_RANDOMIZE
		write("oom_score_adj", "300"), write("coredump_filter", "0x7f"),
		prctl(unix.PR_SET_THP_DISABLE, 1), prctl(unix.PR_SET_TIMERSLACK, 1_000_000),
		unix.SchedSetaffinity(0, &cpus), raw(unix.SYS_IOPRIO_SET, 1, 0, 3<<13), // 3 is the idle class of I/O priorities
		unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_BATCH, Nice: 7}, 0),
		raw(unix.SYS_RT_SIGACTION, uintptr(unix.SIGUSR2), uintptr(unsafe.Pointer(&ignore)), 0, 8),
		raw(unix.SYS_RT_SIGACTION, uintptr(unix.SIGHUP), uintptr(unsafe.Pointer(&ignore)), 0, 8),
		raw(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&mask)), 0, 8),
	)
	if err != nil {
		return err
	}
	unix.Umask(0o177)
	return syscall.Exec(os.Args[1], os.Args[1:],
		slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, unusualCallerEnvVar) }))
}

// inheritedAttributesOf returns the attributes of a process that its children inherit, by name.
func inheritedAttributesOf(t *testing.T, pid int) map[string]string {
	t.Helper()
	got := map[string]string{}
	file := func(name string) string {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		if err != nil && name != "timerslack_ns" {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(raw))
	}
	for line := range strings.Lines(file("limits")) {
		if fields := strings.Fields(line[min(len(line), 26):]); len(fields) >= 2 && line[:3] == "Max" {
			got[strings.TrimSpace(line[4:26])] = fields[0]
		}
	}
	for line := range strings.Lines(file("status")) {
		name, value, _ := strings.Cut(line, ":")
		got[name] = strings.TrimSpace(value)
	}
	_, stat, _ := strings.Cut(file("stat"), ") ")
	fields := strings.Fields(stat)
	got["nice"], got["policy"] = fields[16], fields[38]
	for _, name := range []string{"personality", "oom_score_adj", "coredump_filter"} {
		got[name] = file(name)
	}
	class, _, _ := unix.Syscall(unix.SYS_IOPRIO_GET, 1, uintptr(pid), 0)
	got["I/O class"] = strconv.Itoa(int(class >> 13))
	return got
}

// personalService is a service that "queuectl enqueue" starts for a user. The user has a private home
// directory.
type personalService struct {
	*testing.T
	binPath, homeDir string
	user             testrig.Person
}

func newPersonalService(t *testing.T, user testrig.Person) *personalService {
	t.Helper()
	q := testrig.NewHarness(t, "")
	s := &personalService{T: t, binPath: testrig.InstallPrograms(q, q.ClientPath, q.StateDir), homeDir: q.Path("home"),
		user: user}
	err := errors.Join(os.Chmod(q.StateDir, 0o755), os.Mkdir(s.homeDir, 0o700), os.Chown(s.homeDir, user.Uid, user.Uid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.runQueuectl(nil, "service", "stop", "--runners") })
	return s
}

// queuectlCommand returns a command that runs queuectl with args. If callerCommand is not nil, it is a command line
// that executes the program in its last arguments; command appends queuectl and args to it.
func (s *personalService) queuectlCommand(callerCommand []string, args ...string) *exec.Cmd {
	argv := append(append(slices.Clone(callerCommand), s.binPath), args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = testrig.UserEnvironment(s.homeDir), s.homeDir
	if s.user.Uid == os.Geteuid() {
		return cmd // without root, a process may not set its groups
	}
	return testrig.CommandAs(cmd, s.user)
}

func (s *personalService) runQueuectl(callerCommand []string, args ...string) testrig.CommandResult {
	s.Helper()
	return testrig.RunCommand(s, s.queuectlCommand(callerCommand, args...))
}

// serviceAndRunnerPIDs returns the process ids of the service and its runner.
func (s *personalService) serviceAndRunnerPIDs() (service, runner int) {
	s.Helper()
	for _, line := range testrig.ProcessesWithArg(s.homeDir) {
		s.Log(line)
	}
	for _, e := range must(filepath.Glob("/proc/[0-9]*/environ")) {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(e)))
		words, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		env, _ := os.ReadFile(e)
		switch {
		case strings.Contains(string(words), "\x00serve\x00--background\x00") &&
			strings.Contains(string(env), "HOME="+s.homeDir+"\x00"):
			service = pid
		case testrig.IsRunnerProcess(pid, s.homeDir+"/.local/state/queuectl/runner") &&
			!strings.Contains(string(words), "--watchdog"):
			runner = pid
		}
	}
	if service == 0 || runner == 0 {
		s.Fatalf("service %d, runner %d", service, runner)
	}
	return service, runner
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// initProcessAttributes lists the attributes that Linux gives to the first process: the soft limits of INIT_RLIMITS
// (include/asm-generic/resource.h), the default timer slack of 50 µs, and MMF_DUMP_FILTER_DEFAULT with
// CONFIG_CORE_DUMP_DEFAULT_ELF_HEADERS.
var initProcessAttributes = map[string]string{
	"cpu time": "unlimited", "file size": "unlimited", "data size": "unlimited", "stack size": "8388608",
	"nice": "0", "policy": "0", "I/O class": "0", "personality": "00000000", "coredump_filter": "00000033",
	"THP_enabled": "1",
}

// If a client starts a service in the background, the service, its runner and its jobs have the attributes of
// initProcessAttributes. They inherit no attributes from the process that executed the client.
func TestBackgroundServiceInheritsNoCallerAttributes(t *testing.T) {
	skip.UnlessRoot(t, "needs root to lower the nice value; .ci/run runs it as root, "+
		"and TestBackgroundServiceHoldsNoDescriptorOfItsCaller has descriptors")
	t.Parallel()
	s := newPersonalService(t, testrig.Person{})
	self := must(os.Executable())
	caller := s.queuectlCommand([]string{self}, "run", "cat /proc/self/status; ulimit -Sa")
	caller.Env = append(caller.Env, unusualCallerEnvVar+"=1")
	r := testrig.RunCommand(s, caller)
	if r.ExitCode != 0 {
		t.Fatalf("%+v", r)
	}
	clean := inheritedAttributesOf(t, os.Getpid())
	service, runner := s.serviceAndRunnerPIDs()
	for name, pid := range map[string]int{"service": service, "runner": runner} {
		got := inheritedAttributesOf(t, pid)
		for attribute, want := range initProcessAttributes {
			if got[attribute] != want {
				t.Errorf("%s: %s is %q, want %q", name, attribute, got[attribute], want)
			}
		}
		for _, attribute := range []string{"Cpus_allowed_list", "oom_score_adj"} {
			if got[attribute] != clean[attribute] {
				t.Errorf("%s: %s is %q, want %q", name, attribute, got[attribute], clean[attribute])
			}
		}
	}
	for _, want := range []string{"SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000",
		"Cpus_allowed_list:\t" + clean["Cpus_allowed_list"]} {
		if !strings.Contains(r.Stdout, want) {
			t.Errorf("the job does not have %q:\n%s", want, r.Stdout)
		}
	}
	state := s.homeDir + "/.local/state/queuectl"
	for path := state; path != s.homeDir; path = filepath.Dir(path) {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v; want mode 700", path, info.Mode(), err)
		}
	}
	filepath.WalkDir(state, func(path string, e os.DirEntry, err error) error {
		if info, failed := os.Lstat(path); err != nil || failed == nil && info.Mode().IsRegular() &&
			info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want mode 600", path, info.Mode(), err)
		}
		return nil
	})
}

// A client that starts a service does not pass on its open file descriptors. So a file lock that belongs to one of
// these descriptors is released when the client ends.
func TestBackgroundServiceHoldsNoDescriptorOfItsCaller(t *testing.T) {
	t.Parallel()
	s := newPersonalService(t, testrig.Person{Uid: os.Geteuid(), Gid: os.Getegid()})
	lock := s.homeDir + "/lock"
	if r := s.runQueuectl([]string{"/bin/sh", "-c", `exec 3>>"$0" 7>&3 9>&3; flock -n 3; "$@"`, lock}, "run",
		"ls -l /proc/self/fd"); r.ExitCode != 0 || strings.Contains(r.Stdout, lock) {
		t.Fatalf("%+v", r)
	}
	if !testrig.IsFileUnlocked(t, lock) {
		t.Error("the service or its runner holds the lock of the client's caller")
	}
	service, runner := s.serviceAndRunnerPIDs()
	for _, pid := range []int{service, runner} {
		for _, fd := range must(filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))) {
			if to, _ := os.Readlink(fd); to == lock {
				t.Errorf("%s is %s", fd, to)
			}
		}
	}
}

// Environment variables that configure the Go runtime (see package runtime) reach a job if its user passes them on.
// Such variables have no effect on the service that the client starts, or on its runner.
func TestBackgroundServiceIgnoresGoVariablesOfItsCaller(t *testing.T) {
	t.Parallel()
	s := newPersonalService(t, testrig.Person{Uid: os.Geteuid(), Gid: os.Getegid()})
	variables := []string{"GOGC=50", "GOMEMLIMIT=1GiB", "GODEBUG=inittrace=1", "GOMAXPROCS=1", "GOTRACEBACK=crash"}
	words := []string{"run"}
	for _, v := range variables {
		name, _, _ := strings.Cut(v, "=")
		words = append(words, "--env-pass", name)
	}
	caller := s.queuectlCommand(nil, append(words, "env")...)
	caller.Env = append(caller.Env, variables...)
	r := testrig.RunCommand(s, caller)
	service, runner := s.serviceAndRunnerPIDs()
	for _, v := range variables {
		if r.ExitCode != 0 || !strings.Contains(r.Stdout, v+"\n") {
			t.Errorf("the job does not have the variable %s: %+v", v, r)
		}
		for what, pid := range map[string]int{"service": service, "runner": runner} {
			if env := "\x00" + string(must(os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)))); strings.Contains(env,
				"\x00"+v+"\x00") {
				t.Errorf("the %s has the variable %s", what, v)
			}
		}
	}
	if log := string(must(os.ReadFile(s.homeDir + "/.local/state/queuectl/queuectl.log"))); strings.Contains(log,
		"init runtime @") {
		t.Errorf("GODEBUG affected the service:\n%s", log)
	}
}

// If a service inherits a process attribute that its account may not reset, it logs the attribute once, and `queuectl
// doctor` reports it. If the attribute causes an error, the error names the attribute.
func TestBackgroundServiceReportsInheritedAttributes(t *testing.T) {
	skip.UnlessRoot(t, "needs root to act for another user; .ci/run runs it as root")
	t.Parallel()
	s := newPersonalService(t, testrig.Alice)
	caller := []string{"/bin/sh", "-c", `ulimit -n 300; exec setpriv --no-new-privs nice -n 10 "$0" "$@"`}
	if r := s.runQueuectl(caller, "run", "true"); r.ExitCode != 0 {
		t.Fatalf("%+v", r)
	}
	log := string(must(os.ReadFile(s.homeDir + "/.local/state/queuectl/queuectl.log")))
	doctor := s.runQueuectl(nil, "doctor")
	for _, want := range []string{"nice value 10", "limit for open files above the hard limit of 300", "no_new_privs"} {
		if strings.Count(log, want) != 1 {
			t.Errorf("the log does not report %q once:\n%s", want, log)
		}
		if !strings.Contains(doctor.Stdout, want) {
			t.Errorf("doctor does not report %q:\n%s", want, doctor.Stdout)
		}
	}
	for words, want := range map[string]string{
		"--nice 3":     "the runner has nice value 10",
		"--nofile 500": "the hard limit of 300 open files",
	} {
		r := s.runQueuectl(nil, append(append([]string{"run", "--max-retries", "0"}, strings.Fields(words)...), "true")...)
		if r.ExitCode == 0 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: %+v, want an error with %q", words, r, want)
		}
	}
	_, advice, _ := strings.Cut(doctor.Stdout, "restart the service and its runners from a login session (")
	advice, _, _ = strings.Cut(advice, ")")
	for words := range strings.SplitSeq(advice, "; ") {
		if r := s.runQueuectl(nil, strings.Fields(words)[1:]...); r.ExitCode != 0 {
			t.Errorf("doctor advises %q: %+v", words, r)
		}
	}
	if got := s.runQueuectl(nil, "doctor"); strings.Contains(got.Stdout,
		"limit for open files above the hard limit of 300") {
		t.Errorf("doctor after its advice was followed:\n%s", got.Stdout)
	}
}

// A service in the foreground keeps the resource limits that the user has set for it. Its runner does not keep
// inherited file descriptors, because the runner outlives the service.
func TestForegroundServiceKeepsChosenAttributes(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	lock := q.Path("lock")
	bin := q.ClientPath
	q.ClientPath = q.Path("called")
	script := fmt.Sprintf("#!/bin/sh\nexec 7>>%s; flock -n 7; exec nice -n 5 %s \"$@\"\n", lock, bin)
	testrig.WriteProgram(t, q.ClientPath, script)
	q.StartService("--workers", "1")
	q.ClientPath = bin
	if got := q.MustRunCLI("run", "nice"); got != "5" {
		t.Errorf("nice value of a job: %q, want 5", got)
	}
	q.KillService()
	q.WaitUntil("the lock is free", 5*time.Second, func() bool { return testrig.IsFileUnlocked(t, lock) })
	if len(q.RunnerPIDs()) == 0 {
		t.Error("the runner has ended; want it still running")
	}
}

// If root runs queuectl with HOME set to the home directory of another account, as "sudo -E" does, queuectl
// creates nothing in that directory.
func TestRootCreatesNothingInOthersHome(t *testing.T) {
	skip.UnlessRoot(t, "needs root to act for another user; .ci/run runs it as root")
	t.Parallel()
	s := newPersonalService(t, testrig.Alice)
	s.user = testrig.Person{}
	for _, words := range []string{"enqueue true", "run true", "worker start", "service start", "serve",
		"service install --user"} {
		r := s.runQueuectl(nil, strings.Fields(words)...)
		if entries := must(os.ReadDir(s.homeDir)); r.ExitCode == 0 ||
			!strings.Contains(r.Stderr, "belongs to uid "+strconv.Itoa(testrig.Alice.Uid)) || len(entries) > 0 {
			t.Errorf("%s: %+v, and created %v", words, r, entries)
		}
	}
}

// An account can keep its queue in a home directory that belongs to another uid, as on OpenShift and
// with bind mounts, if the account's group may write there. Otherwise the command reports that the
// directory cannot be created.
func TestQueueWorksInOthersGroupWritableHome(t *testing.T) {
	skip.UnlessRoot(t, "needs root to act for another user; .ci/run runs it as root")
	t.Parallel()
	for mode, want := range map[os.FileMode]string{0o775: "", 0o755: "permission denied"} {
		s := newPersonalService(t, testrig.Alice)
		s.user = testrig.Person{Uid: 61250, Gid: 61251}
		if err := errors.Join(os.Chown(s.homeDir, testrig.Alice.Uid, s.user.Gid), os.Chmod(s.homeDir, mode)); err != nil {
			t.Fatal(err)
		}
		r := s.runQueuectl(nil, "run", "echo done")
		if succeeded := r.ExitCode == 0 && r.Stdout == "done\n"; succeeded != (want == "") ||
			!strings.Contains(r.Stderr, want) ||
			strings.Contains(r.Stderr, "sudo") {
			t.Errorf("mode %o: %+v, want the error %q", mode, r, want)
		}
	}
}

// After logrotate or another program has renamed a log file, a reload makes the service and its
// runner open a new log file.
func TestReloadReopensAMovedLog(t *testing.T) {
	t.Parallel()
	s := newPersonalService(t, testrig.Person{Uid: os.Geteuid(), Gid: os.Getegid()})
	log := s.homeDir + "/.local/state/queuectl/queuectl.log"
	if r := s.runQueuectl(nil, "run", "true"); r.ExitCode != 0 {
		t.Fatalf("%+v", r)
	}
	service, runner := s.serviceAndRunnerPIDs()
	logOf := func(pid, fd int) string { to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd)); return to }
	if got := logOf(runner, 2); got != log {
		t.Fatalf("the runner's log is %s", got)
	}
	if err := os.Rename(log, log+".moved"); err != nil {
		t.Fatal(err)
	}
	if r := s.runQueuectl(nil, "reload"); r.ExitCode != 0 {
		t.Fatalf("%+v", r)
	}
	if r := s.runQueuectl(nil, "run", "--id", "later", "--max-retries", "0", "false"); r.ExitCode != 1 {
		t.Fatalf("%+v", r)
	}
	if raw, err := os.ReadFile(log); err != nil || !strings.Contains(string(raw), "job=later") {
		t.Errorf("the new log: %q, %v", raw, err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for logOf(runner, 2) != log && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	for _, pid := range []int{service, runner} {
		for _, fd := range must(os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))) {
			if to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name())); strings.HasSuffix(to, ".moved") {
				t.Errorf("process %d has %s open as %s", pid, to, fd.Name())
			}
		}
	}
}
