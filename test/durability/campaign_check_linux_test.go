package durability

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// checkRound checks the result of a round while the queue is idle. It compares the jobs of the queue with the ledger
// (the file in which jobs note their starts and ends), with the events, and with the replies that clients have
// received. Then it stops the service and checks the service's directory.
func (c *campaign) checkRound() {
	c.Helper()
	var status struct {
		Jobs      map[string]int
		LastEvent int64 `json:"last_event"`
	}
	if err := c.requestResult("status", testrig.JSONFields{}, &status); err != nil {
		c.recordViolation("unreachable", "%v", err)
		return
	}
	c.eventReceiver.checkReceivedEvents(status.LastEvent)
	jobs, err := c.listJobs("")
	if err != nil {
		c.recordViolation("unreachable", "%v", err)
		return
	}
	counted := map[string]int{}
	for _, j := range jobs {
		counted[j.State]++
	}
	for state, n := range status.Jobs {
		if counted[state] != n {
			c.recordViolation("counts", "%d jobs are counted as %s, %d are listed", n, state, counted[state])
		}
	}
	c.mu.Lock()
	entries := make(map[string]*trackedJob, len(c.jobsByTag))
	for tag, e := range c.jobsByTag {
		k := *e
		k.sentRequests = c.requestsForJobLocked(e)
		entries[tag] = &k
	}
	c.mu.Unlock()
	c.checkJobs(entries, jobs)
	c.checkEventHistories(jobs)
	c.checkRemainingFilesAndProcesses()
}

// checkJobs checks every job that is in the queue, that has written to the ledger (the file in which jobs note their
// starts and ends), or that a client has tried to enqueue.
func (c *campaign) checkJobs(trackedByTag map[string]*trackedJob, listedJobs []listedJob) {
	byTag := map[string]*listedJob{}
	for i := range listedJobs {
		tag := listedJobs[i].Labels["tag"]
		switch {
		case trackedByTag[tag] == nil:
			c.recordViolation("invented", "job %s has the tag %q", listedJobs[i].ID, tag)
		case byTag[tag] != nil:
			c.recordViolation("doubled", "%s is stored as %s and as %s", tag, byTag[tag].ID, listedJobs[i].ID)
		}
		byTag[tag] = &listedJobs[i]
	}
	notes := map[string][]ledgerNote{}
	for _, d := range c.readLedgerNotes(c.roundLedgerStartOffset) {
		if trackedByTag[d.jobTag] == nil {
			c.recordViolation("invented", "the ledger has %+v, which is not of this round", d)
			continue
		}
		notes[d.jobTag] = append(notes[d.jobTag], d)
		c.countOperation("ledger " + string(d.kind))
	}
	for tag, e := range trackedByTag {
		c.countOperation("jobs asked")
		j := byTag[tag]
		switch {
		case e.isInUncommittedBatch && (j != nil || len(notes[tag]) > 0):
			c.recordViolation("uncommitted", "%s was never committed: %+v, %+v", tag, j, notes[tag])
		case j == nil && e.id != "" && !e.removeSent:
			c.recordViolation("lost", "%s (%s), %+v", tag, e.id, notes[tag])
		case j != nil && e.id != "" && e.id != j.ID:
			c.recordViolation("doubled", "%s was acknowledged as %s and is stored as %s", tag, e.id, j.ID)
		case j != nil && e.isRemoved && !e.retrySent:
			c.recordViolation("not removed", "%s (%s) is %s", tag, e.id, j.State)
		}
		c.checkLedgerNotes(e, notes[tag])
		if j != nil {
			c.checkJob(e, j, notes[tag])
		}
	}
	for name, tags := range c.jobTagsByCommittedBatch {
		stored, missing := 0, 0
		for _, tag := range tags {
			switch {
			case byTag[tag] != nil || len(notes[tag]) > 0:
				stored++
			case !trackedByTag[tag].removeSent:
				missing++
			}
		}
		if stored > 0 && missing > 0 {
			c.recordViolation("batch",
				"of the %d jobs of %s %d are stored, %d are not", len(tags), name, stored, missing)
		}
	}
}

