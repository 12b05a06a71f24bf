package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// user holds the counts of one user. The engine keeps them in memory.
type user struct {
	waitingJobs   int64 // number of waiting jobs; stored in the table users
	waitingHooks  int64 // number of waiting hooks for the user's jobs; counted when the engine is opened
	leasedJobs    int
	stagedJobs    int64 // number of jobs enqueued in batches that are not in the queue yet
	openBatches   int   // number of batches that are not committed
	chosenIDCount int64 // number of jobs in uncommitted batches whose ids the user chose
	storedBytes   int64 // bytes that the user's jobs and schedules hold; stored in the table users
	outputBytes   int64 // bytes of outputs, which the field storedBytes includes; stored in the same table
	// stagedBytes is the size of the jobs that the user has enqueued in batches and that are not in the queue
	// yet.
	stagedBytes int64
}

// totalBytes returns how many bytes the user's jobs take, both those in the queue and those still in a batch.
func (u user) totalBytes() int64 { return u.storedBytes + u.stagedBytes }

func (t *Tx) changeUser(uid int, change func(u *user)) {
	t.saveUser(uid)
	t.engine.mem.changeUser(uid, change)
}

// saveUser saves a user's counts, so that they can be restored if the transaction is undone.
func (t *Tx) saveUser(uid int) {
	if _, known := t.usersBefore[uid]; !known {
		if t.usersBefore == nil {
			t.usersBefore = map[int]user{}
		}
		t.usersBefore[uid] = t.engine.mem.users[uid]
	}
}

func (m *memory) changeUser(uid int, change func(u *user)) {
	u := m.users[uid]
	change(&u)
	m.putUser(uid, u)
}

// putUser stores a user's counts, or removes the user if all are 0.
func (m *memory) putUser(uid int, u user) {
	if u == (user{}) {
		delete(m.users, uid)
		return
	}
	m.users[uid] = u
}

// countLease adds n to the number of leased jobs of the user and the queue that a job belongs to.
func (t *Tx) countLease(j *rules.Job, n int) {
	t.saveUser(j.UID)
	t.engine.mem.countLease(j.UID, j.Queue, n)
}

// countLease adds n to the number of leased jobs of a user, and to that of a queue.
func (m *memory) countLease(uid int, queue string, n int) {
	m.changeUser(uid, func(u *user) { u.leasedJobs += n })
	q := m.lanes.Queue(queue)
	if q.Leased += n; q.Rule.Concurrency > 0 {
		m.lanes.UpdateQueue(q)
	}
}

// recountLeased computes the number of leased jobs of each queue from the leases.
func (m *memory) recountLeased() {
	for _, q := range m.lanes.Queues {
		q.Leased = 0
	}
	for _, l := range m.leases {
		m.lanes.Queue(l.Job.Queue).Leased++
	}
	for _, q := range m.lanes.Queues {
		m.lanes.UpdateQueue(q)
	}
}

// maxListedEntries is the maximum number of users in the column meta.users, and of queues in meta.queues.
const maxListedEntries = 32

// updateList adds changedKeys to *listedKeys, the users or queues whose own rows are out of date. It encodes
// the counts of all these users or queues in *listText, a column of the table meta. If the list gets longer
// than maxListedEntries, updateList writes all the rows and empties the list.
func updateList[K comparable](
	listedKeys *[]K, listText *string, changedKeys []K, writeRow func(K), formatEntry func(K) string,
) {
	if len(changedKeys) == 0 {
		return
	}
	keys := slices.Clip(*listedKeys)
	for _, k := range changedKeys {
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	if len(keys) > maxListedEntries {
		for _, k := range keys {
			writeRow(k)
		}
		keys = nil
	}
	var builder strings.Builder
	for _, k := range keys {
		builder.WriteString(formatEntry(k))
	}
	*listedKeys, *listText = keys, builder.String()
}

// updateUserList records the changed counts of users in the column meta.users. This is cheap, because every
// commit writes the row of the table meta anyway. See docs/decisions/0019.
func (t *Tx) updateUserList() {
	m := &t.engine.mem
	var changedUIDs []int
	for uid, before := range t.usersBefore {
		if now := m.users[uid]; now.waitingJobs != before.waitingJobs || now.storedBytes != before.storedBytes ||
			now.outputBytes != before.outputBytes {
			changedUIDs = append(changedUIDs, uid)
		}
	}
	updateList(&m.listedUsers, &m.userList, changedUIDs, func(uid int) { t.writeUser(int64(uid), m.users[uid]) },
		func(uid int) string {
			u := m.users[uid]
			return fmt.Sprintf("%d/%d/%d/%d ", uid, u.waitingJobs, u.storedBytes, u.outputBytes)
		})
}

// writeUser writes a user's row in the table users, or deletes it if its counts are 0.
func (t *Tx) writeUser(uid int64, u user) {
	if u.waitingJobs == 0 && u.storedBytes == 0 {
		t.Exec(`DELETE FROM users WHERE uid = ?`, uid)
		return
	}
	t.Exec(`INSERT INTO users (uid, waiting, bytes, outputs) VALUES (?, ?, ?, ?)
		ON CONFLICT (uid) DO UPDATE SET waiting = excluded.waiting, bytes = excluded.bytes, outputs = excluded.outputs`, uid,
		u.waitingJobs, u.storedBytes, u.outputBytes)
}

// readUsers reads the users' counts.
func (e *Engine) readUsers(queries *database.QueryBatch) {
	m := &e.mem
	queries.AddEach(func(r database.Row) {
		m.users[int(r.Num(0))] = user{waitingJobs: r.Num(1), storedBytes: r.Num(2), outputBytes: r.Num(3)}
	}, `SELECT uid, waiting, bytes, outputs FROM users`)
	queries.AddEach(func(r database.Row) {
		m.changeUser(int(r.Num(0)), func(u *user) { u.waitingHooks = r.Num(1) })
	}, `SELECT hook_uid, count(*) FROM jobs INDEXED BY jobs_hooks WHERE hooks > 127 AND state < 5 GROUP BY hook_uid`)
}

// loadUserCounts applies the counts in meta.users, which are newer than those in the table users, and counts
// the leased jobs of each user.
func (e *Engine) loadUserCounts() error {
	m := &e.mem
	counts, err := database.ParseUserCounts(m.userList)
	if err != nil {
		return err
	}
	for uid, c := range counts {
		m.listedUsers = append(m.listedUsers, uid)
		m.changeUser(uid, func(u *user) { u.waitingJobs, u.storedBytes, u.outputBytes = c.Waiting, c.Bytes, c.Outputs })
	}
	for _, l := range m.leases {
		m.changeUser(l.Job.UID, func(u *user) { u.leasedJobs++ })
	}
	return nil
}
