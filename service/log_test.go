package service

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/service/settings"
)

// The log passes each record with all its attributes to every handler that accepts the record's level.
func TestLogPassesRecordsToEveryHandler(t *testing.T) {
	k, err := settings.New(settings.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var all, bad bytes.Buffer
	manager := &ServiceManager{LogHandler: slog.NewTextHandler(&bad, &slog.HandlerOptions{Level: slog.LevelWarn})}
	log := newLogger(&Options{ServiceManager: manager}, k, &all).With("job", "a").WithGroup("g")
	log.Debug("none")
	log.Info("one")
	log.Warn("two", "n", 2)
	if got := all.String(); strings.Contains(got, "none") || !strings.Contains(got, "msg=one job=a") ||
		!strings.Contains(got, "msg=two job=a g.n=2") {
		t.Errorf("the first log has %q", got)
	}
	if got := bad.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "msg=two job=a g.n=2") {
		t.Errorf("the second log has %q", got)
	}
}
