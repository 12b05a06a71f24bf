package engine

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

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
	Version       int                        `json:"b"` // deltaVersion of the node that wrote the delta
	NextSeq       int64                      `json:"s"`
	NextEvent     int64                      `json:"e"`
	EnqueuedTotal int64                      `json:"q"`
	Counts        [queue.Cancelled + 1]int64 `json:"c"` // number of jobs by state
	OutputBytes   int64                      `json:"o"`
	dependencies.State
	EmptyLanes     int64         `json:"m"`
	HasGates       bool          `json:"y"`
	ReservedInMeta bool          `json:"r,omitempty"`
	OverQuota      map[int64]int `json:"v,omitempty"`
	UserList       string        `json:"ul"` // the text of meta.users
	QueueList      string        `json:"ql"` // the text of meta.queues
	Users          []deltaUser   `json:"u,omitempty"`
	Queues         []deltaQueue  `json:"w,omitempty"`
	Lanes          []deltaLane   `json:"l,omitempty"`
	Leases         []deltaLeases `json:"h,omitempty"`
	EndedLeases    []int64       `json:"x,omitempty"` // jobs whose leases ended
	ChangedJobs    []int64       `json:"t,omitempty"` // jobs that changed and are in no other list
	EarliestTimer  queue.Millis  `json:"a,omitempty"` // earliest timer that was set; 0 if none
	statistics.Delta
}

// deltaUser holds the counts of one user. The number of leased jobs is missing, because each node counts the
// leases itself.
type deltaUser struct {
	UID         int   `json:"u"`
	Waiting     int64 `json:"w"`
	Hooks       int64 `json:"h,omitempty"`
	Bytes       int64 `json:"y,omitempty"` // bytes that the user's jobs hold
	OutputBytes int64 `json:"o,omitempty"` // the part of Bytes that belongs to outputs
}

// deltaQueue holds the counts of one queue.
type deltaQueue struct {
	Name string `json:"n"`
	records.QueueCounts
	Lanes      int   `json:"l"`           // number of lanes
	StaleUsers []int `json:"k,omitempty"` // uids of users whose lanes with demands must be reread
}

// deltaLane holds the new state of a lane (the waiting jobs of one queue and user) whose jobs need no lock or
// other limit, or records that the lane was removed.
type deltaLane struct {
	ID    int64          `json:"i,omitempty"` // 0 if the lane was removed
	Queue string         `json:"q"`
	UID   int            `json:"u"`
	Head  rules.Position `json:"h"`
	// Priority is the priority of the job at Head.
	Priority int64 `json:"p"`
	ClosedBy int64 `json:"s,omitempty"`
}

// deltaLeases holds leases that differ only in their jobs and fences. Seqs and Fences have one element for each lease.
type deltaLeases struct {
	Lane    int64        `json:"l"`
	Queue   string       `json:"q"`
	UID     int          `json:"u"`
	Node    int64        `json:"n"`
	Running bool         `json:"r,omitempty"`
	Needs   []rules.Need `json:"d,omitempty"`
	Seqs    []int64      `json:"s"`
	Fences  []int64      `json:"f"`
}

// pendingDelta collects what is needed to build the cache delta of a transaction. It is nil if no other node
// is active.
type pendingDelta struct {
	mustReload   bool                          // a change that no delta can express: the other nodes must reload
	lanes        []lanes.Name                  // lanes without demands that have changed
	queues       map[*lanes.Queue]map[int]bool // for each queue, the users whose lanes with demands have changed
	minuteQueues []string                      // the queues whose statistics for the current minute changed
}

// requireReload makes the other nodes reload their caches instead of applying a delta.
func (t *Tx) requireReload() {
	if t.delta != nil {
		t.delta.mustReload = true
	}
}

// addLaneToDelta records in the cache delta that a lane has changed. The jobs of the lane need no lock or
// other limit.
func (t *Tx) addLaneToDelta(l *rules.Lane) {
	if t.delta != nil {
		t.delta.lanes = append(t.delta.lanes, lanes.NameOf(l))
	}
}

// addQueueToDelta notes that the counts of a queue have changed.
func (t *Tx) addQueueToDelta(q *lanes.Queue) {
	if t.delta != nil && t.delta.queues[q] == nil {
		t.delta.queues[q] = map[int]bool{}
	}
}

