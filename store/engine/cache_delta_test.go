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
	mirror                 *Engine
	difference             error // the first difference between the caches that was found
	appliedDeltas, reloads int   // how many transactions the second node applied as deltas; how often it reloaded
}

func (m *mirroredNode) OnCommit(metaChanged bool) {
	m.Backend.OnCommit(metaChanged)
	if !metaChanged || m.difference != nil || m.node == 0 {
		return
	}
	m.difference = m.inMirror(func(t *Tx) error {
		if m.mirror.foreignChanges.anyJob {
			m.reloads++
		} else {
			m.appliedDeltas++
		}
		return differences(&m.mem, &m.mirror.mem)
	})
}

// inMirror calls f in a transaction of the mirror, which has applied the changes of the first node. The
// transaction is then rolled back.
func (m *mirroredNode) inMirror(f func(t *Tx) error) (callErr error) {
	errUndo := errors.New("looked")
	m.copyQuota()
	err := m.mirror.Do(context.Background(), Urgent, func(t *Tx) error {
		callErr = f(t)
		return errUndo
	})
	m.mirror.foreignChanges = foreignChanges{}
	if !errors.Is(err, queue.ErrInternal) {
		return errors.Join(callErr, err)
	}
	return callErr
}

// copyQuota copies the limit of running jobs per user from the first node to the mirror, because each node
// gets this setting from its service, not from the database.
func (m *mirroredNode) copyQuota() {
	o := &m.mirror.mem
	if o.maxLeasedPerUser == m.mem.maxLeasedPerUser {
		return
	}
	o.maxLeasedPerUser = m.mem.maxLeasedPerUser
	for _, l := range o.lanes.PlainLanes {
		if l.ClosedBy == rules.UserGate(l.UID) {
			l.ClosedBy = rules.Open
			o.lanes.Update(l)
		}
	}
}

