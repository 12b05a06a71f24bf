package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
	"github.com/queuectl/queuectl/test/pgserver"
)

// partitionTest holds three nodes, each in a network namespace, and the faults that the test has injected.
type partitionTest struct {
	*testing.T
	ctx               context.Context
	ledgerDir         string // directory of the ledger, the files in which jobs record their runs
	nodes             []*partitionNode
	mu                sync.Mutex // guards the fields server and standby
	server            *pgserver.Server
	standby           *pgserver.Server
	ackedJobIDs       sync.Map                     // ids of jobs whose enqueue was acknowledged
	faultCounts       [faultKindCount]atomic.Int64 // numbers of injected faults, by kind
	serviceStartCount atomic.Int64
	faultLog          []string // descriptions of the injected faults; used only by the goroutine of injectFaults
}

// partitionNode is one of the three nodes, with its network namespace.
type partitionNode struct {
	*testrig.Harness
	name               string
	namespaceHolder    *exec.Cmd // process that keeps the network namespace alive
	nodeIP             string    // IP address of the node on its network link to the database server
	hostIP             string
	mu                 sync.Mutex
	isServiceSuspended bool // whether SIGSTOP has stopped the service; guarded by mu
}

// These constants are the kinds of faults.
const (
	faultCutBothDirections = iota
	faultCutToServer
	faultCutFromServer
	faultSuspendService
	faultKillService
	faultKillRunner
	faultKillBackend
	faultCrashServer
	faultFailOverServer
	faultKindCount
)

var faultNames = [...]string{"cut both ways", "cut to the server", "cut from the server", "a service is stopped",
	"a service is killed", "a runner is killed", "a backend is killed", "the server crashes", "a standby is promoted"}

// nodeLeaseDuration is the duration of a node lease. If a node does not renew its lease within this time, other
// nodes take over its jobs.
const nodeLeaseDuration = 6 * time.Second

// Three nodes are partitioned, stopped and killed, while their PostgreSQL server crashes and fails over to its
// synchronous standby. No acknowledged job is lost, and no job runs twice at the same time. Locks and rate
// limits hold across all nodes.
func TestNodesSurvivePartitionsAndCrashes(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("QUEUECTL_APART"))
	if err != nil {
		skip.MissingRequirement(t, "long", "takes minutes; make apart runs it, .ci/run does so for three minutes, "+
			"and TestOtherNodesRunLostNodesJobs has a takeover")
	}
	skip.UnlessRoot(t, "needs root to create networks; .ci/run runs it as root, "+
		"and TestOtherNodesRunLostNodesJobs has a takeover")
	for _, program := range []string{"ip", "unshare", "nsenter"} {
		skip.UnlessProgram(t, program, "needs programs that create networks; .ci/run installs them")
	}
	if out, err := exec.Command("unshare", "-n", "--", "ip", "link", "add", "type", "veth").CombinedOutput(); err != nil {
		t.Logf("unshare: %v, %s", err, out)
		skip.MissingRequirement(t, "networks",
			"needs a system that can create networks; .ci/run runs it where that is possible")
	}
	// Run the test in a new network namespace, to keep the network of the machine unchanged.
	if os.Getenv("QUEUECTL_APART_INSIDE") == "" {
		cmd := exec.Command("unshare", "-n", "--", os.Args[0], "-test.run=^TestNodesSurvivePartitionsAndCrashes$",
			"-test.v", "-test.timeout=0")
		cmd.Env = append(os.Environ(), "QUEUECTL_APART_INSIDE=1")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		return
	}
	a := newPartitionTest(t)
	ctx, end := context.WithTimeout(t.Context(), length)
	defer end()
	a.ctx = ctx
	var parts sync.WaitGroup
	for _, n := range a.nodes {
		parts.Go(func() { a.keepServiceRunning(n) })
		for c := range 2 {
			parts.Go(func() { a.keepEnqueuingJobs(n, c) })
		}
	}
	parts.Go(a.injectFaults)
	parts.Wait()
	for _, n := range a.nodes {
		n.setNetworkConnected(true)
		n.resumeService()
	}
	a.checkJobOutcomes()
}

// setNetworkConnected connects the node to the network or disconnects it.
func (n *partitionNode) setNetworkConnected(connected bool) {
	linkState := "down"
	if connected {
		linkState = "up"
	}
	exec.Command("ip", "link", "set", "v"+n.name, linkState).Run()
	exec.Command("ip", "route", "del", "blackhole", n.nodeIP+"/32").Run() // fails if no such route exists
	n.runInNamespace("ip", "route", "del", "blackhole", n.hostIP+"/32")
}

