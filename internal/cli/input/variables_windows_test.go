package input

import (
	"os"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// A job gets its caller's PATH and locale under their usual names, even if the caller's names have other
// letter cases. Variables in the spec take precedence.
func TestJobInheritsCallerVariables(t *testing.T) {
	t.Setenv("PATH", "") // makes the test restore PATH at its end
	os.Unsetenv("PATH")
	t.Setenv("pAtH", `C:\mine`)
	t.Setenv("Own", "1")
	t.Setenv("LC_TIME", "C")
	t.Setenv("Given", "no")
	s := &queue.Spec{Env: map[string]string{"GIVEN": "yes", "tz": "UTC"}, EnvPass: []string{"OWN"}}
	t.Setenv("TZ", "CET")
	if err := AddCallerEnvironment(s, false); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"PATH": `C:\mine`, "Own": "1", "LC_TIME": "C", "GIVEN": "yes", "tz": "UTC",
		"pAtH": "", "Given": "", "TZ": "", "SystemRoot": ""} {
		if got := s.Env[name]; got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
