package engine

import (
	"container/heap"
	"context"
	"fmt"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// lanes is the writer's cache of lanes and queues. It holds all lanes without demands, called plain lanes.
// There may be many lanes with demands, so it holds only the best ones of each queue and user.
type lanes struct {
	plain       map[laneName]*rules.Lane
	byUID       map[int][]*rules.Lane // plain lanes by uid
	queues      map[string]*queueState
	ready       readyQueues // queues with room and an open lane; a heap ordered by the best head
	staleQueues []*queueState
	hasGates    bool // the database contains gates or lanes with demands
	// overQuota maps the gate of a user's quota to the number of lanes with demands that it closes.
	overQuota     map[int64]int
	weights       int // number of queues whose weight is not 1
	node          store.Node
	resourceGates []int64 // ids of the gates that are resources
	// closedHere maps lanes that are open in the database, but closed for this node, to the gate that closes
	// them. Another node may have room at that gate.
	closedHere map[int64]int64
}

// laneName names a lane without demands.
type laneName struct {
	queue string
	uid   int
}

// openLaneHeap is a heap of open lanes, ordered by their heads.
type openLaneHeap []*rules.Lane

// Len implements heap.Interface.
func (o openLaneHeap) Len() int { return len(o) }

// Less implements heap.Interface.
func (o openLaneHeap) Less(i, j int) bool { return o[j].Head.After(o[i].Head) }

// Swap implements heap.Interface.
func (o openLaneHeap) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	o[i].HeapIndex, o[j].HeapIndex = i, j
}

// Push implements heap.Interface.
func (o *openLaneHeap) Push(x any) {
	l := x.(*rules.Lane)
	l.HeapIndex = len(*o)
	*o = append(*o, l)
}

// Pop implements heap.Interface.
func (o *openLaneHeap) Pop() any {
	last := len(*o) - 1
	l := (*o)[last]
	(*o)[last], *o = nil, (*o)[:last]
	l.HeapIndex = -1
	return l
}

// updateHeap adds a plain lane to the heap of open lanes, moves it there or removes it, according to its head
// and whether it is open.
func (ls *lanes) updateHeap(l *rules.Lane) {
	q := ls.state(l.Queue)
	switch {
	case l.ClosedBy == rules.Open && l.HeapIndex < 0:
		heap.Push(&q.openLanes, l)
	case l.ClosedBy == rules.Open:
		heap.Fix(&q.openLanes, l.HeapIndex)
	case l.HeapIndex >= 0:
		heap.Remove(&q.openLanes, l.HeapIndex)
	}
	ls.updateQueue(q)
}

// userOf returns the uid of the user whose quota is represented by a gate; see rules.UserGate.
func userOf(gate int64) int {
	if gate%2 != 0 {
		return int((gate + 1) / 2)
	}
	return int((-gate - 2) / 2)
}

// SetLane implements rules.Tx.
func (t *Tx) SetLane(l rules.Lane) error {
	m := &t.s.mem
	if len(l.Needs) > 0 {
		return t.setDemandLane(l)
	}
	t.noteLane(&l)
	cached := m.lanes.plain[laneName{l.Queue, l.UID}]
	old := *cached
	t.undo = append(t.undo, func() {
		cached.Head, cached.Priority, cached.ClosedBy = old.Head, old.Priority, old.ClosedBy
		m.lanes.updateHeap(cached)
	})
	m.emptyLanes += records.Bit(l.ClosedBy == rules.Empty) - records.Bit(old.ClosedBy == rules.Empty)
	cached.Head, cached.Priority, cached.ClosedBy = l.Head, l.Priority, l.ClosedBy
	m.lanes.updateHeap(cached)
	return nil
}

// setDemandLane implements SetLane for a lane with demands.
func (t *Tx) setDemandLane(l rules.Lane) error {
	m := &t.s.mem
	q := m.lanes.state(l.Queue)
	known := !q.stale && !q.staleUsers[l.UID] &&
		slices.ContainsFunc(q.openOf(l.UID).open, func(o *rules.Lane) bool { return o.ID == l.ID })
	old, written := t.unwritten[l.ID]
	if !known && !written { // a lane that is in the cache is open, so its stored gate is known
		shut, err := t.Number(`SELECT shut FROM lanes WHERE id = ?`, l.ID)
		if err != nil {
			return err
		}
		old.ClosedBy = shut
	}
	m.emptyLanes += records.Bit(l.ClosedBy == rules.Empty) - records.Bit(old.ClosedBy == rules.Empty)
	stored := t.storedGate(&l)
	m.lanes.countOverQuota(old.ClosedBy, -1)
	m.lanes.countOverQuota(stored, 1)
	t.undo = append(t.undo, func() {
		m.lanes.countOverQuota(stored, -1)
		m.lanes.countOverQuota(old.ClosedBy, 1)
		m.lanes.markStaleUser(q, l.UID)
	})
	t.noteOpenLanes(q, l.UID)
	m.lanes.setOpen(q, l)
	if !known || l.ClosedBy != rules.Open {
		t.closedLanes = nil
	}
	l.ClosedBy = stored
	t.cacheLane(l)
	return nil
}

