package test

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

	"github.com/queuectl/queuectl/test/pgserver"
)

// newNode returns a node of a queue that several nodes share. Each node has its own state
// directory.
func newNode(t *testing.T, p *pgserver.Server, name string, env ...string) *queue {
	q := newQueue(t, "")
	q.store = p.URL("postgres")
	t.Cleanup(func() { // this cleanup runs before the node's directory is removed
		if !t.Failed() {
			return
		}
		logs, _ := filepath.Glob(q.dir + "/stderr-*")
		for _, name := range logs {
			raw, _ := os.ReadFile(name)
			t.Logf("%s: %s", filepath.Base(name), raw[max(0, len(raw)-4000):])
		}
		for _, table := range []string{`SELECT *, until - now() FROM queuectl.nodes`,
			`SELECT id, state, attempts, node, reason, error FROM queuectl.jobs WHERE state < 6`} {
			out, err := pgserver.TryQuery(q.store, table)
			t.Logf("%s\n%s, %v", table, out, err)
		}
	})
	q.env = append([]string{"QUEUECTL_NODE=" + name, "QUEUECTL_NODE_LEASE=5s", "QUEUECTL_NODE_LABELS=letter=" + name +
		" kind=test"}, env...)
	return q
}

// startNodes returns started nodes that share a dedicated PostgreSQL server.
func startNodes(t *testing.T, names ...string) (*pgserver.Server, []*queue) {
	p := pgserver.New(t)
	t.Cleanup(p.Remove)
	var list []*queue
	for _, name := range names {
		q := newNode(t, p, name)
		q.start("--workers", "2")
		list = append(list, q)
	}
	return p, list
}

// nodeOf returns the node of the job's last attempt.
func (q *queue) nodeOf(id string) string {
	q.Helper()
	var j struct {
		History []struct {
			Node string `json:"node"`
		} `json:"history"`
	}
	if err := json.Unmarshal([]byte(q.must("show", id, "--json")), &j); err != nil || len(j.History) == 0 {
		q.Fatalf("show %s: %v", id, err)
	}
	return j.History[len(j.History)-1].Node
}

// node is a row of "node list".
type node struct {
	Name, State string
	This        bool
	Running     int
}

func (q *queue) nodes() map[string]node {
	q.Helper()
	var list []node
	if err := json.Unmarshal([]byte(q.must("node", "list", "--json")), &list); err != nil {
		q.Fatal(err)
	}
	byName := map[string]node{}
	for _, n := range list {
		byName[n.Name] = n
	}
	return byName
}

