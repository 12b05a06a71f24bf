package memstore

import (
	"cmp"
	"maps"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// gate identifies a gate by the values of a demand.
type gate struct {
	owner int
	kind  queue.GateKind
	key   string
}

func gateOf(j *job, d queue.Demand) gate { return gate{d.Owner(j.UID), d.Kind, d.Key} }

// word sets the rules of the locks and rates that a job names. Starts older than the current period are
// deleted first, so a longer period does not count them. The rule of a shared key changes only if no
// unfinished job other than but names the key. but may be nil.
func (s *Store) word(j, but *job, now queue.Millis) {
	for _, d := range j.Demands {
		g := gateOf(j, d)
		if s.kept[g] || g.owner == queue.Everybody && d.Ruled() && s.isNamed(g, but) {
			continue
		}
		s.forgetStarts(g, now)
		s.rules[g] = d
	}
}

// forgetStarts deletes the starts that are older than a rate's period.
func (s *Store) forgetStarts(g gate, now queue.Millis) {
	s.starts[g] = slices.DeleteFunc(s.starts[g], func(at queue.Millis) bool { return at.Add(s.rules[g].Per) < now })
}

// stamp records a start for each rate that a job names.
func (s *Store) stamp(j *job, at, now queue.Millis) {
	for _, d := range j.Demands {
		if g := gateOf(j, d); d.Kind == queue.GateRate {
			s.forgetStarts(g, now)
			s.starts[g] = append(s.starts[g], min(at, now))
		}
	}
}

// used returns the units of a gate that leased jobs hold. For a rate, it counts the starts in the period, and
// leased jobs that are not known to have started.
func (s *Store) used(g gate, now queue.Millis, leased []*job) (n int) {
	for _, j := range leased {
		for _, d := range j.Demands {
			if gateOf(j, d) == g && (g.kind != queue.GateRate || j.State != queue.Processing) {
				n += d.Units()
			}
		}
	}
	for _, at := range s.starts[g] {
		if at.Add(s.rules[g].Per) >= now { // one more millisecond, because times are rounded
			n++
		}
	}
	return n
}

// most returns the number of units of a gate.
func (s *Store) most(g gate) int {
	switch g.kind {
	case queue.GateNode:
		if s.node.Is(g.key) {
			return len(s.jobs) // no limit: enough for all jobs
		}
		return 0
	case queue.GateResource:
		return s.node.Resources[g.key]
	}
	return s.rules[g].N
}

// opens returns the next time at which a start leaves the period of a full rate; 0 if no rate is full.
func (s *Store) opens(now queue.Millis) (next queue.Millis) {
	var leased []*job
	for _, j := range s.jobs {
		if j.leased {
			leased = append(leased, j)
		}
	}
	for g, starts := range s.starts {
		if s.used(g, now, leased) < s.most(g) {
			continue
		}
		for _, at := range starts {
			if at = at.Add(s.rules[g].Per) + 1; at > now && (next == 0 || at < next) {
				next = at
			}
		}
	}
	return next
}

// rule returns the rule of a queue.
func (s *Store) rule(name string) store.QueueRule {
	if r, found := s.queues[name]; found {
		return r
	}
	return store.QueueRule{Weight: 1}
}

// user identifies a user in a queue.
type user struct {
	queue string
	uid   int
}

// renew resets the users' turns in a queue.
func (s *Store) renew(name string) {
	maps.DeleteFunc(s.served, func(u user, _ int64) bool { return u.queue == name })
	s.fresh[name] = s.claims
}

// unserve takes back the turn of a job's user, because the job is given back before it started.
func (s *Store) unserve(j *job) {
	if u := (user{j.Queue, j.UID}); j.claim > s.fresh[j.Queue] {
		s.served[u] = min(s.served[u], j.servedBefore)
	}
}

// claim leases the jobs that may start, one after another. It cancels the expired jobs that it finds.
func (s *Store) claim(now queue.Millis, want int) (claimed []queue.Job) {
	var ready, leased []*job
	for _, j := range s.jobs {
		if j.leased {
			leased = append(leased, j)
		} else if j.State.Runnable() && j.DueAt <= now {
			ready = append(ready, j)
		}
	}
	slices.SortFunc(ready, func(a, b *job) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.Seq, b.Seq))
	})
	for len(claimed) < want {
		first := s.next(now, ready, leased)
		if first == nil {
			return claimed
		}
		j := first
		if s.order.Scheduling != queue.ByArrival {
			j = s.inTurn(first, now, ready, leased)
		}
		u := user{j.Queue, j.UID}
		s.claims++
		j.claim, j.servedBefore, s.served[u] = s.claims, s.served[u], s.claims
		j.Fence++
		j.leased = true
		j.Units = s.unitsFor(j, leased)
		leased = append(leased, j)
		if s.weighted() {
			s.turn = max(s.passes[j.Queue], s.turn)
			s.passes[j.Queue] = s.turn + (1<<30)/int64(s.rule(j.Queue).Weight)
		}
		claimed = append(claimed, j.leasedJob())
		claimed[len(claimed)-1].Start = queue.Place{Rank: first.rank, Seq: first.Seq}
	}
	return claimed
}

