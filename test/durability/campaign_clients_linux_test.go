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
	campaign        *campaign
	name            string
	rng             *rand.Rand
	requester       testrig.Requester
	createdJobCount int // number of jobs that the client has created; each job has a unique tag (name)
}

// clientOperations lists the operations of a client. It chooses operations with a higher weight more often.
var clientOperations = []struct {
	weight int
	run    func(*campaignClient)
}{
	{30, (*campaignClient).enqueueJob},
	{4, (*campaignClient).enqueueJobByCLI},
	{5, (*campaignClient).enqueueBatch},
	{7, func(a *campaignClient) { a.applyVerbToJobs("cancel") }},
	{5, func(a *campaignClient) { a.applyVerbToJobs("retry") }},
	{2, func(a *campaignClient) { a.applyVerbToJobs("dlq.retry") }},
	{5, func(a *campaignClient) { a.applyVerbToJobs("requeue") }},
	{3, func(a *campaignClient) { a.applyVerbToJobs("hold") }},
	{3, func(a *campaignClient) { a.applyVerbToJobs("release") }},
	{3, func(a *campaignClient) { a.applyVerbToJobs("edit") }},
	{2, func(a *campaignClient) { a.applyVerbToJobs("kill") }},
	{4, func(a *campaignClient) { a.applyVerbToJobs("rm") }},
	{3, func(a *campaignClient) { a.applyVerbToJobs("rm --force") }},
	{2, (*campaignClient).applyVerbToGroup},
	{4, (*campaignClient).waitForRecentJobs},
	{6, (*campaignClient).readOrFollowLogs},
	{8, (*campaignClient).showRandomJob},
	{3, func(a *campaignClient) { a.sendReadRequest("list", testrig.JSONFields{"limit": 1 + a.rng.IntN(300)}) }},
	{3, func(a *campaignClient) { a.sendReadRequest("status", testrig.JSONFields{}) }},
	{2, func(a *campaignClient) { a.sendReadRequest("worker.list", testrig.JSONFields{}) }},
	{1, func(a *campaignClient) { a.sendReadRequest("config.list", testrig.JSONFields{}) }},
	{1, func(a *campaignClient) { a.sendReadRequest("dlq.list", testrig.JSONFields{}) }},
	{2, (*campaignClient).changeRandomSetting},
	{2, (*campaignClient).changeWorkerCount},
	{1, (*campaignClient).drainForAWhile},
	{1, func(a *campaignClient) { a.sendRequest("reload", testrig.JSONFields{}, 0) }},
	{1, (*campaignClient).runDoctor},
	{1, (*campaignClient).makeAndCheckBackup},
	{5, (*campaignClient).runRandomCommand},
}

