//go:build unix

package doctor

// createAccountCommands names the commands that create a group or a user.
const createAccountCommands = "groupadd, useradd"

// endHungRunnerAdviceFormat is the format of advice about a runner that hangs. The argument is the runner's pid.
const endHungRunnerAdviceFormat = "if the runner is stopped (ps -o stat= -p %d prints T): kill -CONT " +
	"%[1]d; if the runner hangs: kill " +
	"-KILL %[1]d (its jobs are then treated as lost)"

// findHungRunnerAdvice is the advice about a runner that hangs and whose pid is unknown.
const findHungRunnerAdvice = "find its pid with: ps -ef | grep 'queuectl runner'; then end that " +
	"process (its jobs are then " +
	"treated as lost)"
