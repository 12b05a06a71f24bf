package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// userCounts holds the counts of one user. The engine keeps them in memory.
type userCounts struct {
	database.UserCounts       // stored in the table users
	waitingHooks        int64 // number of waiting hooks for the user's jobs; counted when the engine is opened
	leasedJobs          int
	stagedJobs          int64 // number of jobs enqueued in batches that are not in the queue yet
	openBatches         int   // number of batches that are not committed
	userChosenIDCount   int64 // number of jobs in uncommitted batches whose ids the user chose
	// stagedBytes is the size of the jobs that the user has enqueued in batches and that are not in the queue
	// yet.
	stagedBytes int64
}

// totalBytes returns how many bytes the user's jobs take, both the jobs in the queue and the jobs that are still in a
// batch.
func (u userCounts) totalBytes() int64 { return u.StoredBytes + u.stagedBytes }

func (t *Tx) changeUserCounts(uid int, change func(u *userCounts)) {
	t.saveUserCountsForRollback(uid)
	t.databaseCache.changeUserCounts(uid, change)
}

// saveUserCountsForRollback saves a user's counts, so that they can be restored if the transaction is undone.
func (t *Tx) saveUserCountsForRollback(uid int) {
	if _, known := t.userCountsBefore[uid]; !known {
		if t.userCountsBefore == nil {
			t.userCountsBefore = map[int]userCounts{}
		}
		t.userCountsBefore[uid] = t.users[uid]
	}
}

func (m *databaseCache) changeUserCounts(uid int, change func(u *userCounts)) {
	m.changedUser = m.users[uid]
	change(&m.changedUser)
	m.putUserCounts(uid, m.changedUser)
}

// putUserCounts stores a user's counts, or removes the user if all are 0.
func (m *databaseCache) putUserCounts(uid int, u userCounts) {
	if u == (userCounts{}) {
		delete(m.users, uid)
		return
	}
	m.users[uid] = u
}

// adjustLeasedJobCounts adds n to the number of leased jobs of the user and the queue that a job belongs to.
func (t *Tx) adjustLeasedJobCounts(j *rules.Job, delta int) {
	t.saveUserCountsForRollback(j.UID)
	t.databaseCache.adjustLeasedJobCounts(j.UID, j.Queue, delta)
}

// adjustLeasedJobCounts adds n to the number of leased jobs of a user, and to that of a queue.
func (m *databaseCache) adjustLeasedJobCounts(uid int, queueName string, delta int) {
	m.changeUserCounts(uid, func(u *userCounts) { u.leasedJobs += delta })
	q := m.lanes.FindOrAddQueue(queueName)
	if q.LeasedJobs += delta; q.Rule.Concurrency > 0 {
		m.lanes.UpdateQueueReadiness(q)
	}
}

// recountLeasedJobs computes the number of leased jobs of each queue from the leases.
func (m *databaseCache) recountLeasedJobs() {
	for _, q := range m.lanes.Queues {
		q.LeasedJobs = 0
	}
	for _, l := range m.leases {
		m.lanes.FindOrAddQueue(l.Job.Queue).LeasedJobs++
	}
	for _, q := range m.lanes.Queues {
		m.lanes.UpdateQueueReadiness(q)
	}
}

// maxMetaListEntries is the maximum number of users in the column meta.users, and of queues in meta.queues.
const maxMetaListEntries = 32

// updateMetaList adds changedKeys to *listedKeys, the users or queues whose own rows are out of date. It encodes
// the counts of all these users or queues in *listText, a column of the table meta. If the list gets longer
// than maxMetaListEntries, updateMetaList writes all the rows and empties the list.
func updateMetaList[K comparable](
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
	if len(keys) > maxMetaListEntries {
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

// updateMetaUserList records the changed counts of users in the column meta.users. This is cheap, because every
// commit writes the row of the table meta anyway. See docs/decisions/0019.
func (t *Tx) updateMetaUserList() {
	var changedUIDs []int
	for uid, before := range t.userCountsBefore {
		if t.users[uid].UserCounts != before.UserCounts {
			changedUIDs = append(changedUIDs, uid)
		}
	}
	updateMetaList(&t.metaUserUIDs, &t.metaUsersText, changedUIDs,
		func(uid int) { t.writeUserRow(uid, t.users[uid]) },
		func(uid int) string {
			u := t.users[uid]
			return fmt.Sprintf("%d/%d/%d/%d ", uid, u.WaitingJobs, u.StoredBytes, u.OutputBytes)
		})
}

// writeUserRow writes a user's row in the table users, or deletes it if its counts are 0.
func (t *Tx) writeUserRow(uid int, u userCounts) {
	if u.WaitingJobs == 0 && u.StoredBytes == 0 {
		t.Exec(`DELETE FROM users WHERE uid = ?`, uid)
		return
	}
	t.Exec(`INSERT INTO users (uid, waiting, bytes, outputs) VALUES (?, ?, ?, ?)
		ON CONFLICT (uid) DO UPDATE SET waiting = excluded.waiting, bytes = excluded.bytes, outputs = excluded.outputs`, uid,
		u.WaitingJobs, u.StoredBytes, u.OutputBytes)
}

// addUserQueries reads the users' counts.
func (m *databaseCache) addUserQueries(queries *database.QueryBatch) {
	queries.AddForEachRow(func(r database.Row) {
		m.users[int(r.Int64(0))] = userCounts{UserCounts: database.UserCounts{WaitingJobs: r.Int64(1),
			StoredBytes: r.Int64(2), OutputBytes: r.Int64(3)}}
	}, `SELECT uid, waiting, bytes, outputs FROM users`)
	queries.AddForEachRow(func(r database.Row) {
		m.changeUserCounts(int(r.Int64(0)), func(u *userCounts) { u.waitingHooks = r.Int64(1) })
	}, `SELECT hook_uid, count(*) FROM jobs INDEXED BY jobs_hooks WHERE hooks > 127 AND state < 5 GROUP BY hook_uid`)
}

// loadUserCounts applies the counts in meta.users, which are newer than those in the table users, and counts
// the leased jobs of each user.
func (m *databaseCache) loadUserCounts() error {
	counts, err := database.ParseUserCounts(m.metaUsersText)
	if err != nil {
		return err
	}
	for uid, c := range counts {
		m.metaUserUIDs = append(m.metaUserUIDs, uid)
		m.changeUserCounts(uid, func(u *userCounts) { u.UserCounts = c })
	}
	for _, l := range m.leases {
		m.changeUserCounts(l.Job.UID, func(u *userCounts) { u.leasedJobs++ })
	}
	return nil
}
