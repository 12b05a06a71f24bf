package durability

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// campaignClient is a client that sends random requests of every kind.
type campaignClient struct {
	campaign  *campaign
	name      string
	rng       *rand.Rand
	requester testrig.Requester
	tagCount  int // number of jobs that the client has created; each has a unique tag
}

// clientOperations lists the operations of a client. It chooses operations with a higher weight more often.
var clientOperations = []struct {
	weight int
	run    func(*campaignClient)
}{
	{30, (*campaignClient).enqueue},
	{4, (*campaignClient).enqueueByCLI},
	{5, (*campaignClient).enqueueBatch},
	{7, func(a *campaignClient) { a.applyToJobs("cancel") }},
	{5, func(a *campaignClient) { a.applyToJobs("retry") }},
	{2, func(a *campaignClient) { a.applyToJobs("dlq.retry") }},
	{5, func(a *campaignClient) { a.applyToJobs("requeue") }},
	{3, func(a *campaignClient) { a.applyToJobs("hold") }},
	{3, func(a *campaignClient) { a.applyToJobs("release") }},
	{3, func(a *campaignClient) { a.applyToJobs("edit") }},
	{2, func(a *campaignClient) { a.applyToJobs("kill") }},
	{4, func(a *campaignClient) { a.applyToJobs("rm") }},
	{3, func(a *campaignClient) { a.applyToJobs("rm --force") }},
	{2, (*campaignClient).applyToGroup},
	{4, (*campaignClient).wait},
	{6, (*campaignClient).logs},
	{8, (*campaignClient).show},
	{3, func(a *campaignClient) { a.callReadOnly("list", testrig.Fields{"limit": 1 + a.rng.IntN(300)}) }},
	{3, func(a *campaignClient) { a.callReadOnly("status", testrig.Fields{}) }},
	{2, func(a *campaignClient) { a.callReadOnly("worker.list", testrig.Fields{}) }},
	{1, func(a *campaignClient) { a.callReadOnly("config.list", testrig.Fields{}) }},
	{1, func(a *campaignClient) { a.callReadOnly("dlq.list", testrig.Fields{}) }},
	{2, (*campaignClient).changeSetting},
	{2, (*campaignClient).changeWorkerCount},
	{1, (*campaignClient).drain},
	{1, func(a *campaignClient) { a.call("reload", testrig.Fields{}, 0) }},
	{1, (*campaignClient).doctor},
	{1, (*campaignClient).backup},
	{5, (*campaignClient).runRandomCommand},
}

// run performs random operations until ctx ends.
func (a *campaignClient) run(ctx context.Context) {
	all := 0
	for _, v := range clientOperations {
		all += v.weight
	}
	for ctx.Err() == nil && !a.campaign.clientsStopped.Load() {
		pick := a.rng.IntN(all)
		for _, v := range clientOperations {
			if pick -= v.weight; pick < 0 {
				v.run(a)
				break
			}
		}
		select {
		case <-ctx.Done():
		// This pause determines the request rate of the client.
		case <-time.After(time.Duration(a.rng.IntN(120)) * time.Millisecond):
		}
	}
	if a.requester.Conn != nil {
		a.requester.Conn.Close()
	}
}

// expectedErrors lists the error codes that a correct service may return because of injected faults or
// requests of other clients.
var expectedErrors = []string{"unavailable", "no_space", "outcome_unknown", "not_found", "wrong_state", "full"}

// call sends one request and records how long the reply takes, not counting requestedWait, the time
// for which the service waits on request. wasSent is false if no service was reachable, and wasAnswered is
// false if no reply arrived.
func (a *campaignClient) call(method string, params any, requestedWait time.Duration) (
	reply testrig.WireMessage, wasSent, wasAnswered bool) {
	return a.stream(method, params, requestedWait, func(json.RawMessage) {})
}

// stream sends a request as call does, and passes each notification that precedes the reply to
// onNotification.
func (a *campaignClient) stream(method string, params any, requestedWait time.Duration,
	onNotification func(json.RawMessage)) (reply testrig.WireMessage, wasSent, wasAnswered bool) {
	started := time.Now()
	a.requester.Timeout = requestedWait + replyTimeLimit + 5*time.Second
	reply, err := a.requester.Request(method, params, onNotification)
	elapsed := time.Since(started)
	if isDialError(err) {
		a.campaign.count("unreachable " + method)
		return reply, false, false
	}
	a.campaign.recordLatency(method, elapsed, requestedWait)
	switch {
	case err != nil:
		a.campaign.count("cut " + method)
		return reply, true, false
	case reply.Error != nil:
		a.campaign.count("refused " + reply.Error.Data.Code)
		if !slices.Contains(expectedErrors, reply.Error.Data.Code) {
			a.campaign.recordViolation("answer", "%s %s: %+v", method, truncatedJSON(params), *reply.Error)
		}
	default:
		a.campaign.count("ops " + method)
	}
	return reply, true, true
}

