package rundir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// AppendSparedGroup stores, in a runner's directory, the id of a process group that a job was allowed to
// leave behind.
func AppendSparedGroup(dir string, pgid int, mode os.FileMode) error {
	f, err := os.OpenFile(filepath.Join(dir, sparedFileName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%d\n", pgid)
	return errors.Join(err, f.Close())
}

// maxSparedBytes bounds how many bytes ReadSparedGroups reads.
const maxSparedBytes = 16 << 20

// ReadSparedGroups returns the ids of the process groups that a dead runner's jobs were allowed to leave
// behind.
func ReadSparedGroups(dir string) (map[int]bool, error) {
	spared := map[int]bool{}
	raw, err := ReadRegular(filepath.Join(dir, sparedFileName), maxSparedBytes)
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
