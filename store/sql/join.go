package sql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/rules"
)

// Member is a node that joins.
// See docs/decisions/0031.
type Member struct {
	Name    string
	Folder  string        // tells its service from others of the same name
	Place   string        // where that is now: it is another one for a copy, and after a boot of the machine; "" is not known
	Version string        // of its program
	Lease   time.Duration // how long it may be silent
}

// ErrCopied says that the folder of a node is a copy of another one's, whose service runs.
var ErrCopied = errors.New("the state directory is a copy of another node's directory, and that node's service is running")

// join has this service be a node. One of the same folder goes on with what an earlier one has leased, unless others
// have taken that over. If that one was in another place it may run still, and its lease is waited for.
func (s *Server) join(ctx context.Context, m Member) error {
	left, err := s.tryToJoin(ctx, m)
	if err != nil || left == 0 {
		return err
	}
	s.log.Info("waiting until the lease of this node's previous service ends (it ran before a reboot or on another machine)", "node", m.Name, "for", left.Round(time.Millisecond).String())
	select {
	case <-time.After(left):
	case <-ctx.Done():
		return ctx.Err()
	}
	if left, err = s.tryToJoin(ctx, m); left != 0 {
		return queue.Errorf(queue.CodeExists, `another service with a copy of this state directory already runs as node %s of this queue; give this service another name with the setting "node"`, m.Name)
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
			return queue.Errorf(queue.CodeExists, `another service already runs as node %s of this queue; give this service another name with the setting "node"`, m.Name)
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
