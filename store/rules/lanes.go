package rules

import (
	"math"

	"github.com/queuectl/queuectl/queue"
)

// Two lanes of one queue, of two users, show how they work. Both need a lock of everybody's that one
// job may hold: in lane A stand jobs 1 and 4, in lane B job 2. A claim takes job 1 of A, which has the better head. The next look
// at A finds the lock taken, so A is shut on it, and B after it. When job 1 ends, its lease says
// Recheck(lock), and Reopen opens B alone: job 2 ranks before job 4. B stands for A now, which stays
// shut. As B's head goes past job 2, B stands for A no more, so set asks for another look: it finds
// the lock taken again, and leaves A as it is until job 2 ends.

// Lane is the jobs of one user and one queue that make the same demands and may run as far as
// time and state go. They are alike for the claim, so only the first of them matters, and
// nothing that waits is moved because of what holds it back.
type Lane struct {
	ID    int64
	Queue string
	UID   int
	Needs []Need // but for the user's quota; the node, locks and rates, then resources
	// Head is at or before the first job of the lane that is not leased.
	Head Position
	// Shut is the gate that the first job lacks room at, Open if none does as far as is known,
	// Empty if there is no job.
	Shut int64
	// HeapIndex is for the engine: where the lane stands in a heap of it, -1 if it does not.
	HeapIndex int
}

// What else a lane may be than shut on a gate.
const (
	Open  int64 = 0
	Empty int64 = math.MinInt64
)

// Start is before every place.
var Start = Position{math.MinInt64, 0}

// End is after every place.
var End = Position{math.MaxInt64, math.MaxInt64}

// Need is a gate and how much of it one job takes.
type Need struct {
	Gate  int64
	Kind  queue.GateKind
	Units int
}

// UserGate is the gate of a user's quota: below 0, where no other gate is.
func UserGate(uid int) int64 {
	if uid < 0 {
		return 2*int64(uid) - 1 // odd
	}
	return -2*int64(uid) - 2 // even
}

// Queue is what is known of a queue.
type Queue struct {
	Name   string
	Weight int      // of it in the starts of all
	Room   int      // how many more of its jobs may be leased; 0 while it is paused
	Head   Position // the best of its open lanes
	Pass   int64    // when it is its turn, while weights differ

	Waiting int64 // jobs of it
	Most    int64 // jobs of it that may wait, 0 is any number
	Keeps   bool  // it has a retention of its own
}

// set is the only writer of a lane's head and of what it is shut on.
func (r *Rules) set(l *Lane, head Position, shut int64) error {
	// Those that are shut on its gates were left so as long as this one was open before them. On
	// the gate that it is shut on now itself, nobody behind it fits either.
	if l.Shut == Open && (shut != Open || head.After(l.Head)) {
		if gate := UserGate(l.UID); gate != shut {
			r.Recheck(gate)
		}
		for _, n := range l.Needs {
			if n.Gate != shut {
				r.Recheck(n.Gate)
			}
		}
	}
	l.Head, l.Shut = head, shut
	return r.tx.SetLane(*l)
}

// Recheck has Reopen look whether a lane that is shut on a gate fits. Whoever makes room at a
// gate, or takes away the open lane that stood for those, says so; nobody else has to look. A look
// that is under way goes on from where it is, once round: so whatever comes meanwhile, it comes to
// every list.
func (r *Rules) Recheck(gate int64) {
	at := r.mem.recheck[gate]
	r.mem.recheck[gate] = round{from: at.after, after: at.after}
}

// recheckResources has those looked at that wait for a resource, since another gate has less room now
// and may hold back one that the others wait behind.
func (r *Rules) recheckResources() {
	for _, gate := range r.tx.Resources() {
		r.Recheck(gate)
	}
}

// StepsMost is how many steps claims take in one transaction, and how many Reopen takes: few enough
// that nobody who waits for the disk feels it.
const StepsMost = 250

// taken is how many steps were taken of those that a look at a lane counts among.
func (r *Rules) taken() *int {
	if r.claiming {
		return &r.Steps
	}
	return &r.looks
}

