package rundir

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// ReadChecksummedFile returns the text of a small file that consists of a text and its checksum (see
// WithChecksum). The file may have at most maxBytes bytes. If it is missing or damaged, ReadChecksummedFile
// returns "".
func ReadChecksummedFile(path string, maxBytes int64) (string, error) {
	raw, err := ReadRegular(path, maxBytes)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	text := string(raw[:max(0, len(raw)-checksumDigits)])
	if string(raw) != WithChecksum(text) {
		return "", nil
	}
	return text, nil
}

// checksumDigits is the length of the checksum that WithChecksum appends, in hexadecimal digits.
const checksumDigits = 8

// WithChecksum returns a text in the form in which a runner stores it in its directory: followed by its
// checksum.
func WithChecksum(text string) string {
	return fmt.Sprintf("%s%0*x", text, checksumDigits, crc32.ChecksumIEEE([]byte(text)))
}

// ReadRegular reads at most maxBytes bytes of a regular file in a runner's directory.
func ReadRegular(path string, maxBytes int64) ([]byte, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxBytes))
}