// recordLatency records how long a reply took, without requestedWait, the time for which
// the service waits on request.
func (c *campaign) recordLatency(method string, latency, requestedWait time.Duration) {
	c.mu.Lock()
	c.latencies = append(c.latencies, max(0, latency-requestedWait))
	c.maxLatencies[method] = max(c.maxLatencies[method], latency-requestedWait)
	c.mu.Unlock()
	if latency > requestedWait+replyTimeLimit {
		c.recordViolation("slow", "%s took %v", method, latency.Round(time.Millisecond))
	}
}

func truncatedJSON(params any) string {
	raw, _ := json.Marshal(params)
	return string(raw[:min(len(raw), 600)])
}

// newJob returns a random job with a unique tag, and records that the client tries to enqueue this job.
func (a *campaignClient) newJob() *trackedJob {
	a.tagCount++
	e := &trackedJob{campaignJob: randomJob(a.rng, fmt.Sprintf("%s-%d", a.name, a.tagCount))}
	a.campaign.mu.Lock()
	defer a.campaign.mu.Unlock()
	a.campaign.jobs[e.tag] = e
	return e
}

// recordAcknowledged records the ids of jobs whose enqueue the service has acknowledged.
func (c *campaign) recordAcknowledged(jobs []*trackedJob, ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range jobs {
		e.id = ids[i]
		c.recentJobs = append(c.recentJobs, e)
		c.counts["jobs acknowledged"]++
	}
	if len(c.recentJobs) > 200 {
		c.recentJobs = c.recentJobs[len(c.recentJobs)-200:]
	}
}

// backlogFull reports whether clients must not enqueue more jobs, because more than 60 are waiting.
func (c *campaign) backlogFull() bool {
	var status struct{ Jobs map[string]int }
	return c.get("status", testrig.Fields{}, &status) == nil && status.Jobs["pending"]+status.Jobs["failed"] > 60
}

// maxResends is how often a client sends a request with an idempotency key before it gives up.
const maxResends = 40

// callUntilReply repeats a request with an idempotency key until it gets a reply. It ignores an error if the
// service may have executed an earlier copy of the request. ok reports success.
func (a *campaignClient) callUntilReply(method string, params testrig.Fields) (reply testrig.WireMessage, ok bool) {
	lost := false
	for range maxResends {
		got, sent, answered := a.call(method, params, 0)
		switch {
		case answered && got.Error == nil:
			return got, true
		case answered && got.Error.Data.Code == "outcome_unknown", sent && !answered:
			lost = true
			a.campaign.count("repeated " + method)
		case answered && !lost && got.Error.Data.Code != "unavailable":
			return got, false
		case a.campaign.clientsStopped.Load() && !lost:
			return got, false
		}
		// Wait before the next try, because the service may be restarting.
		time.Sleep(time.Duration(20+a.rng.IntN(300)) * time.Millisecond)
	}
	return reply, false
}

func (a *campaignClient) enqueue() {
	if a.campaign.backlogFull() {
		return
	}
	e := a.newJob()
	params := a.campaign.enqueueParams(&e.campaignJob)
	params["key"] = "key-" + e.tag
	got, ok := a.callUntilReply("enqueue", params)
	if !ok {
		return
	}
	var ack struct {
		ID        string
		Duplicate bool
	}
	if err := json.Unmarshal(got.Result, &ack); err != nil || ack.ID == "" {
		a.campaign.recordViolation("answer", "enqueue: %s, %v", got.Result, err)
		return
	}
	if ack.Duplicate {
		a.campaign.count("jobs known")
	}
	a.campaign.recordAcknowledged([]*trackedJob{e}, []string{ack.ID})
}

func (a *campaignClient) enqueueByCLI() {
	if a.campaign.backlogFull() {
		return
	}
	e := a.newJob()
	raw, err := json.Marshal(a.campaign.enqueueParams(&e.campaignJob))
	if err != nil {
		a.campaign.recordViolation("test", "%v", err)
		return
	}
	if r := a.cli("enqueue", "-q", string(raw)); r.Code == 0 {
		a.campaign.recordAcknowledged([]*trackedJob{e}, []string{strings.TrimSpace(r.Stdout)})
	}
}

