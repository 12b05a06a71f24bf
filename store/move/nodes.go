package move

import (
	"strings"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
)

// checkNoOtherNodes returns an error if the database is used by a node other than the node of this state
// directory, or if such a node has running jobs.
func (m *queueMove) checkNoOtherNodes(c database.Conn) error {
	alive, err := database.ReadRows(c, database.FirstColumnText, `SELECT name FROM nodes
		WHERE NOT gone AND until > clock_timestamp() AND folder <> ? ORDER BY name`, m.node.StateDirID)
	if err == nil && len(alive) > 0 {
		err = queue.Errorf(queue.CodeWrongState, "the services of these nodes still use the database: %s; stop them first "+
			"(queuectl service stop on each node), and try again; a killed service stays in this list until its lease expires "+
			"(setting node_lease)", strings.Join(alive, ", "))
	}
	if err != nil {
		return err
	}
	if err := moveReservationsToMeta(c); err != nil {
		return err
	}
	own, err := m.thisNodeNumber(c)
	if err != nil {
		return err
	}
	reservations, err := database.ReadLeaseReservations(c)
	if err != nil {
		return err
	}
	others, err := c.QueryNumber(`SELECT count(*) FROM jobs INDEXED BY jobs_running WHERE place = 3 AND node <> ?`, own)
	for _, r := range reservations {
		if r.NodeID != 0 && r.NodeID != own {
			others++
		}
	}
	if err == nil && others > 0 {
		err = queue.Errorf(queue.CodeWrongState, "%d jobs run on other nodes, or ran there when those nodes stopped; "+
			"start the services of the other nodes, and wait until these jobs have ended", others)
	}
	// Mark the other nodes as gone, so that a node which has only lost its connection to the server can no
	// longer write.
	if err == nil {
		err = c.Exec(`UPDATE nodes SET gone = true WHERE folder <> ?`, m.node.StateDirID)
	}
	return err
}

// moveReservationsToMeta moves the lists of reserved leases from the rows of the nodes to the table meta, where a
// queue in a file stores its list. A reserved lease is one whose attempt is not known to have started.
func moveReservationsToMeta(c database.Conn) error {
	return database.InTransaction(c, func() error {
		err := c.Exec(`UPDATE meta SET reserved = reserved || (SELECT coalesce(string_agg(reserved, ''), '') FROM nodes)`)
		if err == nil {
			err = c.Exec(`UPDATE nodes SET reserved = '' WHERE reserved <> ''`)
		}
		return err
	})
}

// thisNodeNumber returns the number that the node of this state directory has in the database, or 0 if it has
// none.
func (m *queueMove) thisNodeNumber(c database.Conn) (int64, error) {
	return c.QueryNumber(`SELECT id FROM nodes WHERE folder = ?`, m.node.StateDirID)
}
