package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
	"github.com/queuectl/queuectl/test/pgserver"
)

// newNode returns a node: one of several services that share a queue. Each node has a separate state directory.
func newNode(t *testing.T, server *pgserver.Server, nodeName string, env ...string) *testrig.Harness {
	q := testrig.NewHarness(t, "")
	q.StoreURL = server.DatabaseURL("postgres")
	t.Cleanup(func() { // this cleanup runs before the node's directory is removed
		if !t.Failed() {
			return
		}
		logs, _ := filepath.Glob(q.StateDir + "/stderr-*")
		for _, name := range logs {
			raw, _ := os.ReadFile(name)
			t.Logf("%s: %s", filepath.Base(name), raw[max(0, len(raw)-4000):])
		}
		for _, table := range []string{`SELECT *, until - now() FROM queuectl.nodes`,
			`SELECT id, state, attempts, node, reason, error FROM queuectl.jobs WHERE state < 6`} {
			out, err := pgserver.TryQuery(q.StoreURL, table)
			t.Logf("%s\n%s, %v", table, out, err)
		}
	})
	q.ServiceEnv = append([]string{"QUEUECTL_NODE=" + nodeName, "QUEUECTL_NODE_LEASE=5s",
		"QUEUECTL_NODE_LABELS=letter=" + nodeName + " kind=test"}, env...)
	return q
}

// startNodes starts a dedicated PostgreSQL server and one node per name. It returns the server and the nodes.
func startNodes(t *testing.T, nodeNames ...string) (*pgserver.Server, []*testrig.Harness) {
	p := pgserver.New(t)
	t.Cleanup(p.StopAndRemove)
	var nodes []*testrig.Harness
	for _, name := range nodeNames {
		q := newNode(t, p, name)
		q.StartService("--workers", "2")
		nodes = append(nodes, q)
	}
	return p, nodes
}

// lastAttemptNode returns the node on which the last attempt of a job ran.
func lastAttemptNode(q *testrig.Harness, jobID string) string {
	q.Helper()
	var j struct {
		History []struct {
			Node string `json:"node"`
		} `json:"history"`
	}
	if err := json.Unmarshal([]byte(q.MustRunCLI("show", jobID, "--json")), &j); err != nil || len(j.History) == 0 {
		q.Fatalf("show %s: %v", jobID, err)
	}
	return j.History[len(j.History)-1].Node
}

