package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// LeaseKeeper renews the node lease and takes over the jobs of lost nodes.
type LeaseKeeper struct {
	*NodeList
	log    *slog.Logger
	drains *Drains

	workersChanged chan struct{}                // wake-up: the number of workers has changed
	leaseTrouble   atomic.Pointer[leaseTrouble] // why the last renewal of the node lease failed; nil if it succeeded
	orphans        chan struct{}                // wake-up: a lost node has left jobs to take over
}

// StoreFile is the name of a file in the state directory. The file names the server database that held the
// queue last. The file is empty if the queue was in the directory itself. Its modification time is the time
// at which the queue first used the directory. Output files that are older may belong to another queue. If
// the file does not exist, the queue has always used the directory.
const StoreFile = "store.id"

// OutputsSince returns when the current queue first used a state directory. It returns the zero time if the
// queue has always used the directory.
func OutputsSince(dir string) time.Time {
	info, err := os.Stat(filepath.Join(dir, StoreFile))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// IsStoreUnavailable reports whether an error means that the database server is unavailable.
func (l *NodeList) IsStoreUnavailable(err error) bool {
	return l.Cluster != nil && errors.Is(err, queue.ErrUnavailable)
}

// leaseMargin returns how long before the end of the node lease the runners end their jobs.
func leaseMargin(lease time.Duration) time.Duration { return lease / 6 }

// NewLeaseKeeper returns a keeper of the node lease. Without a cluster, its methods do nothing.
func NewLeaseKeeper(log *slog.Logger, d *Drains, l *NodeList) *LeaseKeeper {
	return &LeaseKeeper{NodeList: l, log: log, drains: d, workersChanged: make(chan struct{}, 1),
		orphans: make(chan struct{}, 1)}
}

// ExtendLease renews the node lease and extends the time for which the runners may run jobs.
func (k *LeaseKeeper) ExtendLease(ctx context.Context) error {
	if k.Cluster == nil {
		return nil
	}
	lease := k.Cluster.Lease()
	sent := time.Now()
	timeoutCtx, cancel := context.WithTimeout(ctx, lease/3)
	defer cancel()
	recordDrain := k.drains.BeginDrainRead()
	m, err := k.Cluster.ExtendLease(timeoutCtx, k.load())
	if err != nil {
		return err
	}
	var deadline time.Time // none, unless the setting on_partition says so
	if k.Settings.Current().OnPartition == "stop" {
		deadline = sent.Add(lease - leaseMargin(lease))
	}
	k.Pool.SetLeaseDeadline(deadline)
	recordDrain(m.Drained)
	if m.HasOrphans {
		select {
		case k.orphans <- struct{}{}:
		default: // a take-over is already requested
		}
	}
	return nil
}

// AnnounceWorkers renews the node lease soon, because the renewal also stores the number of workers.
func (k *LeaseKeeper) AnnounceWorkers() {
	select {
	case k.workersChanged <- struct{}{}:
	default: // a wake-up is already pending; the next lease renewal will send this number too
	}
}

// Trouble returns why the last renewal of the node lease failed; nil if it succeeded.
func (k *LeaseKeeper) Trouble() *leaseTrouble { return k.leaseTrouble.Load() }

// TakeOverLostNodes takes over the jobs of lost nodes until ctx ends. It runs separately from KeepLease, so
// that a take-over does not delay the renewal of the node lease.
func (k *LeaseKeeper) TakeOverLostNodes(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.orphans:
			k.TakeOver(ctx)
		}
	}
}

// TakeOver takes over the jobs of nodes whose leases have expired.
func (k *LeaseKeeper) TakeOver(ctx context.Context) {
	for more := true; more; {
		list, err := k.Cluster.TakeOver(ctx)
		if err != nil {
			if ctx.Err() == nil {
				k.log.Warn("cannot take over the jobs of a lost node yet; trying again", "error", err)
			}
			return
		}
		if len(list) > 0 {
			byNode := map[string]int{}
			for i := range list {
				byNode[list[i].NodeName]++
			}
			for _, name := range slices.Sorted(maps.Keys(byNode)) {
				k.log.Warn("another node is gone; its running jobs are treated as lost (see the setting on_lost)", "node", name,
					"jobs", byNode[name])
			}
			k.Pool.SettleLost(list)
		}
		more = len(list) == store.MaxTakeOver
	}
}

// leaseTrouble describes why a node cannot renew its lease.
type leaseTrouble struct {
	Text  string
	Lapse time.Time // from this time on, the node may not start jobs
}

// KeepLease renews the node lease periodically until ctx ends.
func (k *LeaseKeeper) KeepLease(ctx context.Context) {
	if k.Cluster == nil {
		return
	}
	lease := k.Cluster.Lease()
	renewed := time.Now()
	defer k.leaseTrouble.Store(nil)
	for wait := lease / 3; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		case <-k.workersChanged: // the renewal also stores the number of workers
		}
		wait = lease / 3
		started := time.Now()
		err := k.ExtendLease(ctx)
		switch {
		case err == nil:
			renewed = started
			if k.leaseTrouble.Swap(nil) != nil {
				k.log.Info("this node's right to run jobs (node lease) is renewed again")
			}
		case ctx.Err() == nil:
			wait = lease / 10
			failing := k.leaseTrouble.Swap(&leaseTrouble{
				Text: fmt.Sprintf("this node cannot renew its right to run jobs (node lease): %s; check the database server",
					strings.TrimSuffix(err.Error(), "; try again later")),
				Lapse: renewed.Add(lease - leaseMargin(lease)),
			})
			if failing == nil {
				k.log.Warn("cannot renew this node's right to run jobs (node lease); if the renewal does not succeed soon, the "+
					"setting on_partition decides whether its running jobs end or continue", "error", err, "lease", lease.String(),
					"on_partition", k.Settings.Current().OnPartition)
			}
		}
	}
}

// sharedReloadDelay is the delay between a change in the store and the check whether settings have changed.
// Because of the delay, one check covers several changes.
const sharedReloadDelay = 500 * time.Millisecond

// ApplyNode sets in the store which jobs this node may claim.
func (t *ThisNode) ApplyNode(ctx context.Context) error {
	return t.Store.SetNode(ctx, t.nodeRecord())
}
