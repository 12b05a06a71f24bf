package reasons

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// MaxDependencyLinks is the maximum number of parents or dependants of a job that are read in one query.
const MaxDependencyLinks = 1000

// EndedJobReasons returns reasons for a job that has ended, or that is held because of its dependencies. One kind of
// reason says that the job cannot run again because its input was removed. The other kind says which dependencies
// caused the cancellation or the hold.
func (f *Finder) EndedJobReasons(ctx context.Context, j *queue.Job) (reasons []control.WaitReason, err error) {
	if fields := j.InputRemoved.FieldNames(); len(fields) > 0 {
		r := newReason("input", "the job cannot run again, because its input ("+strings.Join(fields, ", ")+
			") was removed to make room for newer jobs (setting max_bytes_per_user)", "enqueue it again with its input")
		r.CauseKey = strings.Join(fields, ",")
		reasons = append(reasons, r)
	}
	if j.Reason != queue.ReasonDependency {
		return reasons, nil
	}
	err = f.UserLimits.RunInSlot(ctx, control.ClassOneJobRead, func() error {
		parents, _, err := f.Store.DependencyLinks(ctx, j.Seq, MaxDependencyLinks)
		failed := false
		for _, l := range parents {
			if l.Status == store.Broken {
				failed = true
				reasons = append(reasons, brokenDependencyReason(j, &l))
			}
		}
		if err == nil && !failed && len(parents) < MaxDependencyLinks && j.State == queue.Cancelled && j.InputRemoved == 0 {
			// The job was cancelled because of its dependencies, but none of them has failed now. So the dependencies were
			// retried together with their dependants, and this job was left out because another job had the same unique key.
			r := newReason("unique",
				"the job was not retried together with its dependencies, because another job had the same unique key",
				"queuectl retry "+j.ID)
			r.CauseKey = j.Unique
			reasons = append(reasons, r)
		}
		return err
	})
	return reasons, err
}

// brokenDependencyReason returns the reason for a job that is cancelled or held because of a dependency that can no
// longer be satisfied. A retry of the parent also retries cancelled dependants, but held ones stay held.
func brokenDependencyReason(j *queue.Job, l *store.DependencyLink) control.WaitReason {
	id := parentIDOrSeq(l.LinkedJobSeq, l.LinkedJobID)
	adviceForParent, adviceForJob, runsAnyway := "queuectl retry "+id, "queuectl retry "+j.ID, "a retry runs"
	if j.State == queue.Held {
		adviceForJob, runsAnyway = "queuectl release "+j.ID, "a release runs"
		adviceForParent = adviceForJob
	} else if l.LinkedJobState == queue.Cancelled {
		adviceForParent = "queuectl why " + id
	}
	r := control.WaitReason{Kind: "dependency", CauseKey: id, Advice: adviceForJob}
	required := requiredParentEndText(l.Condition)
	switch {
	case l.LinkedJobState == 0:
		r.Text = fmt.Sprintf("the job is %s, because it depended on job number %d, which was removed; %s the job "+
			"without this dependency", j.State, l.LinkedJobSeq, runsAnyway)
	// the parent was retried without this job
	case !l.LinkedJobState.HasEnded() || l.Condition.SatisfiedBy(l.LinkedJobState):
		r.Text = fmt.Sprintf("the job is %s, because job %s %s first, but ended otherwise; job %[2]s was then "+
			"retried without this job, and is %[4]s now", j.State, id, required, l.LinkedJobState)
	default:
		r.Advice = adviceForParent
		r.Text = fmt.Sprintf("the job is %s, because job %s %s first, but is %s", j.State, id, required, l.LinkedJobState)
	}
	return r
}

// UnresolvedDependencyReasons returns one reason for each dependency that the job still waits for.
func (f *Finder) UnresolvedDependencyReasons(ctx context.Context, j *queue.Job) (reasons []control.WaitReason,
	err error) {
	err = f.UserLimits.RunInSlot(ctx, control.ClassOneJobRead, func() error {
		parents, _, err := f.Store.DependencyLinks(ctx, j.Seq, MaxDependencyLinks)
		for _, l := range parents {
			if l.Status != store.Unresolved {
				continue
			}
			id := parentIDOrSeq(l.LinkedJobSeq, l.LinkedJobID)
			text := fmt.Sprintf("job %s %s, but is %s", id, requiredParentEndText(l.Condition),
				cmp.Or(l.LinkedJobState.String(), "not in the queue yet")) // a job of a committed batch may not be in the queue yet
			r := newReason("dependency", text, "queuectl why "+id)
			r.CauseKey = id
			reasons = append(reasons, r)
		}
		return err
	})
	return reasons, err
}

// FormatDependencies returns the names of a job's dependencies in the syntax of enqueue.
func FormatDependencies(links []store.DependencyLink) []string {
	names := make([]string, len(links))
	for i, l := range links {
		names[i] = parentIDOrSeq(l.LinkedJobSeq, l.LinkedJobID)
		if l.Condition != queue.ParentCompleted {
			names[i] += ":" + l.Condition.String()
		}
	}
	return names
}

// parentIDOrSeq returns the id of a job that other jobs depend on or, if that job was removed, its number.
func parentIDOrSeq(seq int64, id string) string { return cmp.Or(id, fmt.Sprintf("#%d", seq)) }

// parenthesizedStateReason returns the reason why a job is in its state, in parentheses, or "" without a reason.
func parenthesizedStateReason(j *queue.Job) string {
	if j.Reason == "" {
		return ""
	}
	return strings.Replace(fmt.Sprintf(" (%s)", j.Reason), "(disowned)",
		"(the uid of its owner now belongs to another account)", 1)
}
