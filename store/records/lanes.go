package records

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// LaneColumns are the columns of a lane (a list of ready jobs of one queue and user that need the same locks and other
// limits), in the order in which ReadLane reads them.
const LaneColumns = `id, queue, uid, needs, head_rank, head_seq, shut, priority`

// LaneColumnCount is the number of LaneColumns.
const LaneColumnCount = 8

// ReadLane reads a lane (a list of ready jobs) from a row of LaneColumns. It returns an error if the text in the column
// "needs" is damaged.
func ReadLane(r database.Row) (rules.Lane, error) {
	l := rules.Lane{ID: r.Int64(0), Queue: r.Text(1), UID: int(r.Int64(2)),
		Head: rules.Position{Rank: r.Int64(4), Seq: r.Int64(5)}, ClosedBy: r.Int64(6), Priority: r.Int64(7), HeapIndex: -1}
	for need := range strings.FieldsSeq(r.Text(3)) {
		gate, rest, _ := strings.Cut(need, "/")
		kind, units, _ := strings.Cut(rest, "/")
		id, err := strconv.ParseInt(gate, 10, 64)
		k, err2 := strconv.Atoi(kind)
		n, err3 := strconv.Atoi(units)
		if errors.Join(err, err2, err3) != nil || n < 1 {
			return l, database.DamageError(fmt.Sprintf(`the row with the id %d of the table "lanes" is damaged`, l.ID))
		}
		l.GateNeeds = append(l.GateNeeds, rules.GateNeed{GateID: id, Kind: queue.GateKind(k), Units: n})
	}
	return l, nil
}
