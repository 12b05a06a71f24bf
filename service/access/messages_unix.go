//go:build unix

package access

// joinGroupCommandFormat is the format of a command that messages suggest: it adds a user to a group.
const joinGroupCommandFormat = "sudo usermod -aG %s %s, then log in again"

// cannotRunAsAdvice is the last part of the message that a job cannot run as the named user.
const cannotRunAsAdvice = "to run each job as the user who enqueued it, set run_as = \"submitter\" in %[3]s"
