package rules

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// parentChecker checks the dependencies of new and of edited jobs.
type parentChecker struct {
	*txFailure
	jobs         Jobs
	dependencies Dependencies
}

// CheckDraftDependencies returns an error if a draft of a request depends on a job that does not exist, if drafts
// depend on each other in a cycle, or if demands (locks and other limits that jobs need) are invalid.
func (p *parentChecker) CheckDraftDependencies(drafts []queue.Job, uid int) error {
	if err := p.resolveParents(drafts, uid); err != nil {
		return err
	}
	edges := 0
	for i := range drafts {
		if edges += len(drafts[i].DependsOn); edges > queue.MaxDependencies {
			return queue.InvalidFieldError("depends_on",
				"the jobs of the request have more than the maximum of %d dependencies; "+
					"send fewer jobs per request", queue.MaxDependencies)
		}
		var demandError *queue.Error
		if err := queue.CheckDemands(drafts[i].Demands); errors.As(err, &demandError) {
			return errorAtDraft(demandError, i, len(drafts))
		}
		for _, d := range drafts[i].DependsOn {
			if d.ParentDraftNumber < 0 || d.ParentDraftNumber > len(drafts) {
				err := queue.InvalidFieldError("depends_on",
					"refers to job %d of the request, but the request has only jobs 1 to %d", d.ParentDraftNumber, len(drafts))
				return errorAtDraft(err, i, len(drafts))
			}
			// resolveParents has found the parent: another draft or a stored job
			if d.ParentDraftNumber != 0 || d.ParentID != "" {
				continue
			}
			if _, err := p.jobs.Job(d.ParentSeq, ReadScopeSummary); errors.Is(err, queue.ErrNotFound) {
				return errorAtDraft(queue.InvalidFieldError("depends_on", "there is no job with the number %d; it may have been "+
					"removed",
					d.ParentSeq), i, len(drafts))
			} else if err != nil {
				return err
			}
		}
	}
	return checkDraftsAcyclic(drafts, nil)
}

// resolveParents finds the jobs on which drafts depend by id: other drafts of the request, or stored jobs.
func (p *parentChecker) resolveParents(drafts []queue.Job, uid int) error {
	var draftNumbers map[string]int
	for i := range drafts {
		for k := range drafts[i].DependsOn {
			d := &drafts[i].DependsOn[k]
			if d.ParentID == "" {
				continue
			}
			if draftNumbers == nil {
				draftNumbers = make(map[string]int, len(drafts))
				for n := range drafts {
					draftNumbers[drafts[n].ID] = n + 1
				}
			}
			if d.ParentDraftNumber = draftNumbers[d.ParentID]; d.ParentDraftNumber != 0 {
				continue
			}
			seq, err := p.jobs.FindJobSeqByID(uid, d.ParentID)
			var rejected *queue.Error
			switch {
			case errors.As(err, &rejected) && rejected.Field == "depends_on":
				return errorAtDraft(rejected, i, len(drafts))
			case err != nil:
				return err
			}
			if d.ParentSeq = seq; seq == 0 {
				return errorAtDraft(queue.InvalidFieldError("depends_on", "there is no job %q", d.ParentID), i, len(drafts))
			}
		}
	}
	return nil
}

