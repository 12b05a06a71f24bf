package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// A job gets its caller's PATH and locale under the names that jobs use, regardless of the caller's
// spelling. Variables that the spec sets take precedence.
func TestCallersVariables(t *testing.T) {
	t.Setenv("PATH", "") // t.Setenv makes the test restore PATH at its end
	os.Unsetenv("PATH")
	t.Setenv("pAtH", `C:\mine`)
	t.Setenv("Own", "1")
	t.Setenv("LC_TIME", "C")
	t.Setenv("Given", "no")
	s := &queue.Spec{Env: map[string]string{"GIVEN": "yes", "tz": "UTC"}, EnvPass: []string{"OWN"}}
	t.Setenv("TZ", "CET")
	if err := complete(s, false); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"PATH": `C:\mine`, "Own": "1", "LC_TIME": "C", "GIVEN": "yes", "tz": "UTC", "pAtH": "", "Given": "", "TZ": "", "SystemRoot": ""} {
		if got := s.Env[name]; got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// Exit codes have 32 bits on Windows, and run passes them on unchanged.
func TestExitCodesPass(t *testing.T) {
	for _, code := range []int64{3, 256, 0xc0000005} {
		if got := jobExit(&control.Job{State: queue.Dead.String(), ExitCode: &code}); int64(got) != code {
			t.Errorf("got %d, want %d", got, code)
		}
	}
}

// The user's editor may have arguments, and the file name may contain a space.
func TestEditor(t *testing.T) {
	file := t.TempDir() + `\a file.json`
	if err := os.WriteFile(file, []byte("a\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := editorOn(t.Context(), "cmd /c type", file).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "a" {
		t.Errorf("got %q, %v", out, err)
	}
}
