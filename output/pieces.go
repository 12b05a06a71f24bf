package output

import "sort"

// streamPiece is a range of consecutive kept bytes of one stream. The arrival numbers of the pieces show in which order
// the bytes of the two streams arrived.
type streamPiece struct {
	arrivalNumber  int64 // number of pieces, of both streams, that arrived before this piece
	streamPosition int64 // position in the stream of the first byte of the piece
	byteCount      int64 // number of bytes in the piece
	readTimeMillis int64 // time when the first byte of the piece was read
}

// pieceList holds the pieces in one half of a stream, sorted by arrival number and by position.
type pieceList []streamPiece

// afterPosition returns the pieces that contain bytes at or after a position.
func (l pieceList) afterPosition(pos int64) pieceList {
	return l[sort.Search(len(l), func(i int) bool { return l[i].streamPosition+l[i].byteCount > pos }):]
}
