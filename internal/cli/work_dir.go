package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// maxWorkDirs is how many working directories of one request are checked.
const maxWorkDirs = 100

// statWithin bounds how long a new job waits for the file system of its working directory to answer.
const statWithin = 200 * time.Millisecond

// workDirs are the working directories of new jobs that were checked.
type workDirs map[string]bool

// warn prints a warning if the spec's working directory does not exist or is a file, as this user sees it. It
// checks each directory only once.
func (w workDirs) warn(a *App, s *queue.Spec) {
	if s.Cwd == nil || !filepath.IsAbs(*s.Cwd) || w[*s.Cwd] || len(w) == maxWorkDirs {
		return
	}
	dir := *s.Cwd
	w[dir] = true
	checked := make(chan string, 1)
	go func() { checked <- faultOfDir(dir) }() // in a goroutine, because a mount that hangs must not delay the request
	select {
	case fault := <-checked:
		if fault != "" {
			a.Progress("")
			fmt.Fprintf(a.Err, "queuectl: %s: %s %s\n",
				cmp.Or(flagsByField(a.cmd)["cwd"], "cwd"), a.Clean(a.Err, dir), fault)
		}
	case <-time.After(statWithin):
	}
}

// faultOfDir returns why jobs could not run in path: it does not exist, or is not a directory. It returns "" if
// neither is known.
func faultOfDir(path string) string {
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return "does not exist; the job fails unless you create it before the job starts"
	case err == nil && !info.IsDir(), errors.Is(err, syscall.ENOTDIR):
		return "is not a directory; the job fails unless you replace it with a directory before the job starts"
	}
	return ""
}
