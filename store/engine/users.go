package engine

import (
	"fmt"
	"slices"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// user holds the counts of one user in the writer's memory.
type user struct {
	waiting int64 // number of waiting jobs; stored in the table users
	hooks   int64 // number of waiting hooks for the user's jobs; counted when the engine is opened
	leased  int
	staged  int64 // number of jobs in batches
	batches int   // number of batches that are not committed
	names   int64 // number of jobs in uncommitted batches whose id the user chose
	bytes   int64 // bytes that the user's jobs and schedules hold; stored in the table users
	outputs int64 // the part of bytes that outputs take; stored in the same table
	// stagedBytes is how many bytes the user's jobs in batches use.
	stagedBytes int64
}

// totalBytes returns how many bytes the user's jobs hold, including jobs in batches.
func (u user) totalBytes() int64 { return u.bytes + u.stagedBytes }

// setUser changes a user's counts.
func (t *Tx) setUser(uid int, u user) {
	t.saveUser(uid)
	t.s.mem.putUser(uid, u)
}

// saveUser saves a user's counts, so that they can be restored if the transaction is undone.
func (t *Tx) saveUser(uid int) {
	if _, known := t.users[uid]; !known {
		if t.users == nil {
			t.users = map[int]user{}
		}
		t.users[uid] = t.s.mem.users[uid]
	}
}

func (m *memory) putUser(uid int, u user) {
	if u == (user{}) {
		delete(m.users, uid)
		return
	}
	m.users[uid] = u
}

// countWaiting adds n to a user's number of waiting jobs.
func (t *Tx) countWaiting(uid int, n int64) {
	u := t.s.mem.users[uid]
	u.waiting += n
	t.setUser(uid, u)
}

// countHooks adds n to the number of waiting hooks for a user's jobs.
func (t *Tx) countHooks(uid int, n int64) {
	u := t.s.mem.users[uid]
	u.hooks += n
	t.setUser(uid, u)
}

// countLease adds n to the number of leased jobs of a job's user and queue.
func (t *Tx) countLease(j *rules.Job, n int) {
	t.saveUser(j.UID)
	t.s.mem.countLease(j.UID, j.Queue, n)
}

func (m *memory) countLease(uid int, queue string, n int) {
	u := m.users[uid]
	u.leased += n
	m.putUser(uid, u)
	q := m.lanes.state(queue)
	if q.leased += n; q.rule.Concurrency > 0 {
		m.lanes.updateQueue(q)
	}
}

// countLeased counts the leased jobs of each queue again.
func (m *memory) countLeased() {
	for _, q := range m.lanes.queues {
		q.leased = 0
	}
	for _, l := range m.leases {
		m.lanes.state(l.Job.Queue).leased++
	}
	for _, q := range m.lanes.queues {
		m.lanes.updateQueue(q)
	}
}

// maxListed is the maximum number of users in meta.users, and of queues in meta.queues.
const maxListed = 32

// listChanged adds the keys whose counts the transaction changed to those listed in meta. Once there are more than
// maxListed, it writes their rows and returns an empty list.
func listChanged[K comparable](listed, changed []K, write func(K) error) ([]K, error) {
	for _, k := range changed {
		if !slices.Contains(listed, k) {
			listed = append(slices.Clip(listed), k)
		}
	}
	if len(listed) <= maxListed {
		return listed, nil
	}
	for _, k := range listed {
		if err := write(k); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// listUsers records the changed counts of users in meta.users, because every commit writes that row anyway.
// See docs/decisions/0019.
func (t *Tx) listUsers() (err error) {
	m := &t.s.mem
	var changed []int
	for uid, before := range t.users {
		if now := m.users[uid]; now.waiting != before.waiting || now.bytes != before.bytes || now.outputs != before.outputs {
			changed = append(changed, uid)
		}
	}
	if changed == nil {
		return nil
	}
	m.listedUsers, err = listChanged(m.listedUsers, changed, func(uid int) error {
		return t.writeUser(int64(uid), m.users[uid])
	})
	var list []byte
	for _, uid := range m.listedUsers {
		u := m.users[uid]
		list = fmt.Appendf(list, "%d/%d/%d/%d ", uid, u.waiting, u.bytes, u.outputs)
	}
	m.userList = string(list)
	return err
}

func (t *Tx) writeUser(uid int64, u user) error {
	if u.waiting == 0 && u.bytes == 0 {
		return t.Exec(`DELETE FROM users WHERE uid = ?`, uid)
	}
	return t.Exec(`INSERT INTO users (uid, waiting, bytes, outputs) VALUES (?, ?, ?, ?)
		ON CONFLICT (uid) DO UPDATE SET waiting = excluded.waiting, bytes = excluded.bytes, outputs = excluded.outputs`, uid,
		u.waiting, u.bytes, u.outputs)
}

// readUsers reads the users' counts.
func (s *Engine) readUsers(all *database.Batch) {
	m := &s.mem
	all.Add(func(r database.Row) (bool, error) {
		u := m.users[int(r.Num(0))]
		u.waiting, u.bytes, u.outputs = r.Num(1), r.Num(2), r.Num(3)
		m.users[int(r.Num(0))] = u
		return true, nil
	}, `SELECT uid, waiting, bytes, outputs FROM users`)
	all.Add(func(r database.Row) (bool, error) {
		u := m.users[int(r.Num(0))]
		u.hooks = r.Num(1)
		m.putUser(int(r.Num(0)), u)
		return true, nil
	}, `SELECT hook_uid, count(*) FROM jobs INDEXED BY jobs_hooks WHERE hooks > 127 AND state < 5 GROUP BY hook_uid`)
}

// countUsers brings the users' counts up to date: it applies the newer counts in meta.users, and counts leases.
func (s *Engine) countUsers() error {
	m := &s.mem
	counts, err := database.ParseUserCounts(m.userList)
	if err != nil {
		return err
	}
	for uid, c := range counts {
		m.listedUsers = append(m.listedUsers, uid)
		u := m.users[uid]
		u.waiting, u.bytes, u.outputs = c.Waiting, c.Bytes, c.Outputs
		m.putUser(uid, u)
	}
	for _, l := range m.leases {
		u := m.users[l.Job.UID]
		u.leased++
		m.users[l.Job.UID] = u
	}
	return nil
}

// userUsage holds counts of a user for readers, as of the last commit.
type userUsage struct {
	waiting int64 // number of waiting jobs
	bytes   int64 // bytes that the user's jobs hold, including jobs in batches
}

// noteUsageLocked copies the counts of a user for readers.
func (s *Engine) noteUsageLocked(uid int) {
	u := s.mem.users[uid]
	if usage := (userUsage{waiting: u.waiting, bytes: u.totalBytes()}); usage != (userUsage{}) {
		s.usage[uid] = usage
	} else {
		delete(s.usage, uid)
	}
}

// noteAllUsageLocked copies the counts of all users for readers.
func (s *Engine) noteAllUsageLocked() {
	clear(s.usage)
	for uid := range s.mem.users {
		s.noteUsageLocked(uid)
	}
}

// UserBytes returns how many bytes the jobs of a user hold, as of the last commit.
func (s *Engine) UserBytes(uid int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usage[uid].bytes
}

// UsersOver lists the users whose jobs hold more than keep bytes, in descending order of these bytes.
func (s *Engine) UsersOver(keep int64) (list []store.UserBytes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, u := range s.usage {
		if u.bytes > keep {
			list = append(list, store.UserBytes{UID: uid, Bytes: u.bytes})
		}
	}
	store.SortUserBytes(list)
	return list
}
