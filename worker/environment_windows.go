package worker

import (
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/windows"
)

// machineVariables lists the variables that Windows sets for every process on the machine.
var machineVariables = []string{
	"ALLUSERSPROFILE", "CommonProgramFiles", "CommonProgramFiles(x86)", "CommonProgramW6432", "COMPUTERNAME",
	"ComSpec", "NUMBER_OF_PROCESSORS", "OS", "PATHEXT",
	"PROCESSOR_ARCHITECTURE", "ProgramData", "ProgramFiles", "ProgramFiles(x86)", "ProgramW6432", "PUBLIC",
	"SystemDrive", "SystemRoot", "windir",
}

// addDefaultEnv adds the default variables of a job: the program search path, and descriptions of the machine
// and the account. The function add ignores variables that the job sets itself.
func (p *Pool) addDefaultEnv(_ func(name string) bool, add func(name, value string)) {
	root := os.Getenv("SystemRoot")
	add("PATH", strings.Join([]string{
		filepath.Join(root, "system32"), root, filepath.Join(root, `System32\Wbem`),
		filepath.Join(root, `System32\WindowsPowerShell\v1.0`),
	}, ";"))
	for _, name := range machineVariables {
		add(name, os.Getenv(name))
	}
	domain, user, hasDomain := strings.Cut(p.cfg.Account.User, `\`)
	if !hasDomain {
		domain, user = "", domain
	}
	home := p.cfg.Account.Home
	add("USERNAME", user)
	add("USERDOMAIN", domain)
	add("USERPROFILE", home)
	add("HOMEDRIVE", filepath.VolumeName(home))
	add("HOMEPATH", home[len(filepath.VolumeName(home)):])
	f := knownFolders()
	add("APPDATA", f.roaming)
	add("LOCALAPPDATA", f.local)
	add("TEMP", f.temp)
	add("TMP", f.temp)
}

// accountFolders contains the paths of the folders of the account that the service and its jobs run as. The
// path of a folder that the account lacks is "".
type accountFolders struct{ roaming, local, temp string }

// knownFolders returns the folders of the account. The first call reads them and creates a missing temp
// folder.
var knownFolders = sync.OnceValue(func() (f accountFolders) {
	f.roaming, _ = windows.KnownFolderPath(windows.FOLDERID_RoamingAppData, 0)
	f.local, _ = windows.KnownFolderPath(windows.FOLDERID_LocalAppData, 0)
	if f.local != "" {
		f.temp = filepath.Join(f.local, "Temp")
		os.MkdirAll(f.temp, 0o700) // the folder is missing if the account has never logged on
	}
	return f
})
