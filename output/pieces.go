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
	pieces            []streamPiece
	droppedPieceCount int // number of dropped pieces at the beginning of items
}

func (p *pieceQueue) len() int { return len(p.pieces) - p.droppedPieceCount }

func (p *pieceQueue) first() *streamPiece {
	if p.len() == 0 {
		return nil
	}
	return &p.pieces[p.droppedPieceCount]
}

func (p *pieceQueue) last() *streamPiece {
	if p.len() == 0 {
		return nil
	}
	return &p.pieces[len(p.pieces)-1]
}

func (p *pieceQueue) push(newPiece streamPiece) { p.pieces = append(p.pieces, newPiece) }

func (p *pieceQueue) dropFirst() {
	p.droppedPieceCount++
	// slices.Delete copies the remaining pieces to the beginning. There are at most as many remaining pieces as dropped
	// pieces, so a drop takes constant time on average.
	if p.droppedPieceCount > len(p.pieces)/2 {
		p.pieces, p.droppedPieceCount = slices.Delete(p.pieces, 0, p.droppedPieceCount), 0
	}
}

// piecesAfterPosition returns the pieces that contain bytes at or after a position.
func (p *pieceQueue) piecesAfterPosition(pos int64) []streamPiece {
	list := p.pieces[p.droppedPieceCount:]
	return list[sort.Search(len(list), func(i int) bool { return list[i].streamPosition+list[i].byteCount > pos }):]
}
