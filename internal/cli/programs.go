package cli

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
)

// DaemonPath is the program of the service: it stands beside this one or, where packages
// put it, in ../libexec/queuectl. It is never looked for in PATH, which others may set.
// See docs/decisions/0079.
func DaemonPath() (string, error) {
	return program("queuectld", "../libexec/queuectl")
}

// clientVariable tells queuectld of which version the queuectl was that became it. It goes
// no further.
const clientVariable = "QUEUECTL_CLIENT_VERSION"

// takeClientVersion is what it says, and takes it away.
func takeClientVersion() string {
	said := os.Getenv(clientVariable)
	os.Unsetenv(clientVariable)
	return said
}

// ClientVersion is the version of the queuectl that this program was before, or its own.
func (a *App) ClientVersion() string { return cmp.Or(a.client, Version) }

// other is the program that this one becomes. One that has just been queuectl is none.
func (a *App) other() (string, error) {
	path, err := DaemonPath()
	if err == nil && a.client != "" {
		err = fmt.Errorf("the program in the file %s is queuectl, not queuectld; %s", path, bothPrograms)
	}
	return path, err
}

// notStartedBy returns an error of starting a program, with what to do about it.
func notStartedBy(path string, err error) error {
	return fmt.Errorf("start %s: %w; %s", path, err, bothPrograms)
}

// bothPrograms is the advice for an installation with a missing or wrong program.
const bothPrograms = "reinstall the package, or build both programs with: make build"

// ClientPath is the program that people call, and that runs jobs for the service.
func ClientPath() (string, error) {
	return program("queuectl", "../../bin")
}

// program is the path of one of the two programs, as it stands to this one. Who runs this one
// trusts its owner and root, and nobody else who may write beside it.
func program(name, elsewhere string) (string, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", err
	}
	here := filepath.Dir(self)
	if filepath.Base(self) == name+exe {
		return self, nil
	}
	other := filepath.Join(here, elsewhere)
	for _, dir := range []string{here, other} {
		path := filepath.Join(dir, name+exe)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, trusted(self, path)
		}
	}
	return "", fmt.Errorf("program %s not found in %s or %s; %s", name+exe, here, other, bothPrograms)
}
