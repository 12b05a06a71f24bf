package cli

// publicPath does not change PATH, because every user may search its directories. It sets an unused variable
// instead.
const publicPath = "QUEUECTL_TEST="

// killed is the exit code of a job that was killed, and saysKilled is how run describes it.
const killed, saysKilled = 1, ""

// platformEnds lists the ends of jobs that exist only on this system: exit codes of 32 bits.
var platformEnds = []jobEnd{
	{"-- cmd /c exit 256", 256, "", ""}, {"-- cmd /c exit 70000", 70000, "", ""},
	{"-- cmd /c exit -1", 4294967295, "", ""},
}
