package durability

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// campaignService is one process of the service that the campaign has started.
type campaignService struct {
	cmd             *exec.Cmd
	logPath         string
	endWasRequested atomic.Bool   // whether the campaign itself has stopped or killed the process
	exitedSignal    chan struct{} // closed when the process has ended
}

// startService starts the service and waits until it is ready. It does nothing if the service runs.
func (c *campaign) startService(flags ...string) {
	c.Helper()
	if s := c.service; s != nil {
		select {
		case <-s.exitedSignal:
		default:
			return
		}
	}
	log, err := os.CreateTemp(c.recordDir, "service-*")
	if err != nil {
		c.Fatal(err)
	}
	defer log.Close()
	s := &campaignService{cmd: c.ServiceCommand(append([]string{"serve", "--dir", c.StateDir}, flags...)),
		logPath: log.Name(), exitedSignal: make(chan struct{})}
	s.cmd.Env, s.cmd.Stderr = append(testrig.UserEnvironment(c.recordDir), "GOTRACEBACK=all"), log
	full, stalls := c.diskWasRecentlyFull.Load(), systemStallTime()
	started := time.Now()
	if err := s.cmd.Start(); err != nil {
		c.Fatal(err)
	}
	c.service = s
	go func() { // this goroutine ends when the process of the service ends
		s.cmd.Wait()
		close(s.exitedSignal)
		if !s.endWasRequested.Load() {
			c.recordViolation("exit", "the service ended by itself: %v\n%s", s.cmd.ProcessState, s.logTail())
		}
	}()
	ready := func() bool {
		text, _ := os.ReadFile(s.logPath)
		return strings.Contains(string(text), "queuectl: ready on")
	}
	for !ready() {
		full = full || c.diskWasRecentlyFull.Load()
		select {
		case <-s.exitedSignal:
			return
		case <-time.After(2 * time.Millisecond):
		}
		if elapsed := time.Since(started); !full && elapsed > replyTimeLimit || elapsed > 2*replyTimeLimit {
			s.endWasRequested.Store(true)
			s.cmd.Process.Signal(syscall.SIGABRT)
			<-s.exitedSignal
			c.recordViolation("start", "not ready after %v\n%s", elapsed, s.logTail())
			return
		}
	}
	elapsed, stalls := time.Since(started), systemStallTime()-stalls
	if full || c.diskWasRecentlyFull.Load() {
		c.countOperation("starts on-a-full-disk")
		return
	}
	c.mu.Lock()
	c.serviceStartDurations = append(c.serviceStartDurations, elapsed)
	c.mu.Unlock()
	if elapsed-stalls > serviceReadyTimeLimit {
		c.recordViolation("start",
			"ready after %v, of which the machine was busy with other things for %v\n%s", elapsed, stalls, s.logTail())
	}
}

// systemStallTime returns how long processes had to wait for a processor or a disk since boot, or 0 if unknown.
func systemStallTime() (d time.Duration) {
	for _, what := range []string{"cpu", "io"} {
		raw, _ := os.ReadFile("/proc/pressure/" + what)
		_, total, _ := strings.Cut(string(raw), "total=")
		var micros int64
		fmt.Sscan(total, &micros)
		d += time.Duration(micros) * time.Microsecond
	}
	return d
}

// logTail returns the end of the service's log.
func (s *campaignService) logTail() string {
	raw, _ := os.ReadFile(s.logPath)
	return string(raw[max(0, len(raw)-4000):])
}

// killService kills the service with SIGKILL, to simulate a crash.
func (c *campaign) killService() {
	if s := c.service; s != nil {
		s.endWasRequested.Store(true)
		s.cmd.Process.Kill()
		<-s.exitedSignal
	}
}

// serviceStopTimeLimit is the longest time that the service may take to stop. Running jobs may finish within 2 s
// (stop_timeout). Jobs that hang are killed after their grace period.
const serviceStopTimeLimit = 45 * time.Second

