package postgres

import (
	"cmp"
	"context"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/rules"
)

// TakeOver implements store.Cluster. It gives this node the leases of nodes whose node lease has ended.
func (s *Store) TakeOver(ctx context.Context) (lostLeases []store.LostLease, err error) {
	err = s.Do(ctx, engine.Urgent, func(t *engine.Tx) error {
		lostLeases = nil
		names, expired, gone := map[int64]string{}, map[int64]bool{}, map[int64]bool{}
		err := database.EachRow(t, func(r database.Row) {
			names[r.Num(0)] = r.Text(1)
			if r.Num(2) != 0 {
				expired[r.Num(0)] = true
			} else if r.Num(3) != 0 {
				gone[r.Num(0)] = true
			}
		}, `SELECT id, name, NOT gone AND until < clock_timestamp(), gone FROM nodes`)
		if err != nil {
			return err
		}
		for id := range expired {
			remaining, err := t.ExecCount(`UPDATE nodes SET gone = true WHERE id = ? AND NOT gone AND until < clock_timestamp()`,
				id)
			if err != nil {
				return err
			}
			if remaining == 0 { // the node has just renewed its lease
				delete(expired, id)
				continue
			}
			t.WakeAt(t.Now())
		}
		isGone := func(node int64) bool {
			_, known := names[node]
			return node != s.Node() && (!known || expired[node] || gone[node])
		}
		if err := t.TakeBatches(isGone); err != nil {
			return err
		}
		if len(expired) > 0 {
			t.RecheckClosedLanes()
		}
		for seq, l := range t.Leases() {
			if !isGone(l.Job.Node) {
				continue
			}
			if len(lostLeases) == store.MaxTakenOverLeases {
				break // the next call, or another node, takes over the remaining leases
			}
			if err := t.TransferLease(l, s.Node()); err != nil {
				return err
			}
			j, err := t.Job(seq, rules.ReadFull)
			if err != nil {
				return err
			}
			j.Fence = t.Leases()[seq].Job.Fence
			lostLeases = append(lostLeases, store.LostLease{Job: j.Job, Running: l.Running, OldFence: l.Job.Fence,
				NodeName: cmp.Or(names[l.Job.Node], "a removed node")})
		}
		return nil
	})
	return lostLeases, err
}
