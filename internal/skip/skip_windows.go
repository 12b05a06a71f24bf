package skip

import (
	"testing"

	"golang.org/x/sys/windows"
)

// UnderWine skips a test that needs a real Windows if it runs under Wine. It does so by calling Missing.
func UnderWine(t testing.TB, reason string) {
	t.Helper()
	if windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil {
		Missing(t, "windows", reason)
	}
}
