package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/rules"
)

// mirroredNode is the backend of a node with a second node, the mirror, on the same database. After each
// transaction of the first node, the mirror applies the cache delta, and the caches of both are compared. The
// mirror makes no changes itself.
type mirroredNode struct {
	Backend
	*Engine
	mirror          *Engine
	firstDifference error // the first difference between the caches that was found
	// how often the second node applied a delta, and how often it reloaded its caches
	appliedDeltaCount, cacheReloadCount int
}

func (m *mirroredNode) AfterCommit(metaRowChanged bool) {
	m.Backend.AfterCommit(metaRowChanged)
	if !metaRowChanged || m.firstDifference != nil || m.nodeID == 0 {
		return
	}
	m.firstDifference = m.runInMirrorTx(func(t *Tx) error {
		if m.mirror.changesByOtherNodes.anyJobMayHaveChanged {
			m.cacheReloadCount++
		} else {
			m.appliedDeltaCount++
		}
		return compareMemories(&m.cache, &m.mirror.cache)
	})
}

// runInMirrorTx calls f in a transaction of the mirror, which has applied the changes of the first node. The
// transaction is then rolled back.
func (m *mirroredNode) runInMirrorTx(f func(t *Tx) error) (callErr error) {
	errUndo := errors.New("looked")
	m.copyUserLimit()
	err := m.mirror.RunAndCommit(context.Background(), UrgentClass, func(t *Tx) error {
		callErr = f(t)
		return errUndo
	})
	m.mirror.changesByOtherNodes = changesByOtherNodes{}
	if !errors.Is(err, queue.ErrInternal) {
		return errors.Join(callErr, err)
	}
	return callErr
}

// copyUserLimit copies the limit of running jobs per user from the first node to the mirror, because each node
// gets this setting from its service, not from the database.
func (m *mirroredNode) copyUserLimit() {
	o := &m.mirror.cache
	if o.maxLeasedPerUser == m.cache.maxLeasedPerUser {
		return
	}
	o.maxLeasedPerUser = m.cache.maxLeasedPerUser
	for _, l := range o.lanes.DemandFreeLanes {
		if l.ClosedBy == rules.UserQuotaGateID(l.UID) {
			l.ClosedBy = rules.Open
			o.lanes.UpdateDemandFreeLane(l)
		}
	}
}

// checkMirroredLeases returns an error if the mirror's copy of a leased job has other values than the first node's.
func (m *mirroredNode) checkMirroredLeases(t *Tx) (mismatch error) {
	of := func(j *rules.Job) string {
		return fmt.Sprint(j.State, j.Slot, j.UID, j.Queue, j.Priority, j.Attempts, j.StartedAttempts, j.Deferrals,
			j.Shortages, j.RunnerCrashes, j.PausedAt, j.PausedBy, j.OutputBytes, j.StartedAt, j.WorkerID, j.PID, j.Demands)
	}
	for seq, own := range m.cache.leases {
		l, err := t.loadFullLease(t.leases[seq])
		if err != nil {
			return err
		}
		if a, b := of(&own.Job), of(&l.Job); a != b {
			mismatch = errors.Join(mismatch, fmt.Errorf("the lease of job %d is %s, the other one has %s", seq, a, b))
		}
	}
	return mismatch
}

func (m *mirroredNode) Close() error { return errors.Join(m.mirror.Close(), m.Backend.Close()) }

// compareMemories returns an error that names the differences between the caches of two nodes, or nil.
func compareMemories(a, b *databaseCache) (mismatch error) {
	same := func(subject string, a, b any) {
		if !reflect.DeepEqual(a, b) {
			mismatch = errors.Join(mismatch, fmt.Errorf("%s: %v, the other one has %v", subject, a, b))
		}
	}
	same("numbers", [...]int64{a.commitCount, a.NextJobSeq, a.NextEventNumber, a.EnqueuedTotal, a.OutputBytes,
		a.dependencies.PendingParentChangeCount, a.unqueuedCommittedJobs},
		[...]int64{b.commitCount, b.NextJobSeq, b.NextEventNumber, b.EnqueuedTotal, b.OutputBytes,
			b.dependencies.PendingParentChangeCount, b.unqueuedCommittedJobs})
	same("counts", a.JobCountByState, b.JobCountByState)
	same("marks", []any{a.metaListsReservedLeases, a.statistics.RolledUpUntilByGrain, formatRankOrder(a.order),
		a.storedRanksOrderText, a.lanes.WeightedQueueCount},
		[]any{b.metaListsReservedLeases, b.statistics.RolledUpUntilByGrain, formatRankOrder(b.order), b.storedRanksOrderText,
			b.lanes.WeightedQueueCount})
	same("lists", [...]string{a.metaUsersText, a.metaQueuesText}, [...]string{b.metaUsersText, b.metaQueuesText})
	same("listed", [...]int{len(a.metaUserUIDs), len(a.metaQueueNames)},
		[...]int{len(b.metaUserUIDs), len(b.metaQueueNames)})
	same("owners", a.ownerNames, b.ownerNames)
	same("over", a.lanes.OverQuotaLaneCounts, b.lanes.OverQuotaLaneCounts)
	same("leases", describeLeases(a), describeLeases(b))
	same("users", sharedUserCounts(a), sharedUserCounts(b))
	same("batches", describeBatches(a), describeBatches(b))
	same("queues", describeQueues(a), describeQueues(b))
	same("lanes", demandFreeLaneIDs(a), demandFreeLaneIDs(b))
	resources := slices.Sorted(slices.Values(a.gates.ResourceGateIDs))
	same("resources", resources, slices.Sorted(slices.Values(b.gates.ResourceGateIDs)))
	used := map[int64]int{}
	for gate, n := range a.gates.UsedUnitsByGate { // skip resources, because each node counts only the use on that node
		if !slices.Contains(resources, gate) {
			used[gate] = n
		}
	}
	same("used", used, b.gates.UsedUnitsByGate)
	return mismatch
}

