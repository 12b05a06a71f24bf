//go:build unix

package access

// joinGroupFormat is the format of a command that messages suggest: it adds a user to a group.
const joinGroupFormat = "sudo usermod -aG %s %s, then log in again"

// runAsAdvice is the last part of the message that a job cannot run as the named user.
const runAsAdvice = "to run each job as the user who enqueued it, set run_as = \"submitter\" in %[3]s"
