package engine

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	quick "github.com/go-json-experiment/json"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/dependencies"
	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
	"github.com/queuectl/queuectl/store/statistics"
)

// This file keeps the caches of several nodes consistent.
//
// Each node is one of the services that share the database. It caches counts, users, queues, leases, the
// statistics of the current minute, and the first job of each lane. (A lane holds the jobs of one queue and
// user that need the same locks and other limits.) A transaction that changes any of these stores a cache
// delta in the table changes. A node that takes the writer lock first applies the deltas that it has missed.
// If a delta is missing, too large or of another version, the node reloads its caches from the tables.
//
// A delta holds the values after the transaction, not the operations that led to them, so its parts can be
// applied in any order. See docs/decisions/0027.

// cacheDelta holds the changes that one transaction made to the data that every node caches. A field without
// a comment holds the new value of the field with the same or a similar name in the struct memory.
type cacheDelta struct {
	FormatVersion int `json:"b"` // deltaFormatVersion of the node that wrote the delta
	jobTotals
	dependencies.CachedState
	EmptyLaneCount          int64              `json:"m"`
	HasGates                bool               `json:"y"`
	MetaListsReservedLeases bool               `json:"r,omitempty"`
	OverQuotaLaneCounts     map[int64]int      `json:"v,omitempty"`
	MetaUsersText           string             `json:"ul"` // the text of meta.users
	MetaQueuesText          string             `json:"ql"` // the text of meta.queues
	Users                   []deltaUser        `json:"u,omitempty"`
	Queues                  []deltaQueue       `json:"w,omitempty"`
	Lanes                   []deltaLane        `json:"l,omitempty"`
	Leases                  []*deltaLeaseGroup `json:"h,omitempty"`
	EndedLeaseJobSeqs       []int64            `json:"x,omitempty"` // jobs whose leases ended
	ChangedJobSeqs          []int64            `json:"t,omitempty"` // jobs that changed and are in no other list
	EarliestTimerAt         queue.UnixMillis   `json:"a,omitempty"` // earliest timer that was set; 0 if none
	statistics.MinuteDelta
}

// deltaUser holds the counts of one user. The number of leased jobs is missing, because each node counts the
// leases itself.
type deltaUser struct {
	UID              int   `json:"u"`
	WaitingJobs      int64 `json:"w"`
	WaitingHooks     int64 `json:"h,omitempty"`
	TotalStoredBytes int64 `json:"y,omitempty"` // bytes that the user's jobs hold
	TotalOutputBytes int64 `json:"o,omitempty"` // the part of StoredBytes that belongs to outputs
}

// deltaQueue holds the counts of one queue.
type deltaQueue struct {
	Name string `json:"n"`
	records.QueueCounts
	LaneCount     int   `json:"l"`           // number of lanes
	StaleUserUIDs []int `json:"k,omitempty"` // uids of users whose lanes with demands must be reread
}

// deltaLane holds the new state of a lane (the waiting jobs of one queue and user) whose jobs need no lock or
// other limit, or records that the lane was removed.
type deltaLane struct {
	LaneID       int64          `json:"i,omitempty"` // 0 if the lane was removed
	Queue        string         `json:"q"`
	UID          int            `json:"u"`
	HeadPosition rules.Position `json:"h"`
	// HeadPriority is the priority of the job at HeadPosition.
	HeadPriority   int64 `json:"p"`
	ClosedByGateID int64 `json:"s,omitempty"`
}

// deltaLeaseGroup holds leases that differ only in their jobs and fences. JobSeqs and Fences have one element for each
// lease.
type deltaLeaseGroup struct {
	LaneID          int64            `json:"l"`
	Queue           string           `json:"q"`
	UID             int              `json:"u"`
	NodeID          int64            `json:"n"`
	AttemptsStarted bool             `json:"r,omitempty"`
	GateNeeds       []rules.GateNeed `json:"d,omitempty"`
	JobSeqs         []int64          `json:"s"`
	Fences          []int64          `json:"f"`
}

