package wire

import (
	"bufio"
	"encoding/binary"
	"io"
)

// readBufferBytes is the size of the buffer of a connection, in bytes.
const readBufferBytes = 64 << 10

// NewFrameReader returns a buffer from which ReadFrame reads the frames of a connection.
func NewFrameReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, readBufferBytes) }

// ReadFrame reads the next frame from r. It does not read further bytes.
func ReadFrame(r io.Reader) (Frame, error) {
	frame := make([]byte, frameHeaderBytes)
	if _, err := io.ReadFull(r, frame); err != nil {
		return nil, err
	}
	f, _, err := ParseFrame(frame) // usually ErrIncompleteFrame, because only the header was read
	if err == ErrIncompleteFrame {
		frame = append(frame, make([]byte, binary.LittleEndian.Uint32(frame)-1)...)
		if _, err := io.ReadFull(r, frame[frameHeaderBytes:]); err != nil {
			return nil, err
		}
		f, _, err = ParseFrame(frame)
	}
	return f, err
}

// IsFrameBuffered reports whether the buffer contains the whole next frame, so that ReadFrame returns without
// waiting. It returns false for a frame that is larger than the buffer.
func IsFrameBuffered(r *bufio.Reader) bool {
	head, _ := r.Peek(min(frameHeaderBytes, r.Buffered()))
	return len(head) == frameHeaderBytes && r.Buffered()-4 >= int(binary.LittleEndian.Uint32(head))
}
