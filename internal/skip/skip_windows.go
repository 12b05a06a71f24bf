package skip

import (
	"testing"

	"golang.org/x/sys/windows"
)

// UnderWine calls Missing for a test that needs a real Windows, if the test runs under Wine.
func UnderWine(t testing.TB, reason string) {
	t.Helper()
	if windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil {
		Missing(t, "windows", reason)
	}
}
