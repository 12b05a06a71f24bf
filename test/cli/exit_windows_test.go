package cli

// publicPath sets an unused variable, because on Windows every user may search the directories in PATH.
const publicPath = "QUEUECTL_TEST="

// killedExitCode is the exit code of a job that was killed. killedText is the text that `queuectl run` prints
// about it.
const killedExitCode, killedText = 1, ""

// platformEnds lists ways to end that are possible only on Windows: exit codes of 32 bits.
var platformEnds = []jobEnd{
	{"-- cmd /c exit 256", 256, "", ""}, {"-- cmd /c exit 70000", 70000, "", ""},
	{"-- cmd /c exit -1", 4294967295, "", ""},
}