// checkLedgerNotes checks the notes that a job wrote to the ledger file. No attempt may start while another one
// runs, no attempt may start twice, and none may start after the job was cancelled, removed or held.
func (c *campaign) checkLedgerNotes(tracked *trackedJob, notes []ledgerNote) {
	startNotes := map[int]int{}
	for _, d := range notes {
		if d.kind == 'X' {
			c.recordViolation("two trees",
				"%s (%s, %s) began as %d while another attempt lived: %+v", tracked.tag, tracked.id, tracked.processTreeShape,
				d.pid, notes)
		}
		if d.kind != 'S' {
			continue
		}
		if startNotes[d.attemptNumber] != 0 {
			c.recordViolation("untraced second start",
				"%s (%s) began attempt %d as %d and as %d: %+v", tracked.tag, tracked.id, d.attemptNumber,
				startNotes[d.attemptNumber], d.pid,
				notes)
		}
		startNotes[d.attemptNumber] = d.pid
		// This tolerance is in seconds. The times in the ledger are multiples of 0.01 s, so allow a small difference.
		const clockTolerance = 0.05
		if tracked.goneAtUptimeSeconds > 0 && !tracked.retrySent &&
			d.uptimeSeconds > tracked.goneAtUptimeSeconds+clockTolerance {
			c.recordViolation("started after its end",
				"%s (%s) was cancelled or removed at %.2f: %+v", tracked.tag, tracked.id, tracked.goneAtUptimeSeconds, notes)
		}
		if tracked.heldAtUptimeSeconds > 0 && !tracked.retrySent && !tracked.releaseSent &&
			d.uptimeSeconds > tracked.heldAtUptimeSeconds+clockTolerance {
			c.recordViolation("started while held", "%s (%s) was held at %.2f: %+v", tracked.tag, tracked.id,
				tracked.heldAtUptimeSeconds, notes)
		}
	}
}

// checkJob compares a job in the queue with its events, with the notes that it wrote to the ledger file, and
// with its expected output.
func (c *campaign) checkJob(tracked *trackedJob, listed *listedJob, notes []ledgerNote) {
	var j listedJob
	if err := c.requestResult("show", testrig.JSONFields{"id": listed.ID}, &j); err != nil {
		c.recordViolation("show", "%s (%s): %v", tracked.tag, listed.ID, err)
		return
	}
	c.countOperation("jobs " + j.State)
	if eventEnds := c.eventReceiver.countAttemptEnds(j.Seq); eventEnds != len(j.History) {
		c.recordViolation("events",
			"%s (%s) has %d attempts, events report the end of %d", tracked.tag, j.ID, len(j.History), eventEnds)
	}
	if fault := c.describeHistoryMismatch(tracked, &j, notes); fault != "" {
		raw, _ := json.Marshal(j.History)
		c.recordViolation("history",
			"%s (%s) %s: %s, attempts %d, %s; ledger %+v; history %s", tracked.tag, j.ID, fault, j.State,
			j.AttemptCount, j.Error, notes, raw)
	}
	if j.State == "completed" {
		c.checkOutput(tracked, &j)
	}
}

// describeHistoryMismatch compares the stored attempts of a job with the notes that the job wrote to the ledger file.
// It describes a difference, or returns "".
func (c *campaign) describeHistoryMismatch(tracked *trackedJob, j *listedJob, notes []ledgerNote) string {
	counted := 0
	for i, a := range j.History {
		c.countOperation("attempts " + j.attemptOutcome(i))
		if a.Attempt != i+1 {
			return fmt.Sprintf("has attempt %d in place %d", a.Attempt, i+1)
		}
		if a.Counted {
			counted++
		}
		if fault := c.describeAttemptMismatch(tracked, j, i, notes); fault != "" {
			return fmt.Sprintf("attempt %d %s", a.Attempt, fault)
		}
	}
	for _, d := range notes {
		if d.kind != 'S' {
			continue
		}
		if d.attemptNumber > len(j.History) {
			return fmt.Sprintf("began attempt %d as %d without a trace", d.attemptNumber, d.pid)
		}
		if a := j.History[d.attemptNumber-1]; a.PID != d.pid &&
			(a.PID != 0 || a.Reason != "lost" && a.Reason != "interrupted") {
			return fmt.Sprintf("began attempt %d as %d, and %d is stored", d.attemptNumber, d.pid, a.PID)
		}
	}
	if n := len(j.History); n > 0 && j.State == "completed" != (j.attemptOutcome(n-1) == "exit-0") && !tracked.retrySent {
		return "does not end as its last attempt"
	}
	if !tracked.retrySent && !tracked.releaseSent && j.AttemptCount != counted {
		return fmt.Sprintf("has %d attempts that count, %d are counted", counted, j.AttemptCount)
	}
	if !tracked.retrySent && !tracked.releaseSent && !tracked.editSent && j.AttemptCount > j.MaxRetries+1 {
		return "has more attempts than it may"
	}
	return ""
}

