package sqlstore

import (
	"context"
	"math"
	"slices"

	"github.com/queuectl/queuectl/queue"
)

// parkStep is how many jobs one transaction moves to and from the place of those that
// are kept back: few enough that nobody who waits for the disk feels it.
const parkStep = 250

// user is what the writer knows of one user. fed and bar hold while some of its jobs may
// be kept back: all of its jobs that may run and stand up to bar are in the ready index
// or leased, and fed of them at least are in the index.
type user struct {
	waiting int64 // jobs, as the table of users has it
	leased  int
	parks   bool // some may be kept back
	fed     int
	bar     place // says something if fed is above 0
	staged  int64 // jobs of batches
	batches int   // that are not committed
	names   int64 // of jobs of those
}

// room is how many more jobs of a user may be leased.
func (m *memory) room(u user) int {
	if m.maxUser == 0 {
		return math.MaxInt
	}
	return m.maxUser - u.leased
}

// put notes what is known of a user, and whether feed owes it something.
func (m *memory) put(uid int, u user) {
	if u.parks && m.room(u) > u.fed {
		m.owed[uid] = true
	} else {
		delete(m.owed, uid)
	}
	if u == (user{}) {
		delete(m.users, uid)
		return
	}
	m.users[uid] = u
}

// setUser changes what is known of a user.
func (t *tx) setUser(uid int, u user) {
	if _, known := t.users[uid]; !known {
		if t.users == nil {
			t.users = map[int]user{}
		}
		t.users[uid] = t.s.mem.users[uid]
	}
	t.s.mem.put(uid, u)
	t.readied = t.readied || t.s.mem.owed[uid]
}

// waits counts jobs of a user that begin, or cease, to wait.
func (t *tx) waits(uid int, n int64) {
	u := t.s.mem.users[uid]
	u.waiting += n
	t.setUser(uid, u)
}

// leases counts a job of a user that was leased, the head of its jobs, or is so no more.
func (t *tx) leases(uid, n int) {
	u := t.s.mem.users[uid]
	u.leased += n
	if n > 0 {
		u.fed = max(0, u.fed-n)
	}
	t.setUser(uid, u)
}

// invalidate forgets what is known of a user's place in the ready index: a job has left it, or
// stands elsewhere in it.
func (t *tx) invalidate(uid int) {
	if u := t.s.mem.users[uid]; u.fed > 0 {
		u.fed, u.bar = 0, place{}
		t.setUser(uid, u)
	}
}

// doubtAll doubts of all users: ranks change.
func (t *tx) doubtAll() {
	for uid := range t.s.mem.users {
		t.invalidate(uid)
	}
}

// stands is where a job stands that may run from due on. One that may run now is kept back if enough of its user's jobs stand before it: then a
// million of one user need not be moved away before another's turn.
func (t *tx) stands(uid int, due queue.Millis, p place) int64 {
	if due > t.now {
		t.wakeAt(due)
		return placeTimed
	}
	m := &t.s.mem
	if m.maxUser != 0 {
		u := m.users[uid]
		switch last := u.fed == 0 || p.after(u.bar); {
		case last && (u.parks || u.fed >= m.room(u)):
			u.parks = true
			t.setUser(uid, u)
			return placeBarred
		case last:
			u.bar = p
		}
		u.fed++
		t.setUser(uid, u)
	}
	t.ready(p)
	return placeReady
}

// feed puts back into the ready index what users may run now of their jobs that were kept
// back: the best of each, as many as a claim wants. It reports whether there is more to
// do before the head of the index is the head of the queue.
func (t *tx) feed(want int) (more bool, err error) {
	m := &t.s.mem
	for uid := range m.owed {
		u := m.users[uid]
		n := min(want, m.room(u)) - u.fed
		if n <= 0 {
			continue
		}
		if left := parkStep - t.moved; n > left {
			n, more = left, true
		}
		if n <= 0 {
			break
		}
		rows := make([]place, 0, n)
		err := t.query(func(r row) (bool, error) {
			rows = append(rows, place{r.num(1), r.num(0)})
			return len(rows) < n, nil
		}, `SELECT seq, rank FROM jobs INDEXED BY jobs_barred WHERE place = 4 AND uid = ? ORDER BY rank, seq`, int64(uid))
		if err != nil {
			return false, err
		}
		for _, p := range rows {
			if _, err := t.exec(`UPDATE jobs SET place = 1 WHERE seq = ?`, p.seq); err != nil {
				return false, err
			}
			t.ready(p)
			u.bar = p
		}
		t.moved += len(rows)
		u.fed += len(rows)
		u.parks = len(rows) == n
		t.setUser(uid, u)
	}
	return more, nil
}

