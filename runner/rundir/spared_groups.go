package rundir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// AppendSpared stores a process group that a job was allowed to leave behind.
func AppendSpared(dir string, pgid int, mode os.FileMode) error {
	f, err := os.OpenFile(filepath.Join(dir, sparedName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%d\n", pgid)
	return errors.Join(err, f.Close())
}

// maxSpared bounds how many bytes ReadSpared reads.
const maxSpared = 16 << 20

// ReadSpared reads the process groups that a dead runner's jobs were allowed to leave behind.
func ReadSpared(dir string) (map[int]bool, error) {
	spared := map[int]bool{}
	raw, err := ReadPlain(filepath.Join(dir, sparedName), maxSpared)
	if errors.Is(err, os.ErrNotExist) {
		return spared, nil
	}
	for line := range strings.Lines(string(raw)) {
		if pgid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			spared[pgid] = true
		}
	}
	return spared, err
}
