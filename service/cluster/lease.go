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

// NodeLeaseKeeper renews the node lease (this node's right to run jobs), and takes over the jobs of lost nodes.
type NodeLeaseKeeper struct {
	*NodeRegistry
	log     *slog.Logger
	drainer *Drainer

	workersChanged chan struct{}                  // wake-up: the number of workers has changed
	renewalFailure atomic.Pointer[renewalFailure] // why the last renewal of the node lease failed; nil if it succeeded
	takeoverSignal chan struct{}                  // wake-up: a lost node has left jobs to take over
}

// StoreIDFileName is the name of a file in the state directory that identifies the queue that last used the directory.
// The file contains the identity of the queue's server database. If the queue was stored in files, the file is empty.
// Its modification time is when that queue first used the directory. Output files older than that may belong to another
// queue. If the file is missing, the directory has never been used by a queue other than the present one.
const StoreIDFileName = "store.id"

// StateDirFirstUsedAt returns when the current queue first used a state directory. The zero time means that no other
// queue has ever used the directory.
func StateDirFirstUsedAt(dir string) time.Time {
	info, err := os.Stat(filepath.Join(dir, StoreIDFileName))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// IsStoreUnavailable reports whether an error means that the database server is unavailable.
func (l *NodeRegistry) IsStoreUnavailable(err error) bool {
	return l.Cluster != nil && errors.Is(err, queue.ErrUnavailable)
}

// nodeLeaseSafetyMargin returns how long before the end of a node lease the runners must have ended their jobs.
func nodeLeaseSafetyMargin(nodeLeaseDuration time.Duration) time.Duration {
	return nodeLeaseDuration / 6
}

// NewNodeLeaseKeeper returns a NodeLeaseKeeper. If the queue is not shared, its methods do nothing.
func NewNodeLeaseKeeper(log *slog.Logger, d *Drainer, l *NodeRegistry) *NodeLeaseKeeper {
	return &NodeLeaseKeeper{NodeRegistry: l, log: log, drainer: d, workersChanged: make(chan struct{}, 1),
		takeoverSignal: make(chan struct{}, 1)}
}

// RenewNodeLease renews the node lease. With on_partition = "stop", it also moves the deadline at which the
// runners end their jobs if no further renewal succeeds.
func (k *NodeLeaseKeeper) RenewNodeLease(ctx context.Context) error {
	if k.Cluster == nil {
		return nil
	}
	lease := k.Cluster.NodeLeaseDuration()
	sent := time.Now()
	timeoutCtx, cancel := context.WithTimeout(ctx, lease/3)
	defer cancel()
	recordDrain := k.drainer.BeginDrainRead()
	m, err := k.Cluster.RenewNodeLease(timeoutCtx, k.thisNodeLoad())
	if err != nil {
		return err
	}
	// With a zero deadline, runners continue their jobs even if the lease expires.
	var deadline time.Time
	if k.Settings.CurrentConfig().OnPartition == "stop" {
		deadline = sent.Add(lease - nodeLeaseSafetyMargin(lease))
	}
	k.Pool.SetLeaseDeadline(deadline)
	recordDrain(m.IsNodeDrained)
	if m.HasLeasesToTakeOver {
		queue.TrySend(k.takeoverSignal, struct{}{})
	}
	return nil
}

// AnnounceWorkerCount triggers an early renewal of the node lease, which also stores the number of workers.
func (k *NodeLeaseKeeper) AnnounceWorkerCount() { queue.TrySend(k.workersChanged, struct{}{}) }

// NodeLeaseRenewalFailure returns why the last renewal of the node lease failed, or nil if it succeeded.
func (k *NodeLeaseKeeper) NodeLeaseRenewalFailure() *renewalFailure { return k.renewalFailure.Load() }

// renewalFailure describes why this node could not renew its lease.
type renewalFailure struct {
	UserMessage       string    // message for users
	NodeLeaseDeadline time.Time // time from which the node may not start jobs without a renewal
}

// RunNodeLeaseRenewals renews the node lease periodically until ctx ends.
func (k *NodeLeaseKeeper) RunNodeLeaseRenewals(ctx context.Context) {
	if k.Cluster == nil {
		return
	}
	lease := k.Cluster.NodeLeaseDuration()
	renewed := time.Now()
	defer k.renewalFailure.Store(nil)
	for wait := lease / 3; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		case <-k.workersChanged: // the renewal also stores the number of workers
		}
		wait = lease / 3
		started := time.Now()
		err := k.RenewNodeLease(ctx)
		switch {
		case err == nil:
			renewed = started
			if k.renewalFailure.Swap(nil) != nil {
				k.log.Info("this node's right to run jobs (node lease) is renewed again")
			}
		case ctx.Err() == nil:
			wait = lease / 10
			failing := k.renewalFailure.Swap(&renewalFailure{
				UserMessage: fmt.Sprintf("this node cannot renew its right to run jobs (node lease): %s; check the database server",
					strings.TrimSuffix(err.Error(), "; try again later")),
				NodeLeaseDeadline: renewed.Add(lease - nodeLeaseSafetyMargin(lease)),
			})
			if failing == nil {
				k.log.Warn("cannot renew this node's right to run jobs (node lease); if the renewal does not succeed soon, the "+
					"setting on_partition decides whether its running jobs end or continue", "error", err, "lease", lease.String(),
					"on_partition", k.Settings.CurrentConfig().OnPartition)
			}
		}
	}
}

// sharedSettingsReloadDelay is how long a node waits after the store has notified it of a change, before it checks for
// changed settings. One check thus covers several changes.
const sharedSettingsReloadDelay = 500 * time.Millisecond

// StoreNodeRecord stores this node's record, which determines which jobs this node may claim.
func (l *NodeRegistry) StoreNodeRecord(ctx context.Context) error {
	return l.Store.SetThisNodeProperties(ctx, l.thisNodeRecord())
}
