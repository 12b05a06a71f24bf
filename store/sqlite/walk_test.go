package sqlite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/memstore"
	"github.com/queuectl/queuectl/store/rules"
	"github.com/queuectl/queuectl/store/storetest"
)

// laneFaults holds the lanes against the table, by looking at all of it.
func (s *Store) laneFaults() error {
	for s.rechecks.Left() > 0 {
		if err := s.do(context.Background(), urgent, func(*tx) error { return nil }); err != nil {
			return err
		}
	}
	return s.do(context.Background(), urgent, func(t *tx) error {
		lanes, demands, err := t.all()
		if err != nil {
			return err
		}
		return errors.Join(t.jobsOutOfLane(lanes, demands), t.wrongUse(), t.miscountedGates(lanes), t.forgottenLanes(lanes), t.wrongQueues(lanes))
	})
}

// all are the lanes as the tables, and the writer for those that are plain, have them.
func (t *tx) all() (lanes map[int64]rules.Lane, demands map[int64]string, err error) {
	lanes, demands = map[int64]rules.Lane{}, map[int64]string{}
	err = t.query(func(r row) (bool, error) {
		l, err := readLane(r)
		if own := t.s.mem.lanes.plain[laneName{l.Queue, l.UID}]; r.text(7) == "" && own != nil {
			l = *own
		}
		lanes[l.ID], demands[l.ID] = l, r.text(7)
		return true, err
	}, `SELECT `+laneColumns+`, demands FROM lanes`)
	return lanes, demands, err
}

// jobsOutOfLane: each job that may run and is not leased stands in the lane of jobs like it, whose
// head is at or before it.
func (t *tx) jobsOutOfLane(lanes map[int64]rules.Lane, demands map[int64]string) error {
	var wrong error
	err := t.query(func(r row) (bool, error) {
		p, l := rules.Position{Rank: r.num(1), Seq: r.num(0)}, lanes[r.num(2)]
		made := readDemands(r.view(5))
		switch {
		case t.s.mem.leases[p.Seq] != nil:
		case l.Queue != r.text(3) || l.UID != int(r.num(4)) || demands[l.ID] != queue.DemandsText(made):
			wrong = fmt.Errorf("job %d of %s, user %d, %v stands in lane %+v", p.Seq, r.text(3), r.num(4), made, l)
		case l.Shut == rules.Empty || l.Head.After(p):
			wrong = fmt.Errorf("the lane %+v does not know of job %d at %v", l, p.Seq, p)
		}
		return true, nil
	}, `SELECT seq, rank, lane, queue, uid, demands FROM jobs INDEXED BY jobs_ready WHERE place = 1`)
	return errors.Join(wrong, err)
}

// wrongUse: what is used of a gate is what leases hold.
func (t *tx) wrongUse() error {
	used := map[int64]int{}
	leased := map[string]int{}
	for _, l := range t.s.mem.leases {
		leased[l.Job.Queue]++
		for _, d := range l.Job.Demands {
			gate, err := t.gate(l.Job.UID, d)
			if err != nil {
				return err
			}
			if d.Kind != queue.GateRate || !l.Running {
				used[gate] += d.Units()
			}
		}
	}
	if !maps.Equal(used, t.s.mem.used) {
		return fmt.Errorf("%v is used of gates, and %v is known", used, t.s.mem.used)
	}
	for name, q := range t.s.mem.lanes.queues {
		if q.leased != leased[name] {
			return fmt.Errorf("%d jobs of queue %s are leased, and %d are known", leased[name], name, q.leased)
		}
	}
	return nil
}

// miscountedGates: a gate knows how many lanes need it and how many jobs name it, and one that
// nothing needs is about to go.
func (t *tx) miscountedGates(lanes map[int64]rules.Lane) error {
	type count struct{ lanes, jobs int64 }
	want := map[int64]count{}
	for _, l := range lanes {
		for _, n := range l.Needs {
			c := want[n.Gate]
			c.lanes++
			want[n.Gate] = c
		}
	}
	var named []rules.Job
	err := t.query(func(r row) (bool, error) {
		named = append(named, rules.Job{Job: queue.Job{UID: int(r.num(0)), Demands: readDemands(r.view(1))}})
		return true, nil
	}, `SELECT uid, demands FROM jobs WHERE state < 6 AND demands <> ''`)
	if err != nil {
		return err
	}
	for _, j := range named {
		for _, d := range j.Demands {
			if !d.Ruled() {
				continue
			}
			id, err := t.number(`SELECT id FROM gates WHERE uid = ? AND kind = ? AND key = ?`, int64(d.Owner(j.UID)), int64(d.Kind), d.Key)
			if err != nil || id == 0 {
				return errors.Join(fmt.Errorf("a job of user %d names %v, which is forgotten", j.UID, d), err)
			}
			c := want[id]
			c.jobs++
			want[id] = c
		}
	}
	var wrong error
	err = t.query(func(r row) (bool, error) {
		if got := (count{r.num(1), r.num(2)}); got != want[r.num(0)] {
			wrong = fmt.Errorf("gate %d has %+v, and knows of %+v", r.num(0), want[r.num(0)], got)
		}
		return true, nil
	}, `SELECT id, lanes, jobs FROM gates`)
	return errors.Join(wrong, err)
}