// addStaleUserToDelta makes the other nodes read the lanes of one user in a queue again: those whose jobs
// need locks or other limits.
func (t *Tx) addStaleUserToDelta(q *lanes.Queue, uid int) {
	if t.addQueueToDelta(q); t.delta != nil {
		t.delta.queues[q][uid] = true
	}
}

// deltaVersion is the version of the format of cache deltas. A node that gets another version reloads its
// caches. While nodes are upgraded one by one, several versions may be in use.
const deltaVersion = 5

// maxForeignNotices is the maximum number of jobs changed by other nodes, and of their users, whose watchers
// this node notifies one by one. If there are more, it notifies all watchers once.
const maxForeignNotices = 10_000

// maxDeltaBytes is the maximum size of a cache delta in bytes. If a delta is larger, the other nodes reload
// their caches.
const maxDeltaBytes = 64 << 10

// buildDelta returns the cache delta of the transaction as JSON. It returns nil if the other nodes must
// reload.
func (t *Tx) buildDelta() ([]byte, error) {
	m, b := &t.engine.mem, &t.memoryAtStart
	if t.delta.mustReload || m.statistics.SummedUpTo != b.statistics.SummedUpTo || m.rankOrder != b.rankOrder ||
		m.committedJobs != b.committedJobs || !slices.Equal(m.gates.ResourceList, b.gates.ResourceList) {
		return nil, nil
	}
	n := cacheDelta{Version: deltaVersion, NextSeq: m.nextSeq, NextEvent: m.nextEvent, EnqueuedTotal: m.enqueuedTotal,
		Counts: m.jobCounts, OutputBytes: m.outputBytes, State: m.dependencies, EmptyLanes: m.emptyLanes,
		HasGates:       m.gates.HasGates,
		ReservedInMeta: m.reservedInMeta, EarliestTimer: t.earliestTimer, OverQuota: m.lanes.OverQuota,
		UserList: m.userList, QueueList: m.queueList}
	for uid := range t.usersBefore {
		u := m.users[uid]
		n.Users = append(n.Users, deltaUser{uid, u.waitingJobs, u.waitingHooks, u.storedBytes, u.outputBytes})
	}
	for q := range t.queueCountsBefore {
		t.addQueueToDelta(q)
	}
	for q, users := range t.delta.queues {
		n.Queues = append(n.Queues, deltaQueue{q.Name, q.StoredCounts(), q.LaneCount, slices.Sorted(maps.Keys(users))})
	}
	slices.SortFunc(t.delta.lanes, func(a, b lanes.Name) int {
		return cmp.Or(strings.Compare(a.Queue, b.Queue), a.UID-b.UID)
	})
	for _, name := range slices.Compact(t.delta.lanes) {
		lane := deltaLane{Queue: name.Queue, UID: name.UID}
		if l := m.lanes.PlainLanes[name]; l != nil {
			lane.ID, lane.Head, lane.Priority, lane.ClosedBy = l.ID, l.Head, l.Priority, l.ClosedBy
			if m.closedForUnknownUser(l) {
				lane.ClosedBy = rules.Open
			}
		}
		n.Lanes = append(n.Lanes, lane)
	}
	n.addLeases(t)
	n.Delta = t.engine.minuteStats.Delta(t.delta.minuteQueues)
	text, err := json.Marshal(n)
	if len(text) > maxDeltaBytes {
		return nil, nil
	}
	return text, err
}

// addLeases adds to the delta the leases that the transaction changed or ended, and the other jobs that it changed.
func (d *cacheDelta) addLeases(t *Tx) {
	seqs := slices.Clone(t.leaseSeqs)
	slices.Sort(seqs)
	seqs = slices.Compact(seqs)
	groupOf := map[leaseGroupKey]int{}
	for _, seq := range seqs {
		l := t.engine.mem.leases[seq]
		if l == nil {
			d.EndedLeases = append(d.EndedLeases, seq)
			continue
		}
		kind := leaseGroupKey{l.Job.Lane, l.Job.Node, l.Running}
		i, known := groupOf[kind]
		if !known {
			i = len(d.Leases)
			groupOf[kind] = i
			d.Leases = append(d.Leases, deltaLeases{Lane: l.Job.Lane, Queue: l.Job.Queue, UID: l.Job.UID, Node: l.Job.Node,
				Running: l.Running, Needs: l.Needs})
		}
		group := &d.Leases[i]
		group.Seqs, group.Fences = append(group.Seqs, seq), append(group.Fences, l.Job.Fence)
	}
	for _, seq := range t.touchedJobs {
		if _, leased := slices.BinarySearch(seqs, seq); !leased {
			d.ChangedJobs = append(d.ChangedJobs, seq)
		}
	}
}