// attemptOutcome returns the outcome of one of the job's attempts in one word.
func (j *listedJob) attemptOutcome(attemptIndex int) string {
	a := j.History[attemptIndex]
	switch {
	case a.Reason != "":
		return a.Reason
	case a.ExitCode != nil:
		return fmt.Sprint("exit-", *a.ExitCode)
	}
	return "none"
}

// describeAttemptMismatch compares the stored attempt at attemptIndex with the notes that the job wrote to the ledger
// file. It describes a difference, or returns "".
func (c *campaign) describeAttemptMismatch(tracked *trackedJob, j *listedJob, attemptIndex int,
	notes []ledgerNote) string {
	a := &j.History[attemptIndex]
	did := func(kind byte) *ledgerNote {
		for k := range notes {
			if notes[k].kind == kind && notes[k].attemptNumber == a.Attempt && notes[k].pid == a.PID {
				return &notes[k]
			}
		}
		return nil
	}
	if a.ExitCode != nil {
		if end := did('E'); end == nil || end.exitCode != *a.ExitCode {
			return fmt.Sprintf("is stored with exit code %d, %q; the ledger has %+v", *a.ExitCode, a.Error, end)
		}
	}
	k := tracked.sentRequests
	switch a.Reason {
	case "", "not_runnable", "deferred":
	case "lost", "poison":
		if !c.runnerHadFault.Load() {
			return "ended with the reason " + a.Reason + ", and no runner was hurt"
		}
	case "signal":
		if !k.killSent {
			return "was ended by a signal that no client sent: " + a.Error
		}
	case "timed_out":
		if !tracked.hasTimeout && !k.editSent {
			return "timed out"
		}
	case "cancelled":
		if !k.cancelSent {
			return "was cancelled, though no client asked for it"
		}
	case "stopped":
		if !k.requeueSent && !c.runningJobsWereEnded.Load() {
			return "was stopped, though no client asked for it"
		}
	default:
		return "ended with the reason " + a.Reason
	}
	if a.Reason == "lost" && tracked.onLost != "retry" && attemptIndex+1 < len(j.History) && !k.retrySent &&
		!k.releaseSent &&
		j.History[attemptIndex+1].PID != 0 {
		return "was lost, and the job ran again with on_lost=" + tracked.onLost
	}
	if a.DroppedBytes > 0 && !c.outputMayBeLost.Load() {
		return fmt.Sprintf("has lost %d bytes of its output", a.DroppedBytes)
	}
	return ""
}

// checkOutput compares the stored output of a completed job with the output that the job must have printed.
func (c *campaign) checkOutput(tracked *trackedJob, j *listedJob) {
	o := outputComparison{wantText: c.expectedOutput(&tracked.campaignJob),
		droppedBytes: j.History[len(j.History)-1].DroppedBytes, isFileTruncated: c.isOutputTruncated(j.Seq)}
	var out []byte
	a := &testrig.Requester{TargetQueue: c.Harness, ReplyTimeout: replyTimeLimit}
	got, err := a.Request("logs", testrig.JSONFields{"id": j.ID, "stdout": true}, func(raw json.RawMessage) {
		var p struct {
			Value struct {
				Text    string
				Base64  []byte
				Dropped int64
				Damage  struct{ Bytes int64 }
			}
		}
		if json.Unmarshal(raw, &p) != nil {
			o.invalidPartCount++
		}
		out = append(append(out, p.Value.Text...), p.Value.Base64...)
		o.droppedBytes += p.Value.Dropped
		o.damagedBytes += p.Value.Damage.Bytes
	})
	if a.Conn != nil {
		a.Conn.Close()
	}
	if o.gotText = string(out); err == nil && got.Error != nil {
		o.serviceError = got.Error.Message
	}
	count, wrong := o.classify()
	switch {
	case err != nil:
		c.recordViolation("output", "%s (%s): %v", tracked.tag, j.ID, err)
	case wrong != "":
		c.recordViolation("output", "%s (%s): %s", tracked.tag, j.ID, wrong)
	default:
		c.countOperation(count)
	}
}

