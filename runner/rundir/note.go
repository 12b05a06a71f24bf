package rundir

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// ReadNote returns the text of a note, which NoteOf has encoded, of at most maxBytes bytes. It
// returns "" if the note is missing or damaged.
func ReadNote(path string, maxBytes int64) (string, error) {
	raw, err := ReadPlain(path, maxBytes)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	text := string(raw[:max(0, len(raw)-noteSumDigits)])
	if string(raw) != NoteOf(text) {
		return "", nil
	}
	return text, nil
}

// noteSumDigits is the length of a note's checksum, in hexadecimal digits.
const noteSumDigits = 8

// NoteOf returns a text in the form in which a runner stores it in its directory: followed by its
// checksum.
func NoteOf(text string) string {
	return fmt.Sprintf("%s%0*x", text, noteSumDigits, crc32.ChecksumIEEE([]byte(text)))
}

// ReadPlain reads at most maxBytes bytes of a regular file in a runner's directory.
func ReadPlain(path string, maxBytes int64) ([]byte, error) {
	f, err := OpenPlain(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxBytes))
}
