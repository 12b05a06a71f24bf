package sql

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/rules"
)

// This file keeps the caches of several nodes consistent.
//
// Every node caches counts, users, queues, lane heads, leases and the statistics of the current minute. A
// transaction that changes any of these stores a cache delta, called news here, in the table changes. A node
// that takes the writer lock first applies the deltas that it has missed. If a delta is missing, too large or
// of another version, the node reloads its caches from the tables.
//
// A delta holds the values after the transaction, not the operations that led to them, so the order of its
// parts does not matter.
// See docs/decisions/0027.

// news is a cache delta: the changes that one transaction made to the state that every node caches. A field
// without a comment holds the new value of the field of memory with the same or a similar name.
type news struct {
	Version   int                        `json:"b"` // newsVersion of the node that wrote the delta
	NextSeq   int64                      `json:"s"`
	NextEvent int64                      `json:"e"`
	Enqueued  int64                      `json:"q"`
	Counts    [queue.Cancelled + 1]int64 `json:"c"`
	Outputs   int64                      `json:"o"`
	Linked    bool                       `json:"k"`
	Ended     int64                      `json:"d"`
	Empties   int64                      `json:"m"`
	Keyed     bool                       `json:"y"`
	Gathered  bool                       `json:"r,omitempty"`
	Over      map[int64]int              `json:"v,omitempty"`
	List      string                     `json:"ul"` // the text of meta.users
	Listed    string                     `json:"ql"` // the text of meta.queues
	Users     []newsUser                 `json:"u,omitempty"`
	Queues    []newsQueue                `json:"w,omitempty"`
	Lanes     []newsLane                 `json:"l,omitempty"`
	Leases    []newsLeases               `json:"h,omitempty"`
	Ends      []int64                    `json:"x,omitempty"` // jobs whose leases ended
	Touched   []int64                    `json:"t,omitempty"` // other jobs that changed
	Due       queue.Millis               `json:"a,omitempty"` // earliest timer that was set; 0 if none
	Minute    queue.Millis               `json:"f,omitempty"` // the minute that Figures counts
	Figures   []newsFigures              `json:"g,omitempty"`
}

// newsUser holds the counts of one user, except the number of leased jobs, which follows from the leases.
type newsUser struct {
	UID     int   `json:"u"`
	Waiting int64 `json:"w"`
	Hooks   int64 `json:"h,omitempty"`
	Bytes   int64 `json:"y,omitempty"` // bytes that the user's jobs hold
	Outputs int64 `json:"o,omitempty"` // the part of Bytes that belongs to outputs
}

type newsQueue struct {
	Name    string `json:"n"`
	Waiting int64  `json:"w"`
	UID     int    `json:"u"`
	Kept    int64  `json:"e,omitempty"`
	Bytes   int64  `json:"o,omitempty"` // bytes of the outputs of the Kept jobs
	Lanes   int    `json:"l"`
	Keyed   []int  `json:"k,omitempty"` // uids of the users whose lanes with demands have changed
}

// newsLane holds the new state of a lane without demands, or records that the lane was removed.
type newsLane struct {
	ID    int64          `json:"i,omitempty"` // 0 if the lane was removed
	Queue string         `json:"q"`
	UID   int            `json:"u"`
	Head  rules.Position `json:"h"`
	// Priority is the priority of the job at Head.
	Priority int64 `json:"p"`
	Shut     int64 `json:"s,omitempty"`
}

// newsLeases holds leases that differ only in their jobs and fences.
type newsLeases struct {
	Lane    int64        `json:"l"`
	Queue   string       `json:"q"`
	UID     int          `json:"u"`
	Node    int64        `json:"n"`
	Running bool         `json:"r,omitempty"`
	Needs   []rules.Need `json:"d,omitempty"`
	Seqs    []int64      `json:"s"`
	Fences  []int64      `json:"f"`
}

type newsFigures struct {
	Queue  string   `json:"q"`
	Counts [6]int64 `json:"c"`
	Waits  []byte   `json:"w"`
	Runs   []byte   `json:"r"`
}

