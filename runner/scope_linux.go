package runner

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
)

// lingering is where the system notes whose manager runs whether they are logged in or not.
// See docs/decisions/0043.
const lingering = "/var/lib/systemd/linger"

// scopes are the words that start a runner in a scope of its user's manager, which lasts as
// long as the runner and whose control group it may divide; the next are for older systems.
// They are none where there is no manager, or where it ends with the session: a job must not
// end because its user logs out.
func scopes() [][]string {
	who, err := user.Current()
	if err != nil {
		return nil
	}
	program, err := exec.LookPath("systemd-run")
	if err != nil || !exists(filepath.Join(managerFolder(), "systemd/private")) || !exists(filepath.Join(lingering, who.Username)) {
		return nil
	}
	words := []string{program, "--user", "--scope", "--quiet", "--collect", "--description", "queuectl runner", "-p", "Delegate=yes", "-p", "TasksMax=infinity"}
	return [][]string{
		slices.Concat(words, []string{"-p", "OOMPolicy=continue", "--"}), // else a job that runs out of memory ends all
		append(words, "--"), // before systemd 253 that is so without asking
	}
}

// managerFolder is where a user's manager listens.
func managerFolder() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return dir
	}
	return "/run/user/" + strconv.Itoa(os.Getuid())
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
