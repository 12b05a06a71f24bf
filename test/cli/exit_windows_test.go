package cli

// publicPath sets an unused variable, because every user may search the directories in PATH.
const publicPath = "QUEUECTL_TEST="

// killedExitCode is the exit code of a job that was killed. killedText is how run describes its end.
const killedExitCode, killedText = 1, ""

// platformEnds lists ends of jobs that are possible only on this system: exit codes of 32 bits.
var platformEnds = []jobEnd{
	{"-- cmd /c exit 256", 256, "", ""}, {"-- cmd /c exit 70000", 70000, "", ""},
	{"-- cmd /c exit -1", 4294967295, "", ""},
}