// told collects what a transaction needs to build its cache delta. It is nil if no other node is active.
type told struct {
	whole  bool // a change that no delta can express: the other nodes must reload
	lanes  []laneName
	queues map[*queueState]map[int]bool // for each queue, the users whose lanes with demands have changed
	minute []string                     // the queues whose statistics for the current minute changed
}

// tellAll makes the other nodes reload their caches instead of applying a delta.
func (t *tx) tellAll() {
	if t.told != nil {
		t.told.whole = true
	}
}

func (t *tx) tellLane(l *rules.Lane) {
	if t.told != nil {
		t.told.lanes = append(t.told.lanes, laneName{l.Queue, l.UID})
	}
}

func (t *tx) noteQueue(q *queueState) {
	if t.told != nil && t.told.queues[q] == nil {
		t.told.queues[q] = map[int]bool{}
	}
}

// noteOpenLanes makes the other nodes read again which lanes with demands of a user are open.
func (t *tx) noteOpenLanes(q *queueState, uid int) {
	if t.noteQueue(q); t.told != nil {
		t.told.queues[q][uid] = true
	}
}

// newsVersion is the version of this format. A node that does not know the version reads everything again.
// Two versions are in use while nodes are upgraded one after the other.
const newsVersion = 5

// foreignMost is the number of changed jobs or users up to which watchers are notified of each one. If more
// have changed, all watchers are notified.
const foreignMost = 10_000

// newsMost is the maximum size of a cache delta in bytes. If a delta is larger, the other nodes reload.
const newsMost = 64 << 10

// news returns the cache delta of the transaction as JSON. It returns nil if the other nodes must reload.
func (t *tx) news() ([]byte, error) {
	m, b := &t.s.mem, &t.before
	if t.told.whole || m.upto != b.upto || m.rankedBy != b.rankedBy || m.order != b.order || m.ranking != b.ranking || m.committed != b.committed {
		return nil, nil
	}
	n := news{Version: newsVersion, NextSeq: m.nextSeq, NextEvent: m.nextEvent, Enqueued: m.enqueued, Counts: m.counts, Outputs: m.outputs, Linked: m.linked, Ended: m.ended,
		Empties: m.empties, Keyed: m.lanes.keyed, Gathered: m.gathered, Due: t.due, Over: m.lanes.over, List: m.list, Listed: m.queues}
	for uid := range t.users {
		u := m.users[uid]
		n.Users = append(n.Users, newsUser{uid, u.waiting, u.hooks, u.bytes, u.outputs})
	}
	for q := range t.queues {
		t.noteQueue(q)
	}
	for q, users := range t.told.queues {
		n.Queues = append(n.Queues, newsQueue{Name: q.Name, Waiting: q.Waiting, UID: q.uid, Kept: q.kept, Bytes: q.keptBytes,
			Lanes: q.lanes, Keyed: slices.Sorted(maps.Keys(users))})
	}
	slices.SortFunc(t.told.lanes, func(a, b laneName) int { return cmp.Or(strings.Compare(a.queue, b.queue), a.uid-b.uid) })
	for _, name := range slices.Compact(t.told.lanes) {
		lane := newsLane{Queue: name.queue, UID: name.uid}
		if l := m.lanes.plain[name]; l != nil {
			if lane.ID, lane.Head, lane.Priority, lane.Shut = l.ID, l.Head, l.Priority, l.Shut; m.strange(l) {
				lane.Shut = rules.Open
			}
		}
		n.Lanes = append(n.Lanes, lane)
	}
	n.addLeases(t)
	for _, name := range t.told.minute {
		f := t.s.minute.rows[name]
		n.Minute = t.s.minute.at
		n.Figures = append(n.Figures, newsFigures{name, [...]int64{f.Started, f.Completed, f.Failed, f.Dead, f.Cancelled, f.Returned}, f.Waits.Append(nil), f.Runs.Append(nil)})
	}
	text, err := json.Marshal(n)
	if len(text) > newsMost {
		return nil, nil
	}
	return text, err
}

