package doctor

import (
	"context"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// runnerLimitReportTimeout is how long a request waits for the first report of a runner. The report says which limits
// the runner enforces. See docs/decisions/0044.
const runnerLimitReportTimeout = 5 * time.Second

// UnenforcedLimits returns the names of those limits of the jobs that this machine does not fully enforce. If no runner
// has reported yet what it enforces, it returns the names of all limits of the jobs. If requireAll is true, it returns
// an error if a limit is not enforced or no runner has reported.
func (x *Examiner) UnenforcedLimits(ctx context.Context, jobs []queue.Job, requireAll bool) (limitNames []string,
	err error) {
	if !queue.AnyJobHasLimit(jobs) {
		return nil, nil
	}
	wait := runnerLimitReportTimeout
	if !requireAll {
		// Without requireAll, do not wait longer than runnerLimitReportTimeout after the start of the service.
		wait -= x.Store.Now().Time().Sub(x.NodeRegistry.ServiceStartedAt.Time())
	}
	timeoutCtx, cancel := context.WithTimeout(ctx, max(0, wait))
	defer cancel()
	known, ok := x.Pool.ResourceLimitEnforcements(timeoutCtx)
	if !ok && requireAll {
		return nil, queue.Errorf(queue.CodeUnavailable,
			"no runner has reported yet which limits it can enforce; try again, or see: queuectl status")
	}
	lacks := queue.UnenforcedLimits(jobs, known)
	for _, short := range lacks {
		limitNames = append(limitNames, short.LimitField)
	}
	if requireAll && len(lacks) > 0 {
		return nil, unenforcedLimitsError(lacks, len(jobs))
	}
	return limitNames, nil
}

// unenforcedLimitsError returns the error for limits that the user requires but this machine does not enforce. jobCount
// is the number of jobs in the request.
func unenforcedLimitsError(unenforced []queue.UnenforcedLimit, jobCount int) error {
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
		what += "; the limit " + other.LimitField + " " + extent
		leaveOut = "these limits"
	}
	e := queue.Errorf(queue.CodeUnsupported, "%s; leave out %s or parameter \"require_limits\"; "+
		"see: queuectl doctor", what, leaveOut)
	e.Field = short.LimitField
	if jobCount > 1 {
		return e.WithBatchIndex(short.FirstJobIndex + 1)
	}
	return e
}

// examineLimitEnforcement reports for each kind of limit, such as memory, how this machine enforces it. It warns about
// each kind that this machine does not fully enforce: a job with such a limit and the option --require-limits would be
// rejected.
func (x *Examiner) examineLimitEnforcement(ctx context.Context) (findings []store.Finding) {
	timeoutCtx, cancel := context.WithTimeout(ctx, runnerReplyTimeout)
	defer cancel()
	known, ok := x.Pool.ResourceLimitEnforcements(timeoutCtx)
	if !ok {
		return []store.Finding{Warning("enforcement", "no runner has reported which limits it can enforce",
			"see: queuectl status")}
	}
	grouped := slices.ContainsFunc(known, func(e queue.LimitEnforcement) bool {
		return e.Extent == queue.Enforced && slices.Contains([]string{"memory", "cpus", "tasks"}, e.LimitField)
	})
	findings = append(findings, passed("enforcement", x.describeLimitEnforcement(grouped)))
	for _, e := range queue.EnforcementsOfAllLimits(known) {
		findings = append(findings, limitEnforcementFinding(e))
	}
	return findings
}

// limitEnforcementFinding returns the finding about one limit.
func limitEnforcementFinding(e queue.LimitEnforcement) store.Finding {
	limit, extent := "the limit "+e.LimitField, " is not enforced ("
	switch e.Extent {
	case queue.Enforced:
		return passed("enforcement", limit+" is enforced by "+e.Mechanism)
	case queue.EnforcedPerProcess:
		extent = " is enforced for each process of a job, not for the whole job ("
	}
	return Warning("enforcement", limit+extent+e.Mechanism+")",
		"docs/limits.md says what enforcement needs; with --require-limits, enqueue rejects a job whose limits "+
			"cannot be enforced")
}
