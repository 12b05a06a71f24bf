package output

import (
	"slices"
	"sort"
)

// piece is a range of consecutive kept bytes of one stream.
type piece struct {
	number    int64 // number of pieces of both streams that arrived before this piece
	position  int64 // position in the stream of the first byte of the piece
	byteCount int64 // number of bytes
	time      int64 // time when the first byte of the piece was read
}

// pieces is the queue of the pieces of one half of a stream, sorted by number and position. Adding
// a piece at the end and dropping one at the beginning take constant time on average.
type pieces struct {
	list         []piece
	droppedCount int // number of dropped pieces at the beginning of list
}

func (q *pieces) len() int { return len(q.list) - q.droppedCount }

func (q *pieces) first() *piece {
	if q.len() == 0 {
		return nil
	}
	return &q.list[q.droppedCount]
}

func (q *pieces) last() *piece {
	if q.len() == 0 {
		return nil
	}
	return &q.list[len(q.list)-1]
}

func (q *pieces) push(p piece) { q.list = append(q.list, p) }

// dropFirst removes the first piece.
func (q *pieces) dropFirst() {
	q.droppedCount++
	// The number of moved pieces is at most the number of dropped pieces, so a drop takes constant
	// time on average.
	if q.droppedCount > len(q.list)/2 {
		q.list, q.droppedCount = slices.Delete(q.list, 0, q.droppedCount), 0
	}
}

// afterPosition returns the pieces that have bytes after a position.
func (q *pieces) afterPosition(pos int64) []piece {
	list := q.list[q.droppedCount:]
	return list[sort.Search(len(list), func(i int) bool { return list[i].position+list[i].byteCount > pos }):]
}
