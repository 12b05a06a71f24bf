package rules

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// Two lanes of one user and queue show how they work. Both need a lock that one job may hold, and lane B needs a rate too:
// lane A has jobs 1 and 4, lane B has job 2. A claim takes job 1, since A has the better head. When it checks A again the
// lock is taken, so it shuts A on the lock, and then B. Both are in one list, that of the lock, the queue and the user.
// When job 1 ends, its lease calls Recheck(lock), and Reopen opens B alone, since job 2 ranks before job 4. A stays shut: a
// claim comes to B first in any case. Once the head of B has moved past job 2 that is no longer so, and setHead calls
// Recheck(lock). The lock is taken again, so A stays as it is until job 2 ends.

// Lane is the jobs of one user and one queue that make the same demands and may run as far as
// time and state go. They are alike for the claim, so only the first of them matters, and
// nothing that waits is moved because of what holds it back.
// See docs/decisions/0011.
type Lane struct {
	ID    int64
	Queue string
	UID   int
	Needs []Need // but for the user's quota; the node, locks and rates, then resources
	// Head is at or before the first job of the lane that is not leased.
	Head Position
	// Priority is that of the job at Head, or Unknown.
	Priority int64
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

// Again is reported by room instead of a gate if it has opened a lane that goes first.
const Again int64 = math.MinInt64 + 1

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

// List names the jobs of one user and one queue that wait for a gate.
type List struct {
	Queue string
	UID   int
}

// Compare orders lists by queue, then by user.
func (l List) Compare(other List) int {
	return cmp.Or(strings.Compare(l.Queue, other.Queue), cmp.Compare(l.UID, other.UID))
}

// List returns the list that has the lane while it is shut.
func (l *Lane) List() List { return List{l.Queue, l.UID} }

// set is setHead where the priority of a new head is not known.
func (r *Rules) set(l *Lane, head Position, shut int64) error {
	if head != l.Head {
		l.Priority = Unknown
	}
	return r.setHead(l, head, shut)
}

// setHead is the only writer of a lane's head, with l.Priority, and of what it is shut on.
func (r *Rules) setHead(l *Lane, head Position, shut int64) error {
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
	if resource(l, l.Shut) && (shut != l.Shut || head.After(l.Head)) { // it holds up fewer lanes of other users
		r.Recheck(l.Shut)
	}
	l.Head, l.Shut = head, shut
	delete(r.roomy, l.ID)
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
// See docs/decisions/0015.
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
	for ; done < len(best) && r.looks < r.mem.looks() && !at.over(best[done].List()); done++ {
		if err := r.reopenList(&best[done], gate); err != nil {
			return err
		}
		at.after = best[done].List()
	}
	switch _, again := r.mem.recheck[gate]; {
	case again: // another call of Recheck asked for it
		at.from, at.again = at.after, false
	case done < len(best) && at.over(best[done].List()), done == len(best) && len(best) < StepsMost && (at.from == List{} || at.again):
		return nil
	}
	if done == len(best) && len(best) < StepsMost { // to the first one
		at.after, at.again = List{}, at.from != List{}
	}
	r.mem.recheck[gate] = at
	return nil
}

// over reports whether the round is over before this list.
func (at *round) over(list List) bool { return at.again && list.Compare(at.from) > 0 }

// reopenList opens the best lane of one list, if it fits.
func (r *Rules) reopenList(l *Lane, gate int64) error {
	list := l.List()
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
			if full != Again {
				err = r.set(l, l.Head, full)
			}
			if err != nil {
				return err
			}
		}
		if r.looks >= r.mem.looks() {
			r.Recheck(gate)
			return nil
		}
		next, found, err := r.tx.NextShut(gate, list)
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
	return r.toFirst(l)
}

// toFirst has the head of a lane be its first job, and learns its priority. It reports whether the lane has changed
// otherwise.
func (r *Rules) toFirst(l *Lane) (changed bool, err error) {
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
	}
	j := &look.Jobs[0]
	changed = j.Position() != l.Head
	if l.Priority = lasting(j); changed || l.Priority != Unknown {
		err = r.setHead(l, j.Position(), l.Shut)
	}
	l.Priority = j.Priority
	return changed, err
}

