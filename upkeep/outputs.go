package upkeep

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"time"
)

const (
	// seekEvery is the time between two looks for output files that nobody needs: a
	// runner that dies, or was given up, between its file and its result leaves one.
	seekEvery = 6 * time.Hour
	// seekStep is how many names are looked up at a time, and seekPause the time between
	// two steps: a million files take less than four minutes, and nobody feels it.
	seekStep, seekPause = 500, 100 * time.Millisecond
	// seekMost is how many files of one folder a look finds at most: who may write to it may
	// have made any number.
	seekMost = 10_000
)

// Unowner is what Seek needs of a store.
// See docs/decisions/0061.
type Unowner interface {
	Unowned(ctx context.Context, refs []string) ([]string, error)
}

// Seek looks for output files that belong to nothing, at once and every six hours, until
// ctx ends. What it finds is garbage from then on, which Run deletes. folders lists the
// folders that have them; one that is not there has none.
func Seek(ctx context.Context, s Unowner, folders func() []string, log *slog.Logger) {
	for {
		for _, folder := range folders() {
			n, err := seek(ctx, s, folder)
			if n > 0 {
				log.Info("deleted output files that belong to no attempt", "directory", folder, "files", n)
			}
			if err != nil && ctx.Err() == nil {
				log.Warn("cannot search for output files that belong to no attempt; trying again later", "directory", folder, "error", err)
			}
		}
		if !paused(ctx, seekEvery) {
			return
		}
	}
}

// seek looks through one folder, and says how many files belong to nothing.
func seek(ctx context.Context, s Unowner, folder string) (found int, err error) {
	f, err := os.Open(folder)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return 0, err
	}
	defer f.Close()
	for {
		names, err := f.Readdirnames(seekStep)
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return found, err
		}
		refs, err := s.Unowned(ctx, names)
		found += len(refs)
		if err != nil {
			return found, err
		}
		if found >= seekMost {
			return found, nil
		}
		if len(names) == seekStep && !paused(ctx, seekPause) {
			return found, ctx.Err()
		}
	}
}

// paused waits for a while, and reports whether ctx goes on.
func paused(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