// stopService stops the service with SIGTERM. If keepJobsRunning is true, running jobs continue.
func (c *campaign) stopService(keepJobsRunning bool) {
	c.Helper()
	s := c.service
	select {
	case <-s.exitedSignal:
		return
	default:
	}
	s.endWasRequested.Store(true)
	s.cmd.Process.Signal(syscall.SIGCONT) // an earlier fault may have stopped the service with SIGSTOP
	started := time.Now()
	bound := serviceStopTimeLimit
	if keepJobsRunning {
		bound = 5 * time.Second
		out, err := c.queuectlCommand("service", "stop", "--keep-jobs").CombinedOutput()
		if err != nil && !c.diskWasRecentlyFull.Load() {
			c.recordViolation("stop", "service stop --keep-jobs: %v, %s", err, out)
		}
	}
	if !keepJobsRunning {
		c.runningJobsWereEnded.Store(true)
		s.cmd.Process.Signal(syscall.SIGTERM)
	}
	if c.diskWasRecentlyFull.Load() {
		bound += serviceStopTimeLimit
	}
	select {
	case <-s.exitedSignal:
	case <-time.After(bound):
		s.cmd.Process.Signal(syscall.SIGABRT)
		<-s.exitedSignal
		c.recordViolation("stop", "not stopped after %v\n%s", time.Since(started), s.logTail())
		return
	}
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		c.recordViolation("stop", "%v\n%s", s.cmd.ProcessState, s.logTail())
	}
}

// queuectlCommand returns a command that runs queuectl on the queue of the campaign.
func (c *campaign) queuectlCommand(args ...string) *exec.Cmd {
	cmd := exec.Command(c.ClientPath, append([]string{"--dir", c.StateDir}, args...)...)
	cmd.Env, cmd.Dir = append(testrig.UserEnvironment(c.recordDir), "QUEUECTL_NO_START=1"), c.recordDir
	return cmd
}

// endStartedProcesses ends all processes that the campaign has started, and waits until they have ended.
func (c *campaign) endStartedProcesses() {
	c.killService()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		remaining := testrig.ProcessesUsingDir(c.StateDir)
		maps.Copy(remaining, testrig.ProcessesUsingDir(c.recordDir))
		if len(remaining) == 0 {
			return
		}
		for pid := range remaining {
			testrig.KillProcess(pid)
		}
	}
}

// runnerDirs lists the directories of running and dead runners.
func (c *campaign) runnerDirs() []string {
	list, _ := filepath.Glob(c.Path("runner/[0-9]*"))
	return list
}

// faultInjector injects faults, one after another. Some faults still last when the next one begins.
type faultInjector struct {
	*campaign
	ctx           context.Context
	rng           *rand.Rand
	lastingFaults sync.WaitGroup
}

// campaignFault is a kind of fault. Faults with a higher weight are chosen more often.
type campaignFault struct {
	weight int
	name   string
	inject func(*faultInjector)
}

var campaignFaults = []campaignFault{
	{12, "kill-service", (*faultInjector).killAndStartService},
	{8, "kill-runner", (*faultInjector).killSomeRunners},
	{8, "kill-both", (*faultInjector).killServiceAndRunners},
	{5, "hang-service", (*faultInjector).suspendService},
	{8, "hang-runner", (*faultInjector).suspendRunner},
	{5, "hang-runner-kill-service", func(f *faultInjector) { f.suspendRunner(); f.killAndStartService() }},
	{6, "fill-disk", (*faultInjector).fillDisk},
	{6, "fill-quota", (*faultInjector).exceedUserQuota},
	{8, "damage-living", (*faultInjector).damageLiveRunnerDir},
	{6, "damage-dead", (*faultInjector).damageDeadRunnerDirs},
	{3, "cut-output", (*faultInjector).truncateRandomOutput},
	{5, "stop-keep", func(f *faultInjector) { f.stopService(true); f.waitRandomTime(500); f.startService() }},
	{4, "stop", func(f *faultInjector) { f.stopService(false); f.waitRandomTime(300); f.startService() }},
}

// injectFaults injects faults until ctx ends. Then it ends the faults that still last, such as a full disk.
func (c *campaign) injectFaults(ctx context.Context) {
	c.outputMayBeLost.Store(false)
	f := &faultInjector{campaign: c, ctx: ctx, rng: c.newRandomSource(campaignClientCount)}
	all := 0
	faults := slices.Clone(campaignFaults)
	if only := os.Getenv("QUEUECTL_CAMPAIGN_FAULTS"); only != "" {
		faults = slices.DeleteFunc(faults, func(f campaignFault) bool {
			return !slices.Contains(strings.Split(only, ","), f.name)
		})
	}
	for _, fault := range faults {
		all += fault.weight
	}
	for f.waitRandomTime(2500); ctx.Err() == nil; f.waitRandomTime(2500) {
		select {
		case <-c.service.exitedSignal: // the service ended unexpectedly; this was already recorded as a violation
			c.startService()
		default:
		}
		pick := f.rng.IntN(all)
		for _, fault := range faults {
			if pick -= fault.weight; pick >= 0 {
				continue
			}
			c.logStep(fault.name)
			c.countOperation("faults " + fault.name)
			fault.inject(f)
			break
		}
	}
	c.clientsMustStop.Store(true)
	f.lastingFaults.Wait()
	c.startService()
	c.requestUntilServed("config.unset", testrig.JSONFields{"key": "max_bytes_per_user"})
}

