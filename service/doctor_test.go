package service

import (
	"strings"
	"testing"
)

// Nobody is told to end process 0, which is a group of his own.
func TestAnUnknownRunnerIsLookedFor(t *testing.T) {
	if got := howToEnd(0); strings.ContainsAny(got, "0123456789") || strings.Contains(strings.ToLower(got), "kill") {
		t.Errorf("of a runner whose process is unknown: %s", got)
	}
	if got := howToEnd(4711); !strings.Contains(got, "4711") {
		t.Errorf("of process 4711: %s", got)
	}
}
