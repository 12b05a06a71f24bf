package worker

import (
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/windows"
)

// usuallyAdded is how many variables a job has beside its own.
const usuallyAdded = 32

// machine are the variables that Windows itself sets for every process, the same for all.
var machine = []string{
	"ALLUSERSPROFILE", "CommonProgramFiles", "CommonProgramFiles(x86)", "CommonProgramW6432", "COMPUTERNAME", "ComSpec", "NUMBER_OF_PROCESSORS", "OS", "PATHEXT",
	"PROCESSOR_ARCHITECTURE", "ProgramData", "ProgramFiles", "ProgramFiles(x86)", "ProgramW6432", "PUBLIC", "SystemDrive", "SystemRoot", "windir",
}

// usual adds the variables that a job has unless it was given others: where programs are,
// what the machine is, and the account.
func (p *Pool) usual(_ func(name string) bool, add func(name, value string)) {
	root := os.Getenv("SystemRoot")
	add("PATH", strings.Join([]string{
		filepath.Join(root, "system32"), root, filepath.Join(root, `System32\Wbem`), filepath.Join(root, `System32\WindowsPowerShell\v1.0`),
	}, ";"))
	for _, name := range machine {
		add(name, os.Getenv(name))
	}
	domain, user, both := strings.Cut(p.cfg.Account.User, `\`)
	if !both {
		domain, user = "", domain
	}
	home := p.cfg.Account.Home
	add("USERNAME", user)
	add("USERDOMAIN", domain)
	add("USERPROFILE", home)
	add("HOMEDRIVE", filepath.VolumeName(home))
	add("HOMEPATH", home[len(filepath.VolumeName(home)):])
	f := folders()
	add("APPDATA", f.roaming)
	add("LOCALAPPDATA", f.local)
	add("TEMP", f.temp)
	add("TMP", f.temp)
}

// ownFolders are those of the account that the service runs as, and jobs with it.
type ownFolders struct{ roaming, local, temp string }

var folders = sync.OnceValue(func() (f ownFolders) {
	f.roaming, _ = windows.KnownFolderPath(windows.FOLDERID_RoamingAppData, 0) // what an account has not a job has not
	f.local, _ = windows.KnownFolderPath(windows.FOLDERID_LocalAppData, 0)
	if f.local != "" {
		f.temp = filepath.Join(f.local, "Temp")
		os.MkdirAll(f.temp, 0o700) // an account that nobody has logged on as lacks it
	}
	return f
})

// sameVariable reports whether two names are of the same variable of the environment.
func sameVariable(a, b string) bool { return strings.EqualFold(a, b) }