// waitRandomTime waits for a random time of at most maxMillis milliseconds.
func (f *faultInjector) waitRandomTime(maxMillis int) {
	f.wait(time.Duration(1+f.rng.IntN(maxMillis)) * time.Millisecond)
}

// wait waits for the given time, or until the injection of faults ends.
func (f *faultInjector) wait(duration time.Duration) {
	select {
	case <-f.ctx.Done():
	case <-time.After(duration):
	}
}

func (f *faultInjector) killAndStartService() {
	f.killService()
	f.waitRandomTime([]int{5, 300, 1500}[f.rng.IntN(3)])
	f.startService()
}

// randomRunnerPID returns the pid of a random runner, or 0 if no runner runs.
func (f *faultInjector) randomRunnerPID() int {
	pids := f.RunnerPIDs()
	if len(pids) == 0 {
		return 0
	}
	return pids[f.rng.IntN(len(pids))]
}

func (f *faultInjector) killSomeRunners() {
	f.runnerHadFault.Store(true)
	for _, pid := range f.RunnerPIDs() {
		if f.rng.IntN(3) > 0 {
			testrig.KillProcess(pid)
		}
	}
}

// killServiceAndRunners kills the service and the runners in a random order, and then starts the next service.
func (f *faultInjector) killServiceAndRunners() {
	f.runnerHadFault.Store(true)
	pids := f.RunnerPIDs()
	kills := []func(){f.killService, func() {
		for _, pid := range pids {
			testrig.KillProcess(pid)
		}
	}}
	if f.rng.IntN(2) == 0 {
		kills[0], kills[1] = kills[1], kills[0]
	}
	kills[0]()
	f.waitRandomTime(40)
	kills[1]()
	f.waitRandomTime([]int{5, 1000}[f.rng.IntN(2)])
	f.startService()
}

// suspendProcess stops a process with SIGSTOP for 1 to 20 s, usually for at most 5 s.
func (f *faultInjector) suspendProcess(pid int) {
	seconds := 1 + f.rng.IntN(5)
	if f.rng.IntN(5) == 0 {
		seconds = 6 + f.rng.IntN(15)
	}
	syscall.Kill(pid, syscall.SIGSTOP)
	f.lastingFaults.Go(func() {
		f.wait(time.Duration(seconds) * time.Second)
		syscall.Kill(pid, syscall.SIGCONT)
	})
}

func (f *faultInjector) suspendService() { f.suspendProcess(f.service.cmd.Process.Pid) }

func (f *faultInjector) suspendRunner() {
	f.runnerHadFault.Store(true)
	if pid := f.randomRunnerPID(); pid != 0 {
		f.suspendProcess(pid)
	}
}

// fillDisk fills the disk completely and keeps it full for a while: when the service frees blocks, fillDisk fills these
// blocks too.
func (f *faultInjector) fillDisk() {
	if f.diskMount == "" || !f.diskWasRecentlyFull.CompareAndSwap(false, true) {
		return
	}
	f.outputMayBeLost.Store(true)
	f.lastingFaults.Go(func() {
		name := filepath.Join(f.diskMount, "filler")
		file, err := os.Create(name)
		if err == nil {
			f.keepExtendingFile(file, time.Duration(500+f.rng.IntN(6000))*time.Millisecond)
			file.Close()
		}
		os.Remove(name)
		f.wait(3 * time.Second)
		f.diskWasRecentlyFull.Store(false)
	})
}

// exceedUserQuota sets max_bytes_per_user, for a while, to less than the jobs of the user already hold. The service
// then refuses new jobs, and removes outputs and long inputs of ended jobs. Waiting jobs still run.
func (f *faultInjector) exceedUserQuota() {
	set := func(bytes int64) error {
		return f.requestResult("config.set", testrig.JSONFields{"key": "max_bytes_per_user", "value": fmt.Sprint(bytes)},
			new(json.RawMessage))
	}
	var status struct {
		Bytes int64 `json:"user_bytes"`
	}
	if err := f.requestResult("status", testrig.JSONFields{}, &status); err != nil || status.Bytes < 1<<10 {
		return // an earlier fault may still keep the service from answering
	}
	f.outputMayBeLost.Store(true)
	quota := min(status.Bytes/2, 100<<10)
	if set(quota) != nil {
		return
	}
	if f.requestResult("enqueue", testrig.JSONFields{"command": "true", "stdin": strings.Repeat("x", 200<<10)},
		new(json.RawMessage)) == nil {
		f.recordViolation("quota", "a job of 200 KiB was taken, and %d bytes are allowed", quota)
	}
	f.waitRandomTime(4000)
	if set(0) != nil {
		f.countOperation("quotas not raised again") // the quota remains low until the faults end
	}
}

