package upkeep

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/queuectl/queuectl/store"
)

const (
	// unownedSearchInterval is the time between two searches for output files that belong to no attempt. Such a file
	// remains if a runner dies after it has written the file and before it has recorded the result.
	unownedSearchInterval = 6 * time.Hour
	// filesPerSearchStep is the number of files that the store checks at a time. searchStepPause is the delay
	// between two such checks. With these values, searching a million files takes less than four minutes and
	// causes no noticeable load.
	filesPerSearchStep, searchStepPause = 500, 100 * time.Millisecond
	// maxFoundFilesPerDir limits the number of files that one search finds in a directory, because other accounts may
	// be able to create any number of files in it.
	maxFoundFilesPerDir = 10_000
)

// RunUnownedOutputSearch searches for output files that belong to no attempt, immediately and then every six hours,
// until ctx ends. It marks these files as garbage, which Run deletes. It searches the directories that outputDirs
// returns; some of them may not exist. It ignores files that were last written before ignoreWrittenBefore. Such files
// may belong to another store, which used the same directories earlier and may use them again. See
// docs/decisions/0061.
func RunUnownedOutputSearch(ctx context.Context, s store.OutputFiles, outputDirs func() []string,
	ignoreWrittenBefore time.Time, log *slog.Logger) {
	for {
		for _, dir := range outputDirs() {
			n, err := markUnownedOutputsInDir(ctx, s, dir, ignoreWrittenBefore)
			if n > 0 {
				log.Info("deleted output files that belong to no attempt", "directory", dir, "files", n)
			}
			if err != nil && ctx.Err() == nil {
				log.Warn("could not search for leftover output files to delete, so they still use disk space; the service "+
					"tries again in "+unownedSearchInterval.String(),
					"directory", dir, "error", err)
			}
		}
		if !sleepUnlessDone(ctx, unownedSearchInterval) {
			return
		}
	}
}

// markUnownedOutputsInDir searches one directory for output files that belong to no attempt. It returns the number of
// files that it has marked as garbage.
func markUnownedOutputsInDir(ctx context.Context, s store.OutputFiles, dir string,
	ignoreWrittenBefore time.Time) (markedCount int, err error) {
	f, err := os.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for {
		names, err := f.Readdirnames(filesPerSearchStep)
		if errors.Is(err, io.EOF) {
			return markedCount, nil
		}
		if err != nil {
			return markedCount, err
		}
		refs, err := s.MarkUnownedOutputs(ctx, filesWrittenSince(dir, names, ignoreWrittenBefore))
		if markedCount += len(refs); err != nil || markedCount >= maxFoundFilesPerDir {
			return markedCount, err
		}
		if len(names) == filesPerSearchStep && !sleepUnlessDone(ctx, searchStepPause) {
			return markedCount, ctx.Err()
		}
	}
}

// sleepUnlessDone waits for the duration d. It returns false if ctx ends before.
func sleepUnlessDone(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// filesWrittenSince returns the names of the files in dir that were last written at since or later. It leaves out files
// that it cannot examine. If since is zero, it returns all names.
func filesWrittenSince(dir string, fileNames []string, since time.Time) []string {
	if since.IsZero() {
		return fileNames
	}
	return slices.DeleteFunc(fileNames, func(name string) bool {
		info, err := os.Lstat(filepath.Join(dir, name))
		return err != nil || info.ModTime().Before(since)
	})
}