// If machines were cloned from one image, their state directories are copies. Their services
// are still separate nodes.
func TestClonedStateDirsAreSeparateNodes(t *testing.T) {
	t.Parallel()
	p, nodes := startNodes(t, "a")
	image, err := os.ReadFile(nodes[0].Path("node.id"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"b", "c"} {
		q := newNode(t, p, name)
		q.WriteFile("node.id", string(image))
		q.StartService("--workers", "2")
		nodes = append(nodes, q)
	}
	for _, q := range nodes {
		name := strings.TrimPrefix(q.ServiceEnv[0], "QUEUECTL_NODE=")
		id := nodes[0].MustRunCLI("enqueue", "--on", name, "true")
		nodes[0].MustRunCLI("wait", "--timeout", "20s", id)
		if nodeName := lastAttemptNode(nodes[0], id); nodeName != name {
			t.Errorf("a job for %s ran on %s", name, nodeName)
		}
	}
	if nodeRows := nodes[1].ListNodes(); len(nodeRows) != 3 || nodeRows["a"].State != "alive" ||
		nodeRows["b"].State != "alive" || nodeRows["c"].State != "alive" {
		t.Errorf("the nodes are %+v, want three nodes that are alive", nodeRows)
	}
	nodes[1].KillService()
	nodes[1].StartService("--workers", "2")
	if nodeRows := nodes[0].ListNodes(); len(nodeRows) != 3 {
		t.Errorf("after the restart of a node, the nodes are %+v", nodeRows)
	}
}

// Nodes share a queue, and each node runs some of the jobs. Every node shows the whole queue and accepts
// requests about jobs that run on another node. A drained node starts no jobs.
func TestNodeServicesShareAQueue(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	_, nodes := startNodes(t, "a", "b")
	a, b := nodes[0], nodes[1]
	for i := range 12 {
		nodes[i%2].MustRunCLI("enqueue", "--id", fmt.Sprint("j", i), "sleep 0.3")
	}
	for i := range 12 {
		b.MustRunCLI("wait", "--timeout", "20s", fmt.Sprint("j", i))
	}
	jobsPerNode := map[string]int{}
	for i := range 12 {
		jobsPerNode[lastAttemptNode(a, fmt.Sprint("j", i))]++
	}
	if jobsPerNode["a"] < 3 || jobsPerNode["b"] < 3 || jobsPerNode["a"]+jobsPerNode["b"] != 12 {
		t.Errorf("jobs per node: %v, want at least 3 each of 12", jobsPerNode)
	}
	b.MustRunCLI("wait", "--timeout", "20s", b.MustRunCLI("enqueue", "--on", "b", "true"))
	type ended struct {
		Queue      string `json:"queue"`
		Throughput int    `json:"throughput_per_minute"`
	}
	endsReported := func() bool {
		var all ended
		var ends []ended
		if err := errors.Join(json.Unmarshal([]byte(a.MustRunCLI("status", "--json")), &all),
			json.Unmarshal([]byte(a.MustRunCLI("queue", "list", "--json")), &ends)); err != nil {
			t.Fatal(err)
		}
		return all.Throughput == 13 && slices.Contains(ends, ended{"default", 13})
	}
	a.WaitUntil("status counts the jobs that have ended on the other node", 10*time.Second, endsReported)
	for range 3 { // try three times, because node b may reply differently once it knows more about node a
		a.MustRunCLI("pause", "--all")
		if r := b.RunCLI("status", "--check"); r.ExitCode == 0 || !strings.Contains(r.Stdout, "all jobs are paused") {
			t.Errorf("status --check after a pause on the other node: %+v", r)
		}
		b.MustRunCLI("resume", "--all")
		for _, q := range nodes {
			if r := q.RunCLI("status", "--check"); r.ExitCode != 0 {
				t.Errorf("status --check after the resume: %+v", r)
			}
		}
	}
	for selector, want := range map[string]string{"b": "b", "letter=a": "a"} {
		for range 3 {
			id := a.MustRunCLI("enqueue", "--on", selector, "true")
			b.MustRunCLI("wait", "--timeout", "20s", id)
			if nodeName := lastAttemptNode(a, id); nodeName != want {
				t.Errorf("a job with --on %s ran on %s", selector, nodeName)
			}
		}
	}
	for selector, words := range map[string]string{"bb": `this queue has no node "bb"`,
		"letter=c": "no node of this queue has the label letter=c", "?": "is not a node name or LABEL=VALUE"} {
		if r := a.RunCLI("enqueue", "--on", selector, "true"); r.ExitCode != 2 || !strings.Contains(r.Stderr, words) {
			t.Errorf("--on %s: %+v", selector, r)
		}
	}
	gate := b.Path("go")
	b.MustRunCLI("enqueue", "--id", "long", "--on", "b", "echo begun; trap 'echo signalled' USR1; while [ ! -e "+gate+
		" ]; do sleep 0.05; done; echo ended")
	a.WaitUntil("the job runs", 20*time.Second, func() bool {
		return strings.Contains(a.MustRunCLI("logs", "long"), "begun")
	})
	for verb, want := range map[string]string{"list": "NODE", "show long": "Node:       b",
		"status": "2 workers busy on a", "list --columns id,node --state processing": "long  b", "doctor": "MiB are free"} {
		if text := a.MustRunCLI(strings.Fields(verb)...); !strings.Contains(text, want) {
			t.Errorf("%s on a node of a shared queue does not print %q:\n%s", verb, want, text)
		}
	}
	followed := a.CLICommand("logs", "-f", "--stdout", "long")
	out := &strings.Builder{}
	followed.Stdout = out // compare only stdout, because the shell reports the signal on stderr
	if err := testrig.StartCommand(followed); err != nil {
		t.Fatal(err)
	}
	a.MustRunCLI("pause", "long")
	if j := b.ShowJob("long"); j.State != "processing" || b.ShowJobPause("long").PausedAt.IsZero() {
		t.Errorf("the job that another node paused: %+v", j)
	}
	a.MustRunCLI("resume", "long")
	a.MustRunCLI("kill", "long", "--signal", "USR1")
	a.WaitUntil("the job has received the signal", 20*time.Second, func() bool {
		return strings.Contains(a.MustRunCLI("logs", "long"), "signalled")
	})
	b.WriteFile("go", "")
	a.MustRunCLI("wait", "--timeout", "20s", "long")
	if err := followed.Wait(); err != nil || out.String() != "begun\nsignalled\nended\n" {
		t.Errorf("output that another node followed: %q, %v", out, err)
	}
	b.MustRunCLI("enqueue", "--id", "endless", "--on", "b", "sleep 1000")
	a.WaitUntil("the job runs", 20*time.Second, func() bool { return a.ShowJob("endless").State == "processing" })
	a.MustRunCLI("cancel", "endless")
	if j := b.ShowJob("endless"); j.State != "cancelled" {
		t.Errorf("the job that another node cancelled is %s", j.State)
	}
	a.MustRunCLI("enqueue", "--id", "large", "--on", "b", "--output-limit", "1MiB", "seq 1 60000")
	a.MustRunCLI("wait", "--timeout", "20s", "large")
	if far, near := a.MustRunCLI("logs", "large"), b.MustRunCLI("logs", "large"); far != near || len(far) < 300_000 {
		t.Errorf("a large output has %d bytes on its node and %d on the other node", len(near), len(far))
	}
	if tail := a.MustRunCLI("logs", "-n", "1", "large"); tail != "60000" {
		t.Errorf("the last line of the large output is %q", tail)
	}
	a.MustRunCLI("config", "set", "max_pending", "4711")
	if text := b.MustRunCLI("config", "get", "max_pending"); !strings.Contains(text, "4711") {
		t.Errorf("a setting that was changed on another node: %s", text)
	}
	if names := a.MustRunCLI("node", "list", "-q"); names != "a\nb" {
		t.Errorf("node list -q: %q", names)
	}
	last := b.Path("last")
	b.MustRunCLI("enqueue", "--id", "last", "--on", "b", testrig.CommandWaitingForFile(last))
	a.WaitUntil("the job runs", 20*time.Second, func() bool { return a.ShowJob("last").State == "processing" })
	a.MustRunCLI("node", "drain", "b")
	if n := a.ListNodes(); n["b"].State != "draining" || n["a"].State != "alive" || !n["a"].This {
		t.Errorf("nodes during the drain of b: %+v", n)
	}
	if text := b.MustRunCLI("status"); !strings.Contains(text, "drain") {
		t.Errorf("status of a node that drains: %s", text)
	}
	drainCmd := a.CLICommand("node", "drain", "b", "--wait")
	if err := testrig.StartCommand(drainCmd); err != nil {
		t.Fatal(err)
	}
	b.WriteFile("last", "")
	if err := drainCmd.Wait(); err != nil {
		t.Errorf("drain --wait: %v", err)
	}
	if n := a.ListNodes(); n["b"].State != "drained" || n["b"].Running != 0 {
		t.Errorf("nodes after the last job of b: %+v", n)
	}
	for range 4 {
		id := b.MustRunCLI("enqueue", "true")
		b.MustRunCLI("wait", "--timeout", "20s", id)
		if nodeName := lastAttemptNode(b, id); nodeName != "a" {
			t.Errorf("job %s did not run on node a, although b is drained", id)
		}
	}
	id := a.MustRunCLI("enqueue", "--on", "b", "true")
	if why := a.MustRunCLI("why", id); why != b.MustRunCLI("why", id) ||
		!strings.Contains(why, "on a: the job runs only on b, not here") ||
		!strings.Contains(why, "on b: the service is draining and starts no jobs") {
		t.Errorf("why: %s", why)
	}
	a.MustRunCLI("node", "drain", "--off", "b")
	a.MustRunCLI("wait", "--timeout", "20s", id)
	if r := a.RunCLI("node", "rm", "b"); r.ExitCode == 0 || !strings.Contains(r.Stderr, "is running") {
		t.Errorf("node rm of a running node: %+v", r)
	}
	if r := a.RunCLI("node", "rm", "c"); r.ExitCode == 0 || !strings.Contains(r.Stderr, `there is no node "c"`) {
		t.Errorf("node rm of an unknown node: %+v", r)
	}
	if code := b.StopService(); code != 0 {
		t.Errorf("stopped with %d", code)
	}
	if n, health := a.ListNodes(), a.RunCLI("status", "--check"); n["b"].State != "stopped" || health.ExitCode != 0 {
		t.Errorf("a node that was stopped without jobs is %+v, status --check %+v", n["b"], health)
	}
	if r := a.RunCLI("logs", "large"); r.ExitCode == 0 || !strings.Contains(r.Stderr, "on node b, which does not answer") {
		t.Errorf("logs of an output on a stopped node: %+v", r)
	}
	id = a.MustRunCLI("enqueue", "--on", "b", "true")
	if why := a.MustRunCLI("why", id); !strings.Contains(why,
		"the job runs only on b, a node that is stopped; next step: queuectl node list") {
		t.Errorf("why a job waits for a node that has stopped: %s", why)
	}
	a.MustRunCLI("cancel", id)
	a.MustRunCLI("node", "rm", "b")
	if n := a.ListNodes(); len(n) != 1 {
		t.Errorf("nodes after node rm: %+v", n)
	}
}

// overlapDetectingCommand returns a shell command for a job. The command records each of its runs, and fails while an
// earlier run is still alive. It ends when the file "go" exists in the directory.
func overlapDetectingCommand(ledgerDir, jobID string) string {
	return fmt.Sprintf("exec 9>>%[1]s/lock-%[2]s; flock -n 9 || { echo %[2]s >>%[1]s/twice; exit 1; }; echo %[2]s "+
		">>%[1]s/ran; while [ ! -e %[1]s/go ]; do sleep 0.05; done", ledgerDir, jobID)
}

// If the service of a node is killed, the runner ends the node's jobs before another node runs them again. If the
// service is stopped with SIGSTOP for longer than its node lease lasts, other nodes run its jobs, and the service exits
// when SIGCONT lets it continue.
func TestOtherNodesRunLostNodesJobs(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	p, nodes := startNodes(t, "a")
	a, b := nodes[0], newNode(t, p, "b")
	ledger := t.TempDir()
	if err := os.Chmod(ledger, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"one", "two"} {
		a.MustRunCLI("enqueue", "--id", id, "--backoff-base", "0.1", "--backoff-max", "1s", "--max-retries", "50",
			overlapDetectingCommand(ledger, id))
	}
	runs := func(viewer *testrig.Harness, nodeName string) func() bool {
		return func() bool { return viewer.ListNodes()[nodeName].Running == 2 }
	}
	a.WaitUntil("both run", 20*time.Second, runs(a, "a"))
	b.StartService("--workers", "2")
	a.KillService()
	b.WaitUntil("it runs both jobs again", 40*time.Second, runs(b, "b"))
	if n, health := b.ListNodes()["a"], b.RunCLI("status", "--check"); n.State != "away" ||
		!strings.Contains(health.Stdout, "node a has sent no heartbeat since") || health.ExitCode == 0 {
		t.Errorf("a killed node is %+v, status --check %+v", n, health)
	}
	a.StartService("--workers", "2")
	b.ServiceCmd.Process.Signal(syscall.SIGSTOP)
	a.WaitUntil("it runs both jobs again", 40*time.Second, runs(a, "a"))
	b.ServiceCmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-b.ServiceExit: // the service exits because another node has taken over its jobs
	case <-time.After(20 * time.Second):
		t.Error("a service whose jobs were taken over still runs")
	}
	b.ServiceCmd = nil
	b.StartService("--workers", "2")
	if err := os.WriteFile(ledger+"/go", nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"one", "two"} {
		a.MustRunCLI("wait", "--timeout", "30s", id)
		// An attempt may be lost more often than the two times that the test causes, because on a busy machine another node
		// lease may expire.
		if j := a.ShowJob(id); j.AttemptCount < 3 {
			t.Errorf("job %s has %d attempts, want at least 3, because it was lost twice", id, j.AttemptCount)
		}
	}
	if doubleRuns, err := os.ReadFile(ledger + "/twice"); err == nil {
		t.Errorf("these jobs ran twice at the same time: %s", doubleRuns)
	}
	runLog, err := os.ReadFile(ledger + "/ran")
	if n := strings.Count(string(runLog), "\n"); err != nil || n < 6 {
		t.Errorf("%d runs, %v, want at least 6, because each job was lost twice:\n%s", n, err, runLog)
	}
}

