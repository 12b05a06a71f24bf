package main

import (
	"testing"
	"time"
)

// Pages have a date, which SOURCE_DATE_EPOCH fixes for a build that must give the same bytes.
func TestManualPageDate(t *testing.T) {
	now := time.Date(2026, 12, 24, 23, 0, 0, 0, time.UTC)
	for env, want := range map[string]string{"": "2026-12-24", "86400": "1970-01-02"} {
		t.Setenv("SOURCE_DATE_EPOCH", env)
		if got, err := pageDate(now); got != want || err != nil {
			t.Errorf("SOURCE_DATE_EPOCH=%q: got %q, %v, want %q", env, got, err, want)
		}
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	if got, err := pageDate(now); err == nil {
		t.Errorf("got %q, want an error that names SOURCE_DATE_EPOCH", got)
	}
}
