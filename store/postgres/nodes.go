package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/store/reads"
)

// SaveThisNodeProperties implements engine.SharedDatabase. It stores this node's labels and resources for the other
// nodes.
func (b backend) SaveThisNodeProperties(t *engine.Tx, n *store.Node) error {
	labels, err := json.Marshal(n.Labels)
	resources, err2 := json.Marshal(n.ResourceUnits)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	return t.Exec(`UPDATE nodes SET labels = ?, resources = ? WHERE id = ?`, string(labels), string(resources), n.ID)
}

// RenewNodeLease implements store.Cluster. It renews the node's lease and stores its load.
func (s *Store) RenewNodeLease(ctx context.Context, load store.NodeLoad) (renewal store.NodeLeaseRenewal, err error) {
	encoded, err := json.Marshal(load)
	if err != nil {
		return renewal, err
	}
	err = s.leaseConn.UseConn(ctx, func(c *pgdb.Conn) error {
		renewal = store.NodeLeaseRenewal{}
		found, err := database.ScanFirstRow(c, []any{&renewal.IsNodeDrained},
			`UPDATE nodes SET until = clock_timestamp() + ? * interval '1 ms', heard = clock_timestamp(), load = ?
				WHERE id = ? AND incarnation = ? AND NOT gone RETURNING drained`,
			s.nodeLeaseDuration.Milliseconds(), string(encoded), s.NodeNumber(), s.serviceStartNumber)
		if err != nil {
			return err
		}
		if !found {
			s.FailAfterReadError(errNodeLeaseLost)
			return errNodeLeaseLost
		}
		// Delete old requests between nodes, whose senders no longer wait for the answers.
		if err := c.Exec(`DELETE FROM asks WHERE at < clock_timestamp() - interval '10 min'`); err != nil {
			return err
		}
		orphans, err := c.QueryNumber(`SELECT count(*) FILTER (WHERE gone AND reserved <> ''
				OR NOT gone AND until < clock_timestamp()) + (SELECT count(*) FROM meta WHERE reserved <> '')
			+ (SELECT count(*) FROM (SELECT 1 FROM jobs WHERE place = 3
				AND (node < 0 OR node IN (SELECT id FROM nodes WHERE gone)) LIMIT 1) AS of) FROM nodes`)
		renewal.HasLeasesToTakeOver = orphans != 0
		return err
	})
	return renewal, err
}

// ReportAndClaim implements store.Session. The times in a report come from the clock of this machine, where the runner
// is. ReportAndClaim converts them to the server's clock, except the start time of a lost attempt, which may have been
// read from the database.
func (s *Store) ReportAndClaim(ctx context.Context, report store.LeaseReport) (store.ReportAndClaimResult, error) {
	behind := queue.UnixMillis(s.serverClockOffset.Load())
	if behind > -clockToleranceMillis && behind < clockToleranceMillis {
		return s.Engine.ReportAndClaim(ctx, report)
	}
	return s.BuildReportAndClaim(ctx, report.MaxJobsToClaim, func(t *engine.Tx) *store.LeaseReport {
		by := report
		by.AttemptStarts, by.Settlements = slices.Clone(report.AttemptStarts), slices.Clone(report.Settlements)
		for i := range by.AttemptStarts {
			by.AttemptStarts[i].StartedAt += behind
		}
		by.ProgressReports = slices.Clone(report.ProgressReports)
		for i := range by.ProgressReports {
			by.ProgressReports[i].ReportedAt += behind
		}
		for i := range by.Settlements {
			a := &by.Settlements[i].Attempt
			a.EndedAt += behind
			if l := t.Lease(by.Settlements[i].Seq); l == nil || !l.AttemptStarted || l.Job.StartedAt != a.StartedAt {
				a.StartedAt += behind
			}
		}
		return &by
	})
}

// clockToleranceMillis is the difference in milliseconds up to which two clocks count as equal. With slow
// replies, the difference cannot be measured more exactly.
const clockToleranceMillis = 50