// Machines that were cloned from one image have copies of one state directory. Their services are separate
// nodes nevertheless.
func TestClonedNodesAreSeparate(t *testing.T) {
	t.Parallel()
	p, nodes := startNodes(t, "a")
	image, err := os.ReadFile(nodes[0].path("node.id"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"b", "c"} {
		q := newNode(t, p, name)
		q.writeFile("node.id", string(image))
		q.start("--workers", "2")
		nodes = append(nodes, q)
	}
	for _, q := range nodes {
		name := strings.TrimPrefix(q.env[0], "QUEUECTL_NODE=")
		id := nodes[0].must("enqueue", "--on", name, "true")
		nodes[0].must("wait", "--timeout", "20s", id)
		if nodeName := nodes[0].nodeOf(id); nodeName != name {
			t.Errorf("a job for %s ran on %s", name, nodeName)
		}
	}
	if nodeRows := nodes[1].nodes(); len(nodeRows) != 3 || nodeRows["a"].State != "alive" ||
		nodeRows["b"].State != "alive" || nodeRows["c"].State != "alive" {
		t.Errorf("there are %+v", nodeRows)
	}
	nodes[1].kill()
	nodes[1].start("--workers", "2")
	if nodeRows := nodes[0].nodes(); len(nodeRows) != 3 {
		t.Errorf("once one is started again there are %+v", nodeRows)
	}
}

// Nodes share a queue. Each node runs some of the jobs. Every node answers for the whole queue and
// carries out requests about jobs that run on another node. A drained node starts no jobs.
func TestNodeServicesShareAQueue(t *testing.T) {
	t.Parallel()
	_, nodes := startNodes(t, "a", "b")
	a, b := nodes[0], nodes[1]
	for i := range 12 {
		nodes[i%2].must("enqueue", "--id", fmt.Sprint("j", i), "sleep 0.3")
	}
	for i := range 12 {
		b.must("wait", "--timeout", "20s", fmt.Sprint("j", i))
	}
	jobsPerNode := map[string]int{}
	for i := range 12 {
		jobsPerNode[a.nodeOf(fmt.Sprint("j", i))]++
	}
	if jobsPerNode["a"] < 3 || jobsPerNode["b"] < 3 || jobsPerNode["a"]+jobsPerNode["b"] != 12 {
		t.Errorf("of 12 jobs they ran %v", jobsPerNode)
	}
	b.must("wait", "--timeout", "20s", b.must("enqueue", "--on", "b", "true"))
	type ended struct {
		Queue      string `json:"queue"`
		Throughput int    `json:"throughput_per_minute"`
	}
	endsReported := func() bool {
		var all ended
		var ends []ended
		if err := errors.Join(json.Unmarshal([]byte(a.must("status", "--json")), &all),
			json.Unmarshal([]byte(a.must("queue", "list", "--json")), &ends)); err != nil {
			t.Fatal(err)
		}
		return all.Throughput == 13 && slices.Contains(ends, ended{"default", 13})
	}
	a.waitUntil("it has heard what has ended on the other one", 10*time.Second, endsReported)
	for range 3 { // repeat: a node that knows more about the other one could answer differently
		a.must("pause", "--all")
		if r := b.cli("status", "--check"); r.code == 0 || !strings.Contains(r.out, "all jobs are paused") {
			t.Errorf("once it is paused elsewhere: %+v", r)
		}
		b.must("resume", "--all")
		for _, q := range nodes {
			if r := q.cli("status", "--check"); r.code != 0 {
				t.Errorf("once it is resumed: %+v", r)
			}
		}
	}
	for selector, want := range map[string]string{"b": "b", "letter=a": "a"} {
		for range 3 {
			id := a.must("enqueue", "--on", selector, "true")
			b.must("wait", "--timeout", "20s", id)
			if nodeName := a.nodeOf(id); nodeName != want {
				t.Errorf("--on %s ran on %s", selector, nodeName)
			}
		}
	}
	for selector, words := range map[string]string{"bb": `this queue has no node "bb"`,
		"letter=c": "no node of this queue has the label letter=c", "?": "is not a node name or LABEL=VALUE"} {
		if r := a.cli("enqueue", "--on", selector, "true"); r.code != 2 || !strings.Contains(r.err, words) {
			t.Errorf("--on %s: %+v", selector, r)
		}
	}
	gate := b.path("go")
	b.must("enqueue", "--id", "long", "--on", "b", "echo begun; trap 'echo told' USR1; while [ ! -e "+gate+
		" ]; do sleep 0.05; done; echo ended")
	a.waitUntil("it runs", 20*time.Second, func() bool { return strings.Contains(a.must("logs", "long"), "begun") })
	for verb, want := range map[string]string{"list": "NODE", "show long": "Node:       b",
		"status": "2 workers busy on a", "list --columns id,node --state processing": "long  b", "doctor": "MiB are free"} {
		if text := a.must(strings.Fields(verb)...); !strings.Contains(text, want) {
			t.Errorf("%s on a machine that shares its queue does not say %q:\n%s", verb, want, text)
		}
	}
	followed := a.command("logs", "-f", "--stdout", "long")
	out := &strings.Builder{}
	followed.Stdout = out // only stdout is compared, because the shell reports the signal on stderr
	if err := startCommand(followed); err != nil {
		t.Fatal(err)
	}
	a.must("pause", "long")
	if j := b.show("long"); j.State != "processing" || b.pauseOf("long").PausedAt.IsZero() {
		t.Errorf("paused from elsewhere: %+v", j)
	}
	a.must("resume", "long")
	a.must("kill", "long", "--signal", "USR1")
	a.waitUntil("the signal has come", 20*time.Second, func() bool {
		return strings.Contains(a.must("logs", "long"), "told")
	})
	b.writeFile("go", "")
	a.must("wait", "--timeout", "20s", "long")
	if err := followed.Wait(); err != nil || out.String() != "begun\ntold\nended\n" {
		t.Errorf("followed from elsewhere: %q, %v", out, err)
	}
	b.must("enqueue", "--id", "endless", "--on", "b", "sleep 1000")
	a.waitUntil("it runs", 20*time.Second, func() bool { return a.show("endless").State == "processing" })
	a.must("cancel", "endless")
	if j := b.show("endless"); j.State != "cancelled" {
		t.Errorf("cancelled from elsewhere it is %s", j.State)
	}
	a.must("enqueue", "--id", "large", "--on", "b", "--output-limit", "1MiB", "seq 1 60000")
	a.must("wait", "--timeout", "20s", "large")
	if far, near := a.must("logs", "large"), b.must("logs", "large"); far != near || len(far) < 300_000 {
		t.Errorf("a large output has %d bytes here and %d there", len(near), len(far))
	}
	if tail := a.must("logs", "-n", "1", "large"); tail != "60000" {
		t.Errorf("its last line is %q", tail)
	}
	a.must("config", "set", "max_pending", "4711")
	if text := b.must("config", "get", "max_pending"); !strings.Contains(text, "4711") {
		t.Errorf("a setting of elsewhere: %s", text)
	}
	if names := a.must("node", "list", "-q"); names != "a\nb" {
		t.Errorf("names of nodes: %q", names)
	}
	last := b.path("last")
	b.must("enqueue", "--id", "last", "--on", "b", gatedJob(last))
	a.waitUntil("it runs", 20*time.Second, func() bool { return a.show("last").State == "processing" })
	a.must("node", "drain", "b")
	if n := a.nodes(); n["b"].State != "draining" || n["a"].State != "alive" || !n["a"].This {
		t.Errorf("nodes %+v", n)
	}
	if text := b.must("status"); !strings.Contains(text, "drain") {
		t.Errorf("status of a node that drains: %s", text)
	}
	drainCmd := a.command("node", "drain", "b", "--wait")
	if err := startCommand(drainCmd); err != nil {
		t.Fatal(err)
	}
	b.writeFile("last", "")
	if err := drainCmd.Wait(); err != nil {
		t.Errorf("drain --wait: %v", err)
	}
	if n := a.nodes(); n["b"].State != "drained" || n["b"].Running != 0 {
		t.Errorf("once nothing runs there: %+v", n)
	}
	for range 4 {
		id := b.must("enqueue", "true")
		b.must("wait", "--timeout", "20s", id)
		if nodeName := b.nodeOf(id); nodeName != "a" {
			t.Errorf("a drained node ran %s", id)
		}
	}
	id := a.must("enqueue", "--on", "b", "true")
	if why := a.must("why", id); why != b.must("why", id) ||
		!strings.Contains(why, "on a: the job runs only on b, not here") ||
		!strings.Contains(why, "on b: the service is draining and starts no jobs") {
		t.Errorf("why: %s", why)
	}
	a.must("node", "drain", "--off", "b")
	a.must("wait", "--timeout", "20s", id)
	if r := a.cli("node", "rm", "b"); r.code == 0 || !strings.Contains(r.err, "is running") {
		t.Errorf("a node whose service runs is removed: %+v", r)
	}
	if r := a.cli("node", "rm", "c"); r.code == 0 || !strings.Contains(r.err, `there is no node "c"`) {
		t.Errorf("a node that is none: %+v", r)
	}
	if code := b.stop(); code != 0 {
		t.Errorf("stopped with %d", code)
	}
	if n, health := a.nodes(), a.cli("status", "--check"); n["b"].State != "stopped" || health.code != 0 {
		t.Errorf("a node that has stopped with nothing to do is %+v, %+v", n["b"], health)
	}
	if r := a.cli("logs", "large"); r.code == 0 || !strings.Contains(r.err, "on node b, which does not answer") {
		t.Errorf("an output that is away: %+v", r)
	}
	id = a.must("enqueue", "--on", "b", "true")
	if why := a.must("why", id); !strings.Contains(why,
		"the job runs only on b, a node that is stopped; next step: queuectl node list") {
		t.Errorf("why a job waits for a node that has stopped: %s", why)
	}
	a.must("cancel", id)
	a.must("node", "rm", "b")
	if n := a.nodes(); len(n) != 1 {
		t.Errorf("nodes %+v", n)
	}
}

// exclusiveCommand returns a command that records each of its runs and fails if another run of it is still
// alive. The command ends when the file "go" exists in the directory.
func exclusiveCommand(dir, id string) string {
	return fmt.Sprintf("exec 9>>%[1]s/lock-%[2]s; flock -n 9 || { echo %[2]s >>%[1]s/twice; exit 1; }; echo %[2]s "+
		">>%[1]s/ran; while [ ! -e %[1]s/go ]; do sleep 0.05; done", dir, id)
}

// If the service of a node is killed, the runner ends the jobs of the node before another node runs them
// again. If the service is stopped (SIGSTOP) for longer than its node lease, it also loses its jobs, and it
// exits when it continues.
func TestLostNodesJobsRunElsewhere(t *testing.T) {
	t.Parallel()
	p, nodes := startNodes(t, "a")
	a, b := nodes[0], newNode(t, p, "b")
	ledger := t.TempDir()
	if err := os.Chmod(ledger, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"one", "two"} {
		a.must("enqueue", "--id", id, "--backoff-base", "0.1", "--backoff-max", "1s", "--max-retries", "50",
			exclusiveCommand(ledger, id))
	}
	runs := func(viewer *queue, nodeName string) func() bool {
		return func() bool { return viewer.nodes()[nodeName].Running == 2 }
	}
	a.waitUntil("both run", 20*time.Second, runs(a, "a"))
	b.start("--workers", "2")
	a.kill()
	b.waitUntil("it runs them again", 40*time.Second, runs(b, "b"))
	if n, health := b.nodes()["a"], b.cli("status", "--check"); n.State != "away" ||
		!strings.Contains(health.out, "node a has sent no heartbeat since") || health.code == 0 {
		t.Errorf("a node that is gone is %+v, %+v", n, health)
	}
	a.start("--workers", "2")
	b.cmd.Process.Signal(syscall.SIGSTOP)
	a.waitUntil("it runs them again", 40*time.Second, runs(a, "a"))
	b.cmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-b.ended: // the service exits because another node has taken over its jobs
	case <-time.After(20 * time.Second):
		t.Error("a service that was taken over goes on")
	}
	b.cmd = nil
	b.start("--workers", "2")
	if err := os.WriteFile(ledger+"/go", nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"one", "two"} {
		a.must("wait", "--timeout", "30s", id)
		// More than three attempts are possible, because on a busy machine another lease may expire.
		if j := a.show(id); j.Attempts < 3 {
			t.Errorf("%s has %d attempts, and was lost twice", id, j.Attempts)
		}
	}
	if doubleRuns, err := os.ReadFile(ledger + "/twice"); err == nil {
		t.Errorf("these ran twice at a time: %s", doubleRuns)
	}
	runLog, err := os.ReadFile(ledger + "/ran")
	if n := strings.Count(string(runLog), "\n"); err != nil || n < 6 {
		t.Errorf("%d runs, %v; each job was lost twice:\n%s", n, err, runLog)
	}
}