// enqueueBatch sends the jobs of a batch in one or more requests. Then it commits or aborts the batch, or leaves it
// uncommitted.
func (a *campaignClient) enqueueBatch() {
	if a.campaign.backlogFull() {
		return
	}
	name := fmt.Sprintf("b-%s-%d", a.name, a.tagCount)
	var batchJobs []*trackedJob
	frame := func() (jobs []testrig.Fields) {
		for range 1 + a.rng.IntN(8) {
			e := a.newJob()
			batchJobs = append(batchJobs, e)
			jobs = append(jobs, a.campaign.enqueueParams(&e.campaignJob))
		}
		return jobs
	}
	forget := func() {
		a.campaign.mu.Lock()
		defer a.campaign.mu.Unlock()
		for _, e := range batchJobs {
			e.neverCommitted = true
		}
	}
	var ids []string
	for range a.rng.IntN(3) {
		got, _, answered := a.call("enqueue.batch", testrig.Fields{"batch": name, "jobs": frame()}, 0)
		if !answered || got.Error != nil { // the service may have stored these jobs, so abort the batch
			forget()
			a.call("enqueue.batch", testrig.Fields{"batch": name, "abort": true}, 0)
			return
		}
		ids = append(ids, idsIn(got.Result)...)
	}
	last := frame()
	if p := a.rng.IntN(8); p < 2 {
		forget()
		if p == 0 {
			a.call("enqueue.batch", testrig.Fields{"batch": name, "abort": true}, 0)
		}
		return
	}
	tags := make([]string, len(batchJobs))
	for i, e := range batchJobs {
		tags[i] = e.tag
	}
	a.campaign.mu.Lock()
	a.campaign.batches[name] = tags
	a.campaign.mu.Unlock()
	got, ok := a.callUntilReply("enqueue.batch", testrig.Fields{"batch": name, "jobs": last, "commit": true,
		"key": "key-" + name})
	if !ok {
		return
	}
	if ids = append(ids, idsIn(got.Result)...); len(ids) != len(batchJobs) {
		a.campaign.recordViolation("answer", "a batch of %d jobs got %d ids: %s", len(batchJobs), len(ids), got.Result)
		return
	}
	a.campaign.recordAcknowledged(batchJobs, ids)
}

// idsIn returns the ids in the result of a request that enqueues jobs.
func idsIn(raw json.RawMessage) []string {
	var result struct{ IDs []string }
	json.Unmarshal(raw, &result) // if the result is malformed, it has no ids
	return result.IDs
}

// pickRecent returns one or a few of the most recently acknowledged jobs.
func (a *campaignClient) pickRecent() (jobs []*trackedJob) {
	n := 1
	if a.rng.IntN(4) == 0 {
		n += a.rng.IntN(4)
	}
	a.campaign.mu.Lock()
	defer a.campaign.mu.Unlock()
	for range n {
		if len(a.campaign.recentJobs) == 0 {
			return jobs
		}
		e := a.campaign.recentJobs[len(a.campaign.recentJobs)-1-a.rng.IntN(min(len(a.campaign.recentJobs), 60))]
		if !slices.Contains(jobs, e) {
			jobs = append(jobs, e)
		}
	}
	return jobs
}

// recordVerb records that a client is about to send a request with the given verb (the action on jobs, such
// as "rm").
func (k *sentRequests) recordVerb(verb string) {
	switch verb {
	case "rm":
		k.remove = true
	case "rm --force":
		k.remove, k.cancel = true, true
	case "cancel":
		k.cancel = true
	case "requeue":
		k.requeue = true
	case "retry", "dlq.retry":
		k.revive = true
	case "release":
		k.release = true
	case "kill":
		k.kill = true
	case "edit":
		k.edit = true
	}
}

// applyToJobs sends a request with the given verb for some jobs, and records what the jobs must then look like.
func (a *campaignClient) applyToJobs(verb string) {
	list := a.pickRecent()
	if len(list) == 0 {
		return
	}
	ids := make([]string, len(list))
	a.campaign.mu.Lock()
	for i, e := range list {
		ids[i] = e.id
		e.recordVerb(verb)
	}
	a.campaign.mu.Unlock()
	params := testrig.Fields{"ids": ids}
	method := a.completeParams(verb, params)
	got, _, answered := a.call(method, params, 0)
	if !answered || got.Error != nil {
		return
	}
	up := uptime()
	var result struct {
		Done    []string
		Refused []struct{ ID, Code, Message string }
	}
	if err := json.Unmarshal(got.Result, &result); err != nil {
		a.campaign.recordViolation("answer", "%s: %s, %v", method, got.Result, err)
	}
	for _, e := range list {
		if slices.Contains(result.Done, e.id) {
			a.campaign.recordDone(e, method, up)
		}
	}
	for _, r := range result.Refused {
		a.campaign.count("verdicts " + r.Code)
		i := slices.Index(ids, r.ID)
		switch {
		case verb == "edit" && strings.Contains(r.Message, "the job has already made"):
		case i < 0 || !slices.Contains(expectedErrors, r.Code):
			a.campaign.recordViolation("answer", "%s: %+v", method, r)
		case r.Code == "not_found":
			a.campaign.recordNotFound(list[i], method+": "+r.Message)
		}
	}
}

