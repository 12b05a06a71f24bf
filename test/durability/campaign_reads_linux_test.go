package durability

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// isDialError reports whether err means that no service was listening, so that the request was not sent.
func isDialError(err error) bool {
	var opErr *net.OpError
	return errors.As(err, &opErr) && opErr.Op == "dial"
}

// requestUntilServed sends a request over a new connection. It repeats the request while no service is
// reachable, or while the reply has the code unavailable or no_space.
func (c *campaign) requestUntilServed(method string, params any) (reply testrig.ServiceMessage) {
	c.Helper()
	a := &testrig.Requester{TargetQueue: c.Harness, ReplyTimeout: replyTimeLimit}
	defer func() {
		if a.Conn != nil {
			a.Conn.Close()
		}
	}()
	var err error
	for deadline := time.Now().Add(replyTimeLimit); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		reply, err = a.Request(method, params, func(json.RawMessage) {})
		if err == nil && (reply.Error == nil ||
			reply.Error.Data.Code != "unavailable" && reply.Error.Data.Code != "no_space") {
			return reply
		}
	}
	c.recordViolation("unreachable", "%s: %v, %+v", method, err, reply.Error)
	return reply
}

// requestResult sends a request once and decodes the result into target, like json.Unmarshal.
func (c *campaign) requestResult(method string, params any, target any) error {
	a := &testrig.Requester{TargetQueue: c.Harness, ReplyTimeout: replyTimeLimit}
	got, err := a.Request(method, params, func(json.RawMessage) {})
	if a.Conn != nil {
		a.Conn.Close()
	}
	switch {
	case err != nil:
		return err
	case got.Error != nil:
		return fmt.Errorf("%s: %s: %s", method, got.Error.Data.Code, got.Error.Message)
	}
	return json.Unmarshal(got.Result, target)
}

// listedJob is a job as the API methods "list" and "show" return it.
type listedJob struct {
	testrig.Job
	Seq        int64             `json:"seq"`
	Labels     map[string]string `json:"labels"`
	OnLost     string            `json:"on_lost"`
	MaxRetries int               `json:"max_retries"`
	History    []struct {
		Attempt      int    `json:"attempt"`
		PID          int    `json:"pid"`
		ExitCode     *int   `json:"exit_code"`
		Signal       *int   `json:"signal"`
		Reason       string `json:"reason"`
		Error        string `json:"error"`
		Counted      bool   `json:"counted"`
		DroppedBytes int64  `json:"output_dropped"`
	} `json:"history"`
}

// listJobs returns all jobs in the state wantState, or all jobs if wantState is "".
func (c *campaign) listJobs(wantState string) (jobs []listedJob, err error) {
	params := testrig.JSONFields{"limit": 500}
	if wantState != "" {
		params["state"] = wantState
	}
	for {
		var page struct {
			Jobs []listedJob
			Next *string
		}
		if err := c.requestResult("list", params, &page); err != nil {
			return nil, err
		}
		jobs = append(jobs, page.Jobs...)
		if page.Next == nil {
			return jobs, nil
		}
		params["cursor"] = *page.Next
	}
}

// sendReadRequest sends a request that does not change the queue.
func (a *campaignClient) sendReadRequest(method string, params testrig.JSONFields) {
	a.sendRequest(method, params, 0)
}

// waitForRecentJobs sends a request that waits, at most three seconds, until some recently enqueued jobs have ended.
func (a *campaignClient) waitForRecentJobs() {
	list := a.pickRecentJobs()
	if len(list) == 0 {
		return
	}
	var ids []string
	for _, e := range list {
		ids = append(ids, e.id)
	}
	wait := time.Duration(a.rng.IntN(3000)) * time.Millisecond
	a.sendRequest("wait", testrig.JSONFields{"ids": ids, "timeout": wait.String(), "any": a.rng.IntN(2) == 0}, wait)
}

// readOrFollowLogs requests the output of a job, or follows the output for a while. It does not compare the text with
// the expected output, because the output may still grow. checkOutput does that at the end of the round.
func (a *campaignClient) readOrFollowLogs() {
	list := a.pickRecentJobs()
	if len(list) == 0 {
		return
	}
	params := testrig.JSONFields{"id": list[0].id}
	if a.rng.IntN(3) == 0 {
		params["follow"] = true
		a.requester.ReplyTimeout = time.Duration(500+a.rng.IntN(3000)) * time.Millisecond
		_, err := a.requester.Request("logs", params, func(json.RawMessage) {})
		if !isDialError(err) {
			a.campaign.countOperation("ops logs -f")
		}
		return
	}
	if a.rng.IntN(3) == 0 {
		params["n"] = a.rng.IntN(50)
	}
	a.sendRequest("logs", params, 0)
}

// showRandomJob requests the details of a job. If the job has ended and no client has restarted it, showRandomJob
// checks that no process holds the lock of the job.
func (a *campaignClient) showRandomJob() {
	list := a.pickRecentJobs()
	if len(list) == 0 {
		return
	}
	e := list[0]
	fetch := func() (v listedJob, ok bool) {
		got, _, answered := a.sendRequest("show", testrig.JSONFields{"id": e.id}, 0)
		if !answered {
			return v, false
		}
		if got.Error != nil {
			if got.Error.Data.Code == "not_found" {
				a.campaign.recordJobNotFound(e, "show: "+got.Error.Message)
			}
			return v, false
		}
		if err := json.Unmarshal(got.Result, &v); err != nil || v.Labels["tag"] != e.tag {
			a.campaign.recordViolation("answer", "show %s (%s): %v, %s", e.id, e.tag, err, truncatedParamsJSON(got.Result))
			return v, false
		}
		return v, true
	}
	before, ok := fetch()
	if !ok || !isEndedState(before.State) {
		return
	}
	held := a.campaign.isLockHeld(e.tag)
	if after, ok := fetch(); held && ok && after.State == before.State && len(after.History) == len(before.History) {
		a.campaign.recordViolation("tree of an ended job", "%s (%s) is %s, and its lock is held", e.id, e.tag, after.State)
	}
}