// checkLeases returns an error if the mirror's copy of a leased job has other values than the first node's.
func (m *mirroredNode) checkLeases(t *Tx) (mismatch error) {
	of := func(j *rules.Job) string {
		return fmt.Sprint(j.State, j.Slot, j.UID, j.Queue, j.Priority, j.Attempts, j.StartedAttempts, j.Deferrals,
			j.Shortages, j.RunnerCrashes, j.PausedAt, j.PausedBy, j.OutputBytes, j.StartedAt, j.WorkerID, j.PID, j.Demands)
	}
	for seq, own := range m.mem.leases {
		l, err := t.loadFullLease(t.engine.mem.leases[seq])
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

// differences returns an error that names the differences between the caches of two nodes, or nil.
func differences(a, b *memory) (mismatch error) {
	same := func(subject string, a, b any) {
		if !reflect.DeepEqual(a, b) {
			mismatch = errors.Join(mismatch, fmt.Errorf("%s: %v, the other one has %v", subject, a, b))
		}
	}
	same("numbers", [...]int64{a.commits, a.nextSeq, a.nextEvent, a.enqueuedTotal, a.outputBytes,
		a.dependencies.UndecidedJobs, a.committedJobs},
		[...]int64{b.commits, b.nextSeq, b.nextEvent, b.enqueuedTotal, b.outputBytes, b.dependencies.UndecidedJobs,
			b.committedJobs})
	same("counts", a.jobCounts, b.jobCounts)
	same("marks", []any{a.reservedInMeta, a.statistics.SummedUpTo, formatOrder(a.order), a.rankedByOrder, a.lanes.Weights},
		[]any{b.reservedInMeta, b.statistics.SummedUpTo, formatOrder(b.order), b.rankedByOrder, b.lanes.Weights})
	same("lists", [...]string{a.userList, a.queueList}, [...]string{b.userList, b.queueList})
	same("listed", [...]int{len(a.listedUsers), len(a.listedQueues)}, [...]int{len(b.listedUsers), len(b.listedQueues)})
	same("owners", a.owners, b.owners)
	same("over", a.lanes.OverQuota, b.lanes.OverQuota)
	same("leases", leasesIn(a), leasesIn(b))
	same("users", usersIn(a), usersIn(b))
	same("batches", batchesIn(a), batchesIn(b))
	same("queues", queuesIn(a), queuesIn(b))
	same("lanes", lanesIn(a), lanesIn(b))
	resources := slices.Sorted(slices.Values(a.gates.ResourceList))
	same("resources", resources, slices.Sorted(slices.Values(b.gates.ResourceList)))
	used := map[int64]int{}
	for gate, n := range a.gates.UsedUnits { // skip resources, because each node counts only the use on that node
		if !slices.Contains(resources, gate) {
			used[gate] = n
		}
	}
	same("used", used, b.gates.UsedUnits)
	return mismatch
}

// leasesIn describes the leases in a node's cache, by seq of the job.
func leasesIn(m *memory) map[int64]string {
	list := map[int64]string{}
	for seq, l := range m.leases {
		list[seq] = fmt.Sprint(l.Job.Fence, l.Job.Node, l.Running, l.Job.UID, l.Job.Queue, l.Job.Lane, l.Needs)
	}
	return list
}

// usersIn returns the counts of users in a node's cache, without the counts that nodes do not share.
func usersIn(m *memory) map[int]user {
	list := maps.Clone(m.users)
	for uid, u := range list { // skip the numbers and bytes of batches, which only the receiving node counts
		u.chosenIDCount, u.stagedBytes = 0, 0
		if list[uid] = u; u == (user{}) {
			delete(list, uid)
		}
	}
	return list
}

// batchesIn describes the batches in a node's cache, by number.
func batchesIn(m *memory) map[int64]string {
	list := map[int64]string{}
	for n, b := range m.batches {
		list[n] = fmt.Sprint(b.uid, b.name, b.jobCount, b.isCommitted, b.isBeingRemoved, b.node)
	}
	return list
}

// queuesIn describes the queues in a node's cache, by name.
func queuesIn(m *memory) map[string]string {
	list := map[string]string{}
	for name, q := range m.lanes.Queues {
		if q.HasRow() || q.LaneCount > 0 {
			list[name] = fmt.Sprint(q.Waiting, q.Leased, q.LaneCount, q.RetainedJobs, q.RetainedBytes, q.Rule)
			if q.Exists() {
				list[name] += fmt.Sprint(" of ", q.UID)
			}
		}
	}
	return list
}

// lanesIn returns the ids of the lanes whose jobs need no lock or other limit, by queue and user. It leaves
// out the position of each lane's first job, which each node updates separately.
func lanesIn(m *memory) map[lanes.Name]int64 {
	list := map[lanes.Name]int64{}
	for name, l := range m.lanes.PlainLanes {
		list[name] = l.ID
	}
	return list
}

// runMirroredWalks executes random operations on one of two nodes with the same database, and compares the
// caches of both. The second node applies the changes only when it begins a transaction itself. The callback
// open returns a function that opens both nodes on a database.
func runMirroredWalks(t *testing.T, n int,
	open func(t *testing.T) func(queue.Order) (s store.Store, first, second *Engine)) {
	runWalks(t, n, func(t *testing.T) func(queue.Order) (store.Store, *Engine) {
		at := open(t)
		var m *mirroredNode
		t.Cleanup(func() {
			if t.Logf("%d deltas applied, %d reloads", m.appliedDeltas, m.reloads); m.appliedDeltas < 10*m.reloads {
				t.Error("the second node reloads too often; want at least 10 applied deltas per reload")
			}
		})
		deltas, reloads := 0, 0
		return func(order queue.Order) (store.Store, *Engine) {
			if m != nil {
				deltas, reloads = m.appliedDeltas, m.reloads
			}
			s, first, second := at(order)
			m = &mirroredNode{Backend: first.backend, Engine: first, mirror: second, appliedDeltas: deltas, reloads: reloads}
			first.backend = m
			return s, first
		}
	}, func(engine *Engine) error {
		m := engine.backend.(*mirroredNode)
		return errors.Join(m.difference, m.inMirror(func(t *Tx) error {
			m.mirror.gateRechecks.MaxSteps = 40 * rules.MaxSteps // the same limit as on the first node
			if err := t.rules.OpenLanes(); err != nil {
				return err
			}
			lanes, demands, err := t.readAllLanes()
			if err != nil {
				return err
			}
			return errors.Join(m.checkLeases(t), t.checkJobLanes(lanes, demands), t.checkClosedLanes(lanes),
				t.checkQueues(lanes))
		}))
	})
}