// If a client follows a job that runs on another node, it keeps following the job while the database server
// restarts.
func TestOutputFollowerSurvivesDatabaseRestart(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	p, nodes := startNodes(t, "a", "b")
	a, b := nodes[0], nodes[1]
	gate := a.Path("go")
	// The job prints all the time, so output arrives before, during and after the restart of the database server.
	a.MustRunCLI("enqueue", "--id", "long", "--on", "a", "echo up; while [ ! -e '"+gate+
		"' ]; do echo tick; sleep 0.05; done; echo end of it")
	a.DialService().WaitJobRunning("long")
	var followed []*exec.Cmd
	var outs []*testrig.LockedBuffer
	for _, q := range nodes {
		cmd, out := q.CLICommand("logs", "-f", "long"), &testrig.LockedBuffer{}
		cmd.Stdout, cmd.Stderr = out, out
		if err := testrig.StartCommand(cmd); err != nil {
			t.Fatal(err)
		}
		followed, outs = append(followed, cmd), append(outs, out)
		q.WaitUntil("the job is followed", 10*time.Second, func() bool { return strings.Contains(out.String(), "up") })
	}
	p.Kill()
	for _, q := range nodes {
		q.WaitUntil("status --check fails", 20*time.Second, func() bool {
			return q.RunCLI("status", "--check").ExitCode == 2
		})
	}
	p.Start(t)
	b.WaitUntil("the database is back", 20*time.Second, func() bool { return b.RunCLI("show", "long").ExitCode == 0 })
	a.WriteFile("go", "")
	for i, cmd := range followed {
		if err, out := cmd.Wait(), outs[i].String(); err != nil || !strings.HasPrefix(out, "up\n") ||
			!strings.Contains(out, "end of") {
			t.Errorf("the follower on %s printed %q, %v", nodes[i].ServiceEnv[0], out, err)
		}
	}
}

