package postgres

import (
	"slices"
	"sort"

	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/store/readahead"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// prefetchedRows holds the rows of a query that was sent before its rows were needed.
type prefetchedRows struct {
	conn *pgdb.Conn
	rows []pgdb.Row // the rows if they were read immediately; if nil, ForEachRow reads them
}

// SendLaneQuery implements engine.SharedDatabase. It sends a query whose rows are needed later. If readRowsNow
// is true, it also reads the rows.
func (b backend) SendLaneQuery(query string, args []any, expectedRows int, readRowsNow bool) (engine.PrefetchedRows,
	error) {
	e := &prefetchedRows{conn: b.writer.Conn}
	if !readRowsNow {
		return e, e.conn.StartQuery(query, args...)
	}
	e.rows = make([]pgdb.Row, 0, expectedRows)
	err := database.ForEachRow(e.conn, func(r database.Row) { e.rows = append(e.rows, r.(*pgdb.Row).Clone()) },
		query, args...)
	return e, err
}

// ForEachRow implements engine.PrefetchedRows. It calls visit for every row.
func (e *prefetchedRows) ForEachRow(visit func(r database.Row) (more bool, err error)) (rowsAvailable bool, err error) {
	if e.rows == nil {
		return e.conn.FinishQuery(visit)
	}
	for i := range e.rows {
		if more, err := visit(&e.rows[i]); !more || err != nil {
			return true, err
		}
	}
	return true, nil
}

// ReadLaneJobs implements engine.SharedDatabase. It reads the next jobs of several lanes in one round trip. A lane is a
// list of waiting jobs of one queue and user that need the same locks and other limits.
func (b backend) ReadLaneJobs(t *engine.Tx, laneStarts []readahead.LaneStart, jobsPerLane int) ([]readahead.LaneJobs,
	error) {
	index := make(map[int64]int, len(laneStarts))
	var ids, ranks, seqs []int64
	for i, start := range laneStarts {
		index[start.LaneID] = i
		ids, ranks, seqs = append(ids, start.LaneID), append(ranks, start.FromPosition.Rank),
			append(seqs, start.FromPosition.Seq)
	}
	const fromClause = ` FROM unnest(string_to_array(?1, ' ')::bigint[], string_to_array(?2, ' ')::bigint[],
		string_to_array(?3, ' ')::bigint[]) AS l (of_lane, from_rank, from_seq), LATERAL (SELECT `
	const whereClause = ` FROM jobs WHERE place = 1 AND lane = of_lane AND (rank, seq) >= (from_rank, from_seq)
		ORDER BY rank, seq `
	var args []any
	for _, list := range [][]int64{ids, ranks, seqs} {
		args = append(args, database.JoinNumbers(slices.Values(list)))
	}
	args = append(args, int64(jobsPerLane))
	copies, list := make([][]pgdb.Row, len(laneStarts)), make([]readahead.LaneJobs, len(laneStarts))
	var batch database.QueryBatch
	batch.AddForEachRow(func(r database.Row) {
		i := index[r.Int64(records.LaneColumnIndex)]
		copies[i] = append(copies[i], r.(*pgdb.Row).Clone())
	}, `SELECT j.*`+fromClause+records.AllJobColumns+whereClause+`LIMIT ?4) AS j`, args...)
	batch.AddForEachRow(func(r database.Row) {
		list[index[r.Int64(0)]].NextHead = new(readahead.ReadLaneHead(r))
	}, `SELECT j.*`+fromClause+readahead.LaneHeadColumns+whereClause+`LIMIT 1 OFFSET ?4) AS j`, args...)
	if err := t.Conn.QueryAll(batch.Queries); err != nil {
		return nil, err
	}
	for i, rows := range copies { // a join returns the rows in no defined order
		sort.Slice(rows, func(m, n int) bool { // slices.SortFunc would copy the rows
			return readahead.JobRowPosition(&rows[n]).After(readahead.JobRowPosition(&rows[m]))
		})
		list[i].JobRows = make([]database.Row, len(rows))
		for k := range rows {
			list[i].JobRows[k] = &rows[k]
		}
	}
	return list, nil
}

// ReadOpenLanes implements engine.SharedDatabase. It reads, in one query, the first lanesPerUser open lanes (lists of
// jobs that may start) of each user. An index lets it skip the other lanes, however many there are.
func (b backend) ReadOpenLanes(t *engine.Tx, queue string, uids []int, lanesPerUser int, closedLaneIDs []int64,
	visitLane func(rules.Lane)) error {
	const (
		openLanesClause = ` FROM lanes WHERE demands <> '' AND shut = 0 AND queue = ?1`
		allUsers        = `(WITH RECURSIVE known (uid) AS ((SELECT uid` + openLanesClause + ` ORDER BY uid LIMIT 1) UNION ALL
			SELECT (SELECT lanes.uid` + openLanesClause + ` AND lanes.uid > known.uid ORDER BY lanes.uid LIMIT 1)
				FROM known WHERE known.uid IS NOT NULL) SELECT uid FROM known WHERE uid IS NOT NULL)`
		givenUsers      = `unnest(string_to_array(?4, ' ')::bigint[])`
		bestLanesClause = ` AS users (of_user), LATERAL (SELECT ` + records.LaneColumns + openLanesClause + `
			AND uid = of_user AND id NOT IN (SELECT unnest(string_to_array(?3, ' ')::bigint[]))
			ORDER BY head_rank, head_seq LIMIT ?2) AS l`
	)
	args := []any{queue, int64(lanesPerUser), database.JoinNumbers(slices.Values(closedLaneIDs))}
	from := allUsers
	if uids != nil {
		from, args = givenUsers, append(args, database.JoinNumbers(slices.Values(slices.Sorted(slices.Values(uids)))))
	}
	return t.Query(func(r database.Row) (bool, error) {
		l, err := records.ReadLane(r)
		if err != nil {
			return false, err
		}
		visitLane(l)
		return true, nil
	}, `SELECT l.* FROM `+from+bestLanesClause, args...)
}
