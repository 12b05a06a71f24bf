//go:build unix

package doctor

const createAccountCommands = "groupadd, useradd"

const endHungRunnerAdvice = "if the runner is stopped (ps -o stat= -p %d prints T): kill -CONT " +
	"%[1]d; if the runner hangs: kill " +
	"-KILL %[1]d (its jobs are then treated as lost)"

const findHungRunnerAdvice = "find its pid with: ps -ef | grep 'queuectl runner'; then end that " +
	"process (its jobs are then " +
	"treated as lost)"
