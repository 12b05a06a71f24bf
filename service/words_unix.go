//go:build unix

package service

// What people are told to type.
const (
	joinGroup    = "sudo usermod -aG %s %s, then log in again"
	makeAccounts = "groupadd, useradd"
	endHung      = "if it is stopped (T in ps -o stat= -p %d): kill -CONT %[1]d; if it hangs: kill -KILL %[1]d, which ends its jobs as lost"
	findHung     = "which process it is cannot be told from here: look for it with ps -ef"
	asSubmitters = "with run_as = \"submitter\" in %s each runs as who enqueued it, or as whom an admin names"
)