// leasedJob returns a copy of a leased job, with its rank.
func (j *job) leasedJob() queue.Job {
	c := copyJob(j.Job)
	c.Rank = j.rank
	return c
}

// unitsFor returns the lowest units of resources that a job needs and no leased job holds.
func (s *Store) unitsFor(j *job, leased []*job) (text string) {
	for _, d := range j.Demands {
		if d.Kind != queue.GateResource {
			continue
		}
		taken := map[int]bool{}
		for _, other := range leased {
			queue.ParseUnits(other.Units, func(name string, units []int) {
				for _, u := range units {
					taken[u] = taken[u] || name == d.Key
				}
			})
		}
		text = queue.FormatUnits(text, d.Key, queue.FreeUnits(d.N, taken))
	}
	return text
}

func (s *Store) weighted() bool {
	for _, r := range s.queues {
		if r.Weight != 1 {
			return true
		}
	}
	return false
}

// inTurn returns the job that starts instead of first. Each user has a best job that may start in the same
// queue. Among those with the priority of first, inTurn returns the job of the user who was served least
// recently.
func (s *Store) inTurn(first *job, now queue.Millis, ready, leased []*job) *job {
	best := first
	seen := map[int]bool{}
	s.each(now, ready, leased, func(j *job) bool {
		if j.Queue != first.Queue || seen[j.UID] {
			return true
		}
		seen[j.UID] = true
		if j.Priority == first.Priority && s.served[user{j.Queue, j.UID}] < s.served[user{best.Queue, best.UID}] {
			best = j
		}
		return true
	})
	return best
}

// next returns the best-ranked job that may start: of all queues or, while weights differ, of the queue that
// has the next turn.
func (s *Store) next(now queue.Millis, ready, leased []*job) (next *job) {
	turn := func(j *job) int64 { return max(s.passes[j.Queue], s.turn) }
	s.each(now, ready, leased, func(j *job) bool {
		if next == nil || turn(j) < turn(next) || turn(j) == turn(next) && j.Queue < next.Queue {
			next = j
		}
		return s.weighted()
	})
	return next
}

// each calls f for the jobs that may start, in order, until f returns false. It cancels expired jobs.
func (s *Store) each(now queue.Millis, ready, leased []*job, f func(*job) (more bool)) {
	of, running := map[int]int{}, map[string]int{} // leased jobs by user and by queue
	for _, j := range leased {
		of[j.UID]++
		running[j.Queue]++
	}
	type place struct{ queue, resource string }
	barred := map[place]bool{} // resources of a queue that a job already waits for
	for _, j := range ready {
		if j.leased || !j.State.Runnable() {
			continue
		}
		r := s.rule(j.Queue)
		if r.Paused || r.Concurrency > 0 && running[j.Queue] >= r.Concurrency {
			continue
		}
		if j.expired(now) {
			s.expire(j, now)
			continue
		}
		if s.node.Strangers[j.UID] || s.maxUser > 0 && of[j.UID] >= s.maxUser || slices.ContainsFunc(j.Demands, func(d queue.Demand) bool {
			g := gateOf(j, d)
			fits := s.used(g, now, leased)+d.Units() <= s.most(g)
			if d.Kind == queue.GateResource {
				at := place{j.Queue, d.Key}
				barred[at] = barred[at] || !fits
				return barred[at]
			}
			return !fits
		}) {
			continue
		}
		if !f(j) {
			return
		}
	}
}

// isNamed reports whether any unfinished job except but names a gate.
func (s *Store) isNamed(g gate, but *job) bool {
	for _, j := range s.jobs {
		if j == but || j.State.Ended() {
			continue
		}
		for _, d := range j.Demands {
			if gateOf(j, d) == g {
				return true
			}
		}
	}
	return false
}
