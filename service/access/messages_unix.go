//go:build unix

package access

// Commands that messages suggest.
const joinGroupCommand = "sudo usermod -aG %s %s, then log in again"

const runAsAdvice = "to run each job as the user who enqueued it, set run_as = \"submitter\" in %[3]s"