// keptBack is what one look at the ready index keeps back.
type keptBack struct {
	taken map[int]int // jobs of each user that it takes
	rows  []ofUser
}

// ofUser is a job of a user.
type ofUser struct {
	seq int64
	uid int
}

func (k *keptBack) take(uid int) {
	if k.taken == nil {
		k.taken = map[int]int{}
	}
	k.taken[uid]++
}

// full reports whether a user has no room for one job more, beside those taken.
func (t *tx) full(uid int, taken map[int]int) bool {
	m := &t.s.mem
	return taken[uid] >= m.room(m.users[uid])
}

// park keeps jobs of the ready index back.
func (t *tx) park(rows []ofUser) error {
	t.moved += len(rows)
	for _, j := range rows {
		if _, err := t.exec(`UPDATE jobs SET place = 4 WHERE seq = ?`, j.seq); err != nil {
			return err
		}
		u := t.s.mem.users[j.uid]
		u.parks, u.fed, u.bar = true, 0, place{}
		t.setUser(j.uid, u)
	}
	return nil
}

// SetMaxRunningUser has at most n jobs of one user leased at once.
func (s *Store) SetMaxRunningUser(ctx context.Context, n int) error {
	return s.do(ctx, prompt, func(t *tx) error {
		m := &t.s.mem
		if n == m.maxUser {
			return nil
		}
		m.maxUser = n
		for uid, u := range m.users {
			if u.parks {
				t.setUser(uid, u) // it may be owed something now
			}
		}
		return nil
	})
}

// admitUser refuses n more jobs of a user who has enough that wait, in the queue or in
// batches.
func (s *Store) admitUser(uid int, n, most int64) error {
	if most <= 0 {
		return nil
	}
	waiting := s.mem.users[uid].waiting + s.mem.users[uid].staged
	if waiting+n > most {
		return queue.Errorf(queue.CodeFull, "the queue is full for this user: %d of their jobs wait and max_pending_per_user is %d; try again later", waiting, most)
	}
	return nil
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
		_, err = t.exec(`DELETE FROM users WHERE uid = ?`, uid)
		return err
	}
	_, err = t.exec(`INSERT INTO users (uid, waiting) VALUES (?, ?) ON CONFLICT (uid) DO UPDATE SET waiting = excluded.waiting`, uid, waiting)
	return err
}

// loadUsers reads the users' counts, after the leases.
func (s *Store) loadUsers() error {
	m := &s.mem
	err := s.db.query(func(r row) (bool, error) {
		m.users[int(r.num(0))] = user{waiting: r.num(1)}
		return true, nil
	}, `SELECT uid, waiting FROM users`)
	if err != nil {
		return err
	}
	list, err := numbers(m.list)
	if err != nil {
		return err
	}
	for uid, waiting := range list {
		m.listed = append(m.listed, int(uid))
		m.put(int(uid), user{waiting: waiting})
	}
	for _, l := range m.leases {
		u := m.users[l.uid]
		u.leased++
		m.users[l.uid] = u
	}
	last := int64(math.MinInt64)
	for found := true; found; {
		found = false
		err := s.db.query(func(r row) (bool, error) {
			last, found = r.num(0), true
			return false, nil
		}, `SELECT uid FROM jobs INDEXED BY jobs_barred WHERE place = 4 AND uid > ? ORDER BY uid`, last)
		if err != nil {
			return err
		}
		if found {
			u := m.users[int(last)]
			u.parks = true
			m.put(int(last), u)
		}
	}
	return nil
}
