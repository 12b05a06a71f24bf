package postgres

import (
	"slices"
	"testing"

	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/test/pgserver"
)

// The rows of a query sent with StartQuery can be read after other statements were sent. They are lost if the
// result of a later statement is read before them.
func TestStartedQueryRowsAreReadLater(t *testing.T) {
	s := openNodeWithGPU(t, pgserver.SharedServer(t).CreateDatabase(t), "a")
	enqueueOnNode(t, s, newDraft(), newDraft())
	c := separateServerConn(t, s)
	for _, later := range []bool{false, true} {
		if err := c.Begin(); err != nil {
			t.Fatal(err)
		}
		err := c.StartQuery(`SELECT seq FROM jobs WHERE seq > ? ORDER BY seq`, int64(0))
		if err == nil {
			err = c.Exec(`UPDATE jobs SET seq = -seq WHERE seq = 2`)
		}
		if err == nil && later {
			_, err = c.QueryNumber(`SELECT seq FROM jobs WHERE seq < 0`)
		}
		var got []int64
		ok := false
		if err == nil {
			ok, err = c.FinishQuery(func(r database.Row) (bool, error) { got = append(got, r.Int64(0)); return true, nil })
		}
		n := int64(0)
		if err == nil {
			n, err = c.QueryNumber(`SELECT count(*) FROM jobs WHERE seq < 0`)
		}
		if err != nil || ok == later || !later && !slices.Equal(got, []int64{1, 2}) || n != 1 {
			t.Errorf("result of a later query received first: %v; result used: %v, claimed %v, %d changed, %v",
				later, ok, got, n, err)
		}
		c.Rollback()
	}
}
