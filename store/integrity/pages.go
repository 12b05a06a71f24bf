package integrity

import (
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// refStep is how many names of output files are read per query.
const refStep = 1000

// EachOutput calls the callback for every output file that a copy refers to, with its name and size in bytes.
func EachOutput(c *sqlitedb.Conn, each func(ref string, size int64) error) error {
	seq, n := int64(0), int64(0)
	for {
		var refs []string
		var sizes []int64
		err := c.Query(func(r database.Row) (bool, error) {
			seq, n = r.Num(0), r.Num(1)
			refs, sizes = append(refs, r.Text(2)), append(sizes, r.Num(3))
			return len(refs) < refStep, nil
		}, `SELECT seq, n, output_ref, output_bytes FROM attempts WHERE (seq, n) > (?, ?) AND output_ref IS NOT NULL ORDER BY seq, n`, seq, n)
		if err != nil || len(refs) == 0 {
			return err
		}
		for i, ref := range refs {
			if err := each(ref, sizes[i]); err != nil {
				return err
			}
		}
	}
}

// CheckPages returns an error if SQLite finds the database damaged.
func CheckPages(c *sqlitedb.Conn) error {
	var verdict []string
	err := c.Query(func(r database.Row) (bool, error) {
		verdict = append(verdict, r.Text(0))
		return true, nil
	}, `PRAGMA integrity_check(5)`)
	if err != nil {
		return err
	}
	if text := strings.Join(verdict, "; "); text != "ok" {
		return fmt.Errorf("SQLite reports damage: %s", text)
	}
	return nil
}
