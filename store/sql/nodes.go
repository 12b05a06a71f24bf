package sql

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/rules"
)

// nodeTables are what a server has beside the tables of a queue, of the services that share it. Their
// leases end by the server's clock.
func nodeTables() []string {
	return []string{
		`CREATE TABLE nodes (
			id          BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
			name        TEXT COLLATE "C" NOT NULL UNIQUE,
			folder      TEXT NOT NULL, -- which tells the service of this name from another one
			place       TEXT NOT NULL, -- and where it was when its service began, so that a copy is known
			incarnation BIGINT NOT NULL DEFAULT 1, -- rises with each start of its service
			until       TIMESTAMPTZ NOT NULL, -- its lease
			heard       TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), -- when it said so
			gone        BOOLEAN NOT NULL DEFAULT false, -- what it had leased is others'
			drained     BOOLEAN NOT NULL DEFAULT false,
			mark        BIGINT NOT NULL DEFAULT 0, -- of its last transaction
			reserved    TEXT NOT NULL DEFAULT '', -- as meta.reserved, of its own leases
			joined      TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
			version     TEXT NOT NULL,
			workers     BIGINT NOT NULL DEFAULT 0,
			labels      TEXT NOT NULL DEFAULT '{}', -- JSON
			resources   TEXT NOT NULL DEFAULT '{}'  -- JSON
		)`,
		`CREATE TABLE asks (
			n      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
			node   BIGINT NOT NULL, -- that is asked
			asker  BIGINT NOT NULL, -- the node that asks
			slow   BIGINT NOT NULL, -- 1 for what nothing else waits for
			at     TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
			taken  BIGINT NOT NULL DEFAULT 0, -- by which look of the node, 0 if it does not know of it
			ask    TEXT NOT NULL,   -- JSON
			answer TEXT             -- JSON, NULL until there is one
		)`,
		`CREATE TABLE changes (
			n    BIGINT PRIMARY KEY, -- meta.commits after it
			news TEXT NOT NULL -- JSON, '' if there are more than can be told
		)`,
		`ALTER TABLE nodes ALTER reserved SET STORAGE EXTERNAL`,
		`ALTER TABLE changes ALTER news SET STORAGE EXTERNAL`, // to compress them takes longer
		`CREATE INDEX asks_node ON asks (node, slow, n) WHERE answer IS NULL`,
	}
}

// reload reads anew what the tables' heads hold: another node has changed it. What nobody else knows stays.
func (t *tx) reload() error {
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
	m.nextDue, m.promoted, m.rechecked, m.tidied = was.nextDue, was.promoted, was.rechecked, was.tidied
	m.lanes.node, m.lanes.here = was.lanes.node, was.lanes.here
	m.turn = was.turn
	for name, q := range was.lanes.queues {
		if q.Pass != 0 {
			m.lanes.state(name).Pass = q.Pass
		}
	}
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
	s.standIn(t.now, t.now) // timers may be among what was read
	return nil
}

// errExpelled breaks the store of a node that was taken for dead: what it had leased is others' now.
var errExpelled = damage("the lease of this node ran out, and others have taken over what it ran; this service ends, and joins again once it is started")

// enter implements host. The writers of all nodes take turns by the lock of meta's row.
func (s *Server) enter(t *tx) error {
	s.own = nil
	if err := t.beginOnce(); err != nil {
		return err
	}
	if err := t.conn.exec(`SELECT one FROM meta FOR UPDATE`); err != nil {
		return err
	}
	commits, member := int64(0), false
	var list [][]byte
	var all reads
	all.add(func(r row) (bool, error) {
		commits, member = r.num(0), r.num(1) != 0
		s.others.Store(r.num(3))
		s.behind.Store(r.num(2) - time.Now().UnixMilli())
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
	if s.others.Load() > 0 {
		t.told = &told{queues: map[*queueState]bool{}}
	}
	return nil
}

// catchUp takes in what others have changed: by what they have told, or else by reading all anew.
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
				s.log.Warn("what another node has told cannot be read; all is read anew", "error", err)
			}
			return t.reload()
		}
		t.undo = nil // it is so
	}
	t.undo, t.users, t.queues, t.leased, t.leases, t.leasedBy = nil, nil, nil, false, nil, nil
	t.before = *m
	s.readied = true
	return nil
}

// tell stores what the transaction has changed, for the others, and forgets what is old: who has not heard of it reads all
// anew.
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

// Limits of changes: who is more than so many behind reads all anew.
const (
	changesHeard = 64
	changesKept  = 128
	changesStep  = 64
)

