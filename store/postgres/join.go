package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/pgdb"
)

// NodeConfig describes a node, one of several services that share a queue. It is needed to join the queue.
// See docs/decisions/0031.
type NodeConfig struct {
	NodeName   string
	StateDirID string // identifies the state directory, even if another service has the same NodeName
	// StateDirLocation identifies the boot of the machine and the file in which the state directory is. It changes
	// with each reboot, and differs for a copy of the directory. "" means unknown.
	StateDirLocation string
	ProgramVersion   string        // version of the node's program
	LeaseDuration    time.Duration // how long the node may act without renewing its lease
}

// ErrStateDirCopied reports that the state directory is a copy of the directory of another node, whose service is
// running.
var ErrStateDirCopied = errors.New("the state directory is a copy of another node's directory, and that " +
	"node's service is running; start this service with an empty state directory")

// joinAsNode makes this service a node of the queue. If an earlier service had the same state directory, this one gets
// its leases, except those that other nodes have taken over. If the StateDirLocation has changed, the earlier service
// may still be running, so joinAsNode waits until that service's node lease has expired.
func (s *Store) joinAsNode(ctx context.Context, node NodeConfig) error {
	remaining, err := s.tryToJoin(ctx, node)
	if err != nil || remaining == 0 {
		return err
	}
	s.Log().Info("waiting until the lease of this node's previous service has ended, because that service may "+
		"still be running on another machine", "node", node.NodeName, "for", remaining.Round(time.Millisecond).String())
	select {
	case <-time.After(remaining):
	case <-ctx.Done():
		return ctx.Err()
	}
	if remaining, err = s.tryToJoin(ctx, node); remaining != 0 {
		return queue.Errorf(queue.CodeExists, "another service with a copy of this state directory already runs as node %s "+
			`of this queue; give this service another name with the setting "node"`, node.NodeName)
	}
	return err
}

// tryToJoin makes this service a node. If an earlier service of the node ran with another StateDirLocation and has
// a valid node lease, tryToJoin does nothing and returns the remaining time of that lease.
func (s *Store) tryToJoin(ctx context.Context, node NodeConfig) (remainingLeaseTime time.Duration, err error) {
	copied := false
	err = s.RunAndCommit(ctx, engine.UrgentClass, func(t *engine.Tx) error {
		if free, err := t.QueryNumber(`SELECT pg_try_advisory_xact_lock_shared(` + fmt.Sprint(pgdb.QueueAdvisoryLockID) +
			`)`); err != nil {
			return err
		} else if free == 0 {
			return pgdb.QueueBeingMovedError(s.connConfig.Database, t)
		}
		dir, alive, last := "", false, ""
		remainingLeaseTime = 0
		remainingMillis := int64(0)
		_, err := database.ScanFirstRow(t, []any{&dir, &alive, &last, &remainingMillis},
			`SELECT folder, until > clock_timestamp() AND NOT gone, place, CASE WHEN isfinite(until)
				THEN ceil(extract(epoch FROM until - clock_timestamp()) * 1000)::bigint ELSE 0 END
			FROM nodes WHERE name = ?`, node.NodeName)
		if err != nil {
			return err
		}
		remainingLeaseTime = time.Duration(remainingMillis) * time.Millisecond
		if dir == node.StateDirID && alive && node.ranAtOtherLocation(last) {
			return nil
		}
		remainingLeaseTime = 0
		if dir != node.StateDirID && alive {
			return queue.Errorf(queue.CodeExists, "another service already runs as node %s of this queue; "+
				`give this service another name with the setting "node"`, node.NodeName)
		}
		copied = false
		if renamed, err := renameNode(t, node); errors.Is(err, ErrStateDirCopied) {
			copied = true
			return nil
		} else if err != nil {
			return err
		} else if renamed {
			dir = node.StateDirID
		}
		id, incarnation := int64(0), int64(0)
		_, err = database.ScanFirstRow(t, []any{&id, &incarnation},
			`INSERT INTO nodes (name, folder, place, until, version)
				VALUES (?, ?, ?, clock_timestamp() + ? * interval '1 ms', ?)
			ON CONFLICT (name) DO UPDATE SET folder = excluded.folder, place = excluded.place,
				incarnation = nodes.incarnation + 1, until = excluded.until, heard = clock_timestamp(), gone = false,
				joined = clock_timestamp(), version = excluded.version
			RETURNING id, incarnation`, node.NodeName, node.StateDirID, node.StateDirLocation, node.LeaseDuration.Milliseconds(),
			node.ProgramVersion)
		if err != nil {
			return err
		}
		// Let this service take requests again that an earlier service of this node has taken but not answered.
		if err := t.Exec(`UPDATE asks SET taken = 0 WHERE node = ?`, id); err != nil {
			return err
		}
		t.JoinAsNode(id)
		s.serviceStartNumber = incarnation
		t.OnRollback(func() { s.serviceStartNumber = 0 })
		// An earlier node, with another state directory, had this name. Let a node take over its leases.
		if dir != "" && dir != node.StateDirID {
			if err := t.OrphanLeases(id); err != nil {
				return err
			}
		}
		t.OnCommitted(func() { s.nodeLeaseDuration = node.LeaseDuration })
		return nil
	})
	if copied && err == nil {
		err = ErrStateDirCopied
	}
	return remainingLeaseTime, err
}

// ranAtOtherLocation reports whether an earlier service ran at another location: whether its location and the current
// StateDirLocation are both known and differ.
func (c *NodeConfig) ranAtOtherLocation(earlierLocation string) bool {
	return earlierLocation != c.StateDirLocation && earlierLocation != "" && c.StateDirLocation != ""
}

// renameNode finds a stored node that has the same state directory and another name. It gives that node the
// new name, and so keeps the node's leases.
func renameNode(t *engine.Tx, node NodeConfig) (renamed bool, err error) {
	id, oldName, alive, location := int64(0), "", false, ""
	_, err = database.ScanFirstRow(t, []any{&id, &oldName, &alive, &location},
		`SELECT id, name, until > clock_timestamp() AND NOT gone, place FROM nodes WHERE folder = ? AND name <> ?`,
		node.StateDirID, node.NodeName)
	if err == nil && alive && node.ranAtOtherLocation(location) {
		return false, ErrStateDirCopied
	}
	if err != nil || id == 0 {
		return false, err
	}
	other, err := t.QueryNumber(`SELECT id FROM nodes WHERE name = ?`, node.NodeName)
	if err == nil && other != 0 { // another node, which is gone, had the new name
		err = removeNode(t, other)
	}
	if err == nil {
		err = t.Exec(`UPDATE garbage SET node = ? WHERE node = ?`, node.NodeName, oldName)
	}
	if err == nil { // output files are found by the node's name, so change it in other rows too
		err = t.Exec(`UPDATE attempts SET node = ? WHERE output_ref IS NOT NULL AND node = ?`, node.NodeName, oldName)
	}
	if err == nil {
		err = t.Exec(`UPDATE nodes SET name = ? WHERE id = ?`, node.NodeName, id)
	}
	return true, err
}
