package cli

// publicPathEnv sets an unused variable. PATH need not change, because every user
// may search its directories.
const publicPathEnv = "QUEUECTL_TEST="

// killedExitCode is the exit code of a job that was killed, and killedMessageText is a part of what
// `queuectl run` prints about it.
const killedExitCode, killedMessageText = 1, ""

// platformJobEnds lists ways in which jobs can end only on Windows: exit codes of 32 bits.
var platformJobEnds = []jobEndCase{
	{"-- cmd /c exit 256", 256, "", ""}, {"-- cmd /c exit 70000", 70000, "", ""},
	{"-- cmd /c exit -1", 4294967295, "", ""},
}
