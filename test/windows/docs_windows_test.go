package windows

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// The first example session on the documentation page about Windows prints what the page shows. It runs in an
// empty home directory.
func TestExamplesOfTheWindowsPage(t *testing.T) {
	raw, err := os.ReadFile("../../docs/windows.md")
	if err != nil {
		skip.MissingRequirement(t, "sources", "needs the pages, which are with the sources; make test-long has them")
	}
	home := t.TempDir()
	bin := filepath.Join(home, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	testrig.InstallPrograms(t, testrig.BuiltProgram(t, ""), bin)
	env := []string{"USERPROFILE=" + home, "LOCALAPPDATA=" + home, "PATH=" + bin + ";" + os.Getenv("PATH"), "TEMP=" + home,
		"TMP=" + home}
	for _, name := range []string{"SystemRoot", "SystemDrive", "ProgramData", "ComSpec", "PATHEXT"} {
		env = append(env, name+"="+os.Getenv(name))
	}
	session := testrig.FencedCodeBlockPattern.FindAllStringSubmatch(strings.ReplaceAll(string(raw), "\r", ""), 1)[0][2]
	for _, part := range strings.Split("\n"+session, "\nC:\\> ")[1:] {
		line, want, _ := strings.Cut(part, "\n")
		cmd := exec.Command("cmd.exe")
		cmd.SysProcAttr = &syscall.SysProcAttr{CmdLine: `cmd.exe /D /S /C "` + line + `"`}
		cmd.Env, cmd.Dir = env, home
		// The output goes to a file. If the line starts a service, a pipe would stay open until
		// that service ends.
		outputFile, err := os.CreateTemp(home, "seen-*")
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = outputFile, outputFile
		cmd.Run()
		got, err := os.ReadFile(outputFile.Name())
		if err := outputFile.Close(); err != nil {
			t.Fatal(err)
		}
		if text := string(bytes.ReplaceAll(got, []byte("\r"), nil)); err != nil || !testrig.MatchesOutput(text, want) {
			t.Errorf("C:\\> %s\ngot:\n%s%v\nthe page shows:\n%s", line, text, err, want)
		}
	}
}