// lasting returns the priority to store for a lane whose head is this job. It is Unknown for a job that expires, so that
// each claim reads the job again.
func lasting(j *Job) int64 {
	if j.ExpiresAt != 0 {
		return Unknown
	}
	return j.Priority
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

// roomAt is room at one gate. On a resource no job of the same queue overtakes one that it alone holds back, once that is
// the next job of its user.
func (r *Rules) roomAt(l *Lane, need Need) (n int, full int64, err error) {
	if need.Kind == queue.GateResource {
		if full, err := r.barred(l, need.Gate); full != Open || err != nil {
			return 0, full, err
		}
	}
	g, err := r.Gate(l.UID, need)
	if n = max(0, g.Room) / need.Units; n == 0 || err != nil {
		return 0, need.Gate, err
	}
	return n, Open, nil
}

// barred returns the gate if a lane of the same queue that ranks before this one waits for it as a resource, Again if such
// a lane fits by now and was opened, and else Open.
// See docs/decisions/0016.
func (r *Rules) barred(l *Lane, gate int64) (full int64, err error) {
	for {
		first, found, err := r.tx.FirstShut(gate, l.Queue)
		if err != nil || !found || first.ID == l.ID || !l.Head.After(first.Head) {
			return Open, err
		}
		if r.spent() {
			r.Recheck(gate) // it is shut there, and looked at again
			return gate, nil
		}
		*r.taken()++
		moved, err := r.advanceHead(&first, gate)
		if err != nil {
			return Open, err
		}
		if moved {
			continue
		}
		n, full, err := r.room(&first)
		switch {
		case err != nil:
			return Open, err
		case n > 0: // it goes first, or its user has the turn
			r.Readied = true
			return Again, r.set(&first, first.Head, Open)
		case full == gate || full == Again:
			return full, nil
		}
		if err := r.set(&first, first.Head, full); err != nil { // so it holds no place here
			return Open, err
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
		if n == 0 && full != Again { // then a claim looks again
			shut = full
		}
	}
	r.Readied = r.Readied || shut == Open
	if l.Priority = Unknown; r.tx.Lease(j.Seq) == nil { // else the first job is another one
		l.Priority = lasting(j)
	}
	return r.setHead(&l, p, shut)
}

// leaveLane notes that a job that nobody holds is about to leave its lane. Those that wait for a
// resource behind it may go by another one now.
func (r *Rules) leaveLane(j *Job) error {
	if j.Damaged && !slices.ContainsFunc(j.Demands, func(d queue.Demand) bool { return d.Kind == queue.GateResource }) {
		return nil // the names of its lane may be damaged too; the claim that found the job continues behind it
	}
	l, err := r.tx.Lane(j)
	delete(r.roomy, l.ID)
	if err == nil && resource(&l, l.Shut) {
		r.Recheck(l.Shut)
	}
	switch {
	case err != nil || l.Head.Seq != j.Seq || l.Shut == Empty: // the job may have another rank by now
		return err
	case len(l.Needs) > 0:
		return r.passHead(&l)
	case l.Priority == Unknown:
		return nil
	}
	l.Priority = Unknown
	return r.setHead(&l, l.Head, l.Shut)
}

// passHead moves the head of a lane with demands from a job that is about to leave to the next job. Otherwise a user
// could get any number of lanes, each with a good head and only a bad job, and each search for the best jobs would
// have to read all of these lanes first. Lanes without demands are few: one for each user and queue.
func (r *Rules) passHead(l *Lane) error {
	look := Look{Lane: *l, Upto: End, Want: 1, Steps: 1}
	look.Lane.Head.Seq++
	if err := r.tx.Find(&look); err != nil {
		return err
	}
	l.Priority = Unknown
	switch {
	case len(look.Damaged) > 0: // the claim that finds it handles it
		return r.setHead(l, look.Lane.Head, l.Shut)
	case len(look.Jobs) > 0:
		return r.setHead(l, look.Jobs[0].Position(), l.Shut)
	}
	return r.setHead(l, look.Next, Empty)
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