// pendingDelta collects what is needed to build the cache delta of a transaction. It is nil if no other node
// is active.
type pendingDelta struct {
	// no delta can express the changes, so the other nodes must reload
	otherNodesMustReload bool
	changedLanes         []lanes.DemandFreeLaneKey // lanes without demands that have changed
	// for each queue, the users whose lanes with demands have changed
	staleUsersByQueue           map[*lanes.Queue]map[int]bool
	queuesWithChangedStatistics []string // the queues whose statistics for the current minute changed
}

// requireCacheReload makes the other nodes reload their caches instead of applying a delta.
func (t *Tx) requireCacheReload() {
	if t.delta != nil {
		t.delta.otherNodesMustReload = true
	}
}

// addLaneToDelta records in the cache delta that a lane has changed. The jobs of the lane need no lock or
// other limit.
func (t *Tx) addLaneToDelta(l *rules.Lane) {
	if t.delta != nil {
		t.delta.changedLanes = append(t.delta.changedLanes, lanes.DemandFreeKeyOf(l))
	}
}

// addQueueToDelta notes that the counts of a queue have changed.
func (t *Tx) addQueueToDelta(q *lanes.Queue) {
	if t.delta != nil && t.delta.staleUsersByQueue[q] == nil {
		t.delta.staleUsersByQueue[q] = map[int]bool{}
	}
}

// addStaleUserToDelta makes the other nodes read the lanes of one user in a queue again: those whose jobs
// need locks or other limits.
func (t *Tx) addStaleUserToDelta(q *lanes.Queue, uid int) {
	if t.addQueueToDelta(q); t.delta != nil {
		t.delta.staleUsersByQueue[q][uid] = true
	}
}

// deltaFormatVersion is the version of the format of cache deltas. A node that gets another version reloads its
// caches. While nodes are upgraded one by one, several versions may be in use.
const deltaFormatVersion = 5

// maxOtherNodeChangesNotified is the maximum number of jobs changed by other nodes, and of their users, whose watchers
// this node notifies one by one. If there are more, it notifies all watchers once.
const maxOtherNodeChangesNotified = 10_000

// maxDeltaBytes is the maximum size of a cache delta in bytes. If a delta is larger, the other nodes reload
// their caches.
const maxDeltaBytes = 64 << 10

// buildDelta returns the cache delta of the transaction as JSON. It returns nil if the other nodes must reload their
// caches.
func (t *Tx) buildDelta() ([]byte, error) {
	b := &t.memoryAtStart
	if t.delta.otherNodesMustReload || t.statistics.RolledUpUntilByGrain != b.statistics.RolledUpUntilByGrain ||
		t.rankOrder != b.rankOrder || !slices.Equal(t.gates.ResourceGateIDs, b.gates.ResourceGateIDs) {
		return nil, nil
	}
	n := cacheDelta{FormatVersion: deltaFormatVersion, jobTotals: t.jobTotals, CachedState: t.dependencies,
		EmptyLaneCount: t.emptyLaneCount, HasGates: t.gates.HasGates,
		MetaListsReservedLeases: t.metaListsReservedLeases, EarliestTimerAt: t.earliestTimerAt,
		OverQuotaLaneCounts: t.lanes.OverQuotaLaneCounts,
		MetaUsersText:       t.metaUsersText, MetaQueuesText: t.metaQueuesText}
	for uid := range t.userCountsBefore {
		u := t.users[uid]
		n.Users = append(n.Users, deltaUser{uid, u.WaitingJobs, u.waitingHooks, u.StoredBytes, u.OutputBytes})
	}
	for q := range t.queueCountsBefore {
		t.addQueueToDelta(q)
	}
	for q, users := range t.delta.staleUsersByQueue {
		n.Queues = append(n.Queues, deltaQueue{q.Name, q.StoredCounts(), q.LaneCount, slices.Sorted(maps.Keys(users))})
	}
	slices.SortFunc(t.delta.changedLanes, func(a, b lanes.DemandFreeLaneKey) int {
		return cmp.Or(strings.Compare(a.Queue, b.Queue), a.UID-b.UID)
	})
	for _, name := range slices.Compact(t.delta.changedLanes) {
		lane := deltaLane{Queue: name.Queue, UID: name.UID}
		if l := t.lanes.DemandFreeLanes[name]; l != nil {
			lane.LaneID, lane.HeadPosition, lane.HeadPriority, lane.ClosedByGateID = l.ID, l.Head, l.Priority, l.ClosedBy
			if t.isClosedForMissingAccount(l) {
				lane.ClosedByGateID = rules.Open
			}
		}
		n.Lanes = append(n.Lanes, lane)
	}
	n.addChangedLeases(t)
	n.MinuteDelta = t.engine.minuteStats.DeltaOfRows(t.delta.queuesWithChangedStatistics)
	text, err := json.Marshal(n)
	if len(text) > maxDeltaBytes {
		return nil, nil
	}
	return text, err
}