// A job can be cancelled even if its node is lost and no other node has noticed the loss.
func TestCancelOnALostNode(t *testing.T) {
	t.Parallel()
	_, nodes := startNodes(t, "a", "b")
	a, b := nodes[0], nodes[1]
	a.must("enqueue", "--id", "long", "--on", "a", gatedJob(a.path("never")))
	a.dial().waitRunning("long")
	a.kill()
	b.must("cancel", "long")
	if j := b.show("long"); j.State != "cancelled" {
		t.Errorf("it is %s", j.State)
	}
}

// A follower of a job on another node keeps following it while the database server restarts.
func TestFollowerSurvivesADatabaseRestart(t *testing.T) {
	t.Parallel()
	p, nodes := startNodes(t, "a", "b")
	a, b := nodes[0], nodes[1]
	gate := a.path("go")
	// The job prints all the time, so output arrives before, during and after the restart of the database
	// server.
	a.must("enqueue", "--id", "long", "--on", "a", "echo up; while [ ! -e '"+gate+
		"' ]; do echo tick; sleep 0.05; done; echo end of it")
	a.dial().waitRunning("long")
	var followed []*exec.Cmd
	var outs []*lockedBuffer
	for _, q := range nodes {
		cmd, out := q.command("logs", "-f", "long"), &lockedBuffer{}
		cmd.Stdout, cmd.Stderr = out, out
		if err := startCommand(cmd); err != nil {
			t.Fatal(err)
		}
		followed, outs = append(followed, cmd), append(outs, out)
		q.waitUntil("it is followed", 10*time.Second, func() bool { return strings.Contains(out.String(), "up") })
	}
	p.Kill()
	for _, q := range nodes {
		q.waitUntil("it is known", 20*time.Second, func() bool { return q.cli("status", "--check").code == 2 })
	}
	p.Start(t)
	b.waitUntil("it is back", 20*time.Second, func() bool { return b.cli("show", "long").code == 0 })
	a.writeFile("go", "")
	for i, cmd := range followed {
		if err, out := cmd.Wait(), outs[i].String(); err != nil || !strings.HasPrefix(out, "up\n") ||
			!strings.Contains(out, "end of") {
			t.Errorf("on %s: %q, %v", nodes[i].env[0], out, err)
		}
	}
}

