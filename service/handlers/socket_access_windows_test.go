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

// blockUserLookups makes every query for a user wait until waitForRelease returns. The query then finds no
// user.
func blockUserLookups(d *accounts.Resolver, waitForRelease func()) {
	d.LookupAccountFunc = func(string) (accounts.WindowsAccount, error) {
		waitForRelease()
		return accounts.WindowsAccount{}, nil
	}
}