// addChangedLeases adds to the delta the leases that the transaction changed or ended, and the other jobs that it
// changed.
func (d *cacheDelta) addChangedLeases(t *Tx) {
	seqs := slices.Clone(t.changedLeaseJobSeqs)
	slices.Sort(seqs)
	seqs = slices.Compact(seqs)
	groups := map[leaseGroupKey]*deltaLeaseGroup{}
	for _, seq := range seqs {
		l := t.leases[seq]
		if l == nil {
			d.EndedLeaseJobSeqs = append(d.EndedLeaseJobSeqs, seq)
			continue
		}
		key := leaseGroupKey{l.Job.LaneID, l.Job.LastLeasingNodeID, l.AttemptStarted}
		group := groups[key]
		if group == nil {
			group = &deltaLeaseGroup{LaneID: l.Job.LaneID, Queue: l.Job.Queue, UID: l.Job.UID, NodeID: l.Job.LastLeasingNodeID,
				AttemptsStarted: l.AttemptStarted, GateNeeds: l.HeldGateUnits}
			groups[key], d.Leases = group, append(d.Leases, group)
		}
		group.JobSeqs, group.Fences = append(group.JobSeqs, seq), append(group.Fences, l.Job.Fence)
	}
	for _, seq := range t.changedJobSeqs {
		if _, leased := slices.BinarySearch(seqs, seq); !leased {
			d.ChangedJobSeqs = append(d.ChangedJobSeqs, seq)
		}
	}
}

// leaseGroupKey holds the values that all leases in one deltaLeaseGroup share.
type leaseGroupKey struct {
	laneID, nodeID  int64
	attemptsStarted bool
}

// errUnknownDeltaVersion is the error for a cache delta in the format of another version.
var errUnknownDeltaVersion = errors.New("another version of the service wrote the change")

