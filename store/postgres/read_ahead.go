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

// earlyRows holds the rows of a query that was sent before its rows were needed.
type earlyRows struct {
	conn *pgdb.Conn
	rows []pgdb.Row // the rows if they were read immediately; nil if Each must read them
}

// StartLaneQuery implements engine.SharedDatabase. It sends a query for jobs before their rows are needed. If readNow
// is true, it also reads the rows.
func (b backend) StartLaneQuery(query string, args []any, want int, readNow bool) (engine.EarlyRows, error) {
	e := &earlyRows{conn: b.writer.Conn}
	if !readNow {
		return e, e.conn.StartQuery(query, args...)
	}
	e.rows = make([]pgdb.Row, 0, want)
	err := database.Each(e.conn, func(r database.Row) { e.rows = append(e.rows, r.(*pgdb.Row).Clone()) }, query, args...)
	return e, err
}

// Each implements engine.EarlyRows. It calls the callback for every row.
func (e *earlyRows) Each(each func(r database.Row) (more bool, err error)) (ok bool, err error) {
	if e.rows == nil {
		return e.conn.FinishQuery(each)
	}
	for i := range e.rows {
		if more, err := each(&e.rows[i]); !more || err != nil {
			return true, err
		}
	}
	return true, nil
}

// ReadLanes implements engine.SharedDatabase. It reads the next jobs of several lanes in one round trip.
func (b backend) ReadLanes(t *engine.Tx, starts []readahead.Start, size int) ([]readahead.LaneJobs, error) {
	index := make(map[int64]int, len(starts))
	var ids, ranks, seqs []int64
	for i, start := range starts {
		index[start.Lane] = i
		ids, ranks, seqs = append(ids, start.Lane), append(ranks, start.From.Rank), append(seqs, start.From.Seq)
	}
	const from = ` FROM unnest(string_to_array(?1, ' ')::bigint[], string_to_array(?2, ' ')::bigint[],
		string_to_array(?3, ' ')::bigint[]) AS l (of_lane, from_rank, from_seq), LATERAL (SELECT `
	const where = ` FROM jobs WHERE place = 1 AND lane = of_lane AND (rank, seq) >= (from_rank, from_seq)
		ORDER BY rank, seq `
	var args []any
	for _, list := range [][]int64{ids, ranks, seqs} {
		args = append(args, database.JoinNumbers(slices.Values(list)))
	}
	args = append(args, int64(size))
	copies, list := make([][]pgdb.Row, len(starts)), make([]readahead.LaneJobs, len(starts))
	var batch database.QueryBatch
	batch.Each(func(r database.Row) {
		i := index[r.Num(records.LaneColumn)]
		copies[i] = append(copies[i], r.(*pgdb.Row).Clone())
	}, `SELECT j.*`+from+records.WholeColumns+where+`LIMIT ?4) AS j`, args...)
	batch.Each(func(r database.Row) {
		list[index[r.Num(0)]].Next = new(readahead.ReadHead(r))
	}, `SELECT j.*`+from+readahead.HeadColumns+where+`LIMIT 1 OFFSET ?4) AS j`, args...)
	if err := t.Conn.QueryAll(batch.Queries); err != nil {
		return nil, err
	}
	for i, rows := range copies { // sort the rows, because a join returns them in no defined order
		sort.Slice(rows, func(m, n int) bool { // sort.Slice, because slices.SortFunc would copy the rows
			return readahead.Position(&rows[n]).After(readahead.Position(&rows[m]))
		})
		list[i].Rows = make([]database.Row, len(rows))
		for k := range rows {
			list[i].Rows[k] = &rows[k]
		}
	}
	return list, nil
}

// ReadOpenLanes implements engine.SharedDatabase. It reads open lanes in one query. However many lanes a user
// has, it reads only the first perUser of them from the index.
func (b backend) ReadOpenLanes(t *engine.Tx, queue string, uids []int, perUser int, closedHere []int64,
	each func(rules.Lane)) error {
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
	args := []any{queue, int64(perUser), database.JoinNumbers(slices.Values(closedHere))}
	from := all
	if uids != nil {
		from, args = these, append(args, database.JoinNumbers(slices.Values(slices.Sorted(slices.Values(uids)))))
	}
	return t.Query(func(r database.Row) (bool, error) {
		l, err := records.ReadLane(r)
		if err != nil {
			return false, err
		}
		each(l)
		return true, nil
	}, `SELECT l.* FROM `+from+best, args...)
}
