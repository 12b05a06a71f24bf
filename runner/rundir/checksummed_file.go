package rundir

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// ReadChecksummedFile reads a small file, which consists of a text and its checksum (see WithChecksum), and
// returns the text. It returns "" if the file is missing, damaged, or larger than maxBytes.
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

// WithChecksum returns a text followed by its checksum. A runner stores texts in this form in its directory.
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
