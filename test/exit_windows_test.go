package test

// publicPath changes nothing: every user may search the folders of PATH.
const publicPath = "QUEUECTL_TEST="

// killed is the exit code of a job that was killed, and saysKilled what run says of it.
const killed, saysKilled = 1, ""

// endsHere are the ends of jobs that there are on this system alone: exit codes of 32
// bits.
var endsHere = []jobEnd{
	{"-- cmd /c exit 256", 256, "", ""}, {"-- cmd /c exit 70000", 70000, "", ""}, {"-- cmd /c exit -1", 4294967295, "", ""},
}
