package cli

// publicPathVariable sets an unused variable, because on Windows every user may search the directories in PATH.
const publicPathVariable = "QUEUECTL_TEST="

// killedExitCode is the exit code of a job that was killed. killedText is the text that `queuectl run` prints
// about it.
const killedExitCode, killedText = 1, ""

// platformJobEnds lists ways to end that are possible only on Windows: exit codes of 32 bits.
var platformJobEnds = []jobEnd{
	{"-- cmd /c exit 256", 256, "", ""}, {"-- cmd /c exit 70000", 70000, "", ""},
	{"-- cmd /c exit -1", 4294967295, "", ""},
}