// runInNamespace runs a program in the node's network namespace.
func (n *partitionNode) runInNamespace(args ...string) error {
	return exec.Command("nsenter", append([]string{"-n", "-t", strconv.Itoa(n.namespaceHolder.Process.Pid), "--"},
		args...)...).Run()
}

// resumeService lets the node's service continue if SIGSTOP has stopped it.
func (n *partitionNode) resumeService() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ServiceCmd != nil && n.isServiceSuspended {
		n.ServiceCmd.Process.Signal(syscall.SIGCONT)
	}
	n.isServiceSuspended = false
}

func newPartitionTest(t *testing.T) *partitionTest {
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	run("ip", "link", "set", "lo", "up")
	a := &partitionTest{T: t, ledgerDir: t.TempDir()}
	for dir := a.ledgerDir; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		os.Chmod(dir, 0o777)
	}
	a.server = pgserver.New(t, "listen_addresses=*", "wal_level=replica", "wal_keep_size=256MB")
	a.server.AllowNetwork(t, "10.87.0.0/16")
	a.standby = a.server.StartStandby(t, 5433, "listen_addresses=*", "wal_keep_size=256MB")
	t.Cleanup(func() {
		a.server.StopAndRemove()
		a.standby.StopAndRemove()
	})
	for i, name := range []string{"a", "b", "c"} {
		n := &partitionNode{Harness: testrig.NewHarness(t, ""), name: name, nodeIP: fmt.Sprintf("10.87.%d.2", i),
			hostIP: fmt.Sprintf("10.87.%d.1", i)}
		n.namespaceHolder = exec.Command("unshare", "-n", "--", "sleep", "infinity")
		if err := n.namespaceHolder.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.namespaceHolder.Process.Kill(); n.namespaceHolder.Wait() })
		ownNamespace, _ := os.Readlink("/proc/self/ns/net")
		n.WaitUntil("its network namespace exists", 5*time.Second, func() bool {
			nodeNamespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", n.namespaceHolder.Process.Pid))
			return err == nil && nodeNamespace != ownNamespace
		})
		run("ip", "link", "add", "v"+name, "type", "veth", "peer", "name", "eth0", "netns",
			strconv.Itoa(n.namespaceHolder.Process.Pid))
		run("ip", "address", "add", n.hostIP+"/24", "dev", "v"+name)
		run("ip", "link", "set", "v"+name, "up")
		for _, args := range [][]string{{"ip", "link", "set", "lo", "up"},
			{"ip", "address", "add", n.nodeIP + "/24", "dev", "eth0"}, {"ip", "link", "set", "eth0", "up"}} {
			if err := n.runInNamespace(args...); err != nil {
				t.Fatalf("%v: %v", args, err)
			}
		}
		n.StoreURL = fmt.Sprintf("postgres:///postgres?host=%[1]s,%[1]s&port=5432,5433&user=queuectl&"+
			"target_session_attrs=read-write&connect_timeout=2&sslmode=disable", n.hostIP)
		n.ServiceEnv = []string{"QUEUECTL_NODE=" + name, "QUEUECTL_NODE_LEASE=" + nodeLeaseDuration.String(),
			"QUEUECTL_LOG_LEVEL=info"}
		program := n.ClientPath
		n.ClientPath = n.WriteFile("inside", fmt.Sprintf("#!/bin/sh\nexec nsenter -n -t %d -- %s \"$@\"\n",
			n.namespaceHolder.Process.Pid, program))
		os.Chmod(n.ClientPath, 0o755)
		a.nodes = append(a.nodes, n)
	}
	return a
}

// keepServiceRunning runs a node's service and restarts it whenever it ends, as systemd does.
func (a *partitionTest) keepServiceRunning(n *partitionNode) {
	for a.ctx.Err() == nil {
		n.mu.Lock()
		err := n.TryStartService("--workers", "12", "--keep-jobs")
		n.mu.Unlock()
		a.serviceStartCount.Add(1)
		if err == nil {
			select {
			case err := <-n.ServiceExit:
				n.ServiceExit <- err // checkJobOutcomes receives this value if the service is not started again
			case <-a.ctx.Done():
				return
			}
		}
		time.Sleep(300 * time.Millisecond) // wait before a restart, as systemd does with RestartSec=
	}
}

