//go:build !linux && !darwin && !windows

package registered

// Own reports whether a service of this user is registered, and the command that starts it.
func Own() (start string, registered bool) { return "", false }

// EndsAtLogout reports whether a registered service of this user ends when the user has
// logged out, and could do otherwise.
func EndsAtLogout() bool { return false }
