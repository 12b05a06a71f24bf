package cli

// publicPathEnvAssignment sets an unused variable. PATH need not change, because every user
// may search its directories.
const publicPathEnvAssignment = "QUEUECTL_TEST="

// killedJobExitCode is the exit code of a job that was killed, and killedJobMessageText is a part of what
// `queuectl run` prints about it.
const killedJobExitCode, killedJobMessageText = 1, ""

// platformJobEndCases lists ways in which jobs can end only on Windows: exit codes of 32 bits.
var platformJobEndCases = []jobEndCase{
	{"-- cmd /c exit 256", 256, "", ""}, {"-- cmd /c exit 70000", 70000, "", ""},
	{"-- cmd /c exit -1", 4294967295, "", ""},
}
