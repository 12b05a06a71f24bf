package sql

import (
	"context"
	"fmt"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
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
	bytes   int64 // that jobs hold; stored in the table users
	// stagedBytes is how many bytes the user's jobs in batches use.
	stagedBytes int64
}

// held returns how many bytes the user's jobs hold, those of batches included.
func (u user) held() int64 { return u.bytes + u.stagedBytes }

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
		if now := m.users[uid]; now.waiting == before.waiting && now.bytes == before.bytes {
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
			if err := t.writeUser(int64(uid), m.users[uid]); err != nil {
				return err
			}
		}
		m.listed = nil
	}
	var list []byte
	for _, uid := range m.listed {
		list = fmt.Appendf(list, "%d/%d/%d ", uid, m.users[uid].waiting, m.users[uid].bytes)
	}
	m.list = string(list)
	return nil
}

func (t *tx) writeUser(uid int64, u user) (err error) {
	if u.waiting == 0 && u.bytes == 0 {
		err = t.exec(`DELETE FROM users WHERE uid = ?`, uid)
		return err
	}
	err = t.exec(`INSERT INTO users (uid, waiting, bytes) VALUES (?, ?, ?) ON CONFLICT (uid) DO UPDATE SET waiting = excluded.waiting, bytes = excluded.bytes`, uid, u.waiting, u.bytes)
	return err
}

// readUsers reads the users' counts.
func (s *engine) readUsers(all *reads) {
	m := &s.mem
	all.add(func(r row) (bool, error) {
		u := m.users[int(r.num(0))]
		u.waiting, u.bytes = r.num(1), r.num(2)
		m.users[int(r.num(0))] = u
		return true, nil
	}, `SELECT uid, waiting, bytes FROM users`)
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
	bytes := thirds(m.list)
	for uid, waiting := range list {
		m.listed = append(m.listed, int(uid))
		u := m.users[int(uid)]
		u.waiting, u.bytes = waiting, bytes[uid]
		m.putUser(int(uid), u)
	}
	for _, l := range m.leases {
		u := m.users[l.Job.UID]
		u.leased++
		m.users[l.Job.UID] = u
	}
	return nil
}

// noteHeldLocked copies, for readers, how many bytes the jobs of a user hold.
func (s *engine) noteHeldLocked(uid int) {
	if n := s.mem.users[uid].held(); n != 0 {
		s.held[uid] = n
	} else {
		delete(s.held, uid)
	}
}

// noteAllHeldLocked does that for all users.
func (s *engine) noteAllHeldLocked() {
	clear(s.held)
	for uid := range s.mem.users {
		s.noteHeldLocked(uid)
	}
}

// UserBytes returns how many bytes the jobs of a user hold, as of the last commit.
func (s *engine) UserBytes(uid int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[uid]
}

// UsersOver lists the users whose jobs hold more than keep bytes, those that hold most first.
func (s *engine) UsersOver(keep int64) (list []store.UserBytes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, n := range s.held {
		if n > keep {
			list = append(list, store.UserBytes{UID: uid, Bytes: n})
		}
	}
	store.SortUserBytes(list)
	return list
}

// RemovableBytes implements store.Store.
func (s *engine) RemovableBytes(ctx context.Context, uid int) (bytes int64, err error) {
	err = s.reading(ctx, func(r *reader) error {
		bytes, err = r.number(`SELECT CAST(coalesce(sum(
				CASE WHEN input IS NULL AND state <> 7 THEN coalesce((SELECT octet_length(i.input) FROM inputs AS i WHERE i.seq = jobs.seq), 0) ELSE 0 END
				+ CASE WHEN outputs > 0 THEN coalesce((SELECT sum(a.output_bytes) FROM attempts AS a WHERE a.seq = jobs.seq AND a.output_bytes > 0), 0) ELSE 0 END
			), 0) AS BIGINT) FROM jobs INDEXED BY jobs_held WHERE uid = ? AND state > 5 AND (outputs > 0 OR input IS NULL AND state <> 7)`, int64(uid))
		return err
	})
	return bytes, err
}

// TrimUser implements store.Store.
func (s *engine) TrimUser(ctx context.Context, uid int, keep int64) (more bool, err error) {
	err = s.doRemoving(ctx, normal, func(t *tx) error {
		more = false
		over := func() int64 { return t.s.mem.users[uid].held() - keep }
		if over() <= 0 {
			return nil
		}
		from := trimmableJob{}
		for freed := 0; freed < outputStep; {
			jobs, err := t.trimmable(uid, from)
			if err != nil || len(jobs) == 0 {
				return err
			}
			for _, from = range jobs {
				before := over()
				left, err := t.trimJob(uid, from, over)
				if more = left; left || err != nil || over() <= 0 {
					return err
				}
				freed += int(bit(over() < before)) // not for a job whose input or outputs are missing
			}
		}
		more = true
		return nil
	})
	return more, err
}

// trimJob removes the input of an ended job, and as many of its outputs as the user has bytes over. It reports whether
// the job has more outputs to remove.
func (t *tx) trimJob(uid int, j trimmableJob, over func() int64) (more bool, err error) {
	if j.input {
		if err := t.removeInput(uid, j.seq); err != nil {
			return false, err
		}
	}
	if n := over(); n > 0 && j.outputs {
		return t.trim(n, queue.OutputOverQuota, `SELECT seq, n, output_bytes FROM attempts WHERE seq = ? AND output_bytes > 0 ORDER BY n LIMIT ?`, j.seq)
	}
	return false, nil
}

// trimmableJob is an ended job that has an input or outputs to remove.
type trimmableJob struct {
	seq, endedAt   int64
	input, outputs bool
}

// trimmable lists up to outputStep of them of a user after one of them, in the order in which they ended.
func (t *tx) trimmable(uid int, after trimmableJob) (jobs []trimmableJob, err error) {
	err = t.query(func(r row) (bool, error) {
		jobs = append(jobs, trimmableJob{r.num(0), r.num(1), r.num(2) != 0, r.num(3) > 0})
		return true, nil
	}, `SELECT seq, ended_at, CASE WHEN input IS NULL AND state <> 7 THEN 1 ELSE 0 END, outputs FROM jobs INDEXED BY jobs_held WHERE uid = ?
		AND state > 5 AND (outputs > 0 OR input IS NULL AND state <> 7) AND (ended_at, seq) > (?, ?) ORDER BY ended_at, seq LIMIT ?`,
		int64(uid), after.endedAt, after.seq, int64(outputStep))
	return jobs, err
}

// removeInput removes the input of a user's job that has a row in inputs. inputOf wrote it, so its first and last bytes
// say which parts it has.
func (t *tx) removeInput(uid int, seq int64) error {
	bytes, parts := int64(0), queue.InputParts(0)
	err := t.query(func(r row) (bool, error) {
		bytes = r.num(0)
		if r.text(1) == `{"env":` {
			parts |= queue.InputEnv
		}
		if r.text(2) != `]}` {
			parts |= queue.InputStdin
		}
		return false, nil
	}, `SELECT octet_length(input), substr(input, 1, 7), substr(input, length(input) - 1) FROM inputs WHERE seq = ?`, seq)
	if err != nil || bytes == 0 { // a damaged database; doctor reports it
		return err
	}
	t.Holds(uid, -bytes)
	return t.forgetInput(seq, bytes, parts)
}
