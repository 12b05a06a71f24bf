package doctor

import (
	"context"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// limitReportTimeout is how long a request waits for the first report of a runner. The report says which limits
// the runner enforces. See docs/decisions/0044.
const limitReportTimeout = 5 * time.Second

// UnenforcedLimits returns the names of those limits of the jobs that this machine does not fully enforce. If
// no runner has reported yet what it enforces, it returns all limits of the jobs. If required is true, it
// returns an error if a limit is not enforced or no runner has reported.
func (h *HealthCheck) UnenforcedLimits(ctx context.Context, jobs []queue.Job, required bool) (names []string,
	err error) {
	if !queue.HasAnyLimit(jobs) {
		return nil, nil
	}
	wait := limitReportTimeout
	if !required {
		// Do not wait longer than limitReportTimeout after the start of the service.
		wait -= h.Store.Now().Time().Sub(h.AllNodes.StartedAt.Time())
	}
	timeoutCtx, cancel := context.WithTimeout(ctx, max(0, wait))
	defer cancel()
	known, ok := h.Pool.LimitEnforcements(timeoutCtx)
	if !ok && required {
		return nil, queue.Errorf(queue.CodeUnavailable,
			"no runner has reported yet which limits it can enforce; try again, or see: queuectl status")
	}
	lacks := queue.UnenforcedLimits(jobs, known)
	for _, short := range lacks {
		names = append(names, short.Limit)
	}
	if required && len(lacks) > 0 {
		return nil, limitError(lacks, len(jobs))
	}
	return names, nil
}

// limitError returns the error for limits that the user requires but this machine does not enforce. jobCount is
// the number of jobs in the request.
func limitError(unenforced []queue.UnenforcedLimit, jobCount int) error {
	short := unenforced[0]
	what, leaveOut := "this limit is not enforced on this machine", "this limit"
	if short.Extent == queue.EnforcedPerProcess {
		what = "on this machine, this limit applies to each process of a job, not to the whole job"
	}
	what += " (" + short.Mechanism + ")"
	for _, other := range unenforced[1:] {
		extent := "is not enforced either"
		switch {
		case other.Extent == queue.EnforcedPerProcess:
			extent = "applies to each process"
		case short.Extent == queue.EnforcedPerProcess:
			extent = "is not enforced at all"
		}
		what += "; the limit " + other.Limit + " " + extent
		leaveOut = "these limits"
	}
	e := queue.Errorf(queue.CodeUnsupported, "%s; leave out %s or parameter \"require_limits\"; "+
		"see: queuectl doctor", what, leaveOut)
	e.Field = short.Limit
	if jobCount > 1 {
		return e.WithIndex(short.JobIndex + 1)
	}
	return e
}

// examineEnforcement reports for each kind of limit, such as memory, how this machine enforces it. It warns
// about each limit for which a job with the option --require-limits would be rejected.
func (x *Examiner) examineEnforcement(ctx context.Context) (findings []store.Finding) {
	timeoutCtx, cancel := context.WithTimeout(ctx, runnerReplyTimeout)
	defer cancel()
	known, ok := x.Pool.LimitEnforcements(timeoutCtx)
	if !ok {
		return []store.Finding{{Check: "enforcement", Level: store.LevelWarning,
			Message: "no runner has reported which limits it can enforce", Advice: "see: queuectl status"}}
	}
	grouped := slices.ContainsFunc(known, func(e queue.Enforcement) bool {
		return e.Extent == queue.Enforced && slices.Contains([]string{"memory", "cpus", "tasks"}, e.Limit)
	})
	findings = append(findings, store.Finding{Check: "enforcement", Level: store.LevelOK,
		Message: x.describeEnforcement(grouped)})
	for _, e := range queue.Enforcements(known) {
		findings = append(findings, enforcementFinding(e))
	}
	return findings
}

// enforcementFinding returns the finding about one limit.
func enforcementFinding(e queue.Enforcement) store.Finding {
	limit := "the limit " + e.Limit
	f := store.Finding{Check: "enforcement", Level: store.LevelWarning,
		Advice: "docs/limits.md says what enforcement needs; with --require-limits, enqueue rejects a job whose limits " +
			"cannot be enforced"}
	switch e.Extent {
	case queue.Enforced:
		return store.Finding{Check: f.Check, Level: store.LevelOK, Message: limit + " is enforced by " + e.Mechanism}
	case queue.EnforcedPerProcess:
		f.Message = limit + " is enforced for each process of a job, not for the whole job (" + e.Mechanism + ")"
	default:
		f.Message = limit + " is not enforced (" + e.Mechanism + ")"
	}
	return f
}