// A follower of a job continues on the node that runs the job again after its first node was lost.
func TestFollowerSurvivesALostNode(t *testing.T) {
	t.Parallel()
	p, nodes := startNodes(t, "a")
	a, b := nodes[0], newNode(t, p, "b")
	a.must("enqueue", "--id", "long", "--backoff-base", "0.1", "--max-retries", "5", gatedJob(a.path("go")))
	a.dial().waitRunning("long")
	b.start("--workers", "2")
	followed := b.command("logs", "-f", "long")
	out := &strings.Builder{}
	followed.Stdout = out
	if err := startCommand(followed); err != nil {
		t.Fatal(err)
	}
	b.waitUntil("it is followed", 10*time.Second, func() bool { return strings.Contains(b.must("logs", "long"), "up") })
	a.kill()
	b.waitUntil("it runs there", 40*time.Second, func() bool { return b.nodes()["b"].Running == 1 })
	a.writeFile("go", "")
	if err := followed.Wait(); err != nil || !strings.Contains(out.String(), "end of") {
		t.Errorf("%q, %v", out, err)
	}
}

// A service that restarts before its node lease expires adopts the jobs of its runner. No job runs
// twice.
func TestRestartedNodeAdoptsItsJobs(t *testing.T) {
	t.Parallel()
	_, nodes := startNodes(t, "a", "b")
	a, b := nodes[0], nodes[1]
	gate := a.path("go")
	a.must("enqueue", "--id", "long", "--on", "a", gatedJob(gate))
	w := b.dial()
	pid := w.waitRunning("long").PID
	for range 3 {
		a.kill()
		a.start("--workers", "2")
	}
	a.writeFile("go", "")
	b.must("wait", "--timeout", "20s", "long")
	if j := b.show("long"); j.Attempts != 1 || j.State != "completed" {
		t.Errorf("%+v, and ran with pid %d", j, pid)
	}
}

