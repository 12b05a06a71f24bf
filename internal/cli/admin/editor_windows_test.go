package admin

import (
	"os"
	"strings"
	"testing"
)

// The user's editor may have arguments, and the file name may contain a space.
func TestEditorCommandSplitsArguments(t *testing.T) {
	file := t.TempDir() + `\a file.json`
	if err := os.WriteFile(file, []byte("a\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := editorCommand(t.Context(), "cmd /c type", file).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "a" {
		t.Errorf("got %q, %v", out, err)
	}
}
