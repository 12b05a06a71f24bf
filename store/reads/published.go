package reads

import (
	"maps"
	"sync"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// ReaderState is a copy of those values in the engine's memory that readers need, as of the last commit.
type ReaderState struct {
	RankOrder         queue.RankPolicy
	Counts            store.Counts                        // the field DatabaseBytes is not set
	UsageByUID        map[int]UserUsage                   // counts of each user, by uid
	ReservationsBySeq map[int64]database.LeaseReservation // leases that are not in the rows of the jobs yet, by seq
	// LastTurnsByQueue holds the number of each user's last turn, by queue and uid. The inner maps never change.
	LastTurnsByQueue map[string]map[int]int64
	LastEventNumber  int64 // number of the newest event
}

// UserUsage contains what the jobs of a user use.
type UserUsage struct {
	WaitingJobs int64 // number of waiting jobs
	UsedBytes   int64 // bytes that the user's jobs hold, including jobs in batches
	OutputBytes int64 // the part of UsedBytes that outputs take
}

// PublishedState holds the state that the engine has published for readers. It is safe for concurrent use.
type PublishedState struct {
	now            func() queue.UnixMillis
	mu             sync.Mutex
	state          ReaderState   // guarded by mu
	newEventSignal chan struct{} // closed when the next event is stored; nil if no caller waits; guarded by mu
}

// UpdatePublishedState calls change, which modifies the state. No reader reads the state while change runs.
func (p *PublishedState) UpdatePublishedState(change func(*ReaderState)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.state.LastEventNumber
	if change(&p.state); p.newEventSignal != nil && p.state.LastEventNumber != last {
		close(p.newEventSignal)
		p.newEventSignal = nil
	}
}

// readState returns a part of the state. The function read must copy values that a later UpdatePublishedState may
// change.
func readState[T any](p *PublishedState, read func(*ReaderState) T) T {
	p.mu.Lock()
	defer p.mu.Unlock()
	return read(&p.state)
}

// Now returns the time of the store's clock.
func (p *PublishedState) Now() queue.UnixMillis { return p.now() }

// RankOrder returns the settings from which ranks are computed.
func (p *PublishedState) RankOrder() queue.RankPolicy {
	return readState(p, func(s *ReaderState) queue.RankPolicy { return s.RankOrder })
}

// Counts returns the number of jobs in each state, without the size of the database.
func (p *PublishedState) Counts() store.Counts {
	return readState(p, func(s *ReaderState) store.Counts { return s.Counts })
}

// LastEventSeq returns the number of the newest event, and a channel that is closed when a newer one is
// stored.
func (p *PublishedState) LastEventSeq() (lastSeq int64, newerEventStored <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.newEventSignal == nil {
		p.newEventSignal = make(chan struct{})
	}
	return p.state.LastEventNumber, p.newEventSignal
}

// NodeReservingJob returns the node that has claimed a job whose attempt is not known to have started, or 0 for
// any other job.
func (p *PublishedState) NodeReservingJob(jobSeq int64) (nodeNumber int64) {
	return readState(p, func(s *ReaderState) int64 { return s.ReservationsBySeq[jobSeq].NodeID })
}

// StoredBytesOfUser returns how many bytes the jobs of a user hold.
func (p *PublishedState) StoredBytesOfUser(uid int) int64 { return p.userUsage(uid).UsedBytes }

// UsersOverStoredBytes lists the users whose jobs hold more than maxBytes bytes, most bytes first.
func (p *PublishedState) UsersOverStoredBytes(maxBytes int64) (usersOverLimit []store.UserStoredBytes) {
	usersOverLimit = readState(p, func(s *ReaderState) []store.UserStoredBytes {
		for uid, u := range s.UsageByUID {
			if u.UsedBytes > maxBytes {
				usersOverLimit = append(usersOverLimit, store.UserStoredBytes{UID: uid, StoredBytes: u.UsedBytes})
			}
		}
		return usersOverLimit
	})
	store.SortByStoredBytes(usersOverLimit)
	return usersOverLimit
}

func (p *PublishedState) userUsage(uid int) UserUsage {
	return readState(p, func(s *ReaderState) UserUsage { return s.UsageByUID[uid] })
}

// fencesByReservedSeq returns, by seq, the fences of the leases that are not in the rows of the jobs yet.
func (p *PublishedState) fencesByReservedSeq() map[int64]int64 {
	return readState(p, func(s *ReaderState) map[int64]int64 {
		fences := make(map[int64]int64, len(s.ReservationsBySeq))
		for seq, r := range s.ReservationsBySeq {
			fences[seq] = r.Fence
		}
		return fences
	})
}

// lastTurnsByQueue returns the number of the claim that last took a job of each user, by queue and uid.
func (p *PublishedState) lastTurnsByQueue() map[string]map[int]int64 {
	return readState(p, func(s *ReaderState) map[string]map[int]int64 { return maps.Clone(s.LastTurnsByQueue) })
}