// Member is a node that joins.
type Member struct {
	Name    string
	Folder  string        // tells its service from others of the same name
	Place   string        // where that is now: it is another one for a copy, and after a boot of the machine; "" is not known
	Version string        // of its program
	Lease   time.Duration // how long it may be silent
}

// ErrCopied says that the folder of a node is a copy of another one's, whose service runs.
var ErrCopied = errors.New("the folder is a copy of that of another node, whose service runs")

// join has this service be a node. One of the same folder goes on with what an earlier one has leased, unless others
// have taken that over. If that one was in another place it may run still, and its lease is waited for.
func (s *Server) join(ctx context.Context, m Member) error {
	left, err := s.tryToJoin(ctx, m)
	if err != nil || left == 0 {
		return err
	}
	s.log.Info("the lease of this node's last service is waited for, which ran before the machine was started anew, or elsewhere", "node", m.Name, "for", left.Round(time.Millisecond).String())
	select {
	case <-time.After(left):
	case <-ctx.Done():
		return ctx.Err()
	}
	if left, err = s.tryToJoin(ctx, m); left != 0 {
		return queue.Errorf(queue.CodeExists, "another service, with a copy of this state folder, is the node %s of this queue; give this one another name: node in its settings", m.Name)
	}
	return err
}

// tryToJoin does so unless the lease of a service in another place has some time left.
func (s *Server) tryToJoin(ctx context.Context, m Member) (left time.Duration, err error) {
	copied := false
	err = s.do(ctx, urgent, func(t *tx) error {
		if free, err := t.number(`SELECT pg_try_advisory_xact_lock_shared(` + fmt.Sprint(serverLock) + `)`); err != nil {
			return err
		} else if free == 0 {
			return s.errLocked(t.query)
		}
		folder, alive, last := "", false, ""
		left = 0
		err := t.query(func(r row) (bool, error) {
			folder, alive, last = r.text(0), r.num(1) != 0, r.text(2)
			left = time.Duration(r.num(3)) * time.Millisecond
			return false, nil
		}, `SELECT folder, until > clock_timestamp() AND NOT gone, place, CASE WHEN isfinite(until) THEN ceil(extract(epoch FROM until - clock_timestamp()) * 1000)::bigint ELSE 0 END FROM nodes WHERE name = ?`, m.Name)
		if err != nil {
			return err
		}
		if folder == m.Folder && alive && m.elsewhere(last) {
			return nil
		}
		left = 0
		if folder != m.Folder && alive {
			return queue.Errorf(queue.CodeExists, "another service is the node %s of this queue; give this one another name: node in its settings", m.Name)
		}
		copied = false
		if renamed, err := t.rename(m); errors.Is(err, ErrCopied) {
			copied = true
			return nil
		} else if err != nil {
			return err
		} else if renamed {
			folder = m.Folder
		}
		id, incarnation := int64(0), int64(0)
		err = t.query(func(r row) (bool, error) {
			id, incarnation = r.num(0), r.num(1)
			return false, nil
		}, `INSERT INTO nodes (name, folder, place, until, version) VALUES (?, ?, ?, clock_timestamp() + ? * interval '1 ms', ?)
			ON CONFLICT (name) DO UPDATE SET folder = excluded.folder, place = excluded.place, incarnation = nodes.incarnation + 1, until = excluded.until, heard = clock_timestamp(), gone = false, joined = clock_timestamp(), version = excluded.version
			RETURNING id, incarnation`, m.Name, m.Folder, m.Place, m.Lease.Milliseconds(), m.Version)
		if err != nil {
			return err
		}
		if err := t.exec(`UPDATE asks SET taken = 0 WHERE node = ?`, id); err != nil { // by an earlier service
			return err
		}
		s.node, s.incarnation = id, incarnation
		t.undo = append(t.undo, func() { s.node, s.incarnation = 0, 0 })
		if folder != "" && folder != m.Folder { // what was leased by the other one is nobody's
			if err := t.disinherit(id); err != nil {
				return err
			}
		}
		t.then = append(t.then, func() {
			s.lease = m.Lease
			s.mem.lanes.node.ID = id
		})
		return nil
	})
	if copied && err == nil {
		err = ErrCopied
	}
	return left, err
}

// elsewhere reports whether a place is another one than this node's.
func (m *Member) elsewhere(place string) bool {
	return place != m.Place && place != "" && m.Place != ""
}

