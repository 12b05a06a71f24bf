package output

import (
	"slices"
	"sort"
)

// piece is a row of kept bytes of one stream.
type piece struct {
	number int64 // pieces that came before it
	pos    int64 // of its first byte in the stream
	n      int64 // bytes
	at     int64 // when the first of them was read
}

// pieces are those of one half of a stream, by number and position. They come at the end and
// go from the beginning, each at a cost that does not grow with their number.
type pieces struct {
	list []piece
	gone int // at the beginning of list
}

func (q *pieces) len() int { return len(q.list) - q.gone }

func (q *pieces) first() *piece {
	if q.len() == 0 {
		return nil
	}
	return &q.list[q.gone]
}

func (q *pieces) last() *piece {
	if q.len() == 0 {
		return nil
	}
	return &q.list[len(q.list)-1]
}

func (q *pieces) push(p piece) { q.list = append(q.list, p) }

// drop drops the first piece.
func (q *pieces) drop() {
	q.gone++
	if q.gone > len(q.list)/2 { // more than are moved have been dropped since the last time
		q.list, q.gone = slices.Delete(q.list, 0, q.gone), 0
	}
}

// after lists the pieces that have bytes after a position.
func (q *pieces) after(pos int64) []piece {
	list := q.list[q.gone:]
	return list[sort.Search(len(list), func(i int) bool { return list[i].pos+list[i].n > pos }):]
}