// leaseGroupKey holds the values that all leases in one deltaLeases share.
type leaseGroupKey struct {
	lane, node int64
	running    bool
}

// errDeltaVersion is the error for a cache delta in the format of another version.
var errDeltaVersion = errors.New("another version of the service wrote the change")

// applyDelta applies the cache delta that another node stored with its commit of the given number.
func (t *Tx) applyDelta(commits int64, deltaJSON []byte) error {
	var delta cacheDelta
	if err := json.Unmarshal(deltaJSON, &delta); err != nil {
		return err
	}
	if delta.Version != deltaVersion {
		return errDeltaVersion
	}
	usersListed, err := database.ParseUserCounts(delta.UserList)
	if err != nil {
		return err
	}
	queuesListed, err := records.ParseQueueCounts(delta.QueueList)
	if err != nil {
		return err
	}
	s, m := t.engine, &t.engine.mem
	ls := m.lanes
	m.commits, m.nextSeq, m.nextEvent, m.enqueuedTotal, m.jobCounts, m.outputBytes = commits, delta.NextSeq,
		delta.NextEvent, delta.EnqueuedTotal, delta.Counts, delta.OutputBytes
	delta.LastDecidedUID = m.dependencies.LastDecidedUID
	m.dependencies = delta.State
	m.userList, m.listedUsers = delta.UserList, slices.Collect(maps.Keys(usersListed))
	m.queueList, m.listedQueues = delta.QueueList, slices.Collect(maps.Keys(queuesListed))
	s.applyCounts(&delta)
	for i := range delta.Lanes {
		applyLane(ls, &delta.Lanes[i])
	}
	for i := range delta.Leases {
		t.applyLeases(&delta.Leases[i])
	}
	hadNeeds := t.applyEndedLeases(delta.EndedLeases)
	s.foreignChanges.seqs = append(append(s.foreignChanges.seqs, delta.EndedLeases...), delta.ChangedJobs...)
	m.reservedInMeta, m.emptyLanes = delta.ReservedInMeta, delta.EmptyLanes
	m.gates.HasGates, ls.OverQuota = delta.HasGates, delta.OverQuota
	if ls.OverQuota == nil {
		ls.OverQuota = map[int64]int{}
	}
	if slices.ContainsFunc(delta.Queues, func(q deltaQueue) bool { return len(q.StaleUsers) > 0 }) ||
		slices.ContainsFunc(delta.Leases, func(l deltaLeases) bool { return len(l.Needs) > 0 }) || hadNeeds {
		// The other node may have freed a lock or resource. Check again the lanes that are closed only for
		// this node.
		s.closedHereStale = true
		s.watchForeignTimer(t.startTime, t.startTime)
	}
	s.watchForeignTimer(t.startTime, delta.EarliestTimer)
	s.minuteStats.Apply(&delta.Delta)
	if max(len(s.foreignChanges.seqs), len(s.foreignChanges.uids)) > maxForeignNotices {
		s.foreignChanges = foreignChanges{anyJob: true}
	}
	return nil
}

// applyCounts sets the counts of users and queues to the values that another node reported.
func (e *Engine) applyCounts(delta *cacheDelta) {
	m := &e.mem
	for _, changed := range delta.Users {
		m.changeUser(changed.UID, func(u *user) {
			u.waitingJobs, u.waitingHooks, u.storedBytes, u.outputBytes =
				changed.Waiting, changed.Hooks, changed.Bytes, changed.OutputBytes
		})
		e.foreignChanges.uids = append(e.foreignChanges.uids, changed.UID)
	}
	for _, changed := range delta.Queues {
		q := m.lanes.Queue(changed.Name)
		m.retainedJobs += changed.RetainedJobs - q.RetainedJobs
		q.SetStoredCounts(changed.QueueCounts)
		q.LaneCount = changed.Lanes
		for _, uid := range changed.StaleUsers {
			m.lanes.MarkStaleUser(q, uid)
		}
	}
}

