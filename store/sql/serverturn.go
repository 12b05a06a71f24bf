package sql

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/rules"
)

// reload reads the writer's memory from the tables again, because another node has changed them. It keeps
// what is stored only in this node's memory. It fails with errForeseen if this transaction wrote rows before
// it held the writer lock, because they would be read as if they were final.
func (t *tx) reload() error {
	if t.foreseen != nil {
		return errForeseen
	}
	s, was := t.s, t.s.mem
	err := s.loadHeads()
	if err == nil && s.mem.lanes.keyed {
		err = t.needAll(was.leases)
	}
	if err != nil {
		s.mem = was
		return err
	}
	m := &s.mem
	for seq, l := range m.leases {
		if of := was.leases[seq]; of != nil && of.Job.Fence == l.Job.Fence {
			m.leases[seq] = &rules.Lease{Job: l.Job, Running: l.Running, Needs: l.Needs, Turn: of.Turn}
		}
	}
	m.nextDue, m.promoted, m.rechecked, m.tidied = was.nextDue, was.promoted, was.rechecked, was.tidied
	m.lanes.node, m.lanes.here = was.lanes.node, was.lanes.here
	m.turn, m.served, m.endedUID = was.turn, was.served, was.endedUID
	for name, q := range was.lanes.queues {
		if q.Pass > was.turn { // a queue with a lower Pass is treated like a new queue
			m.lanes.state(name).Pass = q.Pass
		}
		if is := m.lanes.queues[name]; is != nil {
			is.served, is.servedFrom = q.served, q.servedFrom
		}
	}
	s.mu.Lock()
	maps.DeleteFunc(s.servedSeen, func(name string, _ map[int]int64) bool { return m.lanes.queues[name] == nil })
	s.mu.Unlock()
	for i := range m.disowning {
		d := &m.disowning[i]
		if at := slices.IndexFunc(was.disowning, func(o disowning) bool { return o.former == d.former }); at >= 0 {
			d.walked, d.asked = was.disowning[at].walked, was.disowning[at].asked
		}
	}
	switch {
	case m.rankedBy == orderText(m.order):
	case was.ranking.state != 0 && was.order == m.order:
		m.ranking = was.ranking
	default:
		m.ranking = ranking{state: rankingStates[0]}
	}
	for n, b := range m.batches {
		if known, there := was.batches[n]; there {
			b.at, b.of = known.at, known.of
			if !b.committed {
				u := m.users[b.uid]
				u.names += known.names - b.names
				m.putUser(b.uid, u)
			}
			b.names = known.names
			m.batches[n] = b
		}
	}
	s.minute = minuteFigures{}
	t.undo, t.users, t.queues, t.leased, t.leases, t.leasedBy = nil, nil, nil, false, nil, nil
	s.hereStale = true
	t.before, s.foreign.any, s.readied = *m, true, true
	s.standIn(t.now, t.now) // the tables may contain new timers
	return nil
}

// errExpelled stops the store of a node whose lease has expired. Other nodes have taken over its jobs.
var errExpelled = damage("the lease of this node expired, so other nodes have taken over its jobs, and the service ends; start the service again")

// enter implements host. If the server rejects a row written before the writer lock was held, another node
// may have taken over that job. In this case, enter returns errForeseen, and the transaction is retried without
// such rows.
func (s *Server) enter(t *tx) error {
	err := s.takeTurn(t)
	if err != nil && t.foreseen != nil && kindOf(err) == mistake {
		return errForeseen
	}
	return err
}

// takeTurn begins a transaction and takes the writer lock, which is the lock on the row of the table meta. It
// then applies the changes of other nodes.
// See docs/decisions/0026.
func (s *Server) takeTurn(t *tx) error {
	s.own = nil
	if err := t.beginOnce(); err != nil {
		return err
	}
	if len(t.ended) > 0 && s.others.Load() > 0 {
		if err := t.foresee(t.ended, t.quota); err != nil {
			return err
		}
	}
	if err := t.conn.exec(`SELECT one FROM meta FOR UPDATE`); err != nil {
		return err
	}
	commits, member, sent := int64(0), false, queue.MillisOf(time.Now())
	var list [][]byte
	var all reads
	all.add(func(r row) (bool, error) {
		commits, member = r.num(0), r.num(1) != 0
		s.others.Store(r.num(3))
		s.behind.correct(sent, queue.Millis(r.num(2)), queue.MillisOf(time.Now()))
		t.now = s.now()
		return true, nil
	}, `SELECT commits, (SELECT count(*) FROM nodes WHERE id = ? AND incarnation = ? AND NOT gone), (extract(epoch FROM clock_timestamp()) * 1000)::bigint, (SELECT count(*) FROM nodes WHERE id <> ? AND NOT gone AND until > clock_timestamp()) FROM meta`, s.node, s.incarnation, s.node)
	all.add(func(r row) (bool, error) {
		if r.num(0) == s.mem.commits+int64(len(list))+1 && len(r.view(1)) > 0 {
			list = append(list, slices.Clone(r.view(1)))
		}
		return true, nil
	}, `SELECT n, news FROM changes WHERE n > ? ORDER BY n LIMIT ?`, s.mem.commits, int64(changesHeard))
	if err := t.conn.queries(all.list); err != nil {
		return err
	}
	if !member && s.node != 0 {
		return errExpelled
	}
	if err := s.catchUp(t, commits, list); err != nil {
		return err
	}
	t.rules.Readied = s.readied
	t.readAhead = &readAhead{}
	if s.others.Load() > 0 {
		t.told = &told{queues: map[*queueState]map[int]bool{}}
	}
	return s.expect(t)
}

// catchUp applies the cache deltas that this node has missed. If they are incomplete or unreadable, it
// reloads the caches.
func (s *Server) catchUp(t *tx, commits int64, list [][]byte) error {
	m := &s.mem
	if commits == m.commits {
		return nil
	}
	poke(s.changes)
	if commits != m.commits+int64(len(list)) {
		return t.reload()
	}
	for i, text := range list {
		if err := t.hear(commits-int64(len(list)-i-1), text); err != nil {
			if !errors.Is(err, errOtherNews) {
				s.log.Warn("cannot read a change from another node; reloading the whole queue from the database", "error", err)
			}
			return t.reload()
		}
		t.undo = nil // the changes are committed, so an error of this transaction must not undo them
	}
	t.undo, t.users, t.queues, t.leased, t.leases, t.leasedBy = nil, nil, nil, false, nil, nil
	t.before = *m
	s.readied = true
	return nil
}

// tell stores the cache delta of the transaction, and deletes old deltas. A node that has missed a deleted
// delta reloads.
func (t *tx) tell() error {
	text, err := t.news()
	if err != nil {
		return err
	}
	n := t.s.mem.commits
	if err := t.exec(`INSERT INTO changes (n, news) VALUES (?, ?) ON CONFLICT (n) DO UPDATE SET news = excluded.news`, n, string(text)); err != nil || n%changesStep != 0 {
		return err
	}
	return t.exec(`DELETE FROM changes WHERE n < ?`, n-changesKept)
}

// Limits of the table changes, in transactions. A node that has missed more than changesHeard reloads.
const (
	changesHeard = 64
	changesKept  = 128
	changesStep  = 64
)
