package service

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// A teeHandler passes each record to the handlers that accept its level. The records keep all attributes.
func TestLogWritesToBothHandlers(t *testing.T) {
	var all, bad bytes.Buffer
	log := slog.New(teeHandler{slog.NewTextHandler(&all, nil),
		slog.NewTextHandler(&bad, &slog.HandlerOptions{Level: slog.LevelWarn})}).With("job", "a").WithGroup("g")
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
