package rundir

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// ReadChecksummedFile reads a small file, which consists of a text and its checksum (see AppendChecksum), and
// returns the text. It returns "" if the file is missing, damaged, or larger than maxBytes.
func ReadChecksummedFile(path string, maxBytes int64) (string, error) {
	raw, err := ReadRegularFile(path, maxBytes)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	text := string(raw[:max(0, len(raw)-checksumDigits)])
	if string(raw) != AppendChecksum(text) {
		return "", nil
	}
	return text, nil
}

// checksumDigits is the length of the checksum that AppendChecksum appends, in hexadecimal digits.
const checksumDigits = 8

// AppendChecksum returns a text followed by its checksum. A runner stores texts in this form in its directory.
func AppendChecksum(text string) string {
	return fmt.Sprintf("%s%0*x", text, checksumDigits, crc32.ChecksumIEEE([]byte(text)))
}

// ReadRegularFile reads at most maxBytes bytes of a regular file in a runner's directory.
func ReadRegularFile(path string, maxBytes int64) ([]byte, error) {
	f, err := OpenRegularFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxBytes))
}
