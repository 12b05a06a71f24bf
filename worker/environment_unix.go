//go:build unix

package worker

// addDefaultEnv adds the default variables of a job: the program search path, the locale and the account. The
// function add ignores variables that the job sets itself.
func (p *Pool) addDefaultEnv(isSet func(name string) bool, add func(name, value string)) {
	add("PATH", "/usr/local/bin:/usr/bin:/bin")
	if !isSet("LC_ALL") {
		add("LANG", "C.UTF-8")
	}
	if !p.cfg.RunnerLocation.OwnedByRoot() { // a runner of root adds the account's variables itself
		add("HOME", p.cfg.Account.Home)
		add("USER", p.cfg.Account.User)
		add("LOGNAME", p.cfg.Account.User)
		add("SHELL", p.cfg.Account.Shell)
	}
}