// If a node is lost, a client that follows one of its jobs continues with the node that runs the job again.
func TestOutputFollowerSurvivesLostNode(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	p, nodes := startNodes(t, "a")
	a, b := nodes[0], newNode(t, p, "b")
	a.MustRunCLI("enqueue", "--id", "long", "--backoff-base", "0.1", "--max-retries", "5",
		testrig.CommandWaitingForFile(a.Path("go")))
	a.DialService().WaitJobRunning("long")
	b.StartService("--workers", "2")
	followed := b.CLICommand("logs", "-f", "long")
	out := &strings.Builder{}
	followed.Stdout = out
	if err := testrig.StartCommand(followed); err != nil {
		t.Fatal(err)
	}
	b.WaitUntil("it is followed", 10*time.Second, func() bool {
		return strings.Contains(b.MustRunCLI("logs", "long"), "up")
	})
	a.KillService()
	b.WaitUntil("the job runs on node b", 40*time.Second, func() bool { return b.ListNodes()["b"].Running == 1 })
	a.WriteFile("go", "")
	if err := followed.Wait(); err != nil || !strings.Contains(out.String(), "end of") {
		t.Errorf("the follower printed %q, %v", out, err)
	}
}

// A service that restarts before its node lease expires adopts (takes over) the running jobs and does not start them
// again.
func TestRestartedNodeAdoptsItsJobs(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	_, nodes := startNodes(t, "a", "b")
	a, b := nodes[0], nodes[1]
	gate := a.Path("go")
	a.MustRunCLI("enqueue", "--id", "long", "--on", "a", testrig.CommandWaitingForFile(gate))
	w := b.DialService()
	pid := w.WaitJobRunning("long").PID
	for range 3 {
		a.KillService()
		a.StartService("--workers", "2")
	}
	a.WriteFile("go", "")
	b.MustRunCLI("wait", "--timeout", "20s", "long")
	if j := b.ShowJob("long"); j.AttemptCount != 1 || j.State != "completed" {
		t.Errorf("the adopted job: %+v, it ran with pid %d", j, pid)
	}
}