// addLeases adds the leases that the transaction changed or ended, and the other jobs that it changed.
func (n *news) addLeases(t *tx) {
	seqs := slices.Clone(t.leases)
	slices.Sort(seqs)
	seqs = slices.Compact(seqs)
	at := map[leaseKind]int{}
	for _, seq := range seqs {
		l := t.s.mem.leases[seq]
		if l == nil {
			n.Ends = append(n.Ends, seq)
			continue
		}
		kind := leaseKind{l.Job.Lane, l.Job.Node, l.Running}
		i, known := at[kind]
		if !known {
			i = len(n.Leases)
			at[kind] = i
			n.Leases = append(n.Leases, newsLeases{Lane: l.Job.Lane, Queue: l.Job.Queue, UID: l.Job.UID, Node: l.Job.Node, Running: l.Running, Needs: l.Needs})
		}
		of := &n.Leases[i]
		of.Seqs, of.Fences = append(of.Seqs, seq), append(of.Fences, l.Job.Fence)
	}
	for _, seq := range t.touched {
		if _, leased := slices.BinarySearch(seqs, seq); !leased {
			n.Touched = append(n.Touched, seq)
		}
	}
}

// leaseKind identifies the leases that one newsLeases can hold together.
type leaseKind struct {
	lane, node int64
	running    bool
}

// errOtherNews reports a cache delta that was written in the format of another version.
var errOtherNews = errors.New("another version of the service wrote the change")

// hear applies the cache delta that another node stored with its commit of the given number.
func (t *tx) hear(commits int64, text []byte) error {
	var n news
	if err := json.Unmarshal(text, &n); err != nil {
		return err
	}
	if n.Version != newsVersion {
		return errOtherNews
	}
	listed, err := numbers(n.List)
	if err != nil {
		return err
	}
	changed, err := queueCounts(n.Listed)
	if err != nil {
		return err
	}
	s, m := t.s, &t.s.mem
	ls := m.lanes
	m.commits, m.nextSeq, m.nextEvent, m.enqueued, m.counts, m.outputs, m.linked, m.ended = commits, n.NextSeq, n.NextEvent, n.Enqueued, n.Counts, n.Outputs, n.Linked, n.Ended
	m.list, m.listed, m.queues, m.changed = n.List, nil, n.Listed, slices.Collect(maps.Keys(changed))
	for uid := range listed {
		m.listed = append(m.listed, int(uid))
	}
	for _, is := range n.Users {
		u := m.users[is.UID]
		u.waiting, u.hooks, u.bytes, u.outputs = is.Waiting, is.Hooks, is.Bytes, is.Outputs
		m.putUser(is.UID, u)
		s.foreign.uids = append(s.foreign.uids, is.UID)
	}
	for _, is := range n.Queues {
		q := ls.state(is.Name)
		m.kept += is.Kept - q.kept
		q.setCount(queueCount{is.Waiting, is.UID, is.Kept, is.Bytes})
		q.lanes = is.Lanes
		for _, uid := range is.Keyed {
			ls.markStaleUser(q, uid)
		}
	}
	for i := range n.Lanes {
		ls.hear(&n.Lanes[i])
	}
	for i := range n.Leases {
		t.hearLeases(&n.Leases[i])
	}
	needy := false
	for _, seq := range n.Ends {
		if l := m.leases[seq]; l != nil {
			needy = needy || len(l.Needs) > 0
			t.countUse(l, -1)
			m.countLease(l.Job.UID, l.Job.Queue, -1)
			delete(m.leases, seq)
			if m.maxUser > 0 {
				t.rules.Recheck(rules.UserGate(l.Job.UID))
			}
		}
	}
	s.foreign.seqs = append(append(s.foreign.seqs, n.Ends...), n.Touched...)
	m.gathered, m.empties, ls.keyed, ls.over = n.Gathered, n.Empties, n.Keyed, n.Over
	if ls.over == nil {
		ls.over = map[int64]int{}
	}
	if slices.ContainsFunc(n.Queues, func(q newsQueue) bool { return len(q.Keyed) > 0 }) ||
		slices.ContainsFunc(n.Leases, func(l newsLeases) bool { return len(l.Needs) > 0 }) || needy {
		// A change to a gate may affect a lane that only this node treats as closed.
		s.hereStale = true
		s.standIn(t.now, t.now)
	}
	s.standIn(t.now, n.Due)
	s.minute.hear(&n)
	if max(len(s.foreign.seqs), len(s.foreign.uids)) > foreignMost {
		s.foreign = foreigners{any: true}
	}
	return nil
}

