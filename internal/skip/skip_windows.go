package skip

import (
	"testing"

	"golang.org/x/sys/windows"
)

// UnderWine calls MissingRequirement, which ends the test, if the test runs under Wine and not on a real Windows.
func UnderWine(t testing.TB, reason string) {
	t.Helper()
	if windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil {
		MissingRequirement(t, "windows", reason)
	}
}
