package reads

import (
	"maps"
	"sync"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// State is a copy of those values in the engine's memory that readers need, as of the last commit.
type State struct {
	Order        queue.Order
	Counts       store.Counts                   // the field DatabaseBytes is not set
	Usage        map[int]Usage                  // counts of each user, by uid
	Reservations map[int64]database.Reservation // leases that are not in the rows of the jobs yet, by seq
	// LastTurns holds the number of each user's last turn, by queue and uid. The inner maps never change.
	LastTurns map[string]map[int]int64
	LastEvent int64 // number of the newest event
}

// Usage contains what the jobs of a user use.
type Usage struct {
	Waiting     int64 // number of waiting jobs
	Bytes       int64 // bytes that the user's jobs hold, including jobs in batches
	OutputBytes int64 // the part of Bytes that outputs take
}

// Published holds the state that the engine has published for readers. It is safe for concurrent use.
type Published struct {
	now      func() queue.Millis
	mu       sync.Mutex
	state    State         // guarded by mu
	newEvent chan struct{} // closed when the next event is stored; nil if no caller waits; guarded by mu
}

// Publish calls change, which modifies the state. No reader reads the state at this time.
func (p *Published) Publish(change func(*State)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.state.LastEvent
	if change(&p.state); p.newEvent != nil && p.state.LastEvent != last {
		close(p.newEvent)
		p.newEvent = nil
	}
}

// readState returns a part of the state. The function read must copy values that a later Publish may change.
func readState[T any](p *Published, read func(*State) T) T {
	p.mu.Lock()
	defer p.mu.Unlock()
	return read(&p.state)
}

// Now returns the time of the store's clock.
func (p *Published) Now() queue.Millis { return p.now() }

// Order returns the settings from which ranks are computed.
func (p *Published) Order() queue.Order {
	return readState(p, func(s *State) queue.Order { return s.Order })
}

// Counts returns the number of jobs in each state, without the size of the database.
func (p *Published) Counts() store.Counts {
	return readState(p, func(s *State) store.Counts { return s.Counts })
}

// LastEvent returns the number of the newest event, and a channel that is closed when a newer one is
// stored.
func (p *Published) LastEvent() (lastSeq int64, newerStored <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.newEvent == nil {
		p.newEvent = make(chan struct{})
	}
	return p.state.LastEvent, p.newEvent
}

// ReservingNode returns the node that has claimed a job whose attempt is not known to have started, or 0 for
// any other job.
func (p *Published) ReservingNode(seq int64) (node int64) {
	return readState(p, func(s *State) int64 { return s.Reservations[seq].Node })
}

// UserBytes returns how many bytes the jobs of a user hold.
func (p *Published) UserBytes(uid int) int64 { return p.userUsage(uid).Bytes }

// UsersOverBytes lists the users whose jobs hold more than maxBytes bytes, most bytes first.
func (p *Published) UsersOverBytes(maxBytes int64) (list []store.UserBytes) {
	list = readState(p, func(s *State) []store.UserBytes {
		for uid, u := range s.Usage {
			if u.Bytes > maxBytes {
				list = append(list, store.UserBytes{UID: uid, Bytes: u.Bytes})
			}
		}
		return list
	})
	store.SortUserBytes(list)
	return list
}

func (p *Published) userUsage(uid int) Usage {
	return readState(p, func(s *State) Usage { return s.Usage[uid] })
}

// reservedFences returns, by seq, the fences of the leases that are not in the rows of the jobs yet.
func (p *Published) reservedFences() map[int64]int64 {
	return readState(p, func(s *State) map[int64]int64 {
		fences := make(map[int64]int64, len(s.Reservations))
		for seq, r := range s.Reservations {
			fences[seq] = r.Fence
		}
		return fences
	})
}

// lastTurns returns the number of the claim that last took a job of each user, by queue and uid.
func (p *Published) lastTurns() map[string]map[int]int64 {
	return readState(p, func(s *State) map[string]map[int]int64 { return maps.Clone(s.LastTurns) })
}
