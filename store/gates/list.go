package gates

import (
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// maxGatesReadPerOwner limits how many gates (locks, rates and resources) of an owner are read for one list. Many of
// these gates may be unneeded: no job needs them any more, and upkeep has not removed them yet.
const maxGatesReadPerOwner = 5 * store.MaxGatesPerPage

// maxStartsCountedPerOwner limits how many recorded starts are counted for one list of an owner's gates. When the
// limit is reached, the usage of the remaining rates includes only leases whose attempts are not known to
// have started.
const maxStartsCountedPerOwner = 20_000

// ListGates lists the locks, rates and resources of all users together and those of one user. It begins after
// afterGate. The resources are those of the given node.
func (t *GateTables) ListGates(uid int, afterGate store.GateState, node *store.Node) (gates []store.GateState,
	err error) {
	for _, owner := range slices.Compact([]int{queue.SharedGateOwner, uid}) {
		if afterGate.Kind != 0 && afterGate.OwnerUID > owner {
			continue
		}
		kind, key := queue.GateNode, "\x7f" // skip all gates of kind node, because they are not listed
		if afterGate.OwnerUID == owner && afterGate.Kind != 0 {
			kind, key = afterGate.Kind, afterGate.GateKey
		}
		if err := t.appendOwnerGates(owner, kind, key, &gates, node); err != nil {
			return nil, err
		}
	}
	return gates, nil
}

// appendOwnerGates appends the gates (locks, rates and resources) of an owner that follow the given kind and key.
func (t *GateTables) appendOwnerGates(ownerUID int, afterKind queue.GateKind, afterKey string, gates *[]store.GateState,
	node *store.Node) error {
	var ids []int64
	first, scanned := len(*gates), 0
	err := t.tx.Query(func(r database.Row) (bool, error) {
		// Skip a gate that no job, no list of waiting jobs (lane) and no setting needs. Upkeep will remove it.
		if scanned++; r.Int64(5) == 0 && r.Int64(6) == 0 && (r.Int64(1) != int64(queue.GateResource) || r.Int64(7) == 0) {
			return scanned < maxGatesReadPerOwner, nil
		}
		ids = append(ids, r.Int64(0))
		*gates = append(*gates, store.GateState{Demand: queue.Demand{Kind: queue.GateKind(r.Int64(1)), GateKey: r.Text(2),
			Amount: int(r.Int64(3)), RatePeriod: time.Duration(r.Int64(4)) * time.Millisecond}, OwnerUID: ownerUID,
			UnfinishedJobs: r.Int64(5), HasStoredRule: r.Int64(6) == 1})
		return len(*gates) < store.MaxGatesPerPage && scanned < maxGatesReadPerOwner, nil
	}, `SELECT id, kind, key, n, per, jobs, kept, lanes FROM gates INDEXED BY gates_key
		WHERE uid = ? AND (kind, key) > (?, ?) ORDER BY kind, key LIMIT ?`, ownerUID, afterKind, afterKey,
		maxGatesReadPerOwner)
	steps := maxStartsCountedPerOwner
	for i, id := range ids {
		g := &(*gates)[first+i]
		g.UsedUnits = t.state.UsedUnitsByGate[id]
		switch g.Kind {
		case queue.GateResource:
			g.Amount, g.RatePeriod = node.ResourceUnits[g.GateKey], 0
		case queue.GateRate:
			if err == nil {
				var starts int64
				starts, err = t.tx.QueryNumber(`SELECT count(*) FROM
					(SELECT 1 FROM starts WHERE gate = ? AND at >= ? LIMIT ?) AS counted`,
					id, int64(t.tx.Now())-g.RatePeriod.Milliseconds(), steps)
				steps -= int(starts)
				g.UsedUnits += int(starts)
			}
		}
	}
	return err
}
