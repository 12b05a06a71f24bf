package gates

import (
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// maxGatesRead limits how many gates (locks, rates and resources) of an owner are read for one list. Many of
// them may be gates that no job needs any more and that upkeep has not removed yet.
const maxGatesRead = 5 * store.MaxGatesPage

// maxStartsCounted limits how many recorded starts are counted for one list of an owner's gates. When the
// limit is reached, the usage of the remaining rates includes only leases whose attempts are not known to
// have started.
const maxStartsCounted = 20_000

// List lists the locks, rates and resources of all users together and those of one user. It begins after
// afterGate. The resources are those of the given node.
func (t *Tables) List(uid int, afterGate store.GateState, node *store.Node) (gates []store.GateState, err error) {
	for _, owner := range slices.Compact([]int{queue.SharedOwner, uid}) {
		if afterGate.Kind != 0 && afterGate.UID > owner {
			continue
		}
		kind, key := int64(queue.GateNode), "\x7f" // skip all gates of kind node, because they are not listed
		if afterGate.UID == owner && afterGate.Kind != 0 {
			kind, key = int64(afterGate.Kind), afterGate.Key
		}
		if err := t.listOwner(owner, kind, key, &gates, node); err != nil {
			return nil, err
		}
	}
	return gates, nil
}

// listOwner appends the gates (locks, rates and resources) of an owner that follow the given kind and key.
func (t *Tables) listOwner(ownerUID int, kind int64, key string, gates *[]store.GateState, node *store.Node) error {
	var ids []int64
	first, scanned := len(*gates), 0
	err := t.tx.Query(func(r database.Row) (bool, error) {
		// Skip a gate that no job, lane or setting needs. Upkeep will remove it.
		if scanned++; r.Num(5) == 0 && r.Num(6) == 0 && (r.Num(1) != int64(queue.GateResource) || r.Num(7) == 0) {
			return scanned < maxGatesRead, nil
		}
		ids = append(ids, r.Num(0))
		*gates = append(*gates, store.GateState{Demand: queue.Demand{Kind: queue.GateKind(r.Num(1)), Key: r.Text(2),
			Amount: int(r.Num(3)), Period: time.Duration(r.Num(4)) * time.Millisecond}, UID: ownerUID, Jobs: r.Num(5),
			RuleStored: r.Num(6) == 1})
		return len(*gates) < store.MaxGatesPage && scanned < maxGatesRead, nil
	}, `SELECT id, kind, key, n, per, jobs, kept, lanes FROM gates INDEXED BY gates_key
		WHERE uid = ? AND (kind, key) > (?, ?) ORDER BY kind, key LIMIT ?`, int64(ownerUID), kind, key, int64(maxGatesRead))
	steps := maxStartsCounted
	for i, id := range ids {
		g := &(*gates)[first+i]
		g.Usage = t.state.UsedUnits[id]
		switch g.Kind {
		case queue.GateResource:
			g.Amount, g.Period = node.Resources[g.Key], 0
		case queue.GateRate:
			if err == nil {
				var starts int64
				starts, err = t.tx.QueryNumber(`SELECT count(*) FROM
					(SELECT 1 FROM starts WHERE gate = ? AND at >= ? LIMIT ?) AS counted`,
					id, int64(t.tx.Now())-g.Period.Milliseconds(), int64(steps))
				steps -= int(starts)
				g.Usage += int(starts)
			}
		}
	}
	return err
}