// Nodes implements store.Cluster. It lists nodes in the order of their names.
func (s *Store) Nodes(ctx context.Context, afterName string) (nodes []store.NodeState, err error) {
	err = s.RunRead(ctx, func(r *reads.ReadSnapshot) error {
		leased := map[int64]int{}
		err := database.ForEachRow(r, func(r database.Row) { leased[r.Int64(0)] = int(r.Int64(1)) },
			`SELECT node, count(*) FROM jobs WHERE place = 3 GROUP BY node LIMIT ?`, int64(maxCountedNodes))
		if err != nil {
			return err
		}
		return r.Query(func(r database.Row) (bool, error) {
			var n store.NodeState
			var load, labels, resources []byte
			database.ScanRow(r, &n.ID, &n.Name, &n.ServiceVersion, &load, &n.IsDrained, &n.IsNodeLeaseValid, &n.JoinedAt,
				&n.LastHeartbeatAt, &labels, &resources, &n.ServiceStopped)
			n.RunningJobs, n.IsThisNode = leased[n.ID], n.ID == s.NodeNumber()
			if err := errors.Join(json.Unmarshal(labels, &n.Labels), json.Unmarshal(resources, &n.ResourceUnits),
				json.Unmarshal(load, &n.NodeLoad)); err != nil {
				return false, database.DamageError(`a row of the table "nodes" is damaged`)
			}
			nodes = append(nodes, n)
			return true, nil
		}, `SELECT id, name, version, load, drained, NOT gone AND until > clock_timestamp(),
				(extract(epoch FROM joined) * 1000)::bigint, (extract(epoch FROM heard) * 1000)::bigint, labels, resources,
				until <= heard
			FROM nodes WHERE name > ? ORDER BY name LIMIT ?`, afterName, int64(store.MaxNodesPerPage))
	})
	return nodes, err
}

// maxCountedNodes limits the nodes for which Nodes counts the running jobs.
const maxCountedNodes = 10_000

// LeaseHolderNode implements store.Cluster. It returns the number of the node that has leased a job, or 0 if no other
// node has.
func (s *Store) LeaseHolderNodeID(ctx context.Context, jobSeq int64) (nodeNumber int64, err error) {
	if nodeNumber = s.NodeReservingJob(jobSeq); nodeNumber == 0 {
		err = s.RunRead(ctx, func(r *reads.ReadSnapshot) (err error) {
			nodeNumber, err = r.QueryNumber(`SELECT node FROM jobs WHERE seq = ? AND place = 3`, jobSeq)
			return err
		})
	}
	if nodeNumber == s.NodeNumber() || nodeNumber == engine.NoNode {
		nodeNumber = 0
	}
	return nodeNumber, err
}

// LastNodeNames implements store.Cluster. It returns, by seq, the name of the node that leased the job last.
func (s *Store) LastNodeNames(ctx context.Context, jobSeqs []int64) (names map[int64]string, err error) {
	err = s.RunRead(ctx, func(r *reads.ReadSnapshot) error {
		names = map[int64]string{}
		return database.ForEachRow(r, func(r database.Row) { names[r.Int64(0)] = r.Text(1) },
			`SELECT jobs.seq, coalesce(CASE WHEN jobs.place = 3 THEN nodes.name END,
					(SELECT attempts.node FROM attempts WHERE attempts.seq = jobs.seq AND n = runs),
					CASE WHEN ran <> '' THEN regexp_replace(ran, '^([^ ]* ){4}', '') END, nodes.name, '')
				FROM jobs LEFT JOIN nodes ON nodes.id = jobs.node WHERE `+r.ColumnInNumbersSQL("jobs.seq"),
			database.JoinNumbers(slices.Values(jobSeqs)))
	})
	return names, err
}

// SetNodeDrained implements store.Cluster. It makes a node stop claiming jobs or, if startDraining is false, claim jobs
// again.
func (s *Store) SetNodeDrained(ctx context.Context, name string, startDraining bool) error {
	return s.RunAndCommit(ctx, engine.PromptClass, func(t *engine.Tx) error {
		n, err := t.ExecRowsAffected(`UPDATE nodes SET drained = ? WHERE name = ?`, strconv.FormatBool(startDraining), name)
		return cmp.Or(err, checkNodeFound(n, name))
	})
}

