package postgres

import (
	"cmp"
	"context"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/rules"
)

// TakeOverLeases implements store.Cluster. It gives this node the leases of nodes whose node lease has ended.
func (s *Store) TakeOverLeases(ctx context.Context) (lostLeases []store.LostLease, err error) {
	err = s.RunAndCommit(ctx, engine.UrgentClass, func(t *engine.Tx) error {
		lostLeases = nil
		lostNodes, err := t.ExecRowsAffected(`UPDATE nodes SET gone = true WHERE NOT gone AND until < clock_timestamp()`)
		if err != nil {
			return err
		}
		names, gone := map[int64]string{}, map[int64]bool{}
		err = database.ForEachRow(t, func(r database.Row) {
			names[r.Int64(0)], gone[r.Int64(0)] = r.Text(1), r.Int64(2) != 0
		}, `SELECT id, name, gone FROM nodes`)
		if err != nil {
			return err
		}
		isGone := func(node int64) bool {
			_, known := names[node]
			return node != s.NodeNumber() && (!known || gone[node])
		}
		if err := t.TakeOverBatches(isGone); err != nil {
			return err
		}
		if lostNodes > 0 {
			t.WakeServiceAt(t.Now())
			t.RecheckClosedLanes()
		}
		for seq, l := range t.Leases() {
			if !isGone(l.Job.LastLeasingNodeID) {
				continue
			}
			if len(lostLeases) == store.MaxTakenOverLeases {
				break // the next call, or another node, takes over the remaining leases
			}
			if err := t.TransferLease(l, s.NodeNumber()); err != nil {
				return err
			}
			j, err := t.Job(seq, rules.ReadScopeFull)
			if err != nil {
				return err
			}
			j.Fence = t.Leases()[seq].Job.Fence
			lostLeases = append(lostLeases, store.LostLease{Job: j.Job, AttemptStarted: l.AttemptStarted, OldFence: l.Job.Fence,
				FormerNodeName: cmp.Or(names[l.Job.LastLeasingNodeID], "a removed node")})
		}
		return nil
	})
	return lostLeases, err
}