// keepEnqueuingJobs enqueues jobs through one node until the test ends. It repeats each request until the
// service has acknowledged it.
func (a *partitionTest) keepEnqueuingJobs(n *partitionNode, clientNumber int) {
	for i := 0; a.ctx.Err() == nil; i++ {
		id := fmt.Sprintf("%s%d-%d", n.name, clientNumber, i)
		args := []string{"enqueue", "--id", id, "--key", id, "--max-retries", "1000", "--backoff-base", "0.1",
			"--backoff-max", "200ms"}
		body := ""
		switch i % 8 {
		case 0, 1:
			args = append(args, "--lock", "two:2")
			body = fmt.Sprintf("exec 8>>%[1]s/slot1; flock -n 8 || { exec 8>>%[1]s/slot2; flock -n 8 || echo "+
				"%[2]s >>%[1]s/over; }; ", a.ledgerDir, id)
		case 2:
			args = append(args, "--rate-limit", "some=5/s", "--label", "rate=some")
		}
		// The longest of these times exceeds a node lease.
		sleep := []string{"0.01", "0.01", "0.1", "0.1", "0.4", "2", "8", "15"}[rand.N(8)]
		// Jobs with the lock must be short, because only two of them can run at the same time.
		if body != "" {
			sleep = "0.1"
		}
		body += fmt.Sprintf("exec 9>>%[1]s/lock-%[2]s; flock -n 9 || echo %[2]s >>%[1]s/twice; echo %[2]s "+
			">>%[1]s/ran; sleep %[3]s", a.ledgerDir, id, sleep)
		for ctx, end := context.WithTimeout(context.Background(), time.Hour); ; {
			cmd := n.CLICommand(append(args, body)...)
			out, err := cmd.CombinedOutput()
			if err == nil {
				a.ackedJobIDs.Store(id, true)
			}
			if err == nil || a.ctx.Err() != nil {
				end()
				break
			}
			if text := string(out); !strings.Contains(text, "try again") && !strings.Contains(text, "unavailable") &&
				!strings.Contains(text, "unknown whether") && !strings.Contains(text, "cannot reach") &&
				!strings.Contains(text, "service") && ctx.Err() == nil {
				a.Errorf("enqueue by %s: %v\n%s", n.name, err, out)
			}
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Duration(rand.N(900)) * time.Millisecond) // this pause limits the number of waiting jobs
		if i >= maxUnfinishedJobsPerClient && a.ctx.Err() == nil {
			n.CLICommand("wait", "--timeout", "30s", fmt.Sprintf("%s%d-%d", n.name, clientNumber,
				i-maxUnfinishedJobsPerClient)).Run()
		}
	}
}

// injectFaults injects faults one after another. Some faults still last when the next one begins.
func (a *partitionTest) injectFaults() {
	var lastingFaults sync.WaitGroup
	defer lastingFaults.Wait()
	undoAfter := func(n *partitionNode, d time.Duration, undo func()) {
		lastingFaults.Go(func() {
			select {
			case <-time.After(d):
			case <-a.ctx.Done():
			}
			undo()
		})
	}
	failover := time.Now().Add(20 * time.Second)
	for a.ctx.Err() == nil {
		select {
		case <-time.After(time.Duration(200+rand.N(1800)) * time.Millisecond):
		case <-a.ctx.Done():
			return
		}
		n := a.nodes[rand.N(len(a.nodes))]
		duration := time.Duration(rand.N(int64(3 * nodeLeaseDuration)))
		kind := rand.N(faultFailOverServer)
		if time.Now().After(failover) {
			kind, failover = faultFailOverServer, time.Now().Add(30*time.Second)
		}
		switch kind {
		case faultCutBothDirections:
			exec.Command("ip", "link", "set", "v"+n.name, "down").Run()
			undoAfter(n, duration, func() { n.setNetworkConnected(true) })
		case faultCutToServer:
			n.runInNamespace("ip", "route", "add", "blackhole", n.hostIP+"/32")
			undoAfter(n, duration, func() { n.setNetworkConnected(true) })
		case faultCutFromServer:
			exec.Command("ip", "route", "add", "blackhole", n.nodeIP+"/32").Run()
			undoAfter(n, duration, func() { n.setNetworkConnected(true) })
		case faultSuspendService:
			if n.mu.TryLock() {
				if n.ServiceCmd != nil && n.ServiceCmd.Process.Signal(syscall.SIGSTOP) == nil {
					n.isServiceSuspended = true
					undoAfter(n, duration, n.resumeService)
				}
				n.mu.Unlock()
			}
		case faultKillService:
			if n.mu.TryLock() {
				if n.ServiceCmd != nil {
					n.ServiceCmd.Process.Kill()
				}
				n.mu.Unlock()
			}
		case faultKillRunner:
			if n.mu.TryLock() {
				if pids := n.RunnerPIDs(); len(pids) > 0 {
					testrig.KillProcess(pids[rand.N(len(pids))])
				}
				n.mu.Unlock()
			}
		case faultKillBackend:
			a.mu.Lock()
			if pids := a.server.BackendPIDs(a); len(pids) > 0 {
				testrig.KillProcess(pids[rand.N(len(pids))])
			}
			a.mu.Unlock()
		case faultCrashServer:
			a.mu.Lock()
			a.server.Kill()
			a.server.Start(a, "listen_addresses=*", "wal_keep_size=256MB")
			a.mu.Unlock()
		case faultFailOverServer:
			a.mu.Lock()
			old := a.server
			old.Kill()
			a.standby.Promote(a)
			a.server = a.standby
			old.StopAndRemove()
			a.standby = a.server.StartStandby(a, old.Port, "listen_addresses=*", "wal_keep_size=256MB")
			a.mu.Unlock()
		}
		a.faultCounts[kind].Add(1)
		a.faultLog = append(a.faultLog, fmt.Sprint(time.Now().UnixMilli(), " ", n.name, ": ", faultNames[kind], ", for ",
			duration))
	}
}