// forgottenLanes: where a lane that is shut on a gate fits there, an open lane of its queue with
// that demand begins at or before the best such lane.
func (t *tx) forgottenLanes(lanes map[int64]rules.Lane) error {
	needs := func(l rules.Lane) []rules.Need {
		return append([]rules.Need{{Gate: rules.UserGate(l.UID), Kind: queue.GateUser, Units: 1}}, l.Needs...)
	}
	type list struct {
		gate  int64
		queue string
	}
	best := map[list]rules.Lane{}
	for _, l := range lanes {
		if l.Shut == rules.Open || l.Shut == rules.Empty {
			continue
		}
		at := list{l.Shut, l.Queue}
		units := func(l rules.Lane) int {
			i := slices.IndexFunc(needs(l), func(n rules.Need) bool { return n.Gate == at.gate })
			return needs(l)[i].Units
		}
		first, found := best[at]
		if !found || first.Head.After(l.Head) || first.Head == l.Head && units(l) > units(first) { // a head may be before the first job
			best[at] = l
		}
	}
	for at, l := range best {
		covered := false
		for _, other := range lanes {
			if other.Shut == rules.Open && other.Queue == l.Queue && !other.Head.After(l.Head) {
				covered = covered || slices.ContainsFunc(needs(other), func(n rules.Need) bool { return n.Gate == at.gate })
			}
		}
		for _, n := range needs(l) {
			if n.Gate != at.gate || covered {
				continue
			}
			g, err := t.Gate(l.UID, n)
			if err != nil {
				return err
			}
			if g.Room >= n.Units {
				return fmt.Errorf("the lane %+v is shut on gate %d, which has room for %d", l, n.Gate, g.Room)
			}
		}
	}
	return nil
}

// wrongQueues: what the writer keeps of queues is what the lanes say.
func (t *tx) wrongQueues(lanes map[int64]rules.Lane) error {
	if err := t.refresh(); err != nil {
		return err
	}
	heads := map[string]rules.Position{}
	for _, l := range lanes {
		if first, found := heads[l.Queue]; l.Shut == rules.Open && (!found || first.After(l.Head)) {
			heads[l.Queue] = l.Head
		}
	}
	ls := t.s.mem.lanes
	for name, q := range ls.queues {
		head, open := heads[name]
		if open != (len(q.open) > 0 || q.best != nil) || open && head != q.Head {
			return fmt.Errorf("queue %s begins at %v, %t, and is known as %+v", name, head, open, q)
		}
		if stands := open && q.Room > 0; stands != (q.at >= 0) || stands && ls.ready[q.at] != q {
			return fmt.Errorf("queue %s stands at %d: %+v", name, q.at, q)
		}
		for i, l := range q.open {
			if l.HeapIndex != i || l.Shut != rules.Open || i > 0 && q.open[(i-1)/2].Head.After(l.Head) {
				return fmt.Errorf("the lane %+v stands wrong in its queue", l)
			}
		}
	}
	for i, q := range ls.ready {
		if i > 0 && ls.ready[(i-1)/2].Head.After(q.Head) {
			return fmt.Errorf("queue %s stands after one with a worse head", q.Name)
		}
	}
	return nil
}

// The engine claims as the model does, whatever is asked of both, over restarts; and its
// lanes are right after every step.
func TestWalks(t *testing.T) {
	storetest.Walks(t, 8, 3000, func(t *testing.T, o queue.Order) (storetest.Engine, store.Store, func(time.Duration)) {
		dir := t.TempDir()
		var now atomic.Int64
		now.Store(time.Now().UnixMilli())
		clock := func() queue.Millis { return queue.Millis(now.Load()) }
		order := o
		var s *Store
		reopen := func() store.Store {
			if s != nil {
				order = s.Order()
				s.Close()
			}
			var err error
			if s, err = Open(Options{Dir: dir, Order: order}); err != nil {
				t.Fatal(err)
			}
			s.now = clock
			s.lanesKept = 20                                                 // so that lanes, gates and queues go, and come again
			if _, err := s.db.exec(`PRAGMA synchronous = OFF`); err != nil { // nothing is cut off here
				t.Fatal(err)
			}
			return s
		}
		first := reopen()
		t.Cleanup(func() { s.Close() })
		undo := func(want int) {
			s.do(t.Context(), urgent, func(tx *tx) error {
				_, _, err := tx.rules.Claim(want)
				return errors.Join(err, errors.New("undone"))
			})
		}
		return storetest.Engine{Store: first, Reopen: reopen, Undo: undo, Check: func() error { return s.laneFaults() }}, memstore.NewAt(o, clock),
			func(d time.Duration) { now.Add(d.Milliseconds()) }
	})
}
