package cluster

import (
	"context"
	"maps"
	"slices"

	"github.com/queuectl/queuectl/store"
)

// RunTakeovers takes over the jobs of lost nodes until ctx ends. It needs a separate goroutine, because a
// takeover must not delay RunNodeLeaseRenewals, which renews the node lease.
func (k *NodeLeaseKeeper) RunTakeovers(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.takeoverSignal:
			k.TakeOverLostJobs(ctx)
		}
	}
}

// TakeOverLostJobs takes over the jobs of nodes whose leases have expired.
func (k *NodeLeaseKeeper) TakeOverLostJobs(ctx context.Context) {
	for more := true; more; {
		list, err := k.Cluster.TakeOverLeases(ctx)
		if err != nil {
			if ctx.Err() == nil {
				k.log.Warn("cannot take over the jobs of a lost node yet; trying again", "error", err)
			}
			return
		}
		if len(list) > 0 {
			byNode := map[string]int{}
			for i := range list {
				byNode[list[i].FormerNodeName]++
			}
			for _, name := range slices.Sorted(maps.Keys(byNode)) {
				k.log.Warn("another node is gone; its running jobs are treated as lost (see the setting on_lost)", "node", name,
					"jobs", byNode[name])
			}
			k.Pool.AddLostLeases(list)
		}
		more = len(list) == store.MaxTakenOverLeases
	}
}
