package access

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// The service can read the files of root's runners, but only root can change them. Only the service can connect
// to the sockets of root's runners.
func TestOnlyRootChangesRootRunnerFiles(t *testing.T) {
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	big := q.MustRunAs(testrig.DaemonUser, "enqueue", "--cwd", "/", "head -c 200000 /dev/zero | tr '\\0' x")
	q.MustRunAs(testrig.DaemonUser, "wait", big)
	if got := len(q.MustRunAs(testrig.DaemonUser, "logs", big)); got != 200000 {
		t.Errorf("%d bytes of output, want 200000", got)
	}
	err := filepath.Walk(q.RootRunnerDir, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		// Do not check the modes of these directories: jobs must traverse them to reach their own directories.
		if strings.HasPrefix(path, q.RootRunnerDir+"/jobs") {
			return nil
		}
		isSpawnSocket := filepath.Base(path) == "spawn.sock" // only the service may use this socket
		others := info.Mode().Perm() & 0o007
		if others != 0 && (path != q.RootRunnerDir || others != 0o001) || info.Mode().Perm()&0o020 != 0 &&
			info.Mode()&os.ModeSocket == 0 || int(st.Uid) != 0 && !isSpawnSocket || int(st.Gid) != testrig.ServiceAccount.Gid &&
			!isSpawnSocket {
			t.Errorf("%s has mode %v, uid %d, gid %d", path, info.Mode(), st.Uid, st.Gid)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sockets, _ := filepath.Glob(q.RootRunnerDir + "/*/run.sock")
	for _, socket := range append(sockets, q.RootRunnerDir+"/spawn.sock") {
		if r := q.RunAs(testrig.DaemonUser, "--socket", socket, "status"); r.ExitCode != 5 &&
			!strings.Contains(r.Stderr, "permission denied") {
			t.Errorf("a submitter could connect to %s: %+v", socket, r)
		}
	}
	if got := q.RunJobAs(testrig.DaemonUser, "--cwd", "/", "kill -0 $PPID; cat "+sockets[0]+"; ls "+
		q.RootRunnerDir); strings.Count(got, "ermission denied")+strings.Count(got, "not permitted") != 3 {
		t.Errorf("a submitter's job printed %s", got)
	}
}

// When a runner of root is killed, processes of its jobs remain, which the service has no right to end. The
// next runner of root ends them. The jobs run again, and the directory of the killed runner is removed.
func TestNextRootRunnerCleansUpKilledRunner(t *testing.T) {
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	id := q.MustRunAs(testrig.DaemonUser, "enqueue", "--cwd", "/", "setsid sleep 300 & echo $! ; exec sleep 300")
	var stray string
	q.WaitUntil("the job runs", 20*time.Second, func() bool {
		stray = strings.TrimSpace(q.MustRunCLI("logs", id))
		return stray != ""
	})
	old := q.RunnerPIDs()
	q.KillRunners()
	q.WaitUntil("the job runs again", 20*time.Second, func() bool {
		j := q.ShowJob(id)
		return j.State == "processing" && j.AttemptCount == 1
	})
	if j := q.ShowJob(id); j.AttemptHistory[0].Reason != "lost" {
		t.Errorf("the job of the killed runner: %+v, want its first attempt lost", j)
	}
	if raw, _ := os.ReadFile("/proc/" + stray + "/cmdline"); bytes.Contains(raw, []byte("sleep\x00300")) {
		t.Errorf("process %s of the dead runner's job is still alive", stray)
	}
	q.WaitUntil("the dead runner's directory is gone", 20*time.Second, func() bool {
		remaining, _ := filepath.Glob(fmt.Sprintf("%s/%d.*", q.RootRunnerDir, old[0]))
		return len(remaining) == 0
	})
	q.MustRunCLI("cancel", id)
}

// If a runner of root dies before it has deleted an output that the service asked it to delete, the next runner
// of root deletes it. No other process has the right to do that.
func TestNextRootRunnerDeletesRequestedOutputs(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	id := q.MustRunAs(testrig.DaemonUser, "enqueue", "--cwd", "/", "head -c 200000 /dev/zero | tr '\\0' x")
	q.MustRunAs(testrig.DaemonUser, "wait", id)
	files := func() []string {
		list, _ := filepath.Glob(q.RootRunnerDir + "/output/*")
		return list
	}
	if len(files()) != 1 {
		t.Fatalf("outputs: %v", files())
	}
	// triggerPending enqueues a job that is soon due and waits for it. When a job is due, the service also does
	// pending work, such as deletions.
	triggerPending := func() {
		q.RunCLI("wait", q.MustRunAs(testrig.DaemonUser, "enqueue", "--cwd", "/", "--delay", "10ms", "true"), "--timeout",
			"2")
	}
	for _, pid := range q.RunnerPIDs() {
		syscall.Kill(pid, syscall.SIGSTOP)
	}
	q.MustRunCLI("rm", id)
	triggerPending()
	q.KillRunners()
	triggerPending()
	q.WaitUntil("the output is gone", 40*time.Second, func() bool { return len(files()) == 0 })
}

// When the service dies, jobs of root's runners continue, like all other jobs.
func TestRootRunnerJobsOutliveService(t *testing.T) {
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	gate := filepath.Join(t.TempDir(), "go")
	os.Chmod(filepath.Dir(gate), 0o755)
	os.Chmod(filepath.Dir(filepath.Dir(gate)), 0o755)
	id := q.MustRunAs(testrig.DaemonUser, "enqueue", "--cwd", "/", testrig.CommandWaitingForFile(gate))
	q.WaitUntil("the job runs", 20*time.Second, func() bool { return q.ShowJob(id).State == "processing" })
	pid := q.ShowJob(id).PID
	args := q.ServiceCmd.Args[6:] // skip the first arguments: sh -c LINE PROGRAM serve --dir
	args = args[slices.Index(args, "--workers"):]
	q.KillService()
	q.StartService(args...)
	if j := q.ShowJob(id); j.State != "processing" || j.PID != pid {
		t.Errorf("after the service was killed: %+v, was pid %d", j, pid)
	}
	if err := os.WriteFile(gate, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	q.MustRunAs(testrig.DaemonUser, "wait", id)
	if j := q.ShowJob(id); len(j.AttemptHistory) != 1 || !strings.Contains(j.Output, fmt.Sprint("end of ", pid)) {
		t.Errorf("the job that outlived the service: %+v", j)
	}
	if code := q.StopService(); code != 0 {
		t.Errorf("the service ended with %d", code)
	}
	if remaining := q.RunnerPIDs(); len(remaining) != 0 {
		t.Errorf("runners %v remain after the stop", remaining)
	}
}

// Two services cannot share root's runners, because the second one would take the results of the first one's
// jobs. So the second service does not start, and the first one continues.
func TestTwoServicesCannotShareRootRunners(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	gate := filepath.Join(t.TempDir(), "go")
	for dir := filepath.Dir(gate); dir != "/tmp"; dir = filepath.Dir(dir) {
		os.Chmod(dir, 0o755)
	}
	id := q.MustRunAs(testrig.DaemonUser, "enqueue", "--cwd", "/", testrig.CommandWaitingForFile(gate))
	q.WaitUntil("the job runs", 20*time.Second, func() bool { return q.ShowJob(id).State == "processing" })
	dir := t.TempDir()
	if err := os.Chown(dir, testrig.ServiceAccount.Uid, testrig.ServiceAccount.Gid); err != nil {
		t.Fatal(err)
	}
	args := []string{"--dir", dir, "serve", "--config", q.Path("queuectl.toml")}
	args = append(args, q.ServiceCmd.Args[slices.Index(q.ServiceCmd.Args, "--runner-dir"):]...)
	second := exec.Command(q.ClientPath, args...)
	second.SysProcAttr = &syscall.SysProcAttr{Credential: q.ServiceCredential}
	if out, err := second.CombinedOutput(); second.ProcessState.ExitCode() != 78 ||
		!strings.Contains(string(out), "another service uses the runners") {
		t.Errorf("a second service: %v\n%s", err, out)
	}
	launcher := exec.Command(q.ClientPath, "runner", "--dir", q.RootRunnerDir, "--policy", "/nowhere", "--launcher",
		fmt.Sprintf("%d:%d", testrig.ServiceAccount.Uid, testrig.ServiceAccount.Gid))
	out, err := launcher.CombinedOutput()
	pid := regexp.MustCompile(`process (\d+) already starts runners`).FindSubmatch(out)
	if pid == nil {
		t.Fatalf("a second launcher: %v\n%s", err, out)
	}
	if cmdline, read := os.ReadFile(filepath.Join("/proc", string(pid[1]), "cmdline")); err == nil || read != nil ||
		!strings.Contains(string(cmdline), "--launcher") {
		t.Errorf("a second launcher: %v\n%s", err, out)
	}
	if err := os.WriteFile(gate, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	q.MustRunAs(testrig.DaemonUser, "wait", id)
	if j := q.ShowJob(id); j.State != "completed" || len(j.AttemptHistory) != 1 {
		t.Errorf("the job of the first service: %+v", j)
	}
	q.KillRunners() // the launcher then starts another runner for the next job
	if got := q.RunJobAs(testrig.DaemonUser, "--cwd", "/", "id -un"); got != "daemon" {
		t.Errorf("a job of the first service after its runner was killed printed %q", got)
	}
}

// If all jobs run as a fixed account, a job can change the directory of its runner. FIFOs, links, locks and
// huge files there do not block the service or make it return wrong data. Requests for outputs and the next
// start of the service do not take long.
func TestFixedAccountCannotBlockService(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"fixed:mail\"\n", "accounts = mail\n")
	mails := q.RootRunnerDir + "/as-mail"
	big := func() string {
		return q.MustRunAs(testrig.DaemonUser, "enqueue", "--cwd", "/", "head -c 200000 /dev/zero | tr '\\0' x")
	}
	keptJob, first := big(), big()
	q.MustRunAs(testrig.DaemonUser, "wait", keptJob, first)
	q.MustRunAs(testrig.DaemonUser, "logs", first)
	outputs, err := filepath.Glob(mails + "/output/*")
	if err != nil || len(outputs) != 2 {
		t.Fatalf("outputs %v, %v", outputs, err)
	}
	if got := q.RunJobAs(testrig.DaemonUser, "--cwd", mails,
		fmt.Sprintf("mkdir evil && mkfifo evil/lock && rm %s && mkfifo %[1]s && ln -sf %[2]s %[2]s.x && mv %[2]s elsewhere "+
			"&& ln -s ../elsewhere %[2]s && echo done", outputs[0], outputs[1])); got != "done" {
		t.Fatalf("the job printed %q", got)
	}
	for _, id := range []string{keptJob, first} {
		if r := q.RunAs(testrig.DaemonUser, "logs", id); r.ExitCode != 4 || r.Stdout != "" {
			t.Errorf("logs of an output that was replaced by a pipe or a link: code %d, %d bytes, %s", r.ExitCode, len(r.Stdout),
				r.Stderr)
		}
	}
	if got := q.RunJobAs(testrig.DaemonUser, "--cwd", mails,
		`mkdir closed lives large && chmod 0 closed && truncate -s 4T large/running large/journal.1 large/boot-id && echo done`); got != "done" {
		t.Fatalf("the job printed %q", got)
	}
	lockingJob := q.MustRunAs(testrig.DaemonUser, "enqueue", "--cwd", mails, "exec flock lives/lock sleep 60")
	q.WaitUntil("the job has the lock", 20*time.Second, func() bool {
		return exec.Command("flock", "-n", mails+"/lives/lock", "true").Run() != nil
	})
	args := q.ServiceCmd.Args[6:] // skip the first arguments: sh -c LINE PROGRAM serve --dir
	args = args[slices.Index(args, "--workers"):]
	q.KillService()
	q.StartService(args...)
	if got := q.RunJobAs(testrig.DaemonUser, "--cwd", "/", "id -un"); got != "mail" {
		t.Errorf("a job ran as %q", got)
	}
	if j := q.ShowJob(lockingJob); j.State != "processing" {
		t.Errorf("the job with the lock: %+v", j)
	}
	q.MustRunAs(testrig.DaemonUser, "cancel", lockingJob)
}

// If all jobs run as a fixed account, a job can stop its runner with SIGSTOP. The jobs of that runner stay leased,
// because they may still run. Neither the next service nor other jobs wait for that runner. When that runner dies, the
// processes of its jobs are ended before the jobs count as lost.
func TestStoppedRunnerDelaysNoOtherJobs(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"fixed:mail\"\n", "accounts = mail\n")
	q.MustRunCLI("worker", "scale", "2")
	bad := q.MustRunAs(testrig.DaemonUser, "enqueue", "--cwd", "/", "--on-lost", "dead",
		"sleep 0.2; kill -STOP $PPID; exec sleep 300")
	var runner, job int
	q.WaitUntil("the runner is stopped", 20*time.Second, func() bool {
		for _, pid := range q.RunnerPIDs() {
			if raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); strings.Contains(string(raw), "\nState:\tT") {
				runner = pid
			}
		}
		return runner != 0
	})
	other := q.MustRunAs(testrig.DaemonUser, "enqueue", "--cwd", "/", "true")
	q.WaitUntil("another job runs in another runner", 30*time.Second, func() bool {
		return q.ShowJob(other).State == "completed"
	})
	args := q.ServiceCmd.Args[6:] // skip the first arguments: sh -c LINE PROGRAM serve --dir
	args = args[slices.Index(args, "--workers"):]
	q.KillService()
	started := time.Now()
	q.StartService(args...)
	if elapsed := time.Since(started); elapsed > 3*time.Second {
		t.Errorf("the next service was ready after %v", elapsed)
	}
	if got := q.RunJobAs(testrig.DaemonUser, "--cwd", "/", "id -un"); got != "mail" {
		t.Errorf("a job ran as %q", got)
	}
	j := q.ShowJob(bad)
	if job = j.PID; j.State != "processing" || !testrig.IsProcessAlive(job) {
		t.Errorf("the job that stopped its runner: %+v", j)
	}
	syscall.Kill(runner, syscall.SIGKILL)
	q.WaitUntil("the job is lost", 20*time.Second, func() bool { return q.ShowJob(bad).State == "dead" })
	if testrig.IsProcessAlive(job) {
		t.Errorf("process %d of the lost job is still alive", job)
	}
}

// A job can stop other jobs of its user while they start, when their processes already have the user's id but
// have not executed their program. Jobs of other users still start and end. The stopped jobs end too, and so
// does the runner when it is stopped. The test needs an account without other processes.
func TestJobsStoppedAtStartDelayNoOtherUser(t *testing.T) {
	testrig.SkipIfShort(t)
	skip.UnlessProgram(t, "perl", "needs perl; .ci/run runs it")
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	q.MustRunCLI("worker", "scale", "6")
	bad := q.MustRunCLI("enqueue", "--user", "lp", "--cwd", "/", "--kill-after", "0s",
		`exec perl -e 'while(1){kill "STOP",-1}'`)
	q.WaitUntil("the stopper runs", 20*time.Second, func() bool { return q.ShowJob(bad).State == "processing" })
	for range 40 {
		q.MustRunCLI("enqueue", "--user", "lp", "--cwd", "/", "--max-retries", "0", "--timeout", "1s", "--kill-after", "0s",
			"true")
	}
	for range 10 {
		if got := q.RunJobAs(testrig.DaemonUser, "--cwd", "/", "--timeout", "20s", "id -un"); got != "daemon" {
			t.Errorf("another user's job: %q", got)
		}
	}
	q.MustRunCLI("cancel", bad)
	q.WaitUntil("all has ended", 30*time.Second, func() bool {
		return strings.Contains(q.MustRunCLI("list", "--state", "processing", "--json"), "[]") &&
			strings.Contains(q.MustRunCLI("list", "--state", "waiting", "--json"), "[]")
	})
	if code := q.StopService(); code != 0 {
		t.Errorf("the service ended with %d", code)
	}
	if remaining := q.RunnerPIDs(); len(remaining) != 0 {
		t.Errorf("runners %v remain after the stop", remaining)
	}
}

// A user can take a lease (fcntl F_SETLEASE) on the program or input file of a job and never release it. The
// job then fails within one second. Jobs of other users are not delayed, even if the runner also watches
// processes that the first user's jobs have left behind.
func TestFileLeasesDelayNoOtherUser(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	q.MustRunCLI("worker", "scale", "6")
	leased := filepath.Join(filepath.Dir(q.ClientPath), "leased")
	if out, err := exec.Command("install", "-m", "755", "/bin/true", leased).CombinedOutput(); err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	f, err := os.Open(leased)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	orphan := q.MustRunCLI("enqueue", "--user", "backup", "--cwd", "/", "--allow-background",
		"setsid sleep 300 >/dev/null 2>&1 & echo $!")
	q.MustRunCLI("wait", orphan)
	pid, err := strconv.Atoi(strings.TrimSpace(q.MustRunCLI("logs", orphan)))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(pid, syscall.SIGKILL)
	input := q.MustRunCLI("enqueue", "--user", "backup", "--cwd", "/", "--max-retries", "0", "--stdin-file", leased, "cat")
	q.RunCLI("wait", input)
	if j := q.ShowJob(input); j.State != "dead" || testrig.ValueOrMinusOne(j.ExitCode) != 126 ||
		!strings.HasPrefix(j.Error, "stdin_file: ") {
		t.Errorf("a job with a leased input: %+v", j)
	}
	program := func() string {
		return q.MustRunCLI("enqueue", "--user", "backup", "--cwd", "/", "--max-retries", "0", "--", leased)
	}
	bad := []string{program()}
	var elapsed []time.Duration
	for len(bad) < 5 {
		started := time.Now()
		if got := q.RunJobAs(testrig.DaemonUser, "--cwd", "/", "(sleep 0.01 &); id -un"); got != "daemon" {
			t.Errorf("another user's job: %q", got)
		}
		elapsed = append(elapsed, time.Since(started))
		// Always keep one of the six workers blocked: when one bad job has ended, start another.
		if q.ShowJob(bad[len(bad)-1]).State == "dead" {
			bad = append(bad, program())
		}
	}
	if longest := slices.Max(elapsed); longest > time.Second {
		t.Errorf("the slowest job of another user took %v, of %v", longest, elapsed)
	}
	if n := len(q.RunnerPIDs()); n != 2 {
		t.Errorf("%d runners; want a shared one, and one for the user whose starts hang", n)
	}
	for _, id := range bad {
		q.RunCLI("wait", id)
		if j := q.ShowJob(id); j.State != "dead" || testrig.ValueOrMinusOne(j.ExitCode) != 126 ||
			!strings.Contains(j.Error, "cannot start "+leased+": it did not start within 1s") {
			t.Errorf("a job with a leased program: %+v", j)
		}
	}
}

// If the watchdog of root's runner is killed, the runner starts another one. The new watchdog must not be a child of
// the runner's main thread: while /proc lists a child of that thread, the runner searches for orphaned processes after
// each job, which takes longer than a short job.
func TestRootRunnerRestartsKilledWatchdog(t *testing.T) {
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	runner := q.OnlyRunnerPID()
	watchdog := func() int {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", runner))
		for _, thread := range threads {
			raw, _ := os.ReadFile(thread)
			for pid := range strings.FieldsSeq(string(raw)) {
				if words, _ := os.ReadFile("/proc/" + pid + "/cmdline"); bytes.Contains(words, []byte("\x00--watchdog\x00")) {
					n, _ := strconv.Atoi(pid)
					return n
				}
			}
		}
		return 0
	}
	first := watchdog()
	if first == 0 {
		t.Fatal("the runner has no watchdog")
	}
	syscall.Kill(first, syscall.SIGKILL)
	q.WaitUntil("another watchdog runs", 20*time.Second, func() bool { g := watchdog(); return g != 0 && g != first })
	if orphans, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", runner)); err != nil || len(orphans) > 0 {
		t.Errorf("children of the main thread: %q, %v", orphans, err)
	}
	if got := q.RunJobAs(testrig.DaemonUser, "--cwd", "/", "id -un"); got != "daemon" {
		t.Errorf("with the new watchdog a job ran as %q", got)
	}
	id := q.MustRunAs(testrig.DaemonUser, "enqueue", "--cwd", "/", "sleep 60")
	q.WaitUntil("a job runs", 20*time.Second, func() bool { return q.ShowJob(id).State == "processing" })
	last := watchdog()
	q.KillService() // the watchdog, not the service, must end the runner's processes
	q.KillRunners()
	// The file cmdline is empty once the process has ended, even if no process has waited for it yet.
	q.WaitUntil("the watchdog has ended with its runner", 20*time.Second, func() bool {
		words, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", last))
		return len(words) == 0
	})
}

