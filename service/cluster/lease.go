package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// LeaseKeeper renews the node lease (this node's right to run jobs), and takes over the jobs of lost nodes.
type LeaseKeeper struct {
	nodes   *NodeList
	log     *slog.Logger
	drainer *Drainer

	workersChanged  chan struct{}                  // wake-up: the number of workers has changed
	renewalFailure  atomic.Pointer[renewalFailure] // why the last renewal of the node lease failed; nil if it succeeded
	takeoverRequest chan struct{}                  // wake-up: a lost node has left jobs to take over
}

// StoreIDFileName is the name of a file in the state directory. The file names the server database that last held
// the queue. An empty file means that the queue was in the state directory. The file's modification time is
// when the queue first used the directory. Older output files may belong to another queue. Without the file,
// the queue has used the directory from the beginning.
const StoreIDFileName = "store.id"

// DirFirstUsedAt returns when the current queue first used a state directory. The zero time means that the
// queue has used the directory from the beginning.
func DirFirstUsedAt(dir string) time.Time {
	info, err := os.Stat(filepath.Join(dir, StoreIDFileName))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// IsStoreUnavailable reports whether an error means that the database server is unavailable.
func (l *NodeList) IsStoreUnavailable(err error) bool {
	return l.Cluster != nil && errors.Is(err, queue.ErrUnavailable)
}

// leaseMargin returns how long before the end of a node lease the runners must have ended their jobs.
func leaseMargin(lease time.Duration) time.Duration { return lease / 6 }

// NewLeaseKeeper returns a keeper of the node lease. Without a cluster, its methods do nothing.
func NewLeaseKeeper(log *slog.Logger, d *Drainer, l *NodeList) *LeaseKeeper {
	return &LeaseKeeper{nodes: l, log: log, drainer: d, workersChanged: make(chan struct{}, 1),
		takeoverRequest: make(chan struct{}, 1)}
}

// RenewLease renews the node lease. With on_partition = "stop", it also postpones the time at which the runners end
// their jobs without a further renewal.
func (k *LeaseKeeper) RenewLease(ctx context.Context) error {
	if k.nodes.Cluster == nil {
		return nil
	}
	lease := k.nodes.Cluster.NodeLeaseDuration()
	sent := time.Now()
	timeoutCtx, cancel := context.WithTimeout(ctx, lease/3)
	defer cancel()
	recordDrain := k.drainer.BeginDrainRead()
	m, err := k.nodes.Cluster.RenewNodeLease(timeoutCtx, k.nodes.currentLoad())
	if err != nil {
		return err
	}
	// A zero deadline lets the runners continue without a lease. The setting on_partition may request a
	// deadline.
	var deadline time.Time
	if k.nodes.Settings.Current().OnPartition == "stop" {
		deadline = sent.Add(lease - leaseMargin(lease))
	}
	k.nodes.Pool.SetLeaseDeadline(deadline)
	recordDrain(m.Drained)
	if m.HasOrphans {
		queue.TrySend(k.takeoverRequest, struct{}{})
	}
	return nil
}

// AnnounceWorkers triggers a renewal of the node lease, because the renewal also stores the number of workers.
func (k *LeaseKeeper) AnnounceWorkers() { queue.TrySend(k.workersChanged, struct{}{}) }

// RenewalFailure returns why the last renewal of the node lease failed, or nil if it succeeded.
func (k *LeaseKeeper) RenewalFailure() *renewalFailure { return k.renewalFailure.Load() }

// renewalFailure describes why this node could not renew its lease.
type renewalFailure struct {
	Text          string    // message for users
	LeaseDeadline time.Time // from this time on, the node may not start jobs
}

// RunRenewals renews the node lease periodically until ctx ends.
func (k *LeaseKeeper) RunRenewals(ctx context.Context) {
	if k.nodes.Cluster == nil {
		return
	}
	lease := k.nodes.Cluster.NodeLeaseDuration()
	renewed := time.Now()
	defer k.renewalFailure.Store(nil)
	for wait := lease / 3; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		case <-k.workersChanged: // renew early, since the renewal stores the number of workers
		}
		wait = lease / 3
		started := time.Now()
		err := k.RenewLease(ctx)
		switch {
		case err == nil:
			renewed = started
			if k.renewalFailure.Swap(nil) != nil {
				k.log.Info("this node's right to run jobs (node lease) is renewed again")
			}
		case ctx.Err() == nil:
			wait = lease / 10
			failing := k.renewalFailure.Swap(&renewalFailure{
				Text: fmt.Sprintf("this node cannot renew its right to run jobs (node lease): %s; check the database server",
					strings.TrimSuffix(err.Error(), "; try again later")),
				LeaseDeadline: renewed.Add(lease - leaseMargin(lease)),
			})
			if failing == nil {
				k.log.Warn("cannot renew this node's right to run jobs (node lease); if the renewal does not succeed soon, the "+
					"setting on_partition decides whether its running jobs end or continue", "error", err, "lease", lease.String(),
					"on_partition", k.nodes.Settings.Current().OnPartition)
			}
		}
	}
}

// sharedReloadDelay is the delay between a change in the store and the check for changed settings. It lets one
// check cover several changes.
const sharedReloadDelay = 500 * time.Millisecond

// StoreNodeRecord stores the record of this node, which says which jobs this node may claim.
func (l *NodeList) StoreNodeRecord(ctx context.Context) error {
	return l.Store.SetNode(ctx, l.nodeRecord())
}