// checkEventHistories compares the state of each job, as its events describe it, with the stored job.
func (c *campaign) checkEventHistories(jobs []listedJob) {
	e := c.eventReceiver
	e.mu.Lock()
	defer e.mu.Unlock()
	c.mu.Lock()
	c.operationCounts["events received"] += len(e.receivedEventSeqs)
	c.mu.Unlock()
	seen := map[int64]bool{}
	for i := range jobs {
		j := &jobs[i]
		seen[j.Seq] = true
		s := e.historyByJobSeq[j.Seq]
		if s == nil || s.jobState != j.State || s.isRemoved {
			c.recordViolation("events", "job %s is %s, its events say %+v", j.ID, j.State, s)
		}
	}
	for seq, s := range e.historyByJobSeq {
		if !s.isRemoved && !seen[seq] {
			c.recordViolation("events", "job %s is gone, its events say that it is %s", s.jobID, s.jobState)
		}
	}
}

// checkRemainingFilesAndProcesses stops the service. It then checks that no unexpected files and processes remain, and
// that `queuectl doctor` finds no failures in the stopped queue.
func (c *campaign) checkRemainingFilesAndProcesses() {
	c.Helper()
	if logs, _ := filepath.Glob(c.Path("runner/*/log-*")); len(logs) > 0 {
		c.recordViolation("spill left", "%v", logs)
	}
	if remaining := c.endRemainingProcesses(c.recordDir, false); len(remaining) > 0 {
		c.recordViolation("process left", "of jobs: %v", remaining)
	}
	c.mu.Lock()
	tags := slices.Collect(maps.Keys(c.jobsByTag))
	c.mu.Unlock()
	for _, tag := range tags {
		if c.isLockHeld(tag) {
			c.recordViolation("process left", "of %s: its lock is held", tag)
		}
	}
	c.stopService(false)
	if remaining := c.endRemainingProcesses(c.StateDir, true); len(remaining) > 0 {
		c.recordViolation("process left", "of the queue: %v", remaining)
	}
	if dirs := c.runnerDirs(); len(dirs) > 0 {
		c.recordViolation("directory left", "%v", dirs)
	}
	a := &campaignClient{campaign: c, name: "check"}
	var d struct {
		Findings []struct{ Check, Level, Message string }
	}
	r := a.runQueuectl("doctor", "--verify", "--json")
	if err := json.Unmarshal([]byte(r.Stdout), &d); err != nil {
		c.recordViolation("doctor", "%v: %s%s", err, r.Stdout, r.Stderr)
	}
	for _, f := range d.Findings {
		// Ignore findings about the disk, because the campaign uses a small disk on purpose.
		if f.Level == "failure" && f.Check != "disk" && !c.isTruncatedOutputMessage(f.Message) {
			c.recordViolation("doctor", "%s: %s", f.Check, f.Message)
		}
	}
}

// endRemainingProcesses lists the processes whose command line or environment contains a directory. It waits a few
// seconds for these processes to end, then kills the remaining ones. If includeQueuectlPrograms is false, it ignores
// processes of queuectl and queuectld.
func (c *campaign) endRemainingProcesses(dir string, includeQueuectlPrograms bool) (remaining []string) {
	var pids []int
	for deadline := time.Now().Add(4 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		remaining, pids = nil, nil
		for pid, commands := range testrig.ProcessesUsingDir(dir) {
			if includeQueuectlPrograms || !strings.HasPrefix(commands, c.ClientPath) {
				remaining, pids = append(remaining, fmt.Sprintf("%d %q", pid, commands)), append(pids, pid)
			}
		}
		if len(remaining) == 0 || time.Now().After(deadline) {
			break
		}
	}
	for _, pid := range pids {
		testrig.KillProcess(pid)
	}
	return remaining
}

// isLockHeld reports whether a process holds the lock of the job with the given tag (the job's name in the campaign).
// It reads the kernel's list of locks, because an attempt to take the lock could disturb the job.
func (c *campaign) isLockHeld(jobTag string) bool {
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(c.recordDir, "locks", jobTag), &st); err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	locks, _ := os.ReadFile("/proc/locks")
	return slices.ContainsFunc(strings.Split(string(locks), "\n"), func(line string) bool {
		return strings.Contains(line, "FLOCK") && !strings.Contains(line, "->") &&
			strings.Contains(line, fmt.Sprintf(":%d ", st.Ino))
	})
}

// outputPathPattern matches the path of an output file. Its group is the number (seq) of the job.
var outputPathPattern = regexp.MustCompile(`/output/(\d+)-`)

// isTruncatedOutputMessage reports whether a finding of `queuectl doctor` is about an output file that
// the campaign has truncated.
func (c *campaign) isTruncatedOutputMessage(doctorMessage string) bool {
	m := outputPathPattern.FindStringSubmatch(doctorMessage)
	if m == nil {
		return false
	}
	seq, err := strconv.ParseInt(m[1], 10, 64)
	return err == nil && c.isOutputTruncated(seq)
}