// checkEditedJobParents finds the jobs on which an edited job depends. It returns an error if the job must not depend
// on one of them, for example because the jobs would then wait for each other.
func (p *parentChecker) checkEditedJobParents(j *Job) error {
	for i := range j.DependsOn {
		if j.DependsOn[i].ParentID == j.ID {
			return queue.InvalidFieldError("depends_on", "a job cannot depend on itself")
		}
	}
	drafts := []queue.Job{j.Job}
	// Clear the id: otherwise resolveParents would take this job for a draft on which it can depend.
	drafts[0].ID = ""
	if err := p.resolveParents(drafts, j.UID); err != nil {
		return err
	}
	above := ancestorSearch{parentChecker: p, childSeq: j.Seq, visitedSeqs: map[int64]bool{}}
	for i := range drafts[0].DependsOn {
		d := &drafts[0].DependsOn[i]
		parent, err := p.jobs.Job(d.ParentSeq, ReadScopeSummary)
		switch {
		case errors.Is(err, queue.ErrNotFound):
			return queue.InvalidFieldError("depends_on", "job %q is not in the queue yet; try again later", d.ParentID)
		case err != nil:
			return err
		case parent.State.HasEnded() &&
			resolvedStatus(d.Condition, j.OnDependencyFailure, parent.State) == store.Broken:
			return queue.InvalidFieldError("depends_on",
				"job %q has already ended as %v, but the dependency requires %v", d.ParentID, parent.State, d.Condition)
		case parent.State.HasEnded():
			continue
		}
		if err := above.addParentAndAncestors(d.ParentSeq, d.ParentID); err != nil {
			return err
		}
	}
	j.DependsOn = drafts[0].DependsOn
	return nil
}

// dependencyStatuses returns the status of each dependency of a new job. anyUnresolved reports whether one is
// undecided, and anyBroken whether one is broken.
func (p *parentChecker) dependencyStatuses(draft *queue.Job) (
	statuses []store.DependencyStatus, anyUnresolved, anyBroken bool) {
	for _, d := range draft.DependsOn {
		parent, err := p.jobs.Job(d.ParentSeq, ReadScopeSummary)
		isMissing := errors.Is(err, queue.ErrNotFound)
		status := store.Unresolved
		switch {
		case isMissing && d.ParentDraftNumber != 0: // a draft of this request, inserted later
		case isMissing && p.isInCommittedBatch(d.ParentSeq): // a job of a batch, inserted later
		case !isMissing && p.hasFailed(err):
		case isMissing || parent.State.HasEnded(): // a missing parent was removed after the batch with this draft was sent
			status = resolvedStatus(d.Condition, draft.OnDependencyFailure, parent.State)
		}
		statuses = append(statuses, status)
		anyUnresolved = anyUnresolved || status == store.Unresolved
		anyBroken = anyBroken || status == store.Broken
	}
	return statuses, anyUnresolved, anyBroken
}

// resolvedStatus returns the status of a dependency whose parent has ended in parentState or was removed (parentState
// 0).
func resolvedStatus(condition queue.DependencyCondition, onFailure queue.OnDependencyFailure,
	parentState queue.State) store.DependencyStatus {
	if condition.SatisfiedBy(parentState) || onFailure == queue.DependencyFailureRun {
		return store.Satisfied
	}
	return store.Broken
}

// isInCommittedBatch reports whether a job that is not in the queue comes into the queue with a later frame (the jobs
// of one request) of a committed batch.
func (p *parentChecker) isInCommittedBatch(seq int64) bool {
	committed, err := p.jobs.IsJobInCommittedFrame(seq)
	p.recordErr(err)
	return committed
}

// replaceDependencyEdges deletes the edges of an edited job and adds edges to the parents that checkEditedJobParents
// has found.
func (p *parentChecker) replaceDependencyEdges(j *Job) {
	statuses, _, _ := p.dependencyStatuses(&j.Job)
	p.recordErr(p.dependencies.DeleteEdges(j.Seq))
	for i := range statuses {
		p.recordErr(p.dependencies.AddEdge(j.Seq, j.DependsOn[i], j.OnDependencyFailure, statuses[i]))
	}
}

// ancestorSearch collects the jobs for which a job would wait, directly or through other jobs, to find a cycle.
type ancestorSearch struct {
	*parentChecker
	childSeq          int64
	visitedSeqs       map[int64]bool
	followedEdgeCount int // number of dependencies followed
}

