package cleanstart

import (
	"slices"
	"testing"
)

// What systemd gives one unit goes no further (sd_notify(3), sd_listen_fds(3), systemd.exec(5)); the
// settings of the service stay.
func TestEnvironDropsWhatHoldsForOneProcess(t *testing.T) {
	kept := []string{"HOME=/home/a", "QUEUECTL_WORKERS=3", "NOTIFY=1", "LANG=C"}
	got := Environ(append([]string{"NOTIFY_SOCKET=/run/n", "LISTEN_FDS=1", "JOURNAL_STREAM=8:1", "PWD=/tmp", "QUEUECTL_TIMERSLACK=1"}, kept...))
	if !slices.Equal(got, kept) {
		t.Errorf("got %q, want %q", got, kept)
	}
}