// spent reports whether no more steps of those are to be taken.
func (r *Rules) spent() bool {
	if r.claiming {
		return r.Steps >= StepsMost
	}
	return r.looks >= r.mem.looks()
}

// Reopen opens the lanes that fit after what has happened, or some of them: then Promote goes
// on. It is the only one that opens lanes that were shut, and every transaction ends with it.
func (r *Rules) Reopen() error {
	for len(r.mem.recheck) > 0 {
		for gate, at := range r.mem.recheck {
			if r.looks >= r.mem.looks() {
				r.tx.WakeAt(r.tx.Now())
				return nil
			}
			delete(r.mem.recheck, gate) // what follows may ask for it again
			if err := r.reopen(gate, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// reopen goes on with a round: it opens the best lane of each list of a gate, if it fits. That one
// stands for the rest of its list. One that another gate holds back goes there.
func (r *Rules) reopen(gate int64, at round) error {
	var best []Lane
	err := r.tx.Shut(gate, at.after, func(l Lane) (bool, error) {
		best = append(best, l)
		return len(best) < StepsMost, nil
	})
	if err != nil {
		return err
	}
	r.looks++
	if len(best) > 0 {
		if need := needAt(&best[0], gate); need.Kind != queue.GateResource {
			if g, err := r.Gate(best[0].UID, need); err != nil || g.Room < need.Units {
				return err // nobody fits
			}
		}
	}
	done := 0
	for ; done < len(best) && r.looks < r.mem.looks() && !at.over(best[done].Queue); done++ {
		if err := r.reopenList(&best[done], gate); err != nil {
			return err
		}
		at.after = best[done].Queue
	}
	switch _, anew := r.mem.recheck[gate]; {
	case anew: // it was asked for meanwhile
		at.from, at.again = at.after, false
	case done < len(best) && at.over(best[done].Queue), done == len(best) && len(best) < StepsMost && (at.from == "" || at.again):
		return nil
	}
	if done == len(best) && len(best) < StepsMost { // to the first one
		at.after, at.again = "", at.from != ""
	}
	r.mem.recheck[gate] = at
	return nil
}

// over reports whether the round is over before this queue.
func (at *round) over(name string) bool { return at.again && name > at.from }

// reopenList opens the best lane of one list, if it fits.
func (r *Rules) reopenList(l *Lane, gate int64) error {
	of := l.Queue
	for {
		r.looks++
		moved, err := r.advanceHead(l, gate)
		if err != nil {
			return err
		}
		if !moved {
			n, full, err := r.room(l)
			if err != nil || n == 0 && full == gate {
				return err // and all behind it wait
			}
			if n > 0 {
				r.Readied = true
				return r.set(l, l.Head, Open)
			}
			if err := r.set(l, l.Head, full); err != nil {
				return err
			}
		}
		if r.looks >= r.mem.looks() {
			r.Recheck(gate)
			return nil
		}
		next, found, err := r.tx.FirstShut(gate, of)
		if err != nil || !found {
			return err
		}
		l = &next
	}
}

// needAt is what a lane that is shut on a gate needs there.
func needAt(l *Lane, gate int64) Need {
	for _, n := range l.Needs {
		if n.Gate == gate {
			return n
		}
	}
	return Need{Gate: gate, Kind: queue.GateUser, Units: 1}
}

// advanceHead has the head of a lane that is shut on a resource be its first job: it holds a place
// there. It reports whether the lane stands elsewhere now.
func (r *Rules) advanceHead(l *Lane, gate int64) (moved bool, err error) {
	if !resource(l, gate) {
		return false, nil
	}
	look := Look{Lane: *l, Upto: End, Want: 1, Steps: StepsMost}
	if err := r.tx.Find(&look); err != nil {
		return false, err
	}
	for i := range look.Damaged {
		*r.taken()++
		if err := r.HoldDamaged(&look.Damaged[i]); err != nil {
			return false, err
		}
	}
	switch {
	case len(look.Jobs) == 0 && look.End:
		return true, r.set(l, look.Next, Empty)
	case len(look.Jobs) == 0:
		return true, r.set(l, look.Next, l.Shut)
	case r.late(&look.Jobs[0]):
		return true, r.Expire(&look.Jobs[0])
	case look.Jobs[0].Position() != l.Head:
		return true, r.set(l, look.Jobs[0].Position(), l.Shut)
	}
	return false, nil
}

// resource reports whether a lane needs this gate as a resource.
func resource(l *Lane, gate int64) bool { return needAt(l, gate).Kind == queue.GateResource }

func (r *Rules) late(j *Job) bool { return j.ExpiresAt != 0 && j.ExpiresAt <= r.tx.Now() }

// room is how many jobs of a lane may be leased now and, if none, for which gate.
func (r *Rules) room(l *Lane) (n int, full int64, err error) {
	n, full, err = r.roomAt(l, Need{Gate: UserGate(l.UID), Kind: queue.GateUser, Units: 1})
	for i := 0; i < len(l.Needs) && n > 0 && err == nil; i++ {
		var more int
		more, full, err = r.roomAt(l, l.Needs[i])
		n = min(n, more)
	}
	return n, full, err
}

// roomAt is room at one gate. On a resource nobody of the same queue overtakes a job that it
// alone holds back.
func (r *Rules) roomAt(l *Lane, need Need) (n int, full int64, err error) {
	if need.Kind == queue.GateResource {
		if barred, err := r.barred(l, need.Gate); barred || err != nil {
			return 0, need.Gate, err
		}
	}
	g, err := r.Gate(l.UID, need)
	if n = max(0, g.Room) / need.Units; n == 0 || err != nil {
		return 0, need.Gate, err
	}
	return n, Open, nil
}

// barred reports whether a lane of the same queue that ranks before this one waits for a
// resource.
func (r *Rules) barred(l *Lane, gate int64) (bool, error) {
	for {
		first, found, err := r.tx.FirstShut(gate, l.Queue)
		if err != nil || !found || first.ID == l.ID || !l.Head.After(first.Head) {
			return false, err
		}
		if r.spent() {
			r.Recheck(gate) // it is shut there, and looked at again
			return true, nil
		}
		*r.taken()++
		moved, err := r.advanceHead(&first, gate)
		if err != nil {
			return false, err
		}
		if moved {
			continue
		}
		n, full, err := r.room(&first)
		switch {
		case err != nil:
			return false, err
		case n > 0: // it goes first
			r.Readied = true
			return true, r.set(&first, first.Head, Open)
		case full == gate:
			return true, nil
		}
		if err := r.set(&first, first.Head, full); err != nil { // so it holds no place here
			return false, err
		}
	}
}

// joinLane notes that a job stands in its lane, or is about to: its row is written after that.
func (r *Rules) joinLane(j *Job) error {
	l, err := r.tx.Lane(j)
	if err != nil {
		return err
	}
	j.Lane = l.ID
	p := j.Position()
	if l.Shut != Empty && !l.Head.After(p) {
		r.Readied = r.Readied || l.Shut == Open
		return nil
	}
	shut := Open
	if l.Shut != Open {
		as := l
		as.Head = p
		n, full, err := r.room(&as)
		if err != nil {
			return err
		}
		if n == 0 {
			shut = full
		}
	}
	r.Readied = r.Readied || shut == Open
	return r.set(&l, p, shut)
}

// leaveLane notes that a job that nobody holds is about to leave its lane. Those that wait for a
// resource behind it may go by another one now.
func (r *Rules) leaveLane(j *Job) error {
	for _, d := range j.Demands {
		if d.Kind != queue.GateResource {
			continue
		}
		l, err := r.tx.Lane(j)
		if err == nil && resource(&l, l.Shut) {
			r.Recheck(l.Shut)
		}
		return err
	}
	return nil
}

// endLease ends a lease.
func (r *Rules) endLease(l *Lease) {
	r.tx.Drop(l)
	r.Recheck(UserGate(l.Job.UID))
	for _, n := range l.Needs {
		r.Recheck(n.Gate)
	}
	r.Readied = r.Readied || r.tx.Queue(l.Job.Queue).Room == 1 // it had none
}