// keepExtendingFile keeps extending a file for the given time, so that it also fills newly freed blocks.
func (f *faultInjector) keepExtendingFile(file *os.File, duration time.Duration) {
	end := time.Now().Add(duration)
	for time.Now().Before(end) && f.ctx.Err() == nil {
		for size := 256 << 10; size > 0; size /= 2 {
			for err := error(nil); err == nil && time.Now().Before(end); {
				_, err = file.Write(make([]byte, size))
			}
		}
		f.wait(20 * time.Millisecond)
	}
}

// damageRunnerDir damages a runner's directory: it removes or truncates one random file, or removes everything. It
// returns a description of the damage.
func (f *faultInjector) damageRunnerDir(runnerDir string) string {
	parts := []string{"boot-id", "running", "journal", "run.sock", "lock", "all"}
	part := parts[f.rng.IntN(len(parts))]
	path := filepath.Join(runnerDir, part)
	cut := f.rng.IntN(2) == 0
	switch part {
	case "all":
		f.outputMayBeLost.Store(true)
		os.RemoveAll(runnerDir)
		f.countOperation("damage directory-removed")
		return part
	case "journal":
		names, _ := filepath.Glob(filepath.Join(runnerDir, "journal.*"))
		if len(names) == 0 {
			return ""
		}
		path = names[len(names)-1]
	case "run.sock":
		cut = false
	}
	if !cut {
		os.Remove(path)
		f.countOperation("damage " + part + "-removed")
		return part
	}
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	os.Truncate(path, int64(f.rng.IntN(int(info.Size())+1)))
	f.countOperation("damage " + part + "-cut")
	return part
}

// damageLiveRunnerDir damages the directory of a running runner. Then it may kill the runner, the service or both.
func (f *faultInjector) damageLiveRunnerDir() {
	f.runnerHadFault.Store(true)
	dirs := f.runnerDirs()
	if len(dirs) == 0 {
		return
	}
	dir := dirs[f.rng.IntN(len(dirs))]
	var pid int
	fmt.Sscan(filepath.Base(dir), &pid)
	what := f.damageRunnerDir(dir)
	kills := f.rng.IntN(4)
	f.logStep(fmt.Sprintf("%s of %s, %d", what, filepath.Base(dir), kills))
	if kills&1 != 0 {
		f.killService()
	}
	if kills&2 != 0 && testrig.IsRunnerProcess(pid, f.RunnerDir()) {
		testrig.KillProcess(pid)
	}
	if kills&1 != 0 {
		f.waitRandomTime(300)
		f.startService()
	}
}

// damageDeadRunnerDirs kills the service and the runners, damages the directories of the runners, and starts the next
// service.
func (f *faultInjector) damageDeadRunnerDirs() {
	f.runnerHadFault.Store(true)
	f.killService()
	for _, pid := range f.RunnerPIDs() {
		testrig.KillProcess(pid)
	}
	for _, dir := range f.runnerDirs() {
		what := f.damageRunnerDir(dir)
		f.logStep(fmt.Sprintf("%s of %s", what, filepath.Base(dir)))
	}
	f.startService()
}

// truncateRandomOutput truncates a random output file.
func (f *faultInjector) truncateRandomOutput() {
	names, _ := filepath.Glob(f.Path("runner/output/*"))
	if len(names) == 0 {
		return
	}
	name := names[f.rng.IntN(len(names))]
	info, err := os.Stat(name)
	if err != nil {
		return
	}
	seq, _, _ := strings.Cut(filepath.Base(name), "-")
	f.mu.Lock()
	f.truncatedOutputJobSeqs[seq] = true
	f.mu.Unlock()
	os.Truncate(name, int64(f.rng.IntN(int(info.Size())+1)))
}

// isOutputTruncated reports whether the campaign has truncated an output file of the job with the number (seq) jobSeq.
func (c *campaign) isOutputTruncated(jobSeq int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.truncatedOutputJobSeqs[fmt.Sprint(jobSeq)]
}
