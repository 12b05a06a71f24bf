package handlers

import (
	"testing"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/accounts"
)

// supportsRunAs reports whether this system supports a value of the setting run_as.
func supportsRunAs(runAs string) bool { return runAs == config.RunAsService }

// otherUserName returns the name of a user other than this process's user.
func otherUserName(t *testing.T) string {
	sid, err := windows.CreateWellKnownSid(windows.WinLocalServiceSid)
	if err != nil {
		t.Fatal(err)
	}
	return sid.String()
}

// blockDirectory makes every query for a user wait until waitForRelease returns. The query then finds no
// user.
func blockDirectory(d *accounts.Directory, waitForRelease func()) {
	d.LookupFunc = func(string) (accounts.Entry, error) { waitForRelease(); return accounts.Entry{}, nil }
}
