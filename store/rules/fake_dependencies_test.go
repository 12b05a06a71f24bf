package rules

import (
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// fakeDependencyTables stores dependencies, the changes of parents (called notes), and schedules.
type fakeDependencyTables struct {
	edges            []fakeEdge
	notes            []fakeNote
	lastNoteOwnerUID int // owner of the parent whose note NextParentChange returned last

	schedules         map[string]store.Schedule
	occurrenceRecords map[string][]store.OccurrenceRecord // by name of the schedule
}

type fakeEdge struct {
	Edge
	parent int64
	status store.DependencyStatus
}

// fakeNote is a ParentChange with the uid of the parent's owner.
type fakeNote struct {
	ParentChange
	ownerUID int
}

type fakeDependencies struct{ data *fakeData }

func (f fakeDependencies) HasEdges() bool { return len(f.data.edges) > 0 }

func (f fakeDependencies) AddEdge(child int64, d queue.Dependency, onFailure queue.OnDependencyFailure,
	status store.DependencyStatus) error {
	e := Edge{ID: f.data.newID(), Child: child, Condition: d.Condition, OnFailure: onFailure}
	f.data.edges = append(f.data.edges, fakeEdge{e, d.JobSeq, status})
	return nil
}

func (f fakeDependencies) SetEdgeStatus(e *Edge, status store.DependencyStatus) error {
	f.data.edges[slices.IndexFunc(f.data.edges, func(x fakeEdge) bool { return x.ID == e.ID })].status = status
	return nil
}

func (f fakeDependencies) DeleteEdges(child int64) error {
	f.data.edges = slices.DeleteFunc(f.data.edges, func(e fakeEdge) bool { return e.Child == child })
	return nil
}

func (f fakeDependencies) HasEdgeWithStatus(child int64, status store.DependencyStatus) (bool, error) {
	return slices.ContainsFunc(f.data.edges, func(e fakeEdge) bool { return e.Child == child && e.status == status }), nil
}

func (f fakeDependencies) Parents(child int64, limit int) (parents []int64, err error) {
	for _, e := range f.data.edges {
		if e.Child == child && e.status == store.Unresolved && len(parents) < limit {
			parents = append(parents, e.parent)
		}
	}
	return parents, nil
}

func (f fakeDependencies) EdgesToDecide(note ParentChange, limit int) (edges []Edge, err error) {
	status := store.Unresolved
	if note.State == Rerun {
		status = store.Broken
	}
	for _, e := range f.data.edges {
		if e.parent == note.Parent && e.status == status && e.ID <= note.LastEdgeID && len(edges) < limit {
			edges = append(edges, e.Edge)
		}
	}
	return edges, nil
}

// newestEdgeID returns the highest id of those edges (dependencies) of a parent that are not satisfied.
func (f fakeDependencies) newestEdgeID(parent int64) (id int64) {
	for _, e := range f.data.edges {
		if e.parent == parent && e.status != store.Satisfied {
			id = max(id, e.ID)
		}
	}
	return id
}

func (f fakeDependencies) AddParentChange(parent int64, uid int, state queue.State, afterEdge int64) error {
	if upto := f.newestEdgeID(parent); upto > afterEdge {
		e := ParentChange{ID: f.data.newID(), Parent: parent, State: state, LastEdgeID: upto}
		f.data.notes = append(f.data.notes, fakeNote{e, uid})
	}
	return nil
}

func (f fakeDependencies) CountParentChanges(parent int64) (n int64, newest ParentChange, err error) {
	for _, note := range f.data.notes {
		if note.Parent == parent {
			n, newest = n+1, note.ParentChange
		}
	}
	return n, newest, nil
}

func (f fakeDependencies) ExtendRerunChange(parent int64) (found bool, err error) {
	for i := len(f.data.notes) - 1; i >= 0; i-- {
		if note := &f.data.notes[i]; note.Parent == parent && note.State == Rerun {
			note.LastEdgeID = f.newestEdgeID(parent)
			id := note.ID
			f.data.notes = slices.DeleteFunc(f.data.notes, func(n fakeNote) bool { return n.Parent == parent && n.ID > id })
			return true, nil
		}
	}
	return false, nil
}

// NextParentChange returns the notes of users in turn: the first note of the user with the next higher uid
// or, after the highest uid, of the user with the lowest uid.
func (f fakeDependencies) NextParentChange() (ParentChange, bool, error) {
	if len(f.data.notes) == 0 {
		return ParentChange{}, false, nil
	}
	list := slices.Clone(f.data.notes)
	slices.SortStableFunc(list, func(a, b fakeNote) int { return a.ownerUID - b.ownerUID })
	i := max(0, slices.IndexFunc(list, func(n fakeNote) bool { return n.ownerUID > f.data.lastNoteOwnerUID }))
	f.data.lastNoteOwnerUID = list[i].ownerUID
	return list[i].ParentChange, true, nil
}

func (f fakeDependencies) PostponeParentChanges(parent int64) error {
	isParent := func(n fakeNote) bool { return n.Parent == parent }
	var last []fakeNote
	for _, n := range f.data.notes {
		if isParent(n) {
			n.ID = f.data.newID()
			last = append(last, n)
		}
	}
	f.data.notes = append(slices.DeleteFunc(f.data.notes, isParent), last...)
	return nil
}

func (f fakeDependencies) DeleteParentChange(id int64) error {
	f.data.notes = slices.DeleteFunc(f.data.notes, func(n fakeNote) bool { return n.ID == id })
	return nil
}

type fakeSchedules struct{ data *fakeData }

func (f fakeSchedules) Schedule(name string) (store.Schedule, error) {
	s, found := f.data.schedules[name]
	if !found {
		return s, queue.ErrNotFound
	}
	return s, nil
}

func (f fakeSchedules) SetScheduleState(s *store.Schedule) error {
	f.data.schedules[s.Name] = *s
	return nil
}

func (f fakeSchedules) UnfinishedJobs(schedule string, uid, limit int) ([]Job, error) {
	list := f.data.sortedJobs(func(j *Job) bool { return j.Schedule == schedule && j.UID == uid && !j.State.Ended() })
	slices.Reverse(list)
	return list[:min(limit, len(list))], nil
}

func (f fakeSchedules) AddOccurrenceRecord(schedule string, r store.OccurrenceRecord) error {
	f.data.occurrenceRecords[schedule] = append(f.data.occurrenceRecords[schedule], r)
	return nil
}