// If a runner of root cannot start, the service reports the reason, keeps running and tries again.
func TestServiceReportsWhyRunnerCannotStart(t *testing.T) {
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	outputs := q.RootRunnerDir + "/output"
	if err := errors.Join(os.Remove(outputs), os.WriteFile(outputs, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	q.KillRunners()
	q.WaitUntil("the service says why", 20*time.Second, func() bool {
		status := q.MustRunCLI("status")
		return strings.Contains(status, "no jobs can start: ") &&
			strings.Contains(status, "cannot create the output directory: ")
	})
	if err := os.Remove(outputs); err != nil {
		t.Fatal(err)
	}
	if got := q.RunJobAs(testrig.DaemonUser, "--cwd", "/", "id -un"); got != "daemon" {
		t.Errorf("after a runner can start, a job ran as %q", got)
	}
}

// The first service determines the group that may read the directory of root's runners. A later request with
// another group does not change the group, even if root sends the request.
func TestRootRunnerDirKeepsFirstGroup(t *testing.T) {
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	q.KillRunners()
	c, err := net.Dial("unix", filepath.Join(q.RootRunnerDir, "spawn.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := fmt.Fprintln(c, "queuectl wants a runner"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(line, "refused") ||
		!strings.Contains(line, "group 60") {
		t.Errorf("a request of root with another group gets %q, %v; want a refusal that names group 60", line, err)
	}
	if got := q.RunJobAs(testrig.DaemonUser, "--cwd", "/", "id -un"); got != "daemon" {
		t.Errorf("after the refused request a job ran as %q", got)
	}
}

// A process can set some limits only for itself. The runner sets these limits with the rights of the job's
// account: a limit that the account may set is applied, and a higher one is an error.
func TestRunnerSetsLimitsAsJobAccount(t *testing.T) {
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	if got := strings.TrimSpace(q.RunJobAs(testrig.DaemonUser, "--cwd", "/", "--nice", "5", "--nofile", "99", "--memory",
		"512M",
		"echo $(id -u) $(nice) $(ulimit -Hn) $(ulimit -v); ls /proc/self/fd | wc -l")); got != fmt.Sprintf(
		"%d 5 99 524288\n4", testrig.DaemonUser.Uid) {
		t.Errorf("uid, nice value, limits and descriptors of the job: %q", got)
	}
	for field, value := range map[string]string{"nice": "-5", "nofile": "1048576"} {
		id := q.MustRunAs(testrig.DaemonUser, "enqueue", "-q", "--cwd", "/", "--max-retries", "0", "--"+field, value, "true")
		q.RunAs(testrig.DaemonUser, "wait", id)
		if j := q.ShowJob(id); j.ExitCode == nil || *j.ExitCode != 126 || !strings.HasPrefix(j.Error, field+": ") {
			t.Errorf("%s %s: %+v", field, value, j)
		}
	}
}
