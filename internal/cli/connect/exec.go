package connect

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
)

// DaemonPath returns the path of queuectld. It looks in the directory of this program and then in
// ../libexec/queuectl, where packages install queuectld. It never searches PATH, because a user or another
// program may have changed PATH.
// See docs/decisions/0079.
func DaemonPath() (string, error) {
	return findProgram("queuectld", "../libexec/queuectl")
}

// clientVersionVariable is an environment variable. When queuectl executes queuectld, the variable contains
// the version of queuectl.
const clientVersionVariable = "QUEUECTL_CLIENT_VERSION"

// ClientVersion returns the version of the queuectl that executed this program. If the user started this
// program directly, ClientVersion returns this program's version.
func (f *ServiceFinder) ClientVersion() string { return cmp.Or(f.executingClientVersion, f.Version) }

// DaemonPath returns the path of queuectld. It returns an error if this process was itself started as queuectld by
// queuectl. In that case, the file queuectld contains the program queuectl by mistake, and executing it again would
// repeat this forever.
func (f *ServiceFinder) DaemonPath() (string, error) {
	path, err := DaemonPath()
	if err == nil && f.executingClientVersion != "" {
		err = fmt.Errorf("the program in the file %s is queuectl, not queuectld; %s", path, reinstallAdvice)
	}
	return path, err
}

// explainExecError returns an error about a program that could not be started, with the user's next step.
func explainExecError(path string, err error) error {
	return fmt.Errorf("cannot start %s: %w; %s", path, err, reinstallAdvice)
}

// reinstallAdvice is the advice for an installation with a missing or wrong program.
const reinstallAdvice = "reinstall the package, or build both programs with: make build"

// ClientPath returns the path of queuectl, which the service also executes as the runner.
func ClientPath() (string, error) {
	return findProgram("queuectl", "../../bin")
}

// findProgram returns the path of queuectl or queuectld. It looks in this program's directory, and then in fallbackDir,
// a path relative to that directory. findProgram returns an error if the found program belongs neither to root nor to
// the owner of this program.
func findProgram(name, fallbackDir string) (string, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", err
	}
	programDir := filepath.Dir(self)
	if filepath.Base(self) == name+exeSuffix {
		return self, nil
	}
	other := filepath.Join(programDir, fallbackDir)
	for _, dir := range []string{programDir, other} {
		path := filepath.Join(dir, name+exeSuffix)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, checkTrustedProgram(self, path)
		}
	}
	return "", fmt.Errorf("program %s not found in %s or %s; %s", name+exeSuffix, programDir, other, reinstallAdvice)
}