// storedGate returns the gate to be stored for a lane: the one that closes it, or rules.Open if only this
// node lacks room. In that case it notes in lanes.closedHere that the lane is closed for this node.
func (t *Tx) storedGate(l *rules.Lane) int64 {
	if t.s.node == 0 {
		return l.ClosedBy
	}
	closedHere := t.s.mem.lanes.closedHere
	if old, there := closedHere[l.ID]; there {
		t.undo = append(t.undo, func() { closedHere[l.ID] = old })
	} else {
		t.undo = append(t.undo, func() { delete(closedHere, l.ID) })
	}
	if t.s.mem.unknownUser(l) {
		closedHere[l.ID] = l.ClosedBy
		return rules.Open
	}
	for _, n := range l.Needs {
		if n.Gate == l.ClosedBy && (n.Kind == queue.GateNode || n.Kind == queue.GateResource) {
			closedHere[l.ID] = l.ClosedBy
			return rules.Open
		}
	}
	delete(closedHere, l.ID)
	return l.ClosedBy
}

// unknownUser reports whether a lane is closed for this node alone because its user is unknown on this node.
func (m *memory) unknownUser(l *rules.Lane) bool {
	return l.ClosedBy == rules.UserGate(l.UID) && m.lanes.node.UnknownUIDs[l.UID] &&
		(m.maxLeasedPerUser == 0 || m.users[l.UID].leased < m.maxLeasedPerUser)
}

// countOverQuota adds n to the number of lanes with demands that are closed by a user's quota. It ignores
// other gates.
func (ls *lanes) countOverQuota(shut int64, n int) {
	if shut >= 0 || shut == rules.Empty {
		return
	}
	if ls.overQuota[shut] += n; ls.overQuota[shut] == 0 {
		delete(ls.overQuota, shut)
	}
}

// firstOfLane selects the first job of a lane.
const firstOfLane = `FROM jobs INDEXED BY jobs_ready WHERE place = 1 AND lane = lanes.id ORDER BY rank, seq LIMIT 1`

// Lane implements rules.Tx.
func (t *Tx) Lane(j *rules.Job) (rules.Lane, error) {
	ls := t.s.mem.lanes
	if len(j.Demands) == 0 {
		if l := ls.plain[laneName{j.Queue, j.UID}]; l != nil {
			t.noteLane(l) // other nodes may still have cached the lane as empty
			return *l, nil
		}
		l := &rules.Lane{Queue: j.Queue, UID: j.UID, Head: rules.EndPosition, Priority: rules.UnknownPriority,
			ClosedBy: rules.Empty, HeapIndex: -1}
		err := t.newLane(l, "", "")
		if err == nil {
			ls.add(l)
			t.noteLane(l)
			t.undo = append(t.undo, func() { ls.remove(l) })
		}
		return *l, err
	}
	demands := queue.DemandsText(j.Demands)
	t.noteOpenLanes(ls.state(j.Queue), j.UID) // a job is about to enter or leave the lane
	var l rules.Lane
	err := t.Query(func(r database.Row) (_ bool, err error) {
		l, err = records.ReadLane(r)
		return false, err
	}, `SELECT `+records.LaneColumns+` FROM lanes WHERE queue = ? AND uid = ? AND demands = ?`, j.Queue, int64(j.UID), demands)
	if err != nil || l.ID != 0 {
		if gate, shut := ls.closedHere[l.ID]; shut && l.ClosedBy == rules.Open {
			l.ClosedBy = gate
		}
		return l, err
	}
	l = rules.Lane{Queue: j.Queue, UID: j.UID, Head: rules.EndPosition, Priority: rules.UnknownPriority,
		ClosedBy: rules.Empty, HeapIndex: -1}
	needs := ""
	for _, d := range j.Demands {
		gate, err := t.gate(j.UID, d)
		if err != nil {
			return l, err
		}
		n := rules.Need{Gate: gate, Kind: d.Kind, Units: d.Units()}
		l.Needs = append(l.Needs, n)
		needs += fmt.Sprintf("%d/%d/%d ", n.Gate, n.Kind, n.Units)
		if err := t.Exec(`UPDATE gates SET lanes = lanes + 1 WHERE id = ?`, gate); err != nil {
			return l, err
		}
	}
	return l, t.newLane(&l, demands, needs)
}