// applyDelta applies the cache delta that another node stored with a commit. commitNumber is the number of that commit.
func (t *Tx) applyDelta(commitNumber int64, deltaJSON []byte) error {
	var delta cacheDelta
	// The node holds the writer lock here. For long lists of numbers, encoding/json would take more than twice as long.
	if err := quick.Unmarshal(deltaJSON, &delta); err != nil {
		return err
	}
	if delta.FormatVersion != deltaFormatVersion {
		return errUnknownDeltaVersion
	}
	usersListed, err := database.ParseUserCounts(delta.MetaUsersText)
	if err != nil {
		return err
	}
	queuesListed, err := records.ParseQueueCounts(delta.MetaQueuesText)
	if err != nil {
		return err
	}
	s, ls := t.engine, t.lanes
	t.commitCount, t.jobTotals = commitNumber, delta.jobTotals
	delta.LastProcessedChangeUID = t.dependencies.LastProcessedChangeUID
	t.dependencies = delta.CachedState
	t.metaUsersText, t.metaUserUIDs = delta.MetaUsersText, slices.Collect(maps.Keys(usersListed))
	t.metaQueuesText, t.metaQueueNames = delta.MetaQueuesText, slices.Collect(maps.Keys(queuesListed))
	s.applyUserAndQueueCounts(&delta)
	for i := range delta.Lanes {
		applyDeltaLane(ls, &delta.Lanes[i])
	}
	for _, leases := range delta.Leases {
		t.applyDeltaLeases(leases)
	}
	hadNeeds := t.applyDeltaEndedLeases(delta.EndedLeaseJobSeqs)
	s.changesByOtherNodes.jobSeqs = append(append(s.changesByOtherNodes.jobSeqs, delta.EndedLeaseJobSeqs...),
		delta.ChangedJobSeqs...)
	t.metaListsReservedLeases, t.emptyLaneCount = delta.MetaListsReservedLeases, delta.EmptyLaneCount
	t.gates.HasGates, ls.OverQuotaLaneCounts = delta.HasGates, delta.OverQuotaLaneCounts
	if ls.OverQuotaLaneCounts == nil {
		ls.OverQuotaLaneCounts = map[int64]int{}
	}
	if slices.ContainsFunc(delta.Queues, func(q deltaQueue) bool { return len(q.StaleUserUIDs) > 0 }) ||
		slices.ContainsFunc(delta.Leases, func(l *deltaLeaseGroup) bool { return len(l.GateNeeds) > 0 }) || hadNeeds {
		// The other node may have freed a lock or resource. Check again the lanes that are closed only on this node.
		t.locallyClosedLanesStale = true
		t.checkOtherNodeTimerLater(t.startTime)
	}
	t.checkOtherNodeTimerLater(delta.EarliestTimerAt)
	s.minuteStats.ApplyDelta(&delta.MinuteDelta)
	if max(len(s.changesByOtherNodes.jobSeqs), len(s.changesByOtherNodes.userUIDs)) > maxOtherNodeChangesNotified {
		s.changesByOtherNodes = changesByOtherNodes{anyJobMayHaveChanged: true}
	}
	return nil
}

// applyUserAndQueueCounts sets the counts of users and queues to the values that another node reported.
func (e *Engine) applyUserAndQueueCounts(delta *cacheDelta) {
	m := &e.cache
	for _, changed := range delta.Users {
		m.changeUserCounts(changed.UID, func(u *userCounts) {
			u.WaitingJobs, u.waitingHooks, u.StoredBytes, u.OutputBytes =
				changed.WaitingJobs, changed.WaitingHooks, changed.TotalStoredBytes, changed.TotalOutputBytes
		})
		e.changesByOtherNodes.userUIDs = append(e.changesByOtherNodes.userUIDs, changed.UID)
	}
	for _, changed := range delta.Queues {
		q := m.lanes.FindOrAddQueue(changed.Name)
		m.ownRetentionJobCount += changed.RetainedJobs - q.RetainedJobs
		q.SetStoredCounts(changed.QueueCounts)
		q.LaneCount = changed.LaneCount
		for _, uid := range changed.StaleUserUIDs {
			m.lanes.MarkUserLanesStale(q, uid)
		}
	}
}

// applyDeltaEndedLeases removes leases that another node has ended. It reports whether any of these jobs held a
// lock, a resource or another limit.
func (t *Tx) applyDeltaEndedLeases(jobSeqs []int64) (anyHeldGateUnits bool) {
	for _, seq := range jobSeqs {
		if l := t.leases[seq]; l != nil {
			anyHeldGateUnits = anyHeldGateUnits || len(l.HeldGateUnits) > 0
			t.adjustUsedGateUnits(l, -1)
			t.databaseCache.adjustLeasedJobCounts(l.Job.UID, l.Job.Queue, -1)
			delete(t.leases, seq)
			if t.maxLeasedPerUser > 0 {
				t.rules.MarkGateDirty(rules.UserQuotaGateID(l.Job.UID))
			}
		}
	}
	return anyHeldGateUnits
}

// checkOtherNodeTimerLater makes this node check later whether another node has acted on one of its timers. The check
// takes place otherNodeTimerGrace after the timer is due, but at the latest in about an hour. If the other node has not
// acted on the timer by then, this node does.
func (t *Tx) checkOtherNodeTimerLater(timerAt queue.UnixMillis) {
	e, now := t.engine, t.startTime
	if timerAt == 0 || e.otherNodeTimerCheckAt > now && e.otherNodeTimerCheckAt <= timerAt.Add(otherNodeTimerGrace) {
		return
	}
	e.otherNodeTimerCheckAt = min(timerAt, now.Add(time.Hour)).Add(otherNodeTimerGrace)
	wait := time.Duration(e.otherNodeTimerCheckAt-now) * time.Millisecond
	time.AfterFunc(wait, func() { queue.TrySend(e.dueChangeHints, struct{}{}) })
}