// If the database server is down for longer than a node lease, running jobs are ended, or keep running if the setting
// on_partition is "continue". When the database server is reachable again, all nodes continue to work on the queue.
func TestNodesRecoverAfterDatabaseOutage(t *testing.T) {
	t.Parallel()
	p := pgserver.New(t)
	t.Cleanup(p.StopAndRemove)
	a, b := newNode(t, p, "a"), newNode(t, p, "b", "QUEUECTL_ON_PARTITION=continue")
	gate := a.Path("go")
	wait := testrig.CommandWaitingForFile(gate)
	for name, q := range map[string]*testrig.Harness{"a": a, "b": b} {
		q.StartService("--workers", "2")
		q.MustRunCLI("enqueue", "--id", "on-"+name, "--on", name, "--backoff-base", "0.1", wait)
		q.DialService().WaitJobRunning("on-" + name)
	}
	trees := map[*testrig.Harness]int{a: a.DialService().ShowJob("on-a").PID, b: b.DialService().ShowJob("on-b").PID}
	p.Kill()
	a.WaitUntil("its job is ended", 40*time.Second, func() bool { return syscall.Kill(trees[a], 0) != nil })
	if syscall.Kill(trees[b], 0) != nil {
		t.Error("the job on node b was ended; want it to keep running")
	}
	p.Start(t)
	a.WriteFile("go", "")
	for _, id := range []string{"on-a", "on-b"} {
		a.WaitUntil(id+" has ended", 60*time.Second, func() bool {
			// The node that reconnects first may take over the jobs of the other node. The service of the other node then exits,
			// so start that service again.
			for _, q := range []*testrig.Harness{a, b} {
				select {
				case <-q.ServiceExit:
					q.ServiceCmd = nil
					q.StartService("--workers", "2")
				default:
				}
			}
			return a.RunCLI("wait", "--timeout", "5s", id).ExitCode == 0
		})
	}
	if h := a.DialService().ShowJob("on-a").AttemptHistory; len(h) != 2 || h[0].Reason != "interrupted" {
		t.Errorf("attempts of the job that ran when the node lease expired: %+v; want two, the first interrupted", h)
	}
}

