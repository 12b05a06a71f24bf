package memstore

import (
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// draftWaitsForItself reports whether a draft depends on itself through other drafts of the request. It does not follow
// drafts that are not stored because another job has their unique key. maxDepth limits the depth of the search.
func draftWaitsForItself(startIndex int, drafts []queue.Job, receipt store.Receipt, maxDepth int) bool {
	var dependsOnStart func(draftIndex, depth int) bool
	dependsOnStart = func(draftIndex, depth int) bool {
		for _, d := range drafts[draftIndex].DependsOn {
			if d.ParentDraftNumber == 0 || depth == 0 {
				continue
			}
			// The receipt has the same seq for drafts with the same unique key. Only the first of them is
			// stored, so follow that one.
			next := slices.Index(receipt.Seqs, receipt.Seqs[d.ParentDraftNumber-1])
			if receipt.IsExisting[next] {
				continue
			}
			if next == startIndex || dependsOnStart(next, depth-1) {
				return true
			}
		}
		return false
	}
	return dependsOnStart(startIndex, maxDepth)
}

// newDependencyLinks returns dependencies of the job with the given seq, each with its present status.
func (s *Store) newDependencyLinks(dependencies []queue.Dependency, jobSeq int64,
	onFailure queue.OnDependencyFailure) (links []dependencyLink) {
	for _, d := range dependencies {
		l := dependencyLink{Dependency: queue.Dependency{ParentSeq: d.ParentSeq, Condition: d.Condition}}
		switch parent := s.jobs[d.ParentSeq]; {
		// Status Unresolved: the parent has not ended, or is not stored yet, because it is a later draft of the request
		// or in a frame of a committed batch.
		case parent == nil && (d.ParentSeq > jobSeq || s.isInCommittedFrame(d.ParentSeq)), parent != nil &&
			!parent.State.HasEnded():
		case onFailure == queue.DependencyFailureRun || parent != nil && d.Condition.SatisfiedBy(parent.State):
			l.status = store.Satisfied
		default:
			l.status = store.Broken
		}
		links = append(links, l)
	}
	return links
}

// checkDependencies returns an error if a draft depends on itself or on a job that does not exist. It also
// returns an error if a draft demands more of a gate than the gate can ever provide. targetBatch is the uncommitted
// batch to which the drafts are added, or nil.
func (s *Store) checkDependencies(drafts []queue.Job, uid int, targetBatch *batch) error {
	if err := s.resolveParents(drafts, uid, targetBatch); err != nil {
		return err
	}
	var dependsOn func(fromDraft, toDraft, depth int) bool
	dependsOn = func(fromDraft, toDraft, depth int) bool {
		for _, d := range drafts[fromDraft].DependsOn {
			if d.ParentDraftNumber != 0 && depth > 0 && (d.ParentDraftNumber-1 == toDraft ||
				dependsOn(d.ParentDraftNumber-1, toDraft, depth-1)) {
				return true
			}
		}
		return false
	}
	for i := range drafts {
		if err := queue.CheckDemands(drafts[i].Demands); err != nil {
			return err
		}
		for _, d := range drafts[i].DependsOn {
			if d.ParentDraftNumber < 0 || d.ParentDraftNumber > len(drafts) || d.ParentDraftNumber == 0 && d.ParentID == "" &&
				s.jobs[d.ParentSeq] == nil {
				return queue.InvalidFieldError("depends_on", "the job does not exist")
			}
		}
	}
	for i := range drafts {
		if len(drafts[i].DependsOn) > queue.MaxDependencies || dependsOn(i, i, len(drafts)) {
			return queue.InvalidFieldError("depends_on", "jobs would wait for each other, or have too many dependencies")
		}
	}
	return nil
}

// replaceDependencies replaces the dependencies of the job j by those of edited, its new version.
func (s *Store) replaceDependencies(j *job, edited *queue.Job) error {
	drafts := []queue.Job{*edited}
	drafts[0].ID = ""
	if err := s.resolveParents(drafts, j.UID, nil); err != nil {
		return err
	}
	// Whether a job in a batch depends on j is not known, because its dependencies are not stored yet. So it counts as
	// depending on j.
	var dependsOnJob func(jobSeq int64) bool
	dependsOnJob = func(jobSeq int64) bool {
		return jobSeq == j.Seq || s.isInCommittedFrame(jobSeq) ||
			slices.ContainsFunc(s.jobs[jobSeq].dependencyLinks, func(l dependencyLink) bool {
				return l.status == store.Unresolved && dependsOnJob(l.ParentSeq)
			})
	}
	for _, d := range drafts[0].DependsOn {
		parent := s.jobs[d.ParentSeq]
		switch {
		case parent == nil, dependsOnJob(d.ParentSeq),
			parent.State.HasEnded() && !d.Condition.SatisfiedBy(parent.State) &&
				edited.OnDependencyFailure != queue.DependencyFailureRun:
			return queue.InvalidFieldError("depends_on", "the job cannot wait for this dependency")
		}
	}
	links := s.newDependencyLinks(drafts[0].DependsOn, j.Seq, edited.OnDependencyFailure)
	j.dependencyLinks, j.onDependencyFailure, edited.DependsOn, edited.OnDependencyFailure = links,
		edited.OnDependencyFailure, nil,
		0
	edited.ParentCount = len(links)
	return nil
}

// resolveParents finds, by their ids, the jobs on which drafts depend. It stores the seqs of these jobs in the
// drafts. targetBatch is the uncommitted batch to which the drafts are added, or nil.
func (s *Store) resolveParents(drafts []queue.Job, uid int, targetBatch *batch) error {
	for i := range drafts {
		for k := range drafts[i].DependsOn {
			d := &drafts[i].DependsOn[k]
			if d.ParentID == "" {
				continue
			}
			if index := slices.IndexFunc(drafts, func(j queue.Job) bool { return j.ID == d.ParentID }); index >= 0 {
				d.ParentDraftNumber = index + 1
				continue
			}
			d.ParentSeq = s.findSeqByID(uid, d.ParentID)
			if d.ParentSeq == 0 {
				return queue.InvalidFieldError("depends_on", "there is no job %q", d.ParentID)
			}
			if b := s.uncommittedBatchWithID(d.ParentID); b != nil && b != targetBatch {
				return store.StagedParentError(d.ParentID, b.name)
			}
		}
	}
	return nil
}

// findSeqByID returns the seq of the job with the given id, or 0 if none exists. It also searches the user's
// batches.
func (s *Store) findSeqByID(uid int, id string) int64 {
	for _, j := range s.jobs {
		if j.ID == id && (j.HookEvents&queue.SettingsHookFlag == 0 || j.UID == uid) {
			return j.Seq
		}
	}
	for _, b := range s.batches {
		for _, frame := range b.frames {
			for i := range frame {
				if b.uid == uid && frame[i].ID == id && b.seqsWithUserChosenIDs[frame[i].Seq] {
					return frame[i].Seq
				}
			}
		}
	}
	return 0
}
