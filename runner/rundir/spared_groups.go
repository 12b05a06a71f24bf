package rundir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// AppendBackgroundPGID stores the id of a process group in a runner's directory. The group continues to run after its
// job has ended, because the job allows this.
func AppendBackgroundPGID(runnerDir string, pgid int, mode os.FileMode) error {
	f, err := os.OpenFile(filepath.Join(runnerDir, backgroundPGIDsFileName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%d\n", pgid)
	return errors.Join(err, f.Close())
}

// maxBackgroundPGIDsBytes bounds how many bytes ReadBackgroundPGIDs reads.
const maxBackgroundPGIDsBytes = 16 << 20

// ReadBackgroundPGIDs returns the ids of the process groups that were allowed to continue after a dead runner's
// jobs.
func ReadBackgroundPGIDs(runnerDir string) (map[int]bool, error) {
	spared := map[int]bool{}
	raw, err := ReadRegularFile(filepath.Join(runnerDir, backgroundPGIDsFileName), maxBackgroundPGIDsBytes)
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
