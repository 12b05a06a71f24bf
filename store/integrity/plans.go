package integrity

import (
	"strings"

	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// planFaults checks that SQLite executes the most frequent queries with an index.
func planFaults(c *sqlitedb.Conn) (faults []string, err error) {
	for _, q := range []string{
		`SELECT seq FROM jobs INDEXED BY jobs_ready WHERE place = 1 AND lane = 0 AND (rank, seq) >= (0, 0) ORDER BY rank, seq`,
		`SELECT id FROM lanes INDEXED BY lanes_open WHERE demands <> '' AND shut = 0 AND queue = 'x' AND uid > 1 ORDER BY uid, head_rank, head_seq`,
		`SELECT id FROM lanes INDEXED BY lanes_shut WHERE demands <> '' AND shut <> 0 AND shut = 1 AND queue = 'x' ORDER BY head_rank, head_seq`,
		`SELECT id FROM lanes INDEXED BY lanes_shut_user WHERE demands <> '' AND shut <> 0 AND shut = 1 AND queue = 'x' AND uid > 1 ORDER BY uid, head_rank, head_seq`,
		`SELECT id FROM lanes INDEXED BY lanes_shut_user WHERE demands <> '' AND shut <> 0 AND shut = 1 AND queue > 'x' ORDER BY queue, uid, head_rank, head_seq`,
		`SELECT id FROM lanes INDEXED BY lanes_user WHERE demands <> '' AND uid = 1 ORDER BY head_rank, head_seq`,
		`SELECT seq FROM jobs INDEXED BY jobs_timed WHERE place = 2 AND due_at <= 0 ORDER BY due_at`,
		`SELECT seq FROM jobs INDEXED BY jobs_state WHERE state = 3 AND seq < 0 ORDER BY seq DESC`,
		`SELECT seq FROM jobs INDEXED BY jobs_ended WHERE kept = 0 AND state = 6 AND state > 5 AND ended_at < 0 ORDER BY ended_at`,
		`SELECT seq FROM jobs INDEXED BY jobs_id WHERE id = 'x' AND id <> CAST(seq AS TEXT)`,
		`SELECT n FROM attempts WHERE seq = 1 ORDER BY n`,
	} {
		err := c.Query(func(r database.Row) (bool, error) {
			if plan := r.Text(3); strings.HasPrefix(plan, "SCAN") || strings.Contains(plan, "TEMP B-TREE") {
				faults = append(faults, plan+": "+q)
			}
			return true, nil
		}, `EXPLAIN QUERY PLAN `+q)
		if err != nil {
			faults = append(faults, err.Error())
		}
	}
	return faults, nil
}
