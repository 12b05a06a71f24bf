package wire

import "io"

// ReadFrames reads frames from r and passes every frame to the function each. It stops when that
// function returns false, or when a frame cannot be read.
func ReadFrames(r io.Reader, each func(Frame) bool) error {
	const bufferSize = 64 << 10
	buf := make([]byte, 0, bufferSize)
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, make([]byte, len(buf))...)[:len(buf)]
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		parsed := 0
		for {
			f, size, err := Parse(buf[parsed:])
			if err == ErrIncompleteFrame {
				break
			}
			if err != nil {
				return err
			}
			parsed += size
			if !each(f) {
				return io.EOF
			}
		}
		buf = append(buf[:0], buf[parsed:]...)
		if len(buf) == 0 && cap(buf) > 16*bufferSize {
			buf = make([]byte, 0, bufferSize)
		}
		if err != nil {
			return err
		}
	}
}