// recordDone records that the service has acknowledged a verb (an action such as "cancel") for a job.
// uptimeSeconds is the time of the request.
func (c *campaign) recordDone(e *trackedJob, verb string, uptimeSeconds float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch verb {
	case "rm":
		e.isRemoved, e.endedAt = true, uptimeSeconds
	case "cancel":
		e.endedAt = uptimeSeconds
	case "hold":
		e.heldAt = uptimeSeconds
	}
}

// recordNotFound is called when the service has answered that a job does not exist. It records a violation if
// no client has asked to remove the job.
func (c *campaign) recordNotFound(e *trackedJob, message string) {
	c.mu.Lock()
	removing := c.requestsForLocked(e).remove
	c.mu.Unlock()
	if !removing {
		c.recordViolation("lost", "%s (%s): %s", e.id, e.tag, message)
	}
}

// completeParams adds the parameters that the verb needs, such as a random priority, and returns the name of
// the API method.
func (a *campaignClient) completeParams(verb string, params testrig.Fields) (method string) {
	switch verb {
	case "edit":
		params["set"] = []testrig.Fields{{"priority": a.rng.IntN(30)}, {"max_retries": a.rng.IntN(5)},
			{"timeout": 0.5 + float64(a.rng.IntN(3))}}[a.rng.IntN(3)]
	case "kill":
		params["signal"] = []string{"USR1", "TERM", "KILL"}[a.rng.IntN(3)]
	case "rm --force":
		params["force"] = true
		return "rm"
	}
	return verb
}

// requestsForLocked returns all requests that concern a job, by its id or by its group. The caller holds mu.
func (c *campaign) requestsForLocked(e *trackedJob) sentRequests {
	k := e.sentRequests
	if g := c.groups[e.group]; g != nil {
		k.remove, k.revive, k.release = k.remove || g.remove, k.revive || g.revive, k.release || g.release
		k.kill, k.edit = k.kill || g.kill, k.edit || g.edit
		k.cancel, k.requeue = k.cancel || g.cancel, k.requeue || g.requeue
	}
	return k
}

// applyToGroup sends a request with a random verb for all jobs of a random group.
func (a *campaignClient) applyToGroup() {
	verb := []string{"cancel", "retry", "hold", "release", "rm", "requeue", "edit"}[a.rng.IntN(7)]
	group := fmt.Sprint("g", a.rng.IntN(12))
	a.campaign.mu.Lock()
	if a.campaign.groups[group] == nil {
		a.campaign.groups[group] = &sentRequests{}
	}
	a.campaign.groups[group].recordVerb(verb)
	a.campaign.mu.Unlock()
	params := testrig.Fields{"label": map[string]string{"group": group}}
	method := a.completeParams(verb, params)
	if a.rng.IntN(4) == 0 {
		params["dry_run"] = true
	}
	a.call(method, params, 0)
}

// cli runs a command of queuectl. The command must end within replyTimeLimit plus 10 s.
func (a *campaignClient) cli(args ...string) testrig.Result {
	ctx, cancel := context.WithTimeout(context.Background(), replyTimeLimit+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, a.campaign.Bin, append([]string{"--dir", a.campaign.Dir}, args...)...)
	cmd.Env = append(testrig.Environment(a.campaign.recordDir), "QUEUECTL_NO_START=1")
	cmd.Dir = a.campaign.recordDir
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	started := time.Now()
	err := cmd.Run()
	a.campaign.count("cli " + args[0])
	a.campaign.recordLatency("cli "+args[0], time.Since(started), 0)
	var exitErr *exec.ExitError
	if err != nil && !errors.As(err, &exitErr) {
		a.campaign.recordViolation("test", "queuectl %s: %v", args[0], err)
	}
	r := testrig.Result{Stdout: out.String(), Stderr: errs.String(), Code: cmd.ProcessState.ExitCode()}
	if r.Code == 2 || strings.Contains(r.Stderr, "panic") || strings.Contains(r.Stderr, "internal") {
		a.campaign.recordViolation("answer", "queuectl %s: exit code %d, %s", truncatedJSON(args), r.Code, r.Stderr)
	}
	return r
}

func (a *campaignClient) backupFile() string {
	return filepath.Join(a.campaign.recordDir, "backup-"+a.name)
}
