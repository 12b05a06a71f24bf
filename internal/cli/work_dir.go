package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// maxWorkDirs is how many working directories of one request are checked.
const maxWorkDirs = 100

// statWithin bounds how long a new job waits for the file system of its working directory to answer.
const statWithin = 200 * time.Millisecond

// workDirs are the working directories of new jobs that were checked.
type workDirs map[string]bool

// warn says of each working directory once if it does not exist, as far as this user can see.
func (w workDirs) warn(a *App, s *queue.Spec) {
	if s.Cwd == nil || *s.Cwd == "" || w[*s.Cwd] || len(w) == maxWorkDirs {
		return
	}
	dir := *s.Cwd
	w[dir] = true
	checked := make(chan error, 1)
	go func() { // a mount that hangs must not hold up the job
		_, err := os.Stat(dir)
		checked <- err
	}()
	select {
	case err := <-checked:
		if errors.Is(err, fs.ErrNotExist) {
			a.Progress("")
			fmt.Fprintf(a.Err, "queuectl: %s: %s does not exist; a job fails unless it exists when the job starts\n",
				cmp.Or(flagsByField(a.cmd)["cwd"], "cwd"), a.Clean(a.Err, dir))
		}
	case <-time.After(statWithin):
	}
}
