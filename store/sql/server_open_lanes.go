package sql

import (
	"maps"
	"slices"

	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
)

// openLanesOfUsers reads the open lanes of all the users in one query, where openLanes needs one query for
// each user. It reads only each user's first lanes from the index, however many lanes a user has. It leaves
// out lanes that are closed only for this node.
func (t *tx) openLanesOfUsers(q *queueState) error {
	const (
		open = ` FROM lanes WHERE demands <> '' AND shut = 0 AND queue = ?1`
		all  = `(WITH RECURSIVE known (uid) AS ((SELECT uid` + open + ` ORDER BY uid LIMIT 1) UNION ALL
			SELECT (SELECT lanes.uid` + open + ` AND lanes.uid > known.uid ORDER BY lanes.uid LIMIT 1)
				FROM known WHERE known.uid IS NOT NULL) SELECT uid FROM known WHERE uid IS NOT NULL)`
		these = `unnest(string_to_array(?4, ' ')::bigint[])`
		best  = ` AS users (of_user), LATERAL (SELECT ` + records.LaneColumns + open + `
			AND uid = of_user AND id NOT IN (SELECT unnest(string_to_array(?3, ' ')::bigint[]))
			ORDER BY head_rank, head_seq LIMIT ?2) AS l`
	)
	args := []any{q.Name, int64(maxOpenPerUser + 1), database.JoinNumbers(maps.Keys(t.s.mem.lanes.closedHere))}
	from := all
	if !q.stale {
		uids := slices.Sorted(maps.Keys(q.staleUsers))
		from, args = these, append(args, database.JoinNumbers(slices.Values(uids)))
	}
	return t.Query(func(r database.Row) (bool, error) {
		l, err := records.ReadLane(r)
		if err != nil {
			return false, err
		}
		q.addOpen(l)
		return true, nil
	}, `SELECT l.* FROM `+from+best, args...)
}
