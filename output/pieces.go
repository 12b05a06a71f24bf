package output

import (
	"slices"
	"sort"
)

// piece is a range of consecutive kept bytes of one stream. The numbers of the pieces record in which order the
// bytes of the two streams arrived.
type piece struct {
	number    int64 // number of pieces, of both streams, that arrived before this piece
	position  int64 // position in the stream of the first byte of the piece
	byteCount int64 // number of bytes in the piece
	time      int64 // time when the first byte of the piece was read
}

// pieces is a queue of the pieces in one half of a stream, sorted by number and by position. It takes constant
// time on average to add a piece at the end or to drop the first one.
type pieces struct {
	items        []piece
	droppedCount int // number of dropped pieces at the beginning of items
}

func (p *pieces) len() int { return len(p.items) - p.droppedCount }

func (p *pieces) first() *piece {
	if p.len() == 0 {
		return nil
	}
	return &p.items[p.droppedCount]
}

func (p *pieces) last() *piece {
	if p.len() == 0 {
		return nil
	}
	return &p.items[len(p.items)-1]
}

func (p *pieces) push(newPiece piece) { p.items = append(p.items, newPiece) }

func (p *pieces) dropFirst() {
	p.droppedCount++
	// Delete copies the remaining pieces to the beginning. They are at most as many as the dropped pieces, so on
	// average a drop takes constant time.
	if p.droppedCount > len(p.items)/2 {
		p.items, p.droppedCount = slices.Delete(p.items, 0, p.droppedCount), 0
	}
}

// afterPosition returns the pieces that contain bytes at or after a position.
func (p *pieces) afterPosition(pos int64) []piece {
	list := p.items[p.droppedCount:]
	return list[sort.Search(len(list), func(i int) bool { return list[i].position+list[i].byteCount > pos }):]
}