// If the database server is down for longer than a node lease, running jobs are ended, unless the setting
// on_partition is "continue". When the server is back, all nodes resume work on the queue.
func TestNodesSurviveALostDatabase(t *testing.T) {
	t.Parallel()
	p := pgserver.New(t)
	t.Cleanup(p.Remove)
	a, b := newNode(t, p, "a"), newNode(t, p, "b", "QUEUECTL_ON_PARTITION=continue")
	gate := a.path("go")
	wait := gatedJob(gate)
	for name, q := range map[string]*queue{"a": a, "b": b} {
		q.start("--workers", "2")
		q.must("enqueue", "--id", "on-"+name, "--on", name, "--backoff-base", "0.1", wait)
		q.dial().waitRunning("on-" + name)
	}
	trees := map[*queue]int{a: a.dial().show("on-a").PID, b: b.dial().show("on-b").PID}
	p.Kill()
	a.waitUntil("its job is ended", 40*time.Second, func() bool { return syscall.Kill(trees[a], 0) != nil })
	if syscall.Kill(trees[b], 0) != nil {
		t.Error("a job is ended that was to go on")
	}
	p.Start(t)
	a.writeFile("go", "")
	for _, id := range []string{"on-a", "on-b"} {
		a.waitUntil(id+" has ended", 60*time.Second, func() bool {
			// The node that reconnects first may take over the jobs of the other node. The service of the
			// other node then exits, so start it again.
			for _, q := range []*queue{a, b} {
				select {
				case <-q.ended:
					q.cmd = nil
					q.start("--workers", "2")
				default:
				}
			}
			return a.cli("wait", "--timeout", "5s", id).code == 0
		})
	}
	if h := a.dial().show("on-a").History; len(h) != 2 || h[0].Reason != "interrupted" {
		t.Errorf("what ran when the lease was over is told of as %+v", h)
	}
}

