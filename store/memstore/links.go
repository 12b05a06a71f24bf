package memstore

import (
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// waitsForItself reports whether a draft depends on itself through other drafts of the request. It does not
// follow drafts that are not stored because another job has their unique key. depth limits the search.
func waitsForItself(startIndex int, drafts []queue.Job, receipt store.Receipt, depth int) bool {
	var dependsOnStart func(draftIndex, depth int) bool
	dependsOnStart = func(draftIndex, depth int) bool {
		for _, d := range drafts[draftIndex].DependsOn {
			if d.DraftNumber == 0 || depth == 0 {
				continue
			}
			// The receipt has the same seq for drafts with the same unique key. Only the first of them is
			// stored, so follow that one.
			next := slices.Index(receipt.Seqs, receipt.Seqs[d.DraftNumber-1])
			if receipt.IsExisting[next] {
				continue
			}
			if next == startIndex || dependsOnStart(next, depth-1) {
				return true
			}
		}
		return false
	}
	return dependsOnStart(startIndex, depth)
}

// linksOf returns dependencies of the job with the given seq, each with its present status.
func (s *Store) linksOf(dependencies []queue.Dependency, seq int64,
	onFailure queue.OnDependencyFailure) (links []link) {
	for _, d := range dependencies {
		l := link{Dependency: queue.Dependency{JobSeq: d.JobSeq, Condition: d.Condition}}
		switch parent := s.jobs[d.JobSeq]; {
		// Status Unresolved: the parent has not ended, or is not stored yet, because it is a later draft of the request
		// or in a frame of a committed batch.
		case parent == nil && (d.JobSeq > seq || s.inCommittedFrame(d.JobSeq)), parent != nil && !parent.State.Ended():
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
// returns an error if a draft demands more of a gate than the gate can ever provide.
func (s *Store) checkDependencies(drafts []queue.Job, uid int) error {
	if err := s.resolveParents(drafts, uid); err != nil {
		return err
	}
	var dependsOn func(fromDraft, toDraft, depth int) bool
	dependsOn = func(fromDraft, toDraft, depth int) bool {
		for _, d := range drafts[fromDraft].DependsOn {
			if d.DraftNumber != 0 && depth > 0 && (d.DraftNumber-1 == toDraft || dependsOn(d.DraftNumber-1, toDraft, depth-1)) {
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
			if d.DraftNumber < 0 || d.DraftNumber > len(drafts) || d.DraftNumber == 0 && d.ID == "" && s.jobs[d.JobSeq] == nil {
				return queue.Invalid("depends_on", "the job does not exist")
			}
		}
	}
	for i := range drafts {
		if len(drafts[i].DependsOn) > queue.MaxDependencies || dependsOn(i, i, len(drafts)) {
			return queue.Invalid("depends_on", "jobs would wait for each other, or have too many dependencies")
		}
	}
	return nil
}

// replaceLinks replaces the dependencies of the job j by those of edited, its new version.
func (s *Store) replaceLinks(j *job, edited *queue.Job) error {
	drafts := []queue.Job{*edited}
	drafts[0].ID = ""
	if err := s.resolveParents(drafts, j.UID); err != nil {
		return err
	}
	// A job in a frame of a batch counts as depending on j, because its dependencies are not stored yet.
	var dependsOnJob func(jobSeq int64) bool
	dependsOnJob = func(jobSeq int64) bool {
		return jobSeq == j.Seq || s.inCommittedFrame(jobSeq) || slices.ContainsFunc(s.jobs[jobSeq].links, func(l link) bool {
			return l.status == store.Unresolved && dependsOnJob(l.JobSeq)
		})
	}
	for _, d := range drafts[0].DependsOn {
		parent := s.jobs[d.JobSeq]
		switch {
		case parent == nil, dependsOnJob(d.JobSeq),
			parent.State.Ended() && !d.Condition.SatisfiedBy(parent.State) &&
				edited.OnDependencyFailure != queue.DependencyFailureRun:
			return queue.Invalid("depends_on", "the job cannot wait for this dependency")
		}
	}
	links := s.linksOf(drafts[0].DependsOn, j.Seq, edited.OnDependencyFailure)
	j.links, j.onDependencyFailure, edited.DependsOn, edited.OnDependencyFailure = links, edited.OnDependencyFailure, nil,
		0
	edited.ParentCount = len(links)
	return nil
}

// resolveParents finds, by their ids, the jobs on which drafts depend. It stores the seqs of these jobs in the
// drafts.
func (s *Store) resolveParents(drafts []queue.Job, uid int) error {
	for i := range drafts {
		for k := range drafts[i].DependsOn {
			d := &drafts[i].DependsOn[k]
			if d.ID == "" {
				continue
			}
			if index := slices.IndexFunc(drafts, func(j queue.Job) bool { return j.ID == d.ID }); index >= 0 {
				d.DraftNumber = index + 1
			} else if d.JobSeq = s.findByID(uid, d.ID); d.JobSeq == 0 {
				return queue.Invalid("depends_on", "there is no job %q", d.ID)
			}
		}
	}
	return nil
}

// findByID returns the seq of the job with the given id, or 0 if none exists. It also searches the user's
// batches.
func (s *Store) findByID(uid int, id string) int64 {
	for _, j := range s.jobs {
		if j.ID == id && (j.HookEvents&queue.HookFromSettings == 0 || j.UID == uid) {
			return j.Seq
		}
	}
	for _, b := range s.batches {
		for _, frame := range b.frames {
			for i := range frame {
				if b.uid == uid && frame[i].ID == id && b.chosenIDSeqs[frame[i].Seq] {
					return frame[i].Seq
				}
			}
		}
	}
	return 0
}