func isEndedState(state string) bool {
	return state == "completed" || state == "dead" || state == "cancelled"
}

// changeRandomSetting changes a random setting. The setting affects how jobs run, but does not prevent them from
// running.
func (a *campaignClient) changeRandomSetting() {
	keys := []struct {
		key    string
		values []string
	}{
		{"settle_delay", []string{"0", "5ms", "20ms"}}, {"scheduling", []string{"aging", "priority", "fifo"}},
		{"aging", []string{"time", "enqueue"}},
		{"aging_interval", []string{"10s", "60s"}}, {"priority", []string{"3", "5"}},
		{"max_running_per_user", []string{"0", "3", "5"}},
		{"worker_heartbeat_interval", []string{"1s", "5s"}}, {"log_level", []string{"info", "debug"}},
	}
	k := keys[a.rng.IntN(len(keys))]
	if a.rng.IntN(3) == 0 {
		a.sendRequest("config.unset", testrig.JSONFields{"key": k.key}, 0)
		return
	}
	a.sendRequest("config.set", testrig.JSONFields{"key": k.key, "value": k.values[a.rng.IntN(len(k.values))]}, 0)
}

// changeWorkerCount changes the number of workers. If it stops all workers, it soon starts some again, because without
// workers no job runs.
func (a *campaignClient) changeWorkerCount() {
	switch a.rng.IntN(3) {
	case 0:
		a.sendRequest("worker.scale", testrig.JSONFields{"count": 1 + a.rng.IntN(8)}, 0)
	case 1:
		a.sendRequest("worker.start", testrig.JSONFields{"count": 1}, 0)
	default:
		wait := time.Duration(a.rng.IntN(2000)) * time.Millisecond
		a.campaign.runningJobsWereEnded.Store(true)
		a.sendRequest("worker.stop", testrig.JSONFields{"timeout": wait.String()}, wait)
		for range maxResends {
			if got, _, answered := a.sendRequest("worker.scale", testrig.JSONFields{"count": 6}, 0); answered &&
				got.Error == nil ||
				a.campaign.clientsMustStop.Load() {
				return
			}
			time.Sleep(100 * time.Millisecond) // try again, because no service may be running at the moment
		}
	}
}

// drainForAWhile starts a drain, during which the service starts no jobs, and ends it after a random time.
func (a *campaignClient) drainForAWhile() {
	a.sendRequest("drain", testrig.JSONFields{}, 0)
	time.Sleep(time.Duration(a.rng.IntN(1000)) * time.Millisecond) // let the drain last for a random time
	for range maxResends {
		if got, _, answered := a.sendRequest("drain", testrig.JSONFields{"off": true}, 0); answered && got.Error == nil ||
			a.campaign.clientsMustStop.Load() {
			return
		}
		time.Sleep(100 * time.Millisecond) // try again, because no service may be running at the moment
	}
}

// runDoctor calls the API method "doctor", which checks every row of the database, while the queue is busy.
func (a *campaignClient) runDoctor() {
	got, _, answered := a.sendRequest("doctor", testrig.JSONFields{"verify": true}, 0)
	if !answered || got.Error != nil {
		return
	}
	var d struct {
		Findings []struct{ Check, Level, Message string }
	}
	if err := json.Unmarshal(got.Result, &d); err != nil {
		a.campaign.recordViolation("answer", "doctor: %v", err)
	}
	for _, f := range d.Findings {
		if f.Level == "failure" && (f.Check == "counters" || f.Check == "rows" || f.Check == "integrity" ||
			f.Check == "indexes") {
			a.campaign.recordViolation("doctor", "%s: %s", f.Check, f.Message)
		}
	}
}

// makeAndCheckBackup makes a backup and checks it with SQLite's integrity check.
func (a *campaignClient) makeAndCheckBackup() {
	file := a.backupPath()
	defer os.Remove(file)
	os.Remove(file)
	if r := a.runQueuectl("backup", file); r.ExitCode != 0 {
		return
	}
	db, err := sql.Open("sqlite", "file:"+file+"?mode=ro")
	if err != nil {
		a.campaign.recordViolation("test", "%v", err)
		return
	}
	defer db.Close()
	var integrity string
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&integrity); err != nil || integrity != "ok" {
		a.campaign.recordViolation("backup", "%s, %v", integrity, err)
	}
}

// runRandomCommand runs a random command of queuectl.
func (a *campaignClient) runRandomCommand() {
	list := a.pickRecentJobs()
	if len(list) == 0 {
		return
	}
	e := list[0]
	verbs := []string{"status", "list", "show", "logs", "cancel", "retry", "requeue", "hold", "release", "worker list",
		"events", "rm"}
	verb := verbs[a.rng.IntN(len(verbs))]
	args := strings.Fields(verb)
	switch verb {
	case "status", "list", "worker list":
	case "events":
		args = append(args, "--since", "0", "--json")
	default:
		a.campaign.mu.Lock()
		e.recordSentVerb(verb)
		a.campaign.mu.Unlock()
		args = append(args, e.id)
	}
	r := a.runQueuectl(args...)
	switch {
	case r.ExitCode == 0:
		a.campaign.recordAcknowledgedVerb(e, verb, uptimeSeconds())
	case r.ExitCode == 4 && len(args) == 2 && verb != "logs":
		a.campaign.recordJobNotFound(e, "queuectl "+verb+": "+r.Stderr)
	}
}
