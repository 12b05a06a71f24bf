//go:build unix

package worker

// addDefaultJobEnv adds the default variables of a job: the program search path, the locale and the account. The
// function add ignores variables that the job sets itself.
func (p *Pool) addDefaultJobEnv(isSet func(name string) bool, add func(name, value string)) {
	add("PATH", "/usr/local/bin:/usr/bin:/bin")
	if !isSet("LC_ALL") {
		add("LANG", "C.UTF-8")
	}
	if !p.cfg.RunnerLocation.RunnersRunAsRoot() { // a runner of root adds the account's variables itself
		add("HOME", p.cfg.Account.HomeDir)
		add("USER", p.cfg.Account.UserName)
		add("LOGNAME", p.cfg.Account.UserName)
		add("SHELL", p.cfg.Account.ShellPath)
	}
}
