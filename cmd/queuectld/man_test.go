package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/cli"
)

// The manual pages show the date in SOURCE_DATE_EPOCH or, if that is not set, today's date.
func TestManPagesUseSourceDateEpoch(t *testing.T) {
	now := time.Date(2026, 12, 24, 23, 0, 0, 0, time.UTC)
	for env, want := range map[string]string{"": "2026-12-24", "86400": "1970-01-02"} {
		t.Setenv("SOURCE_DATE_EPOCH", env)
		if got, err := manPageDate(now); got != want || err != nil {
			t.Errorf("SOURCE_DATE_EPOCH=%q: got %q, %v, want %q", env, got, err, want)
		}
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	if got, err := manPageDate(now); err == nil {
		t.Errorf("got %q, want an error that names SOURCE_DATE_EPOCH", got)
	}
}

// `queuectl man` creates the directory for the pages, including missing parent directories.
func TestManCommandCreatesItsDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "share", "man", "man1")
	cmd := manVerb(&app{new(cli.App)})
	cmd.SetArgs([]string{dir})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "queuectl.1")); err != nil {
		t.Error(err)
	}
}
