package output

import (
	"slices"
	"sort"
)

// streamPiece is a range of consecutive kept bytes of one stream. The arrival numbers of the pieces show in which order
// the bytes of the two streams arrived.
type streamPiece struct {
	arrivalNumber  int64 // number of pieces, of both streams, that arrived before this piece
	streamPosition int64 // position in the stream of the first byte of the piece
	byteCount      int64 // number of bytes in the piece
	readTimeMillis int64 // time when the first byte of the piece was read
}

// pieceQueue is a queue of the pieces in one half of a stream, sorted by arrival number and by position. To add a piece
// at the end or to drop the first piece takes constant time on average.
type pieceQueue struct {
	items        []streamPiece
	droppedCount int // number of dropped pieces at the beginning of items
}

func (p *pieceQueue) len() int { return len(p.items) - p.droppedCount }

func (p *pieceQueue) first() *streamPiece {
	if p.len() == 0 {
		return nil
	}
	return &p.items[p.droppedCount]
}

func (p *pieceQueue) last() *streamPiece {
	if p.len() == 0 {
		return nil
	}
	return &p.items[len(p.items)-1]
}

func (p *pieceQueue) push(newPiece streamPiece) { p.items = append(p.items, newPiece) }

func (p *pieceQueue) dropFirst() {
	p.droppedCount++
	// slices.Delete copies the remaining pieces to the beginning. There are at most as many remaining pieces as dropped
	// pieces, so a drop takes constant time on average.
	if p.droppedCount > len(p.items)/2 {
		p.items, p.droppedCount = slices.Delete(p.items, 0, p.droppedCount), 0
	}
}

// afterPosition returns the pieces that contain bytes at or after a position.
func (p *pieceQueue) afterPosition(pos int64) []streamPiece {
	list := p.items[p.droppedCount:]
	return list[sort.Search(len(list), func(i int) bool { return list[i].streamPosition+list[i].byteCount > pos }):]
}