// runRandomOperations performs random operations until ctx ends.
func (a *campaignClient) runRandomOperations(ctx context.Context) {
	all := 0
	for _, v := range clientOperations {
		all += v.weight
	}
	for ctx.Err() == nil && !a.campaign.clientsMustStop.Load() {
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

// expectedErrorCodes lists the error codes that a correct service may return because of injected faults or
// requests of other clients.
var expectedErrorCodes = []string{"unavailable", "no_space", "outcome_unknown", "not_found", "wrong_state", "full"}

// sendRequest sends one request and records how long the reply takes, not counting requestedWait, the time for which
// the request asks the service to wait. wasSent is false if no service was reachable, and wasAnswered is false if no
// reply arrived.
func (a *campaignClient) sendRequest(method string, params any, requestedWait time.Duration) (
	reply testrig.ServiceMessage, wasSent, wasAnswered bool) {
	return a.sendStreamRequest(method, params, requestedWait, func(json.RawMessage) {})
}

// sendStreamRequest sends a request like sendRequest, and passes each notification that precedes the reply to
// onNotification.
func (a *campaignClient) sendStreamRequest(method string, params any, requestedWait time.Duration,
	onNotification func(json.RawMessage)) (reply testrig.ServiceMessage, wasSent, wasAnswered bool) {
	started := time.Now()
	a.requester.ReplyTimeout = requestedWait + replyTimeLimit + 5*time.Second
	reply, err := a.requester.Request(method, params, onNotification)
	elapsed := time.Since(started)
	if isDialError(err) {
		a.campaign.countOperation("unreachable " + method)
		return reply, false, false
	}
	a.campaign.recordLatency(method, elapsed, requestedWait)
	switch {
	case err != nil:
		a.campaign.countOperation("cut " + method)
		return reply, true, false
	case reply.Error != nil:
		a.campaign.countOperation("refused " + reply.Error.Data.Code)
		if !slices.Contains(expectedErrorCodes, reply.Error.Data.Code) {
			a.campaign.recordViolation("answer", "%s %s: %+v", method, truncatedParamsJSON(params), *reply.Error)
		}
	default:
		a.campaign.countOperation("ops " + method)
	}
	return reply, true, true
}

// recordLatency records how long a reply took, not counting requestedWait, the time for which the request asked the
// service to wait.
func (c *campaign) recordLatency(method string, latency, requestedWait time.Duration) {
	c.mu.Lock()
	c.replyLatencies = append(c.replyLatencies, max(0, latency-requestedWait))
	c.maxReplyLatencies[method] = max(c.maxReplyLatencies[method], latency-requestedWait)
	c.mu.Unlock()
	if latency > requestedWait+replyTimeLimit {
		c.recordViolation("slow", "%s took %v", method, latency.Round(time.Millisecond))
	}
}

func truncatedParamsJSON(params any) string {
	raw, _ := json.Marshal(params)
	return string(raw[:min(len(raw), 600)])
}

// newTrackedJob returns a random job with a unique tag, and records that the client tries to enqueue this job.
func (a *campaignClient) newTrackedJob() *trackedJob {
	a.createdJobCount++
	e := &trackedJob{campaignJob: randomJob(a.rng, fmt.Sprintf("%s-%d", a.name, a.createdJobCount))}
	a.campaign.mu.Lock()
	defer a.campaign.mu.Unlock()
	a.campaign.jobsByTag[e.tag] = e
	return e
}

// recordAcknowledgedJobs records the ids of jobs whose enqueue the service has acknowledged.
func (c *campaign) recordAcknowledgedJobs(jobs []*trackedJob, ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range jobs {
		e.id = ids[i]
		c.recentJobs = append(c.recentJobs, e)
		c.operationCounts["jobs acknowledged"]++
	}
	if len(c.recentJobs) > 200 {
		c.recentJobs = c.recentJobs[len(c.recentJobs)-200:]
	}
}

// isBacklogFull reports whether clients must not enqueue more jobs, because more than 60 are waiting.
func (c *campaign) isBacklogFull() bool {
	var status struct{ Jobs map[string]int }
	return c.requestResult("status", testrig.JSONFields{}, &status) == nil && status.Jobs["pending"]+
		status.Jobs["failed"] > 60
}

// maxResends is how often a client sends a request with an idempotency key before it gives up.
const maxResends = 40

// callUntilReply repeats a request with an idempotency key until it gets a reply. It ignores an error if the service
// may have executed an earlier copy of the request. ok is true if the request succeeded.
func (a *campaignClient) callUntilReply(method string, params testrig.JSONFields) (reply testrig.ServiceMessage,
	ok bool) {
	lost := false
	for range maxResends {
		got, sent, answered := a.sendRequest(method, params, 0)
		switch {
		case answered && got.Error == nil:
			return got, true
		case answered && got.Error.Data.Code == "outcome_unknown", sent && !answered:
			lost = true
			a.campaign.countOperation("repeated " + method)
		case answered && !lost && got.Error.Data.Code != "unavailable":
			return got, false
		case a.campaign.clientsMustStop.Load() && !lost:
			return got, false
		}
		// Wait before the next try, because the service may be restarting.
		time.Sleep(time.Duration(20+a.rng.IntN(300)) * time.Millisecond)
	}
	return reply, false
}

func (a *campaignClient) enqueueJob() {
	if a.campaign.isBacklogFull() {
		return
	}
	e := a.newTrackedJob()
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
		a.campaign.countOperation("jobs known")
	}
	a.campaign.recordAcknowledgedJobs([]*trackedJob{e}, []string{ack.ID})
}

func (a *campaignClient) enqueueJobByCLI() {
	if a.campaign.isBacklogFull() {
		return
	}
	e := a.newTrackedJob()
	raw, err := json.Marshal(a.campaign.enqueueParams(&e.campaignJob))
	if err != nil {
		a.campaign.recordViolation("test", "%v", err)
		return
	}
	if r := a.runQueuectl("enqueue", "-q", string(raw)); r.ExitCode == 0 {
		a.campaign.recordAcknowledgedJobs([]*trackedJob{e}, []string{strings.TrimSpace(r.Stdout)})
	}
}

// enqueueBatch sends the jobs of a batch in one or more requests. Then it commits or aborts the batch, or leaves it
// uncommitted.
func (a *campaignClient) enqueueBatch() {
	if a.campaign.isBacklogFull() {
		return
	}
	name := fmt.Sprintf("b-%s-%d", a.name, a.createdJobCount)
	var batchJobs []*trackedJob
	frame := func() (jobs []testrig.JSONFields) {
		for range 1 + a.rng.IntN(8) {
			e := a.newTrackedJob()
			batchJobs = append(batchJobs, e)
			jobs = append(jobs, a.campaign.enqueueParams(&e.campaignJob))
		}
		return jobs
	}
	forget := func() {
		a.campaign.mu.Lock()
		defer a.campaign.mu.Unlock()
		for _, e := range batchJobs {
			e.isInUncommittedBatch = true
		}
	}
	var ids []string
	for range a.rng.IntN(3) {
		got, _, answered := a.sendRequest("enqueue.batch", testrig.JSONFields{"batch": name, "jobs": frame()}, 0)
		if !answered || got.Error != nil { // the service may have stored these jobs, so abort the batch
			forget()
			a.sendRequest("enqueue.batch", testrig.JSONFields{"batch": name, "abort": true}, 0)
			return
		}
		ids = append(ids, enqueuedJobIDs(got.Result)...)
	}
	last := frame()
	if p := a.rng.IntN(8); p < 2 {
		forget()
		if p == 0 {
			a.sendRequest("enqueue.batch", testrig.JSONFields{"batch": name, "abort": true}, 0)
		}
		return
	}
	tags := make([]string, len(batchJobs))
	for i, e := range batchJobs {
		tags[i] = e.tag
	}
	a.campaign.mu.Lock()
	a.campaign.jobTagsByCommittedBatch[name] = tags
	a.campaign.mu.Unlock()
	got, ok := a.callUntilReply("enqueue.batch", testrig.JSONFields{"batch": name, "jobs": last, "commit": true,
		"key": "key-" + name})
	if !ok {
		return
	}
	if ids = append(ids, enqueuedJobIDs(got.Result)...); len(ids) != len(batchJobs) {
		a.campaign.recordViolation("answer", "a batch of %d jobs got %d ids: %s", len(batchJobs), len(ids), got.Result)
		return
	}
	a.campaign.recordAcknowledgedJobs(batchJobs, ids)
}

// enqueuedJobIDs returns the ids in the result of a request that enqueues jobs.
func enqueuedJobIDs(enqueueResult json.RawMessage) []string {
	var result struct{ IDs []string }
	json.Unmarshal(enqueueResult, &result) // if the result is malformed, it has no ids
	return result.IDs
}

// pickRecentJobs returns one or a few of the most recently acknowledged jobs.
func (a *campaignClient) pickRecentJobs() (jobs []*trackedJob) {
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

// recordSentVerb records that a client is about to send a request with the given verb (the action on jobs, such
// as "rm").
func (k *sentRequests) recordSentVerb(verb string) {
	switch verb {
	case "rm":
		k.removeSent = true
	case "rm --force":
		k.removeSent, k.cancelSent = true, true
	case "cancel":
		k.cancelSent = true
	case "requeue":
		k.requeueSent = true
	case "retry", "dlq.retry":
		k.retrySent = true
	case "release":
		k.releaseSent = true
	case "kill":
		k.killSent = true
	case "edit":
		k.editSent = true
	}
}

// applyVerbToJobs sends a request with the given verb for some jobs, and records for which jobs the service has
// acknowledged it.
func (a *campaignClient) applyVerbToJobs(verb string) {
	list := a.pickRecentJobs()
	if len(list) == 0 {
		return
	}
	ids := make([]string, len(list))
	a.campaign.mu.Lock()
	for i, e := range list {
		ids[i] = e.id
		e.recordSentVerb(verb)
	}
	a.campaign.mu.Unlock()
	params := testrig.JSONFields{"ids": ids}
	method := a.addVerbParams(verb, params)
	got, _, answered := a.sendRequest(method, params, 0)
	if !answered || got.Error != nil {
		return
	}
	up := uptimeSeconds()
	var result struct {
		Done    []string
		Refused []struct{ ID, Code, Message string }
	}
	if err := json.Unmarshal(got.Result, &result); err != nil {
		a.campaign.recordViolation("answer", "%s: %s, %v", method, got.Result, err)
	}
	for _, e := range list {
		if slices.Contains(result.Done, e.id) {
			a.campaign.recordAcknowledgedVerb(e, method, up)
		}
	}
	for _, r := range result.Refused {
		a.campaign.countOperation("verdicts " + r.Code)
		i := slices.Index(ids, r.ID)
		switch {
		case verb == "edit" && strings.Contains(r.Message, "the job has already made"):
		case i < 0 || !slices.Contains(expectedErrorCodes, r.Code):
			a.campaign.recordViolation("answer", "%s: %+v", method, r)
		case r.Code == "not_found":
			a.campaign.recordJobNotFound(list[i], method+": "+r.Message)
		}
	}
}

// recordAcknowledgedVerb records that the service has acknowledged a verb (an action such as "cancel") for a job.
// uptimeSeconds is the time of the request.
func (c *campaign) recordAcknowledgedVerb(tracked *trackedJob, verb string, uptimeSeconds float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch verb {
	case "rm":
		tracked.isRemoved, tracked.goneAtUptimeSeconds = true, uptimeSeconds
	case "cancel":
		tracked.goneAtUptimeSeconds = uptimeSeconds
	case "hold":
		tracked.heldAtUptimeSeconds = uptimeSeconds
	}
}

// recordJobNotFound handles a reply that says that a job does not exist. It records a violation if no client has asked
// to remove the job.
func (c *campaign) recordJobNotFound(tracked *trackedJob, errorMessage string) {
	c.mu.Lock()
	removing := c.requestsForJobLocked(tracked).removeSent
	c.mu.Unlock()
	if !removing {
		c.recordViolation("lost", "%s (%s): %s", tracked.id, tracked.tag, errorMessage)
	}
}

// addVerbParams adds the parameters that the verb needs, such as a random priority, and returns the name of
// the API method.
func (a *campaignClient) addVerbParams(verb string, params testrig.JSONFields) (method string) {
	switch verb {
	case "edit":
		params["set"] = []testrig.JSONFields{{"priority": a.rng.IntN(30)}, {"max_retries": a.rng.IntN(5)},
			{"timeout": 0.5 + float64(a.rng.IntN(3))}}[a.rng.IntN(3)]
	case "kill":
		params["signal"] = []string{"USR1", "TERM", "KILL"}[a.rng.IntN(3)]
	case "rm --force":
		params["force"] = true
		return "rm"
	}
	return verb
}

// requestsForJobLocked returns the kinds of all requests that clients have sent about a job, by the job's id or by its
// group. The caller holds mu.
func (c *campaign) requestsForJobLocked(tracked *trackedJob) sentRequests {
	k := tracked.sentRequests
	if g := c.sentRequestsByGroup[tracked.group]; g != nil {
		k.removeSent, k.retrySent, k.releaseSent = k.removeSent || g.removeSent, k.retrySent || g.retrySent, k.releaseSent ||
			g.releaseSent
		k.killSent, k.editSent = k.killSent || g.killSent, k.editSent || g.editSent
		k.cancelSent, k.requeueSent = k.cancelSent || g.cancelSent, k.requeueSent || g.requeueSent
	}
	return k
}

// applyVerbToGroup sends a request with a random verb for all jobs of a random group.
func (a *campaignClient) applyVerbToGroup() {
	verb := []string{"cancel", "retry", "hold", "release", "rm", "requeue", "edit"}[a.rng.IntN(7)]
	group := fmt.Sprint("g", a.rng.IntN(12))
	a.campaign.mu.Lock()
	if a.campaign.sentRequestsByGroup[group] == nil {
		a.campaign.sentRequestsByGroup[group] = &sentRequests{}
	}
	a.campaign.sentRequestsByGroup[group].recordSentVerb(verb)
	a.campaign.mu.Unlock()
	params := testrig.JSONFields{"label": map[string]string{"group": group}}
	method := a.addVerbParams(verb, params)
	if a.rng.IntN(4) == 0 {
		params["dry_run"] = true
	}
	a.sendRequest(method, params, 0)
}

// runQueuectl runs a command of queuectl. The command must end within replyTimeLimit plus 10 s.
func (a *campaignClient) runQueuectl(args ...string) testrig.CommandResult {
	ctx, cancel := context.WithTimeout(context.Background(), replyTimeLimit+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, a.campaign.ClientPath, append([]string{"--dir", a.campaign.StateDir}, args...)...)
	cmd.Env = append(testrig.UserEnvironment(a.campaign.recordDir), "QUEUECTL_NO_START=1")
	cmd.Dir = a.campaign.recordDir
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	started := time.Now()
	err := cmd.Run()
	a.campaign.countOperation("cli " + args[0])
	a.campaign.recordLatency("cli "+args[0], time.Since(started), 0)
	var exitErr *exec.ExitError
	if err != nil && !errors.As(err, &exitErr) {
		a.campaign.recordViolation("test", "queuectl %s: %v", args[0], err)
	}
	r := testrig.CommandResult{Stdout: out.String(), Stderr: errs.String(), ExitCode: cmd.ProcessState.ExitCode()}
	if r.ExitCode == 2 || strings.Contains(r.Stderr, "panic") || strings.Contains(r.Stderr, "internal") {
		a.campaign.recordViolation("answer", "queuectl %s: exit code %d, %s", truncatedParamsJSON(args), r.ExitCode, r.Stderr)
	}
	return r
}

func (a *campaignClient) backupPath() string {
	return filepath.Join(a.campaign.recordDir, "backup-"+a.name)
}
