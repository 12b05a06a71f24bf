package worker

import (
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/windows"
)

// machineEnvVarNames lists the variables that Windows sets for every process on the machine.
var machineEnvVarNames = []string{
	"ALLUSERSPROFILE", "CommonProgramFiles", "CommonProgramFiles(x86)", "CommonProgramW6432", "COMPUTERNAME",
	"ComSpec", "NUMBER_OF_PROCESSORS", "OS", "PATHEXT",
	"PROCESSOR_ARCHITECTURE", "ProgramData", "ProgramFiles", "ProgramFiles(x86)", "ProgramW6432", "PUBLIC",
	"SystemDrive", "SystemRoot", "windir",
}

// addDefaultJobEnv adds the default variables of a job: the program search path, and descriptions of the machine
// and the account. The function add ignores variables that the job sets itself.
func (p *Pool) addDefaultJobEnv(_ func(name string) bool, add func(name, value string)) {
	root := os.Getenv("SystemRoot")
	add("PATH", strings.Join([]string{
		filepath.Join(root, "system32"), root, filepath.Join(root, `System32\Wbem`),
		filepath.Join(root, `System32\WindowsPowerShell\v1.0`),
	}, ";"))
	for _, name := range machineEnvVarNames {
		add(name, os.Getenv(name))
	}
	domain, user, hasDomain := strings.Cut(p.cfg.Account.UserName, `\`)
	if !hasDomain {
		domain, user = "", domain
	}
	home := p.cfg.Account.HomeDir
	add("USERNAME", user)
	add("USERDOMAIN", domain)
	add("USERPROFILE", home)
	add("HOMEDRIVE", filepath.VolumeName(home))
	add("HOMEPATH", home[len(filepath.VolumeName(home)):])
	f := readAccountFolders()
	add("APPDATA", f.roamingAppData)
	add("LOCALAPPDATA", f.localAppData)
	add("TEMP", f.temp)
	add("TMP", f.temp)
}

// accountFolders contains the paths of the folders of the account that the service and its jobs run as. The
// path of a folder that the account lacks is "".
type accountFolders struct{ roamingAppData, localAppData, temp string }

// readAccountFolders returns the folders of the account. The first call reads them and creates a missing temp
// folder.
var readAccountFolders = sync.OnceValue(func() (f accountFolders) {
	f.roamingAppData, _ = windows.KnownFolderPath(windows.FOLDERID_RoamingAppData, 0)
	f.localAppData, _ = windows.KnownFolderPath(windows.FOLDERID_LocalAppData, 0)
	if f.localAppData != "" {
		f.temp = filepath.Join(f.localAppData, "Temp")
		os.MkdirAll(f.temp, 0o700) // the folder is missing if the account has never logged on
	}
	return f
})
