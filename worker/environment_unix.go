//go:build unix

package worker

// usuallyAdded is how many variables a job has beside its own.
const usuallyAdded = 12

// usual adds the variables that a job has unless it was given others: where programs are,
// how they speak, and the account.
func (p *Pool) usual(given func(name string) bool, add func(name, value string)) {
	add("PATH", "/usr/local/bin:/usr/bin:/bin")
	if !given("LC_ALL") {
		add("LANG", "C.UTF-8")
	}
	if !p.cfg.Runners.Roots() { // else the runner knows the account
		add("HOME", p.cfg.Account.Home)
		add("USER", p.cfg.Account.User)
		add("LOGNAME", p.cfg.Account.User)
		add("SHELL", p.cfg.Account.Shell)
	}
}

// sameVariable reports whether two names are of the same variable of the environment.
func sameVariable(a, b string) bool { return a == b }