// rename has the node of a folder that had another name have this one, with what it has leased.
func (t *tx) rename(m Member) (renamed bool, err error) {
	id, was, alive, place := int64(0), "", false, ""
	err = t.query(func(r row) (bool, error) {
		id, was, alive, place = r.num(0), r.text(1), r.num(2) != 0, r.text(3)
		return false, nil
	}, `SELECT id, name, until > clock_timestamp() AND NOT gone, place FROM nodes WHERE folder = ? AND name <> ?`, m.Folder, m.Name)
	if err == nil && alive && m.elsewhere(place) {
		return false, ErrCopied
	}
	if err != nil || id == 0 {
		return false, err
	}
	other, err := t.number(`SELECT id FROM nodes WHERE name = ?`, m.Name)
	if err == nil && other != 0 { // it is gone, and of another folder
		err = t.forgetNode(other)
	}
	if err == nil {
		err = t.exec(`UPDATE garbage SET node = ? WHERE node = ?`, m.Name, was)
	}
	if err == nil { // or nobody would find what lies there
		err = t.exec(`UPDATE attempts SET node = ? WHERE output_ref IS NOT NULL AND node = ?`, m.Name, was)
	}
	if err == nil {
		err = t.exec(`UPDATE nodes SET name = ? WHERE id = ?`, m.Name, id)
	}
	return true, err
}

// disinherit has leases of a node be nobody's: whoever takes over next has them. Batches that it takes are this one's.
func (t *tx) disinherit(node int64) error {
	for _, b := range t.s.mem.batches {
		if b.node == node && b.staging() {
			if err := t.takeBatch(&b); err != nil {
				return err
			}
		}
	}
	for _, l := range t.s.mem.leases {
		if l.Job.Node == node {
			if err := t.giveLease(l, nobody); err != nil {
				return err
			}
		}
	}
	return nil
}

// nobody is the number of no node.
const nobody = -1

// takeBatch has a batch be this node's, as if it had come now.
func (t *tx) takeBatch(b *batch) error {
	b.node, b.at = t.s.node, t.now
	t.setBatch(b.n, *b)
	return t.exec(`UPDATE batches SET node = ? WHERE n = ?`, b.node, b.n)
}

// giveLease has a lease be another node's, with another fence.
func (t *tx) giveLease(l *rules.Lease, node int64) error {
	l, err := t.whole(l)
	if err != nil {
		return err
	}
	given := *l
	given.Job.Node = node
	given.Job.Fence += t.FenceStep()
	t.Hold(&given)
	if !l.Running { // its row does not know yet
		return nil
	}
	return t.Put(&given.Job)
}

// tellNode has the database know what the node has.
func (t *tx) tellNode() error {
	n := &t.s.mem.lanes.node
	if n.ID == 0 {
		return nil
	}
	labels, err := json.Marshal(n.Labels)
	if err != nil {
		return err
	}
	resources, err := json.Marshal(n.Resources)
	if err != nil {
		return err
	}
	return t.exec(`UPDATE nodes SET labels = ?, resources = ? WHERE id = ?`, string(labels), string(resources), n.ID)
}

// Extend implements store.Cluster.
func (s *Server) Extend(ctx context.Context, workers int) (m store.Membership, err error) {
	err = s.keeper.do(ctx, func(c *serverConn) error {
		m = store.Membership{}
		found := false
		err := c.query(func(r row) (bool, error) {
			found = true
			m.Drained = r.num(0) != 0
			return false, nil
		}, `UPDATE nodes SET until = clock_timestamp() + ? * interval '1 ms', heard = clock_timestamp(), workers = ? WHERE id = ? AND incarnation = ? AND NOT gone RETURNING drained`, s.lease.Milliseconds(), int64(workers), s.node, s.incarnation)
		if err != nil {
			return err
		}
		if !found {
			s.failed(errExpelled)
			return errExpelled
		}
		if err := c.exec(`DELETE FROM asks WHERE at < clock_timestamp() - interval '10 min'`); err != nil { // nobody waits for these any more
			return err
		}
		return c.query(func(r row) (bool, error) {
			m.Orphans = r.num(0) != 0
			return false, nil
		}, `SELECT count(*) FILTER (WHERE gone AND reserved <> '' OR NOT gone AND until < clock_timestamp()) + (SELECT count(*) FROM meta WHERE reserved <> '')
			+ (SELECT count(*) FROM (SELECT 1 FROM jobs WHERE place = 3 AND (node < 0 OR node IN (SELECT id FROM nodes WHERE gone)) LIMIT 1) AS of) FROM nodes`)
	})
	return m, err
}