// applyEndedLeases removes leases that another node has ended. It reports whether any of these jobs held a
// lock, a resource or another limit.
func (t *Tx) applyEndedLeases(seqs []int64) (hadNeeds bool) {
	m := &t.engine.mem
	for _, seq := range seqs {
		if l := m.leases[seq]; l != nil {
			hadNeeds = hadNeeds || len(l.Needs) > 0
			t.adjustUsedUnits(l, -1)
			m.countLease(l.Job.UID, l.Job.Queue, -1)
			delete(m.leases, seq)
			if m.maxLeasedPerUser > 0 {
				t.rules.MarkGateDirty(rules.UserGate(l.Job.UID))
			}
		}
	}
	return hadNeeds
}

// watchForeignTimer makes this node check a timer that another node has set. It checks foreignTimerGrace
// after the timer is due, but at the latest in about an hour. If the other node has not acted on the timer by
// then, this node does.
func (e *Engine) watchForeignTimer(now, timerAt queue.Millis) {
	if timerAt == 0 || e.foreignTimerAt > now && e.foreignTimerAt <= timerAt.Add(foreignTimerGrace) {
		return
	}
	e.foreignTimerAt = min(timerAt, now.Add(time.Hour)).Add(foreignTimerGrace)
	wait := time.Duration(e.foreignTimerAt-now) * time.Millisecond
	time.AfterFunc(wait, func() { queue.TrySend(e.promoteHints, struct{}{}) })
}

// foreignTimerGrace is how late a node may act on its own timers. After this time, another node acts on them.
const foreignTimerGrace = time.Second

// applyLeases adds leases of another node to the cache, with only those fields of the jobs that are usually
// needed. loadFullLease reads the other fields.
func (t *Tx) applyLeases(leases *deltaLeases) {
	m := &t.engine.mem
	for k, seq := range leases.Seqs {
		old := m.leases[seq]
		l := &rules.Lease{Running: leases.Running, Needs: leases.Needs}
		l.Job.Seq, l.Job.Queue, l.Job.UID, l.Job.Lane, l.Job.Node, l.Job.Fence = seq, leases.Queue, leases.UID, leases.Lane,
			leases.Node, leases.Fences[k]
		m.leases[seq] = l
		t.adjustUsedUnits(old, -1)
		t.adjustUsedUnits(l, 1)
		if old == nil {
			m.countLease(leases.UID, leases.Queue, 1)
		}
		t.engine.foreignChanges.seqs = append(t.engine.foreignChanges.seqs, seq)
	}
}

// applyLane sets a lane to the state that another node has reported. The jobs of the lane need no lock or
// other limit.
func applyLane(ls *lanes.Lanes, newState *deltaLane) {
	l := ls.PlainLanes[lanes.Name{Queue: newState.Queue, UID: newState.UID}]
	switch {
	case newState.ID == 0 && l != nil:
		ls.Remove(l)
	case newState.ID == 0:
	case l == nil:
		ls.Add(&rules.Lane{ID: newState.ID, Queue: newState.Queue, UID: newState.UID, Head: newState.Head,
			Priority: newState.Priority, ClosedBy: newState.ClosedBy, HeapIndex: -1})
	default:
		l.ID, l.Head, l.Priority, l.ClosedBy = newState.ID, newState.Head, newState.Priority, newState.ClosedBy
		ls.Update(l)
	}
}

// loadFullLease returns a lease with all fields of its job. If another node claimed the job, the cache
// contains only some of them, so loadFullLease reads the job's row.
func (t *Tx) loadFullLease(l *rules.Lease) (*rules.Lease, error) {
	if l == nil || l.Job.ID != "" {
		return l, nil
	}
	// Do not read a row that this transaction wrote before it held the writer lock, because the rules have
	// not confirmed this row yet.
	if t.prewrite.covers(l.Job.Seq) {
		return l, errPrewrite
	}
	j, err := t.Job(l.Job.Seq, rules.ReadSummary)
	if errors.Is(err, queue.ErrNotFound) { // the job's row is lost, so only the cached part is known
		return l, nil
	}
	if err != nil {
		return l, err
	}
	j.Fence, j.Node = l.Job.Fence, l.Job.Node
	l = &rules.Lease{Job: j, Running: l.Running, Needs: l.Needs, Turn: l.Turn}
	t.engine.mem.leases[j.Seq] = l
	return l, nil
}