// standIn sets a timer that fires standInAfter after a timer of another node is due, at most about an hour
// from now. If the other node has not handled its timer by then, this node does.
func (s *engine) standIn(now, due queue.Millis) {
	if due == 0 || s.standsIn > now && s.standsIn <= due.Add(standInAfter) {
		return
	}
	s.standsIn = min(due, now.Add(time.Hour)).Add(standInAfter)
	time.AfterFunc(time.Duration(s.standsIn-now)*time.Millisecond, func() { poke(s.alarm) })
}

// standInAfter is how long a node has to handle its own timers before another node handles them.
const standInAfter = time.Second

// hearLeases adds leases of another node to the cache. A cached lease contains only the fields that other
// nodes usually need. The method whole reads the rest.
func (t *tx) hearLeases(of *newsLeases) {
	m := &t.s.mem
	var room []rules.Lease
	for k, seq := range of.Seqs {
		was := m.leases[seq]
		if len(room) == 0 {
			// Allocate up to 16 leases together: this needs few allocations, and one remaining lease keeps
			// little memory in use.
			room = make([]rules.Lease, min(16, len(of.Seqs)-k))
		}
		l := &room[0]
		room = room[1:]
		l.Running, l.Needs = of.Running, of.Needs
		l.Job.Seq, l.Job.Queue, l.Job.UID, l.Job.Lane, l.Job.Node, l.Job.Fence = seq, of.Queue, of.UID, of.Lane, of.Node, of.Fences[k]
		m.leases[seq] = l
		t.countUse(was, -1)
		t.countUse(l, 1)
		if was == nil {
			m.countLease(of.UID, of.Queue, 1)
		}
		t.s.foreign.seqs = append(t.s.foreign.seqs, seq)
	}
}

// hear updates a lane without demands to the state that another node reported.
func (ls *lanes) hear(is *newsLane) {
	l := ls.plain[laneName{is.Queue, is.UID}]
	switch {
	case is.ID == 0 && l != nil:
		ls.remove(l)
	case is.ID == 0:
	case l == nil:
		ls.add(&rules.Lane{ID: is.ID, Queue: is.Queue, UID: is.UID, Head: is.Head, Priority: is.Priority, Shut: is.Shut, HeapIndex: -1})
	default:
		l.ID, l.Head, l.Priority, l.Shut = is.ID, is.Head, is.Priority, is.Shut
		ls.place(l)
	}
}

// hear updates the statistics of the current minute to the values that another node reported.
func (kept *minuteFigures) hear(n *news) {
	if kept.at != n.Minute {
		if n.Minute > kept.at {
			kept.rows, kept.ever = nil, nil
		}
		return
	}
	for i := range n.Figures {
		f := &n.Figures[i]
		if kept.rows == nil {
			return
		}
		if kept.rows[f.Queue] == nil {
			kept.ever = nil // the queue may be listed separately in the totals now
		}
		kept.rows[f.Queue] = &store.Figures{Started: f.Counts[0], Completed: f.Counts[1], Failed: f.Counts[2], Dead: f.Counts[3], Cancelled: f.Counts[4], Returned: f.Counts[5],
			Waits: store.ReadHistogram(f.Waits), Runs: store.ReadHistogram(f.Runs)}
	}
}

// whole returns a lease with its job's complete row. The cache holds only part of the row if another node
// claimed the job.
func (t *tx) whole(l *rules.Lease) (*rules.Lease, error) {
	if l == nil || l.Job.ID != "" {
		return l, nil
	}
	// The row contains what this transaction wrote before it held the writer lock, not what the rules have
	// decided.
	if t.foreseen.holds(l.Job.Seq) {
		return nil, errForeseen
	}
	j, err := t.Job(l.Job.Seq, rules.Summary)
	if errors.Is(err, queue.ErrNotFound) { // the row is lost
		return l, nil
	}
	if err != nil {
		return nil, err
	}
	j.Fence, j.Node = l.Job.Fence, l.Job.Node
	l = &rules.Lease{Job: j, Running: l.Running, Needs: l.Needs, Turn: l.Turn}
	t.s.mem.leases[j.Seq] = l
	return l, nil
}
