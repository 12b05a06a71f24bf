package service

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
)

// maxLog is how large the log of a background service may be when it starts;
// then it becomes the old one.
const maxLog = 1 << 20

// OpenLog opens the log of a background service. One that has grown past 1 MiB
// is put aside, in place of the one put aside before.
func OpenLog(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("put the old log aside: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	return f, nil
}

// RunnerLog is the log of a runner: text, of what a person should know.
func RunnerLog(w *os.File) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelInfo}))
}