// maxUnfinishedJobsPerClient is the number of jobs that a client enqueues before it waits for its oldest job. Without
// this limit, the clients would enqueue more jobs than the nodes can run.
const maxUnfinishedJobsPerClient = 30

// checkJobOutcomes waits until all jobs have ended. It compares the jobs with the acknowledged ids, and with the
// ledger, the files in which jobs have recorded their runs.
func (a *partitionTest) checkJobOutcomes() {
	url := a.server.DatabaseURL("postgres")
	for _, n := range a.nodes {
		n.mu.Lock()
		select {
		case <-n.ServiceExit:
			n.ServiceCmd = nil
		default:
		}
		if n.ServiceCmd == nil {
			if err := n.TryStartService("--workers", "12", "--keep-jobs"); err != nil {
				a.Errorf("start %s: %v", n.name, err)
			}
		}
		n.mu.Unlock()
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		if open, _ := pgserver.TryQuery(url, `SELECT count(*) FROM queuectl.jobs WHERE state < 6`); open == "0" {
			break
		}
		if time.Now().After(deadline) {
			a.Errorf("jobs have not ended:\n%s\n%s", pgserver.Query(a, url,
				`SELECT seq, id, state, place, node, due_at, reserved FROM queuectl.jobs, queuectl.meta WHERE state < 6 LIMIT 20`),
				pgserver.Query(a, url, `SELECT *, until - now() FROM queuectl.nodes`))
			for _, n := range a.nodes {
				a.Log(n.name, n.RunCLI("status").Stdout, n.RunCLI("worker", "list").Stdout)
				logs, _ := filepath.Glob(n.StateDir + "/stderr-*")
				for _, name := range logs {
					raw, _ := os.ReadFile(name)
					a.Logf("%s", raw[max(0, len(raw)-3000):])
				}
			}
			break
		}
	}
	jobs := 0
	a.ackedJobIDs.Range(func(any, any) bool { jobs++; return true })
	states := map[string]string{}
	// If a job's runner is killed repeatedly while no other job runs, the job is marked as dead with the reason poison.
	// The faults of this test can cause that, so count the job as completed (state 6).
	for line := range strings.Lines(pgserver.Query(a, url,
		`SELECT id || ' ' || CASE WHEN reason = 'poison' THEN 6 ELSE state END FROM queuectl.jobs`)) {
		id, state, _ := strings.Cut(strings.TrimSpace(line), " ")
		states[id] = state
	}
	lost := 0
	a.ackedJobIDs.Range(func(id, _ any) bool {
		if states[id.(string)] != "6" {
			lost++
			a.Errorf("the acknowledged job %s is in state %q", id, states[id.(string)])
		}
		return lost < 10
	})
	runLog, _ := os.ReadFile(a.ledgerDir + "/ran")
	runs := map[string]int{}
	for id := range strings.FieldsSeq(string(runLog)) {
		runs[id]++
	}
	for id := range states {
		if runs[id] == 0 {
			a.Errorf("job %s is completed and never ran", id)
		}
	}
	for name, problem := range map[string]string{"twice": "ran in two trees at a time",
		"over": "held a lock of two as the third"} {
		if list, err := os.ReadFile(filepath.Join(a.ledgerDir, name)); err == nil {
			a.Errorf("jobs that %s: %s", problem, list)
			for id := range strings.FieldsSeq(string(list)) {
				a.Log(pgserver.Query(a, url, `SELECT e.at, e.kind, e.detail, e.job FROM queuectl.events e WHERE e.id = '`+id+
					`' ORDER BY e.seq`))
				a.Log(pgserver.Query(
					a, url, `SELECT t.* FROM queuectl.attempts t JOIN queuectl.jobs j ON j.seq = t.seq WHERE j.id = '`+id+`'`))
			}
			a.Logf("faults: %s", strings.Join(a.faultLog, "\n"))
		}
	}
	// This query finds jobs with more than one successful attempt. An attempt with exit code 0 may count as interrupted if
	// the service stopped its command in the moment in which the command ended by itself.
	for seq := range strings.FieldsSeq(pgserver.Query(a, url, `SELECT seq FROM (
		SELECT seq FROM queuectl.attempts WHERE exit_code = 0 AND reason <> 'interrupted'
		UNION ALL SELECT seq FROM queuectl.jobs WHERE ran <> '') a GROUP BY seq HAVING count(*) > 1`)) {
		a.Errorf("job %s has two results:\njob: %s\nattempts:\n%s\nevents:\n%s", seq,
			pgserver.Query(a, url, `SELECT j.* FROM queuectl.jobs j WHERE seq = `+seq),
			pgserver.Query(a, url, `SELECT t.* FROM queuectl.attempts t WHERE seq = `+seq+` ORDER BY n`),
			pgserver.Query(a, url, `SELECT e.* FROM queuectl.events e WHERE job = `+seq+` ORDER BY seq`))
		a.Logf("faults: %s", strings.Join(a.faultLog, "\n"))
	}
	a.checkRateLimit(url)
	total := 0
	for _, n := range runs {
		total += n
	}
	var report []string
	for kind, name := range faultNames {
		report = append(report, fmt.Sprintf("%s %d", name, a.faultCounts[kind].Load()))
	}
	interrupted := pgserver.Query(a, url, `SELECT count(*) FROM queuectl.attempts WHERE reason = 'interrupted'`)
	takeovers := 0
	for _, n := range a.nodes {
		logs, _ := filepath.Glob(n.StateDir + "/stderr-*")
		for _, name := range logs {
			raw, _ := os.ReadFile(name)
			takeovers += strings.Count(string(raw), "another node is gone")
			for line := range strings.Lines(string(raw)) {
				if strings.Contains(line, "queuectl: ") && !strings.Contains(line, "ready on") || strings.Contains(line, "panic") {
					a.Logf("%s: %s", n.name, line)
				}
			}
		}
	}
	a.Logf("%d jobs acknowledged, %d runs, %d nodes taken over, %s attempts interrupted, services started %d times; %s",
		jobs, total, takeovers, interrupted, a.serviceStartCount.Load(), strings.Join(report, ", "))
	if jobs < 50 {
		a.Errorf("only %d jobs were enqueued", jobs)
	}
}

// checkRateLimit checks that in no second more jobs with the rate limit started than the limit allows.
func (a *partitionTest) checkRateLimit(databaseURL string) {
	var startTimes []int64
	for line := range strings.Lines(pgserver.Query(a, databaseURL, `SELECT e.detail FROM queuectl.events e
		JOIN queuectl.jobs j ON j.seq = e.job WHERE e.kind = 'started' AND j.labels LIKE '%"rate"%'`)) {
		var d struct {
			At int64 `json:"started_at"`
		}
		if json.Unmarshal([]byte(line), &d) == nil && d.At > 0 {
			startTimes = append(startTimes, d.At)
		}
	}
	slices.Sort(startTimes)
	for i := 5; i < len(startTimes); i++ {
		if startTimes[i]-startTimes[i-5] < 1000 {
			a.Errorf("6 jobs started within %d ms, but 5 per second are allowed", startTimes[i]-startTimes[i-5])
			return
		}
	}
	a.Logf("%d starts at the rate", len(startTimes))
}