// Exchange implements store.Session. What a runner says of instants is by its machine's clock; the start of a lost attempt may be
// the job's own, which is not.
func (s *Server) Exchange(ctx context.Context, report store.Report) (store.Grant, error) {
	behind := queue.Millis(s.behind.Load())
	if behind > -clockSlack && behind < clockSlack {
		return s.engine.Exchange(ctx, report)
	}
	return s.exchange(ctx, func(t *tx) *store.Report {
		by := report
		by.Started, by.Ended = slices.Clone(report.Started), slices.Clone(report.Ended)
		for i := range by.Started {
			by.Started[i].At += behind
		}
		by.Progress = slices.Clone(report.Progress)
		for i := range by.Progress {
			by.Progress[i].At += behind
		}
		for i := range by.Ended {
			a := &by.Ended[i].Attempt
			a.EndedAt += behind
			if l := t.Lease(by.Ended[i].Seq); l == nil || !l.Running || l.Job.StartedAt != a.StartedAt {
				a.StartedAt += behind
			}
		}
		return &by
	})
}

// clockSlack is by how much two clocks count as one: so far the look at them is off. In ms.
const clockSlack = 50

// TakeOver implements store.Cluster.
func (s *Server) TakeOver(ctx context.Context) (lost []store.LostLease, err error) {
	err = s.do(ctx, urgent, func(t *tx) error {
		lost = nil
		names, over, gone := map[int64]string{}, map[int64]bool{}, map[int64]bool{}
		err := t.query(func(r row) (bool, error) {
			names[r.num(0)] = r.text(1)
			if r.num(2) != 0 {
				over[r.num(0)] = true
			} else if r.num(3) != 0 {
				gone[r.num(0)] = true
			}
			return true, nil
		}, `SELECT id, name, NOT gone AND until < clock_timestamp(), gone FROM nodes`)
		if err != nil {
			return err
		}
		for id := range over {
			left, err := t.count(`UPDATE nodes SET gone = true WHERE id = ? AND NOT gone AND until < clock_timestamp()`, id)
			if err != nil {
				return err
			}
			if left == 0 { // it has prolonged its lease meanwhile
				delete(over, id)
				continue
			}
			t.wakeAt(t.now)
		}
		for _, b := range s.mem.batches {
			if _, known := names[b.node]; b.staging() && b.node != s.node && (!known || over[b.node] || gone[b.node]) {
				if err := t.takeBatch(&b); err != nil {
					return err
				}
			}
		}
		if len(over) > 0 {
			if err := t.recheckShut(); err != nil {
				return err
			}
		}
		for seq, l := range s.mem.leases {
			was := l.Job.Node
			name, known := names[was]
			if was == s.node || known && !over[was] && !gone[was] {
				continue
			}
			if len(lost) == store.MaxTakeOver {
				break // the others are somebody's who looks next
			}
			if err := t.giveLease(l, s.node); err != nil {
				return err
			}
			j, err := t.Job(seq, rules.Whole)
			if err != nil {
				return err
			}
			j.Fence = s.mem.leases[seq].Job.Fence
			lost = append(lost, store.LostLease{Job: j.Job, Running: l.Running, Was: l.Job.Fence, From: cmp.Or(name, "a node that was removed")})
		}
		return nil
	})
	return lost, err
}

// Nodes implements store.Cluster.
func (s *Server) Nodes(ctx context.Context, after string) (list []store.NodeState, err error) {
	err = s.reading(ctx, func(r *reader) error {
		list = nil
		leased := map[int64]int{}
		err := r.query(func(r row) (bool, error) {
			leased[r.num(0)] = int(r.num(1))
			return true, nil
		}, `SELECT node, count(*) FROM jobs WHERE place = 3 GROUP BY node LIMIT ?`, int64(maxCounted))
		if err != nil {
			return err
		}
		return r.query(func(r row) (bool, error) {
			n := store.NodeState{Node: store.Node{ID: r.num(0), Name: r.text(1)}, Running: leased[r.num(0)], Version: r.text(2), Workers: int(r.num(3)),
				Drained: r.num(4) != 0, Joined: queue.Millis(r.num(6)), Heard: queue.Millis(r.num(7)), This: r.num(0) == s.node}
			n.Alive, n.Left = r.num(5) != 0, r.num(10) != 0
			if err := errors.Join(json.Unmarshal(r.view(8), &n.Labels), json.Unmarshal(r.view(9), &n.Resources)); err != nil {
				return false, damage("damaged node")
			}
			list = append(list, n)
			return true, nil
		}, `SELECT id, name, version, workers, drained, NOT gone AND until > clock_timestamp(), (extract(epoch FROM joined) * 1000)::bigint, (extract(epoch FROM heard) * 1000)::bigint, labels, resources, until <= heard FROM nodes WHERE name > ? ORDER BY name LIMIT ?`, after, int64(store.MaxNodes))
	})
	return list, err
}