// addParentAndAncestors adds a parent and all jobs that it waits for. It visits each job once. If one of these jobs
// waits for the child, addParentAndAncestors returns an error that contains parentID. It also returns an error if one
// of them is still in a frame of a batch, because the edges of that job are not stored yet.
func (a *ancestorSearch) addParentAndAncestors(parentSeq int64, parentID string) error {
	if a.visitedSeqs[parentSeq] {
		return nil
	}
	a.visitedSeqs[parentSeq] = true
	for list := []int64{parentSeq}; len(list) > 0; {
		last := list[len(list)-1]
		list = list[:len(list)-1]
		if last == a.childSeq {
			return queue.InvalidFieldError("depends_on", "jobs would wait for each other: %q waits for this job", parentID)
		}
		parents, err := a.dependencies.UnresolvedParentSeqs(last, queue.MaxDependencies)
		if err != nil {
			return err
		}
		if len(parents) == 0 {
			if inFrame, err := a.jobs.IsJobInCommittedFrame(last); err != nil {
				return err
			} else if inFrame {
				return queue.InvalidFieldError("depends_on", "job %q waits for a job that is not in the queue yet; try again later",
					parentID)
			}
		}
		for _, p := range parents {
			if !a.visitedSeqs[p] {
				a.visitedSeqs[p] = true
				list = append(list, p)
			}
		}
		if a.followedEdgeCount += len(parents); len(a.visitedSeqs) > maxAncestorSearchSteps ||
			a.followedEdgeCount > maxAncestorSearchSteps {
			return queue.InvalidFieldError("depends_on",
				"the job would depend on more than %d jobs, directly or through other jobs", maxAncestorSearchSteps)
		}
	}
	return nil
}

// maxAncestorSearchSteps limits the jobs and dependencies that are visited to find a cycle, so that the search
// hardly delays other commits.
const maxAncestorSearchSteps = 2 * queue.MaxDependencies

// errorAtDraft adds the number of a draft to an error, if the request has several drafts. draftIndex is the index of
// the draft.
func errorAtDraft(e *queue.Error, draftIndex, draftCount int) error {
	if draftCount > 1 {
		return e.WithBatchIndex(draftIndex + 1)
	}
	return e
}

// checkDraftsAcyclic returns an error that names the drafts of a cycle if drafts depend on each other, after each draft
// in substitutes is replaced by its substitute. Stored jobs need no check, because they cannot depend on drafts.
func checkDraftsAcyclic(drafts []queue.Job, substitutes map[int]DraftSubstitute) error {
	const (
		unvisited = iota
		onPath
		visited
	)
	status := make([]uint8, len(drafts))
	var path []int
	var visit func(i int) error // recurses at most queue.MaxJobsPerRequest times
	visit = func(i int) error {
		status[i], path = onPath, append(path, i)
		for _, d := range drafts[i].DependsOn {
			parent := d.ParentDraftNumber - 1
			substitute, isSubstituted := substitutes[parent]
			if isSubstituted {
				parent = substitute.DraftIndex
			}
			switch {
			case parent < 0 || substitute.ExistingJob != nil || status[parent] == visited:
			case status[parent] == onPath:
				names := ""
				for _, j := range path[slices.Index(path, parent):] {
					names += draftName(drafts, j) + " waits for "
				}
				names += draftName(drafts, parent)
				return queue.InvalidFieldError("depends_on", "jobs would wait for each other: %s", queue.ClipForMessage(names))
			default:
				if err := visit(parent); err != nil {
					return err
				}
			}
		}
		status[i], path = visited, path[:len(path)-1]
		return nil
	}
	for i := range drafts {
		if _, isSubstituted := substitutes[i]; !isSubstituted && status[i] == unvisited {
			if err := visit(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// draftName returns the text that names a draft in an error.
func draftName(drafts []queue.Job, draftIndex int) string {
	return cmp.Or(drafts[draftIndex].ID, fmt.Sprintf("job %d", draftIndex+1))
}