// otherNodeTimerGrace is how late a node may act on its own timers. After this time, another node acts on them.
const otherNodeTimerGrace = time.Second

// applyDeltaLeases adds leases of another node to the cache, with only those fields of the jobs that are usually
// needed. loadFullLease reads the other fields.
func (t *Tx) applyDeltaLeases(leases *deltaLeaseGroup) {
	newLeases := 0
	var block []rules.Lease
	for k, seq := range leases.JobSeqs {
		old := t.leases[seq]
		if len(block) == 0 {
			// Allocate up to 16 leases together: this needs few allocations, and one remaining lease keeps little memory
			// in use.
			block = make([]rules.Lease, min(16, len(leases.JobSeqs)-k))
		}
		l := &block[0]
		block = block[1:]
		l.AttemptStarted, l.HeldGateUnits = leases.AttemptsStarted, leases.GateNeeds
		l.Job.Seq, l.Job.Queue, l.Job.UID = seq, leases.Queue, leases.UID
		l.Job.LaneID, l.Job.LastLeasingNodeID, l.Job.Fence = leases.LaneID, leases.NodeID, leases.Fences[k]
		t.leases[seq] = l
		t.adjustUsedGateUnits(old, -1)
		t.adjustUsedGateUnits(l, 1)
		if old == nil {
			newLeases++
		}
	}
	t.databaseCache.adjustLeasedJobCounts(leases.UID, leases.Queue, newLeases)
	t.engine.changesByOtherNodes.jobSeqs = append(t.engine.changesByOtherNodes.jobSeqs, leases.JobSeqs...)
}

// applyDeltaLane sets a lane to the state that another node has reported. The jobs of the lane need no lock or
// other limit.
func applyDeltaLane(cachedLanes *lanes.LaneCache, newState *deltaLane) {
	l := cachedLanes.DemandFreeLanes[lanes.DemandFreeLaneKey{Queue: newState.Queue, UID: newState.UID}]
	switch {
	case newState.LaneID != 0:
		if l == nil {
			l = &rules.Lane{Queue: newState.Queue, UID: newState.UID, ClosedBy: rules.Empty, HeapIndex: -1}
			cachedLanes.AddDemandFreeLane(l)
		}
		l.ID, l.Head, l.Priority, l.ClosedBy = newState.LaneID, newState.HeadPosition, newState.HeadPriority,
			newState.ClosedByGateID
		cachedLanes.UpdateDemandFreeLane(l)
	case l != nil:
		cachedLanes.RemoveDemandFreeLane(l)
	}
}

// loadFullLease returns a lease with all fields of its job. If another node claimed the job, the cache contains only
// some of these fields, so loadFullLease reads the job's row.
func (t *Tx) loadFullLease(l *rules.Lease) (*rules.Lease, error) {
	if l == nil || l.Job.ID != "" {
		return l, nil
	}
	// Do not read a row that this transaction wrote before it held the writer lock, because the rules have
	// not confirmed this row yet.
	if t.prewrite.hasUnconfirmedJob(l.Job.Seq) {
		return l, errPrewriteMismatch
	}
	j, err := t.Job(l.Job.Seq, rules.ReadScopeSummary)
	if errors.Is(err, queue.ErrNotFound) { // the job's row is lost, so only the cached part is known
		return l, nil
	}
	if err != nil {
		return l, err
	}
	j.Fence, j.LastLeasingNodeID = l.Job.Fence, l.Job.LastLeasingNodeID
	l = &rules.Lease{Job: j, AttemptStarted: l.AttemptStarted, HeldGateUnits: l.HeldGateUnits, UserTurn: l.UserTurn}
	t.leases[j.Seq] = l
	return l, nil
}