// While the database server is down, a service says so and can be stopped. If the settings of a service no
// longer name the database, the service does not create a new local queue.
func TestServiceWithoutADatabase(t *testing.T) {
	t.Parallel()
	p, nodes := startNodes(t, "a")
	a := nodes[0]
	a.must("wait", a.must("enqueue", "true"))
	if text := a.must("status", "--verbose"); !strings.Contains(text, "the database postgres at") {
		t.Errorf("status does not say where the queue is:\n%s", text)
	}
	p.Kill()
	if r := a.cli("status", "--check"); r.code != 2 || !strings.HasPrefix(r.out, "failing: the database cannot be") {
		t.Errorf("status --check: %+v", r)
	}
	if r := a.cli("status"); r.code != 0 || !strings.Contains(r.out, "completed  1") ||
		!strings.Contains(r.out, "failing: the database cannot be") {
		t.Errorf("status: %+v", r)
	}
	if r := a.cli("doctor"); r.code != 1 || !strings.Contains(r.out, "the database cannot be") ||
		!strings.Contains(r.out, "file system") {
		t.Errorf("doctor: %+v", r)
	}
	a.must("service", "stop")
	if code := a.stop(); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	a.store = ""
	if r := a.mustRefuseStart("--dir", a.dir); r.code != 78 ||
		!strings.Contains(r.err, `the settings name no database; set the setting "store"`) {
		t.Errorf("without its database: %+v", r)
	}
	if _, err := os.Stat(a.path("queuectl.db")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it has begun a queue of its own: %v", err)
	}
}

// Nodes may be behind a connection pooler, which may use another connection for each transaction. They then
// get no notifications, and learn of the changes of other nodes by polling.
func TestNodesWorkThroughAPooler(t *testing.T) {
	t.Parallel()
	p := pgserver.New(t)
	t.Cleanup(p.Remove)
	a, b := newNode(t, p, "a"), newNode(t, p, "b")
	a.store = p.PoolerURL(t, "postgres")
	b.store = a.store
	for _, q := range []*queue{a, b} {
		q.start("--workers", "2")
	}
	var ids []string
	for i := range 20 {
		ids = append(ids, a.must("enqueue", "--on", []string{"a", "b"}[i%2], "sleep 0.05; echo "+fmt.Sprint(i)))
	}
	for i, id := range ids {
		a.must("wait", "--timeout", "30s", id)
		if out := b.must("logs", id); out != fmt.Sprint(i) {
			t.Errorf("%s printed %q", id, out)
		}
	}
	b.must("enqueue", "--id", "endless", "--on", "b", "sleep 1000")
	a.waitUntil("it runs", 20*time.Second, func() bool { return a.show("endless").State == "processing" })
	a.must("cancel", "endless")
	for _, q := range []*queue{a, b} {
		if code := q.stop(); code != 0 {
			t.Errorf("stopped with %d:\n%s", code, q.log)
		}
	}
	if r := a.cli("migrate", "--from", a.store, "--to", "sqlite"); r.code != 2 ||
		!strings.Contains(r.err, "a connection pooler") {
		t.Errorf("a move by a pooler: %+v", r)
	}
}

// The database role of a node needs few rights: it must be able to read and write the tables, which another
// role owns.
func TestNodeNeedsFewDatabaseRights(t *testing.T) {
	t.Parallel()
	p, nodes := startNodes(t, "a")
	pgserver.Query(t, p.URL(
		"postgres"), `CREATE ROLE node LOGIN; GRANT USAGE ON SCHEMA queuectl TO node; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA queuectl TO node; GRANT USAGE ON ALL SEQUENCES IN SCHEMA queuectl TO node`)
	b := newNode(t, p, "b")
	b.store = pgserver.WithRole(b.store, "node")
	b.start("--workers", "2")
	id := nodes[0].must("enqueue", "--on", "b", "echo hi")
	b.must("wait", "--timeout", "20s", id)
	if out := b.must("logs", id); out != "hi" {
		t.Errorf("it printed %q", out)
	}
}

func TestNodeNotesOnceThatItDoesNotStartAtBoot(t *testing.T) {
	_, nodes := startNodes(t, "a", "b")
	q := nodes[0]
	const note = "this service does not start at boot"
	for _, words := range [][]string{
		{"enqueue", "--id", "late", "--in", "2h", "true"}, {"enqueue", "--in", "2h", "--", "true", ":::", "1", "2"},
		{"edit", "late", "--at", "tomorrow 3pm"},
		{"edit", "--all", "--yes", "--delay", "3h"}, {"edit", "late", "--at", "tomorrow 3pm", "--jsonl"},
		{"schedule", "add", "nightly", "0 3 * * *", "true"},
	} {
		want := 1
		// With --jsonl the note is part of the JSON on stdout, so stderr has none.
		if slices.Contains(words, "--jsonl") {
			want = 0
		}
		got := q.cli(words...)
		if got.code != 0 || strings.Count(got.err, note) != want || strings.Count(got.out, note) != 1-want {
			t.Errorf("%q: %+v, want the note once", words, got)
		}
	}
	if got := q.cli("edit", "late", "--delay", "10m"); got.code != 0 || got.err != "" {
		t.Errorf("a short delay: %+v, want no note", got)
	}
}