// While the database server is down, a service reports that and can be stopped. If the settings of a node do
// not name the database, its service refuses to start, and does not create a local queue.
func TestServiceReportsUnreachableDatabase(t *testing.T) {
	t.Parallel()
	p, nodes := startNodes(t, "a")
	a := nodes[0]
	a.MustRunCLI("wait", a.MustRunCLI("enqueue", "true"))
	if text := a.MustRunCLI("status", "--verbose"); !strings.Contains(text, "the database postgres at") {
		t.Errorf("status does not say where the queue is:\n%s", text)
	}
	p.Kill()
	if r := a.RunCLI("status", "--check"); r.ExitCode != 2 ||
		!strings.HasPrefix(r.Stdout, "failing: the database cannot be") {
		t.Errorf("status --check: %+v", r)
	}
	if r := a.RunCLI("status"); r.ExitCode != 0 || !strings.Contains(r.Stdout, "completed  1") ||
		!strings.Contains(r.Stdout, "failing: the database cannot be") {
		t.Errorf("status: %+v", r)
	}
	if r := a.RunCLI("doctor"); r.ExitCode != 1 || !strings.Contains(r.Stdout, "the database cannot be") ||
		!strings.Contains(r.Stdout, "file system") {
		t.Errorf("doctor: %+v", r)
	}
	a.MustRunCLI("service", "stop")
	if code := a.StopService(); code != 0 {
		t.Errorf("the service without its database ended with %d", code)
	}
	a.StoreURL = ""
	if r := a.RunServiceExpectingRefusal("--dir", a.StateDir); r.ExitCode != 78 ||
		!strings.Contains(r.Stderr, `the settings name no database; set the setting "store"`) {
		t.Errorf("start without the setting store: %+v", r)
	}
	if _, err := os.Stat(a.Path("queuectl.db")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the service created a local queue: %v", err)
	}
}

