package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/skip"
)

// The name of the pipe depends on which directory the service uses, but not on how the path is spelled.
func TestPipeNameDependsOnlyOnDirectory(t *testing.T) {
	want := PathsInDir(`C:\Users\alice\jobs`).SocketPath
	if want != `\\.\pipe\queuectl-246345026cb2d76c` {
		t.Errorf("got %s", want)
	}
	for _, same := range []string{`c:\users\ALICE\jobs`, `C:\Users\alice\jobs\`, `C:\Users\bob\..\alice\.\jobs`,
		`C:/Users/alice/jobs`} {
		if got := PathsInDir(same).SocketPath; got != want {
			t.Errorf("%s: got %s, want %s", same, got, want)
		}
	}
	for _, other := range []string{`C:\Users\alice\jobs2`, `D:\Users\alice\jobs`} {
		if got := PathsInDir(other).SocketPath; got == want {
			t.Errorf("%s has the same pipe", other)
		}
	}
	if PathsInDir("jobs").SocketPath == PathsInDir(`C:\jobs`).SocketPath ||
		!strings.HasPrefix(PathsInDir("jobs").SocketPath, pipeNamePrefix+"-") {
		t.Errorf("a relative directory: %s", PathsInDir("jobs").SocketPath)
	}
	if _, ok := PathsOfSocket(want); ok {
		t.Error("a directory was found by the name of its pipe")
	}
	if got := SystemPaths().SocketPath; got != `\\.\pipe\queuectl` {
		t.Errorf("the pipe of the system service is %s", got)
	}
}

// An account may be given by its number, up to maxAccountID, by its name or by its SID.
func TestAccountSettingAcceptsNumberNameOrSID(t *testing.T) {
	for name, want := range map[string]bool{"4503599627370497": true, "9007199254740991": true, "9007199254740992": false,
		`CORP\alice`: true, "S-1-5-32-545": true} {
		if err := checkAccountName(name); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A directory has the same pipe under its long and its short name, whether or not the directory exists.
func TestLongAndShortDirectoryNamesSharePipe(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "a directory with a long name")
	if err := os.Mkdir(parent, 0o700); err != nil {
		t.Fatal(err)
	}
	long, err := windows.UTF16PtrFromString(parent)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]uint16, windows.MAX_PATH)
	n, err := windows.GetShortPathName(long, &buf[0], uint32(len(buf)))
	if err != nil {
		t.Fatal(err)
	}
	short := windows.UTF16ToString(buf[:n])
	if short == parent {
		skip.MissingRequirement(t, "short names", "needs a drive that gives directories short names; "+
			".ci/run runs it under Wine, which gives them")
	}
	before := PathsInDir(filepath.Join(short, "queue")).SocketPath
	if err := os.Mkdir(filepath.Join(parent, "queue"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Join(short, "queue"), filepath.Join(parent, "queue"),
		filepath.Join(parent, "QUEUE") + `\.`} {
		if got := PathsInDir(dir).SocketPath; got != before {
			t.Errorf("%s has pipe %s, want %s", dir, got, before)
		}
	}
}
