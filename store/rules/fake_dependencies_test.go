package rules

import (
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// fakeDependencyTables stores dependencies, the changes of parents (called notes), and schedules.
type fakeDependencyTables struct {
	edges              []fakeEdge
	parentChanges      []fakeParentChange
	lastServedOwnerUID int // owner of the parent whose note NextParentStateChange returned last

	schedules         map[string]store.Schedule
	occurrenceRecords map[string][]store.OccurrenceRecord // by name of the schedule
}

type fakeEdge struct {
	DependencyEdge
	parentSeq int64
	status    store.DependencyStatus
}

// fakeParentChange is a ParentStateChange with the uid of the parent's owner.
type fakeParentChange struct {
	ParentStateChange
	ownerUID int
}

type fakeDependencies struct{ data *fakeData }

func (f fakeDependencies) HasEdges() bool { return len(f.data.edges) > 0 }

func (f fakeDependencies) AddEdge(childSeq int64, d queue.Dependency, onFailure queue.OnDependencyFailure,
	status store.DependencyStatus) error {
	e := DependencyEdge{ID: f.data.nextRowID(), ChildSeq: childSeq, Condition: d.Condition, OnFailure: onFailure}
	f.data.edges = append(f.data.edges, fakeEdge{e, d.ParentSeq, status})
	return nil
}

func (f fakeDependencies) SetEdgeStatus(e *DependencyEdge, status store.DependencyStatus) error {
	f.data.edges[slices.IndexFunc(f.data.edges, func(x fakeEdge) bool { return x.ID == e.ID })].status = status
	return nil
}

func (f fakeDependencies) DeleteEdges(childSeq int64) error {
	f.data.edges = slices.DeleteFunc(f.data.edges, func(e fakeEdge) bool { return e.ChildSeq == childSeq })
	return nil
}

func (f fakeDependencies) HasEdgeWithStatus(childSeq int64, status store.DependencyStatus) (bool, error) {
	return slices.ContainsFunc(f.data.edges, func(e fakeEdge) bool {
		return e.ChildSeq == childSeq &&
			e.status == status
	}), nil
}

func (f fakeDependencies) UnresolvedParentSeqs(childSeq int64, limit int) (parents []int64, err error) {
	for _, e := range f.data.edges {
		if e.ChildSeq == childSeq && e.status == store.Unresolved && len(parents) < limit {
			parents = append(parents, e.parentSeq)
		}
	}
	return parents, nil
}

func (f fakeDependencies) EdgesToResolve(change ParentStateChange, limit int) (edges []DependencyEdge, err error) {
	status := store.Unresolved
	if change.ParentState == ParentRerunState {
		status = store.Broken
	}
	for _, e := range f.data.edges {
		if e.parentSeq == change.ParentSeq && e.status == status && e.ID <= change.LastEdgeID && len(edges) < limit {
			edges = append(edges, e.DependencyEdge)
		}
	}
	return edges, nil
}

// newestEdgeID returns the highest id of those edges (dependencies) of a parent that are not satisfied.
func (f fakeDependencies) newestEdgeID(parentSeq int64) (edgeID int64) {
	for _, e := range f.data.edges {
		if e.parentSeq == parentSeq && e.status != store.Satisfied {
			edgeID = max(edgeID, e.ID)
		}
	}
	return edgeID
}

func (f fakeDependencies) AddParentStateChange(parentSeq int64, uid int, state queue.State, afterEdgeID int64) error {
	if upto := f.newestEdgeID(parentSeq); upto > afterEdgeID {
		e := ParentStateChange{ID: f.data.nextRowID(), ParentSeq: parentSeq, ParentState: state, LastEdgeID: upto}
		f.data.parentChanges = append(f.data.parentChanges, fakeParentChange{e, uid})
	}
	return nil
}

func (f fakeDependencies) CountParentStateChanges(parentSeq int64) (changeCount int64, newestChange ParentStateChange,
	err error) {
	for _, note := range f.data.parentChanges {
		if note.ParentSeq == parentSeq {
			changeCount, newestChange = changeCount+1, note.ParentStateChange
		}
	}
	return changeCount, newestChange, nil
}

func (f fakeDependencies) ExtendParentRerunChange(parentSeq int64) (found bool, err error) {
	for i := len(f.data.parentChanges) - 1; i >= 0; i-- {
		if note := &f.data.parentChanges[i]; note.ParentSeq == parentSeq && note.ParentState == ParentRerunState {
			note.LastEdgeID = f.newestEdgeID(parentSeq)
			id := note.ID
			f.data.parentChanges = slices.DeleteFunc(f.data.parentChanges,
				func(n fakeParentChange) bool { return n.ParentSeq == parentSeq && n.ID > id })
			return true, nil
		}
	}
	return false, nil
}

// NextParentStateChange returns the notes about parents, by users in turn: the first note of the user with the next
// higher uid or, after the highest uid, of the user with the lowest uid.
func (f fakeDependencies) NextParentStateChange() (ParentStateChange, bool, error) {
	if len(f.data.parentChanges) == 0 {
		return ParentStateChange{}, false, nil
	}
	list := slices.Clone(f.data.parentChanges)
	slices.SortStableFunc(list, func(a, b fakeParentChange) int { return a.ownerUID - b.ownerUID })
	i := max(0, slices.IndexFunc(list, func(n fakeParentChange) bool { return n.ownerUID > f.data.lastServedOwnerUID }))
	f.data.lastServedOwnerUID = list[i].ownerUID
	return list[i].ParentStateChange, true, nil
}

func (f fakeDependencies) PostponeParentStateChanges(parentSeq int64) error {
	isParent := func(n fakeParentChange) bool { return n.ParentSeq == parentSeq }
	var last []fakeParentChange
	for _, n := range f.data.parentChanges {
		if isParent(n) {
			n.ID = f.data.nextRowID()
			last = append(last, n)
		}
	}
	f.data.parentChanges = append(slices.DeleteFunc(f.data.parentChanges, isParent), last...)
	return nil
}

func (f fakeDependencies) DeleteParentStateChange(changeID int64) error {
	f.data.parentChanges = slices.DeleteFunc(f.data.parentChanges,
		func(n fakeParentChange) bool { return n.ID == changeID })
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
	list := f.data.sortedJobs(func(j *Job) bool { return j.Schedule == schedule && j.UID == uid && !j.State.HasEnded() })
	slices.Reverse(list)
	return list[:min(limit, len(list))], nil
}

func (f fakeSchedules) AddOccurrenceRecord(schedule string, r store.OccurrenceRecord) error {
	f.data.occurrenceRecords[schedule] = append(f.data.occurrenceRecords[schedule], r)
	return nil
}
