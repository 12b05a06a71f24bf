package sql

import (
	"slices"

	"github.com/queuectl/queuectl/store/rules"
)

// user is what the writer knows of one user.
type user struct {
	waiting int64 // jobs, as the table of users has it
	hooks   int64 // that wait, for jobs of the user; counted when the store is opened
	leased  int
	staged  int64 // jobs of batches
	batches int   // that are not committed
	names   int64 // of jobs of those
}

// setUser changes what is known of a user.
func (t *tx) setUser(uid int, u user) {
	t.keepUser(uid)
	t.s.mem.putUser(uid, u)
}

// keepUser has a user be as it is, should the transaction be undone.
func (t *tx) keepUser(uid int) {
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

// waits counts jobs of a user that begin, or cease, to wait.
func (t *tx) waits(uid int, n int64) {
	u := t.s.mem.users[uid]
	u.waiting += n
	t.setUser(uid, u)
}

// hooksWait counts hooks for jobs of a user that begin, or cease, to wait.
func (t *tx) hooksWait(uid int, n int64) {
	u := t.s.mem.users[uid]
	u.hooks += n
	t.setUser(uid, u)
}

// countLease counts a user's job that was leased, or is so no more.
func (t *tx) countLease(j *rules.Job, n int) {
	t.keepUser(j.UID)
	t.s.mem.countLease(j.UID, j.Queue, n)
}

func (m *memory) countLease(uid int, queue string, n int) {
	u := m.users[uid]
	u.leased += n
	m.putUser(uid, u)
	q := m.lanes.state(queue)
	if q.leased += n; q.rule.Concurrency > 0 {
		m.lanes.put(q)
	}
}

// countLeased counts the leased jobs of each queue.
func (m *memory) countLeased() {
	for _, q := range m.lanes.queues {
		q.leased = 0
	}
	for _, l := range m.leases {
		m.lanes.state(l.Job.Queue).leased++
	}
	for _, q := range m.lanes.queues {
		m.lanes.put(q)
	}
}

// maxListed is how many users stand in meta.users.
const maxListed = 32

// listUsers notes in meta.users what the transaction changed of the users' counts: that
// row is written anyway. Once these are many their rows are written, and the list begins
// anew.
func (t *tx) listUsers() error {
	m := &t.s.mem
	changed := false
	for uid, before := range t.users {
		if m.users[uid].waiting == before.waiting {
			continue
		}
		changed = true
		if !slices.Contains(m.listed, uid) {
			m.listed = append(slices.Clip(m.listed), uid)
		}
	}
	if !changed {
		return nil
	}
	if len(m.listed) > maxListed {
		for _, uid := range m.listed {
			if err := t.writeUser(int64(uid), m.users[uid].waiting); err != nil {
				return err
			}
		}
		m.listed = nil
	}
	var list []byte
	for _, uid := range m.listed {
		list = appendNumbers(list, int64(uid), m.users[uid].waiting)
	}
	m.list = string(list)
	return nil
}

func (t *tx) writeUser(uid, waiting int64) (err error) {
	if waiting == 0 {
		err = t.exec(`DELETE FROM users WHERE uid = ?`, uid)
		return err
	}
	err = t.exec(`INSERT INTO users (uid, waiting) VALUES (?, ?) ON CONFLICT (uid) DO UPDATE SET waiting = excluded.waiting`, uid, waiting)
	return err
}

// readUsers reads the users' counts.
func (s *engine) readUsers(all *reads) {
	m := &s.mem
	all.add(func(r row) (bool, error) {
		u := m.users[int(r.num(0))]
		u.waiting = r.num(1)
		m.users[int(r.num(0))] = u
		return true, nil
	}, `SELECT uid, waiting FROM users`)
	all.add(func(r row) (bool, error) {
		u := m.users[int(r.num(0))]
		u.hooks = r.num(1)
		m.putUser(int(r.num(0)), u)
		return true, nil
	}, `SELECT hook_uid, count(*) FROM jobs INDEXED BY jobs_hooks WHERE hooks > 127 AND state < 5 GROUP BY hook_uid`)
}

// countUsers completes them by meta, and by the leases.
func (s *engine) countUsers() error {
	m := &s.mem
	list, err := numbers(m.list)
	if err != nil {
		return err
	}
	for uid, waiting := range list {
		m.listed = append(m.listed, int(uid))
		u := m.users[int(uid)]
		u.waiting = waiting
		m.putUser(int(uid), u)
	}
	for _, l := range m.leases {
		u := m.users[l.Job.UID]
		u.leased++
		m.users[l.Job.UID] = u
	}
	return nil
}
