package rules

import (
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// fakeDependencyTables stores dependencies, notes about parents, and schedules.
type fakeDependencyTables struct {
	edges       []fakeEdge
	notes       []fakeNote
	lastNoteUID int // owner of the note that NextParentChange returned last

	schedules         map[string]store.Schedule
	occurrenceRecords map[string][]store.OccurrenceRecord // by name of the schedule
}

type fakeEdge struct {
	Edge
	parent int64
	status store.DependencyStatus
}

// fakeNote is a note with the uid of the parent's owner.
type fakeNote struct {
	ParentChange
	uid int
}

type fakeDependencies struct{ d *fakeData }

func (f fakeDependencies) HasEdges() bool { return len(f.d.edges) > 0 }

func (f fakeDependencies) AddEdge(child int64, d queue.Dependency, do queue.OnDependencyFailure,
	status store.DependencyStatus) error {
	e := Edge{ID: f.d.newID(), Child: child, Condition: d.Condition, OnFailure: do}
	f.d.edges = append(f.d.edges, fakeEdge{e, d.JobSeq, status})
	return nil
}

func (f fakeDependencies) SetEdgeStatus(e *Edge, status store.DependencyStatus) error {
	f.d.edges[slices.IndexFunc(f.d.edges, func(x fakeEdge) bool { return x.ID == e.ID })].status = status
	return nil
}

func (f fakeDependencies) DeleteEdges(child int64) error {
	f.d.edges = slices.DeleteFunc(f.d.edges, func(e fakeEdge) bool { return e.Child == child })
	return nil
}

func (f fakeDependencies) HasEdgeWithStatus(child int64, status store.DependencyStatus) (bool, error) {
	return slices.ContainsFunc(f.d.edges, func(e fakeEdge) bool { return e.Child == child && e.status == status }), nil
}

func (f fakeDependencies) Parents(child int64, n int) (list []int64, err error) {
	for _, e := range f.d.edges {
		if e.Child == child && e.status == store.Unresolved && len(list) < n {
			list = append(list, e.parent)
		}
	}
	return list, nil
}

func (f fakeDependencies) EdgesToDecide(note ParentChange, n int) (list []Edge, err error) {
	status := store.Unresolved
	if note.State == Rerun {
		status = store.Broken
	}
	for _, e := range f.d.edges {
		if e.parent == note.Parent && e.status == status && e.ID <= note.LastEdgeID && len(list) < n {
			list = append(list, e.Edge)
		}
	}
	return list, nil
}

// newestEdge returns the highest id of a parent's edges, except those that are already satisfied.
func (f fakeDependencies) newestEdge(parent int64) (id int64) {
	for _, e := range f.d.edges {
		if e.parent == parent && e.status != store.Satisfied {
			id = max(id, e.ID)
		}
	}
	return id
}

func (f fakeDependencies) AddParentChange(parent int64, uid int, state queue.State, after int64) error {
	if upto := f.newestEdge(parent); upto > after {
		e := ParentChange{ID: f.d.newID(), Parent: parent, State: state, LastEdgeID: upto}
		f.d.notes = append(f.d.notes, fakeNote{e, uid})
	}
	return nil
}

func (f fakeDependencies) CountParentChanges(parent int64) (n int64, newest ParentChange, err error) {
	for _, note := range f.d.notes {
		if note.Parent == parent {
			n, newest = n+1, note.ParentChange
		}
	}
	return n, newest, nil
}

func (f fakeDependencies) ExtendRerunChange(parent int64) (found bool, err error) {
	for i := len(f.d.notes) - 1; i >= 0; i-- {
		if note := &f.d.notes[i]; note.Parent == parent && note.State == Rerun {
			note.LastEdgeID = f.newestEdge(parent)
			id := note.ID
			f.d.notes = slices.DeleteFunc(f.d.notes, func(n fakeNote) bool { return n.Parent == parent && n.ID > id })
			return true, nil
		}
	}
	return false, nil
}

// NextParentChange returns the first note of the user with the next higher uid, or else of the lowest uid.
func (f fakeDependencies) NextParentChange() (ParentChange, bool, error) {
	if len(f.d.notes) == 0 {
		return ParentChange{}, false, nil
	}
	list := slices.Clone(f.d.notes)
	slices.SortStableFunc(list, func(a, b fakeNote) int { return a.uid - b.uid })
	i := max(0, slices.IndexFunc(list, func(n fakeNote) bool { return n.uid > f.d.lastNoteUID }))
	f.d.lastNoteUID = list[i].uid
	return list[i].ParentChange, true, nil
}

func (f fakeDependencies) PostponeParentChanges(parent int64) error {
	isParent := func(n fakeNote) bool { return n.Parent == parent }
	var last []fakeNote
	for _, n := range f.d.notes {
		if isParent(n) {
			n.ID = f.d.newID()
			last = append(last, n)
		}
	}
	f.d.notes = append(slices.DeleteFunc(f.d.notes, isParent), last...)
	return nil
}

func (f fakeDependencies) DeleteParentChange(id int64) error {
	f.d.notes = slices.DeleteFunc(f.d.notes, func(n fakeNote) bool { return n.ID == id })
	return nil
}

type fakeSchedules struct{ d *fakeData }

func (f fakeSchedules) Schedule(name string) (store.Schedule, error) {
	s, found := f.d.schedules[name]
	if !found {
		return s, queue.ErrNotFound
	}
	return s, nil
}

func (f fakeSchedules) SetScheduleState(s *store.Schedule) error {
	f.d.schedules[s.Name] = *s
	return nil
}

func (f fakeSchedules) UnfinishedJobs(schedule string, most int) ([]Job, error) {
	list := f.d.sortedJobs(func(j *Job) bool { return j.Schedule == schedule && !j.State.Ended() })
	slices.Reverse(list)
	return list[:min(most, len(list))], nil
}

func (f fakeSchedules) AddOccurrenceRecord(schedule string, r store.OccurrenceRecord) error {
	f.d.occurrenceRecords[schedule] = append(f.d.occurrenceRecords[schedule], r)
	return nil
}