// IsThisNodeDrained implements store.Cluster. It reports whether this node must not claim jobs.
func (s *Store) IsThisNodeDrained(ctx context.Context) (isDrained bool, err error) {
	err = s.leaseConn.UseConn(ctx, func(c *pgdb.Conn) error {
		n, err := c.QueryNumber(`SELECT count(*) FROM nodes WHERE id = ? AND drained`, s.NodeNumber())
		isDrained = n > 0
		return err
	})
	return isDrained, err
}

// RemoveNode implements store.Cluster. It deletes a node whose service does not run.
func (s *Store) RemoveNode(ctx context.Context, name string) error {
	return s.RunAndCommit(ctx, engine.PromptClass, func(t *engine.Tx) error {
		id, alive := int64(0), false
		_, err := database.ScanFirstRow(t, []any{&id, &alive},
			`SELECT id, NOT gone AND until > clock_timestamp() AND isfinite(until) FROM nodes WHERE name = ?`, name)
		if err != nil || id == 0 {
			return cmp.Or(err, checkNodeFound(0, name))
		}
		if alive {
			return queue.Errorf(queue.CodeWrongState, "the service of node %s is running; stop the service before "+
				"you remove the node", name)
		}
		if err := t.Exec(`DELETE FROM garbage WHERE node = ?`, name); err != nil {
			return err
		}
		return removeNode(t, id)
	})
}

// removeNode deletes the row of a node that is gone. Any node may then take over its leases.
func removeNode(t *engine.Tx, nodeNumber int64) error {
	err := t.OrphanLeases(nodeNumber)
	for _, statement := range []string{`DELETE FROM roles WHERE node = ?`, `DELETE FROM asks WHERE node = ?`,
		`DELETE FROM nodes WHERE id = ?`} {
		if err == nil {
			err = t.Exec(statement, nodeNumber)
		}
	}
	return err
}

// checkNodeFound returns an error if nodeCount, the number of nodes with a name, is 0.
func checkNodeFound(nodeCount int64, name string) error {
	if nodeCount == 0 {
		return queue.Errorf(queue.CodeNotFound, "there is no node %q; see: queuectl node list", queue.ClipForMessage(name))
	}
	return nil
}

// endNodeLease ends the node lease, so that other nodes need not wait until it expires. It is called when the
// service stops without leased jobs.
func (s *Store) endNodeLease() error {
	if s.NodeNumber() == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), pgdb.CloseTimeout)
	defer cancel()
	return s.leaseConn.UseConn(ctx, func(c *pgdb.Conn) error {
		return c.Exec(`UPDATE nodes SET until = now(), heard = now() WHERE id = ? AND incarnation = ?`, s.NodeNumber(),
			s.serviceStartNumber)
	})
}

// DeletableOutputsOfThisNode implements engine.SharedDatabase. It lists deletable output files of this node, and of
// nodes that do not exist any more. An index lets it skip the rows of other nodes, of which there may be many.
func (b backend) DeletableOutputsOfThisNode(t *engine.Tx, limit int) (refs []string, err error) {
	for name, found := "", true; found; {
		more, err := database.ReadRows(t, database.FirstColumnText, `SELECT ref FROM garbage WHERE node = ?
			AND NOT EXISTS (SELECT 1 FROM nodes WHERE name = ? AND id <> ?) ORDER BY ref LIMIT ?`,
			name, name, b.NodeNumber(), int64(limit-len(refs)))
		if refs = append(refs, more...); err != nil || len(refs) == limit {
			return refs, err
		}
		found, err = database.ScanFirstRow(t, []any{&name},
			`SELECT node FROM garbage WHERE node > ? ORDER BY node LIMIT 1`, name)
		if err != nil {
			return nil, err
		}
	}
	return refs, nil
}