// countLanes adds by to the number of lanes of a queue.
func (t *Tx) countLanes(name string, by int) {
	q := t.s.mem.lanes.state(name)
	t.noteQueue(q)
	q.lanes += by
	t.undo = append(t.undo, func() { q.lanes -= by })
}

func (t *Tx) newLane(l *rules.Lane, demands, needs string) (err error) {
	t.s.mem.emptyLanes++
	t.countLanes(l.Queue, 1)
	l.ID, err = t.Number(
		`INSERT INTO lanes (queue, uid, demands, needs, head_rank, head_seq, priority, shut) VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING id`,
		l.Queue, int64(l.UID), demands, needs, l.Head.Rank, l.Head.Seq, l.Priority, l.ClosedBy)
	return err
}

func (ls *lanes) add(l *rules.Lane) {
	ls.plain[laneName{l.Queue, l.UID}] = l
	ls.byUID[l.UID] = append(ls.byUID[l.UID], l)
	ls.updateHeap(l)
}

func (ls *lanes) remove(l *rules.Lane) {
	delete(ls.plain, laneName{l.Queue, l.UID})
	others := slices.DeleteFunc(slices.Clone(ls.byUID[l.UID]), func(other *rules.Lane) bool { return other == l })
	if ls.byUID[l.UID] = others; len(others) == 0 {
		delete(ls.byUID, l.UID)
	}
	q := ls.state(l.Queue)
	if l.HeapIndex >= 0 {
		heap.Remove(&q.openLanes, l.HeapIndex)
	}
	ls.updateQueue(q)
}

// tidyLanes removes one step of the lanes without jobs if there are more than lanesKept. It reports whether
// there is more to do.
func (t *Tx) tidyLanes() (more bool, err error) {
	m := &t.s.mem
	if int64(len(m.lanes.closedHere)) > t.s.lanesKept { // some of the lanes in closedHere may no longer exist
		t.forgetClosedHere()
	}
	if m.emptyLanes <= t.s.lanesKept {
		return false, nil
	}
	leased := map[int64]bool{}
	for _, l := range m.leases {
		leased[l.Job.Lane] = true
	}
	n := 0
	for _, l := range m.lanes.plain {
		if n == moveStep {
			break
		}
		if l.ClosedBy != rules.Empty || leased[l.ID] {
			continue
		}
		n++
		if err := t.Exec(`DELETE FROM lanes WHERE id = ?`, l.ID); err != nil {
			return false, err
		}
		m.emptyLanes--
		m.lanes.remove(l)
		t.noteLane(l)
		t.undo = append(t.undo, func() { m.lanes.add(l) })
		t.countLanes(l.Queue, -1)
	}
	var empty []rules.Lane
	err = t.Query(func(r database.Row) (bool, error) {
		l, err := records.ReadLane(r)
		if !leased[l.ID] {
			empty = append(empty, l)
		}
		return len(empty) < moveStep-n, err
	}, `SELECT `+records.LaneColumns+` FROM lanes INDEXED BY lanes_shut WHERE demands <> '' AND shut <> 0 AND shut = ? LIMIT ?`,
		rules.Empty, int64(moveStep+len(leased)))
	for i := 0; i < len(empty) && err == nil; i++ {
		m.emptyLanes--
		err = t.Exec(`DELETE FROM lanes WHERE id = ?`, empty[i].ID)
		for _, need := range empty[i].Needs {
			if err == nil {
				err = t.Exec(`UPDATE gates SET lanes = lanes - 1 WHERE id = ?`, need.Gate)
			}
		}
		t.countLanes(empty[i].Queue, -1)
	}
	return n+len(empty) >= moveStep, err
}

// forgetClosedHere forgets which lanes are closed for this node alone, so that all of them are checked again.
func (t *Tx) forgetClosedHere() {
	ls := t.s.mem.lanes
	old := ls.closedHere
	stale := func() {
		for _, q := range ls.queues {
			ls.markStale(q)
		}
	}
	t.undo = append(t.undo, func() {
		ls.closedHere = old
		stale()
	})
	ls.closedHere = map[int64]int64{}
	t.closedLanes = nil
	stale()
	t.rules.Readied = true
}