// describeLeases describes the leases in a node's cache, by seq of the job.
func describeLeases(m *databaseCache) map[int64]string {
	list := map[int64]string{}
	for seq, l := range m.leases {
		list[seq] = fmt.Sprint(l.Job.Fence, l.Job.LastLeasingNodeID, l.AttemptStarted, l.Job.UID, l.Job.Queue, l.Job.LaneID,
			l.HeldGateUnits)
	}
	return list
}

// sharedUserCounts returns the counts of users in a node's cache, without the counts that nodes do not share.
func sharedUserCounts(m *databaseCache) map[int]userCounts {
	list := maps.Clone(m.users)
	for uid, u := range list { // skip the numbers and bytes of batches, which only the receiving node counts
		u.userChosenIDCount, u.stagedBytes = 0, 0
		if list[uid] = u; u == (userCounts{}) {
			delete(list, uid)
		}
	}
	return list
}

// describeBatches describes the batches in a node's cache, by number.
func describeBatches(m *databaseCache) map[int64]string {
	list := map[int64]string{}
	for n, b := range m.batches {
		list[n] = fmt.Sprint(b.uid, b.name, b.unqueuedJobCount, b.isCommitted, b.isBeingRemoved, b.receivingNodeID)
	}
	return list
}

// describeQueues describes the queues in a node's cache, by name.
func describeQueues(m *databaseCache) map[string]string {
	list := map[string]string{}
	for name, q := range m.lanes.Queues {
		if q.NeedsDatabaseRow() || q.LaneCount > 0 {
			list[name] = fmt.Sprint(q.WaitingJobs, q.LeasedJobs, q.LaneCount, q.RetainedJobs, q.RetainedOutputBytes, q.Rule)
			if q.Exists() {
				list[name] += fmt.Sprint(" of ", q.CreatorUID)
			}
		}
	}
	return list
}

// demandFreeLaneIDs returns the ids of the lanes whose jobs need no lock or other limit, by queue and user. It leaves
// out the position of each lane's first job, which each node updates separately.
func demandFreeLaneIDs(m *databaseCache) map[lanes.DemandFreeLaneKey]int64 {
	list := map[lanes.DemandFreeLaneKey]int64{}
	for name, l := range m.lanes.DemandFreeLanes {
		list[name] = l.ID
	}
	return list
}

// runMirroredRandomWalks executes random operations on one of two nodes with the same database, and compares the
// caches of both. The second node applies the changes only when it begins a transaction itself. The callback
// open returns a function that opens both nodes on a database.
func runMirroredRandomWalks(t *testing.T, walkCount int,
	open func(t *testing.T) func(queue.RankPolicy) (s store.Store, first, second *Engine)) {
	runRandomWalks(t, walkCount, func(t *testing.T) func(queue.RankPolicy) (store.Store, *Engine) {
		at := open(t)
		var m *mirroredNode
		t.Cleanup(func() {
			if t.Logf("%d deltas applied, %d reloads", m.appliedDeltaCount,
				m.cacheReloadCount); m.appliedDeltaCount < 10*m.cacheReloadCount {
				t.Error("the second node reloads too often; want at least 10 applied deltas per reload")
			}
		})
		deltas, reloads := 0, 0
		return func(order queue.RankPolicy) (store.Store, *Engine) {
			if m != nil {
				deltas, reloads = m.appliedDeltaCount, m.cacheReloadCount
			}
			s, first, second := at(order)
			m = &mirroredNode{Backend: first.backend, Engine: first, mirror: second, appliedDeltaCount: deltas,
				cacheReloadCount: reloads}
			first.backend = m
			return s, first
		}
	}, func(engine *Engine) error {
		m := engine.backend.(*mirroredNode)
		return errors.Join(m.firstDifference, m.runInMirrorTx(func(t *Tx) error {
			m.mirror.gateRecheckState.MaxNonClaimSteps = 40 * rules.MaxLaneStepsPerTx // the same limit as on the first node
			if err := t.rules.OpenLanes(); err != nil {
				return err
			}
			lanes, demands, err := t.readAllLanes()
			if err != nil {
				return err
			}
			return errors.Join(m.checkMirroredLeases(t), t.checkJobsMatchTheirLanes(lanes, demands), t.checkClosedLanes(lanes),
				t.checkQueuesMatchLanes(lanes))
		}))
	})
}
