package memstore

import (
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// waitsForItself reports whether a draft depends on itself through other drafts, once drafts are replaced by
// the jobs in receipt.
func waitsForItself(of int, drafts []queue.Job, receipt store.Receipt, depth int) bool {
	var reaches func(from, depth int) bool
	reaches = func(from, depth int) bool {
		for _, d := range drafts[from].After {
			if d.Draft == 0 || depth == 0 {
				continue
			}
			// Of several drafts with this seq, the first is the one that is stored.
			next := slices.Index(receipt.Seqs, receipt.Seqs[d.Draft-1])
			if receipt.Found[next] {
				continue
			}
			if next == of || reaches(next, depth-1) {
				return true
			}
		}
		return false
	}
	return reaches(of, depth)
}

// linksOf returns the dependencies of a job with their current status.
func (s *Store) linksOf(after []queue.Dependency, seq int64, do queue.Otherwise) (links []link) {
	for _, d := range after {
		l := link{Dependency: queue.Dependency{Job: d.Job, How: d.How}}
		switch parent := s.jobs[d.Job]; {
		// A missing parent with a higher seq may be a later draft.
		case parent == nil && d.Job > seq, parent != nil && !parent.State.Ended():
		case do == queue.OtherwiseRun || parent != nil && d.How.Met(parent.State):
			l.met = store.Well
		default:
			l.met = store.Failed
		}
		links = append(links, l)
	}
	return links
}

// checkDependencies returns an error if a draft depends on a job that does not exist or on itself, or demands
// what no gate can provide.
func (s *Store) checkDependencies(drafts []queue.Job, uid int) error {
	if err := s.resolve(drafts, uid); err != nil {
		return err
	}
	var reaches func(from, to, depth int) bool
	reaches = func(from, to, depth int) bool {
		for _, d := range drafts[from].After {
			if d.Draft != 0 && depth > 0 && (d.Draft-1 == to || reaches(d.Draft-1, to, depth-1)) {
				return true
			}
		}
		return false
	}
	for i := range drafts {
		if err := queue.CheckDemands(drafts[i].Demands); err != nil {
			return err
		}
		for _, d := range drafts[i].After {
			if d.Draft < 0 || d.Draft > len(drafts) || d.Draft == 0 && d.ID == "" && s.jobs[d.Job] == nil {
				return queue.Invalid("depends_on", "names a job that is not there")
			}
		}
	}
	for i := range drafts {
		if len(drafts[i].After) > queue.MaxDependencies || reaches(i, i, len(drafts)) {
			return queue.Invalid("depends_on", "jobs would wait for each other, or for too many")
		}
	}
	return nil
}

// rewire replaces the dependencies of a job by those of an edit.
func (s *Store) rewire(j *job, edited *queue.Job) error {
	drafts := []queue.Job{*edited}
	drafts[0].ID = ""
	if err := s.resolve(drafts, j.UID); err != nil {
		return err
	}
	var reaches func(from int64) bool
	reaches = func(from int64) bool {
		return from == j.Seq || slices.ContainsFunc(s.jobs[from].links, func(l link) bool { return l.met == store.Open && reaches(l.Job) })
	}
	for _, d := range drafts[0].After {
		parent := s.jobs[d.Job]
		switch {
		case parent == nil, reaches(d.Job), parent.State.Ended() && !d.How.Met(parent.State) && edited.OtherwiseDo != queue.OtherwiseRun:
			return queue.Invalid("depends_on", "names a job that this one cannot wait for")
		}
	}
	links := s.linksOf(drafts[0].After, j.Seq, edited.OtherwiseDo)
	j.links, j.otherwise, edited.After, edited.OtherwiseDo = links, edited.OtherwiseDo, nil, 0
	edited.Parents = len(links)
	return nil
}

// resolve finds the jobs that drafts depend on by id.
func (s *Store) resolve(drafts []queue.Job, uid int) error {
	for i := range drafts {
		for k := range drafts[i].After {
			d := &drafts[i].After[k]
			if d.ID == "" {
				continue
			}
			if at := slices.IndexFunc(drafts, func(j queue.Job) bool { return j.ID == d.ID }); at >= 0 {
				d.Draft = at + 1
			} else if d.Job = s.named(uid, d.ID); d.Job == 0 {
				return queue.Invalid("depends_on", "there is no job %q", d.ID)
			}
		}
	}
	return nil
}

// named returns the seq of a job by id: a stored job, or one in this user's batches. It returns 0 if none
// exists.
func (s *Store) named(uid int, id string) int64 {
	for _, j := range s.jobs {
		if j.ID == id && (j.Hooks&queue.HookSettings == 0 || j.UID == uid) {
			return j.Seq
		}
	}
	for _, b := range s.batches {
		for _, frame := range b.frames {
			for i := range frame {
				if b.uid == uid && frame[i].ID == id && b.named[frame[i].Seq] {
					return frame[i].Seq
				}
			}
		}
	}
	return 0
}