// readLanes adds the statements that read the lanes. The caller must count the leases before it calls
// addPlain, because the number of leases decides which lanes are closed by a user's quota.
func (s *Engine) readLanes(all *database.Batch) (addPlain func()) {
	ls := s.mem.lanes
	var plain []rules.Lane
	all.Add(func(r database.Row) (bool, error) {
		l, err := records.ReadLane(r)
		l.Head, l.Priority = rules.Position{Rank: r.Num(records.LaneWidth), Seq: r.Num(records.LaneWidth + 1)}, rules.UnknownPriority
		plain = append(plain, l)
		return true, err
	}, `SELECT `+records.LaneColumns+`, (SELECT rank `+firstOfLane+`), (SELECT seq `+firstOfLane+`) FROM lanes WHERE demands = ''`)
	all.Add(func(r database.Row) (bool, error) {
		q := ls.state(r.Text(0))
		q.lanes += int(r.Num(1))
		if r.Num(2) > 0 {
			ls.markStale(q)
		}
		return true, nil
	}, `SELECT queue, count(*), sum(CASE shut WHEN 0 THEN 1 ELSE 0 END) FROM lanes WHERE demands <> '' GROUP BY queue`)
	all.Add(func(r database.Row) (bool, error) {
		if shut, n := r.Num(0), r.Num(1); shut == rules.Empty {
			s.mem.emptyLanes += n
		} else {
			ls.countOverQuota(shut, int(n))
		}
		return true, nil
	}, `SELECT shut, count(*) FROM lanes INDEXED BY lanes_shut WHERE demands <> '' AND shut <> 0 AND shut < 0 GROUP BY shut`)
	all.Add(func(r database.Row) (bool, error) {
		ls.resourceGates = append(ls.resourceGates, r.Num(0))
		return true, nil
	}, `SELECT id FROM gates WHERE uid = ? AND kind = ?`, int64(queue.SharedOwner), int64(queue.GateResource))
	all.Add(func(r database.Row) (bool, error) {
		ls.hasGates = true
		return false, nil
	}, `SELECT 1 FROM gates LIMIT 1`)
	return func() {
		for i := range plain {
			l := &plain[i]
			switch quota := s.mem.maxLeasedPerUser; {
			case l.Head.Seq == 0:
				l.Head, l.ClosedBy = rules.EndPosition, rules.Empty
				s.mem.emptyLanes++
			case quota > 0 && s.mem.users[l.UID].leased >= quota:
				l.ClosedBy = rules.UserGate(l.UID)
			default:
				l.ClosedBy = rules.Open
			}
			ls.add(l)
			ls.state(l.Queue).lanes++
		}
	}
}

// SetMaxRunningUser limits how many jobs of one user may be leased at the same time; 0 means unlimited.
func (s *Engine) SetMaxRunningUser(ctx context.Context, n int) error {
	return s.Do(ctx, Prompt, func(t *Tx) error {
		m := &t.s.mem
		if n == m.maxLeasedPerUser {
			return nil
		}
		m.maxLeasedPerUser = n
		for uid := range m.lanes.byUID {
			t.rules.Recheck(rules.UserGate(uid))
		}
		if err := t.RecheckClosedLanes(); err != nil {
			return err
		}
		_, err := t.continueRecheck()
		return err
	})
}

// SetHooks sets which hooks the engine creates for jobs, and when; see store.Hooks.
func (s *Engine) SetHooks(ctx context.Context, h store.Hooks) error {
	return s.Do(ctx, Prompt, func(t *Tx) error {
		t.s.mem.hooks = h
		return nil
	})
}

// SetNode sets the labels, resources and unknown users of this node.
func (s *Engine) SetNode(ctx context.Context, node store.Node) error {
	return s.Do(ctx, Prompt, func(t *Tx) error {
		ls := t.s.mem.lanes
		old := ls.node
		t.undo = append(t.undo, func() { ls.node = old })
		ls.node = node.Clone()
		ls.node.ID = t.s.node
		for uid := range old.UnknownUIDs {
			t.rules.Recheck(rules.UserGate(uid))
		}
		if err := t.storeNode(); err != nil {
			return err
		}
		if err := t.RecheckClosedLanes(); err != nil {
			return err
		}
		_, err := t.continueRecheck()
		return err
	})
}