// shutToThis are the lanes that are shut to this node alone, by the gate, as of the last commit.
func (s *engine) shutToThis() map[int64]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.here
}

// gateHere is a gate that a lane is shut on for this node alone.
func (r *reader) gateHere(gate int64) (o store.Obstacle, err error) {
	err = r.query(func(r row) (bool, error) {
		o = store.Obstacle{Gate: queue.GateKind(r.num(0)), Key: r.text(1)}
		return false, nil
	}, `SELECT kind, key FROM gates WHERE id = ?`, gate)
	return o, err
}

// maxCounted is of how many nodes it is counted what they run.
const maxCounted = 10_000

// Holder implements store.Cluster.
func (s *Server) Holder(ctx context.Context, seq int64) (node int64, err error) {
	s.mu.Lock()
	node = s.reserved[seq].node
	s.mu.Unlock()
	if node == 0 {
		err = s.reading(ctx, func(r *reader) (err error) {
			node, err = r.number(`SELECT node FROM jobs WHERE seq = ? AND place = 3`, seq)
			return err
		})
	}
	if node == s.node || node == nobody {
		node = 0
	}
	return node, err
}

// NodesOf implements store.Cluster.
func (s *Server) NodesOf(ctx context.Context, seqs []int64) (names map[int64]string, err error) {
	var list []byte
	for _, seq := range seqs {
		list = append(strconv.AppendInt(list, seq, 10), ' ')
	}
	err = s.reading(ctx, func(r *reader) error {
		names = map[int64]string{}
		return r.query(func(r row) (bool, error) {
			names[r.num(0)] = r.text(1)
			return true, nil
		}, `SELECT jobs.seq, coalesce(CASE WHEN jobs.place = 3 THEN nodes.name END, (SELECT attempts.node FROM attempts WHERE attempts.seq = jobs.seq AND n = runs), nodes.name, '') FROM jobs LEFT JOIN nodes ON nodes.id = jobs.node WHERE `+r.among("jobs.seq"), string(bytes.TrimSpace(list)))
	})
	return names, err
}

// DrainNode implements store.Cluster.
func (s *Server) DrainNode(ctx context.Context, name string, on bool) error {
	return s.do(ctx, prompt, func(t *tx) error {
		n, err := t.count(`UPDATE nodes SET drained = ? WHERE name = ?`, map[bool]string{true: "true", false: "false"}[on], name)
		return cmp.Or(err, noNode(n, name))
	})
}

// Drained implements store.Cluster.
func (s *Server) Drained(ctx context.Context) (drained bool, err error) {
	err = s.keeper.do(ctx, func(c *serverConn) error {
		n, err := c.number(`SELECT count(*) FROM nodes WHERE id = ? AND drained`, s.node)
		drained = n > 0
		return err
	})
	return drained, err
}

// RemoveNode implements store.Cluster.
func (s *Server) RemoveNode(ctx context.Context, name string) error {
	return s.do(ctx, prompt, func(t *tx) error {
		id, alive := int64(0), false
		err := t.query(func(r row) (bool, error) {
			id, alive = r.num(0), r.num(1) != 0
			return false, nil
		}, `SELECT id, NOT gone AND until > clock_timestamp() AND isfinite(until) FROM nodes WHERE name = ?`, name)
		if err != nil || id == 0 {
			return cmp.Or(err, noNode(0, name))
		}
		if alive {
			return queue.Errorf(queue.CodeWrongState, "the service of the node %s runs; stop it first", name)
		}
		if err := t.exec(`DELETE FROM garbage WHERE node = ?`, name); err != nil {
			return err
		}
		return t.forgetNode(id)
	})
}

// forgetNode removes a node that is gone. What it had leased is nobody's.
func (t *tx) forgetNode(id int64) error {
	err := t.disinherit(id)
	for _, statement := range []string{`DELETE FROM roles WHERE node = ?`, `DELETE FROM asks WHERE node = ?`, `DELETE FROM nodes WHERE id = ?`} {
		if err == nil {
			err = t.exec(statement, id)
		}
	}
	return err
}

func noNode(n int64, name string) error {
	if n == 0 {
		return queue.Errorf(queue.CodeNotFound, "there is no node %q; queuectl node list names them", queue.Clip(name))
	}
	return nil
}

// leave has the node's lease be over, so that nobody waits for it: it has nothing leased, or others are to have it.
func (s *Server) leave(ctx context.Context) error {
	if s.node == 0 {
		return nil
	}
	return s.keeper.do(ctx, func(c *serverConn) error {
		return c.exec(`UPDATE nodes SET until = now(), heard = now() WHERE id = ? AND incarnation = ?`, s.node, s.incarnation)
	})
}