// Nodes may use a connection pooler, which may choose another connection for each transaction. Nodes then get
// no notifications from the database and poll for the changes of other nodes.
func TestNodesWorkThroughConnectionPooler(t *testing.T) {
	t.Parallel()
	p := pgserver.New(t)
	t.Cleanup(p.StopAndRemove)
	a, b := newNode(t, p, "a"), newNode(t, p, "b")
	a.StoreURL = p.StartPooler(t, "postgres")
	b.StoreURL = a.StoreURL
	for _, q := range []*testrig.Harness{a, b} {
		q.StartService("--workers", "2")
	}
	var ids []string
	for i := range 20 {
		ids = append(ids, a.MustRunCLI("enqueue", "--on", []string{"a", "b"}[i%2], "sleep 0.05; echo "+fmt.Sprint(i)))
	}
	for i, id := range ids {
		a.MustRunCLI("wait", "--timeout", "30s", id)
		if out := b.MustRunCLI("logs", id); out != fmt.Sprint(i) {
			t.Errorf("%s printed %q", id, out)
		}
	}
	b.MustRunCLI("enqueue", "--id", "endless", "--on", "b", "sleep 1000")
	a.WaitUntil("the job runs", 20*time.Second, func() bool { return a.ShowJob("endless").State == "processing" })
	a.MustRunCLI("cancel", "endless")
	for _, q := range []*testrig.Harness{a, b} {
		if code := q.StopService(); code != 0 {
			t.Errorf("stopped with %d:\n%s", code, q.ServiceLog)
		}
	}
	if r := a.RunCLI("migrate", "--from", a.StoreURL, "--to", "sqlite"); r.ExitCode != 2 ||
		!strings.Contains(r.Stderr, "a connection pooler") {
		t.Errorf("migrate through a pooler: %+v", r)
	}
}

// A node needs few rights on the database: its role may read and write the tables but does not own them.
func TestNodeNeedsOnlyTableReadWriteRights(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	p, nodes := startNodes(t, "a")
	pgserver.Query(t, p.DatabaseURL("postgres"),
		`CREATE ROLE node LOGIN; GRANT USAGE ON SCHEMA queuectl TO node; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA queuectl TO node; GRANT USAGE ON ALL SEQUENCES IN SCHEMA queuectl TO node`)
	b := newNode(t, p, "b")
	b.StoreURL = pgserver.URLWithRole(b.StoreURL, "node")
	b.StartService("--workers", "2")
	id := nodes[0].MustRunCLI("enqueue", "--on", "b", "echo hi")
	b.MustRunCLI("wait", "--timeout", "20s", id)
	if out := b.MustRunCLI("logs", id); out != "hi" {
		t.Errorf("the job printed %q", out)
	}
}
